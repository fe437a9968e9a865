"""What every class adapter shares: attributes, construction, and the error for a changed class."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

set_raw = object.__setattr__


class TypeChanged(ValueError):
    """A class is no longer what it was when the value was stored."""


class ClassAdapter:
    """Takes the state out of objects of one class, and restores them from it."""

    named = False
    """Whether the state is a list of dicts by field name, so that a part has the path `.name`."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls

    def get_state(self, value: Any) -> Any:
        raise NotImplementedError

    def restore(self, state: Any) -> Any:
        raise NotImplementedError


def attributes_of(value: Any, slots: Iterable[str] = ()) -> dict[str, Any]:
    """The attributes of an object, without cached properties, which it can compute again."""
    fields = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return fields | {
        name: item
        for name, item in getattr(value, "__dict__", {}).items()
        if not name.startswith("__")
        and not any(isinstance(b.__dict__.get(name), cached_property) for b in type(value).__mro__)
    }


def set_attributes(value: Any, fields: dict[str, Any]) -> Any:
    for name, item in fields.items():
        set_raw(value, name, item)
    return value


def construct(cls: Any, arguments: dict[str, Any]) -> Any:
    try:
        return cls(**arguments)
    except Exception as error:
        raise type_changed(cls, error) from error


def type_changed(cls: Any, error: Any) -> TypeChanged:
    reason = str(error)
    if hasattr(error, "errors"):  # pydantic's, which would also quote the values
        reason = ", ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
        )
    return TypeChanged(
        f"{cls.__module__}.{cls.__qualname__} has other fields than when this was stored, and "
        f"cannot be made from the old ones ({reason}); give new fields a default"
    )
