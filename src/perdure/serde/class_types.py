"""Classes of users: which adapter takes the state out of an object and restores it.

`adapter_for(cls)` is for pydantic models, dataclasses, enums, namedtuples, and classes derived from
str, int, float, list or dict; the standard library's types are in `builtin_types`. Restoring an
object runs no constructor or validator as long as the class has the fields it had. If it has not, a
new field gets its default, a removed one is dropped, and the class's own constructor or validation
decides; what it refuses is `TypeChanged`.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any

from perdure.errors import Unserializable
from perdure.serde.class_adapter import (
    ClassAdapter,
    TypeChanged,
    attributes_of,
    construct,
    set_attributes,
)
from perdure.serde.pydantic_types import PydanticAdapter, PydanticV1Adapter

INSIDE_FUNCTION = (
    "is defined inside a function and cannot be found again by another process: move it to module "
    "level"
)
_HEAP_TYPE = 1 << 9
_PLAIN: dict[Any, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    list: list,
    dict: dict,
}


class EnumAdapter(ClassAdapter):
    def get_state(self, value: Any) -> Any:
        return value.value

    def restore(self, state: Any) -> Any:
        return self.cls(state)


class NamedTupleAdapter(ClassAdapter):
    named = True

    def get_state(self, value: Any) -> Any:
        return [dict(zip(self.cls._fields, value, strict=True))]

    def restore(self, state: Any) -> Any:
        (fields,) = state
        names = self.cls._fields
        if tuple(fields) == names:
            return tuple.__new__(self.cls, fields.values())
        return construct(self.cls, {n: v for n, v in fields.items() if n in names})


class SubclassAdapter(ClassAdapter):
    """Classes derived from str, int, float, list or dict."""

    def __init__(self, cls: Any, base: Any) -> None:
        self.cls, self.base = cls, base
        self.slots = slots_of(cls)

    def get_state(self, value: Any) -> Any:
        return [_PLAIN[self.base](value), attributes_of(value, self.slots)]

    def restore(self, state: Any) -> Any:
        plain, attributes = state
        if self.base in (list, dict):
            value = self.base.__new__(self.cls)
            self.base.__init__(value, plain)
        else:
            value = self.base.__new__(self.cls, plain)
        return set_attributes(value, attributes or {})


class FieldsAdapter(ClassAdapter):
    """Dataclasses, and the few plain classes with slots that LangGraph stores."""

    named = True

    def __init__(self, cls: Any, names: tuple[str, ...], dataclass: bool) -> None:
        self.cls, self.names, self.dataclass = cls, names, dataclass
        self.known = frozenset(names)

    def get_state(self, value: Any) -> Any:
        fields = {name: getattr(value, name) for name in self.names if hasattr(value, name)}
        attributes = attributes_of(value) if hasattr(value, "__dict__") else None
        more = attributes and {
            name: item for name, item in attributes.items() if name not in fields
        }
        if len(fields) < len(self.names):
            return [fields, more, [name for name in self.names if name not in fields]]
        return [fields, more] if more else [fields]

    def restore(self, state: Any) -> Any:
        fields, attributes, unset = (*state, None, None)[:3]
        if self.known.symmetric_difference(fields) - set(unset or ()):
            if not self.dataclass:
                raise TypeChanged(f"{self.cls.__module__}.{self.cls.__qualname__} has other fields")
            init = [field.name for field in dataclass_fields(self.cls) if field.init]
            value = construct(self.cls, {n: fields[n] for n in init if n in fields})
            fields = {n: fields[n] for n in self.names if n in fields and n not in init}
        else:
            value = object.__new__(self.cls)
        set_attributes(value, fields)
        return set_attributes(value, attributes) if attributes else value


@lru_cache(maxsize=4096)
def adapter_for(cls: Any) -> ClassAdapter:
    """The adapter of a class. Raises `Unserializable` for one whose objects cannot be stored."""
    if not isinstance(cls, type):
        raise Unserializable("", f"{cls!r} is not a class")
    adapter = _adapter(cls)
    if "<locals>" in cls.__qualname__:
        raise Unserializable("", f"{cls!r} {INSIDE_FUNCTION}")
    try:
        found = find(cls.__module__, cls.__qualname__)
    except (ImportError, AttributeError):
        found = None
    if found is not cls:
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise Unserializable("", f"{cls!r} is not what {name} names, and cannot be found again")
    return adapter


def _adapter(cls: Any) -> ClassAdapter:
    if issubclass(cls, enum.Enum):
        return EnumAdapter(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return NamedTupleAdapter(cls)
    if hasattr(cls, "__pydantic_fields_set__"):
        return PydanticAdapter(cls, message=any(b.__name__ == "BaseMessage" for b in cls.__mro__))
    if hasattr(cls, "__fields__") and hasattr(cls, "__fields_set__"):
        return PydanticV1Adapter(cls)
    base = next(b for b in cls.__mro__ if not b.__flags__ & _HEAP_TYPE)
    if base in _PLAIN and not is_dataclass(cls):
        return SubclassAdapter(cls, base)
    if is_dataclass(cls) and base is object:
        return FieldsAdapter(cls, tuple(f.name for f in dataclass_fields(cls)), dataclass=True)
    if cls.__module__.startswith("langgraph.") and (slots := slots_of(cls)):
        return FieldsAdapter(cls, slots, dataclass=False)
    raise Unserializable(
        "",
        f"{cls.__name__} is neither a pydantic model, dataclass, enum nor namedtuple; keep it "
        "outside the state",
    )


def is_storable_kind(cls: type) -> bool:
    """Whether a class is of a kind whose objects can be stored, wherever it is defined."""
    try:
        _adapter(cls)
    except Unserializable:
        return False
    return cls.__flags__ & _HEAP_TYPE != 0


def find(module: str, name: str) -> Any:
    """The class of this name, if it has the same name itself. Imports its module.

    A parametrized pydantic model, `Page[int]`, is found below `Page` if the program made it.
    """
    found: Any = importlib.import_module(module)
    plain = name.partition("[")[0]
    for part in plain.split("."):
        found = getattr(found, part)
    if plain != name:
        made = [cls for cls in found.__subclasses__() if cls.__qualname__ == name]
        if len(made) != 1:
            raise AttributeError(f"{plain} has {len(made)} parametrizations called {name}")
        return made[0]
    if (found.__module__, found.__qualname__) != (module, name):
        raise AttributeError(f"{module} only borrows {found.__module__}.{found.__qualname__}")
    return found


def slots_of(cls: Any) -> tuple[str, ...]:
    """The names of all slots of a class and its bases, outermost base first."""
    names: list[str] = []
    for base in reversed(cls.__mro__):
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in names if not name.startswith("__"))
