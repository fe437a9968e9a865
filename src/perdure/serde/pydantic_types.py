"""Pydantic models, of version 2 and of `pydantic.v1`."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable
from functools import partial
from typing import Any

from perdure.errors import Unserializable
from perdure.serde.class_adapter import (
    ClassAdapter,
    attributes_of,
    construct,
    set_attributes,
    set_raw,
    type_changed,
)

_IMMUTABLE = (str, int, float, bool, bytes, type(None), enum.Enum)
_MISSING = object()


class PydanticAdapter(ClassAdapter):
    """Pydantic models, restored field by field as pydantic's own `__setstate__` does.

    The state is [fields that were set, other fields, extra, private, other names that were set,
    attributes], cut off behind the last that is not empty. Messages leave out the fields that were
    not set and still have their default.
    """

    named = True

    def __init__(self, cls: Any, message: bool) -> None:
        self.cls = cls
        self.fresh: dict[str, Callable[[], Any]] = {}
        self.defaults: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            if field.default_factory in (dict, list):
                self.fresh[name] = field.default_factory
                self.defaults[name] = field.default_factory()
            elif field.default_factory is None and not field.is_required():
                self.defaults[name] = field.default
                if not isinstance(field.default, _IMMUTABLE):
                    self.fresh[name] = partial(copy.deepcopy, field.default)
        self.message = message
        # In the class's order. What is not to be left out must be in the state.
        left_out = self.defaults.keys() - self.fresh.keys() if message else ()
        self.blank = {n: self.defaults[n] if n in left_out else _MISSING for n in cls.model_fields}
        self.required = [
            n for n in self.blank if self.blank[n] is _MISSING and not (message and n in self.fresh)
        ]
        self.privates = cls.__private_attributes__
        self.extras = cls.model_config.get("extra") == "allow"

    def get_state(self, value: Any) -> Any:
        given = value.__pydantic_fields_set__
        fields = value.__dict__
        attributes = None
        if len(fields) != len(self.blank):
            fields, attributes = self._sort_out(value, fields)
        chosen = {name: fields[name] for name in fields if name in given}
        if self.message:
            defaults = self.defaults
            rest = {
                name: item
                for name, item in fields.items()
                if name not in given and (name not in defaults or item != defaults[name])
            }
        else:
            rest = {name: item for name, item in fields.items() if name not in given}
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        more = None if len(given) == len(chosen) else sorted(given - chosen.keys())
        if extra or private or more or attributes:
            state = [chosen, rest, extra, _defined(private) if private else None, more, attributes]
            while len(state) > 1 and not state[-1]:
                state.pop()
            return state
        return [chosen, rest] if rest else [chosen]

    def _sort_out(self, value: Any, fields: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        if missing := self.blank.keys() - fields.keys():
            raise Unserializable("", f"it lacks its own field {sorted(missing)[0]!r}")
        attributes = {n: item for n, item in attributes_of(value).items() if n not in self.blank}
        return {name: fields[name] for name in fields if name in self.blank}, attributes

    def restore(self, state: Any) -> Any:
        chosen, rest = state[0], state[1] if len(state) > 1 else {}
        extra, private, more, attributes = (*state[2:], None, None, None, None)[:4]
        fields = {**self.blank, **chosen, **rest}
        if self.message:
            for name, make in self.fresh.items():
                if fields[name] is _MISSING:
                    fields[name] = make()
        missing = [name for name in self.required if fields[name] is _MISSING]
        if missing or len(fields) != len(self.blank):
            value = self._validated({**chosen, **rest, **(extra or {})}, rest)
        else:
            value = self.cls.__new__(self.cls)
            if extra is None and self.extras:
                extra = {}
            set_raw(value, "__dict__", fields)
            set_raw(value, "__pydantic_fields_set__", {*chosen, *more} if more else {*chosen})
            set_raw(value, "__pydantic_extra__", extra)
            set_raw(value, "__pydantic_private__", None)
        if self.privates:
            private = private or {}
            current = {
                name: private[name] if name in private else attribute.get_default()
                for name, attribute in self.privates.items()
            }
            set_raw(value, "__pydantic_private__", _defined(current))
        if attributes:
            value.__dict__.update(attributes)
        return value

    def _validated(self, fields: dict[str, Any], rest: dict[str, Any]) -> Any:
        try:
            value = self.cls.model_validate(fields, by_alias=True, by_name=True)
        except Exception as error:
            raise type_changed(self.cls, error) from error
        set_raw(value, "__pydantic_fields_set__", value.__pydantic_fields_set__ - rest.keys())
        return value


class PydanticV1Adapter(ClassAdapter):
    """Models of `pydantic.v1`, restored as its `__setstate__` does."""

    named = True

    def __init__(self, cls: Any) -> None:
        self.cls, self.fields = cls, cls.__fields__

    def get_state(self, value: Any) -> Any:
        state = value.__getstate__()
        fields = {name: item for name, item in state["__dict__"].items() if name in self.fields}
        extra = {name: item for name, item in state["__dict__"].items() if name not in fields}
        return [fields, extra, state["__private_attribute_values__"], sorted(value.__fields_set__)]

    def restore(self, state: Any) -> Any:
        fields, extra, private, given = state
        if fields.keys() != self.fields.keys():
            known = {n: v for n, v in fields.items() if n in self.fields}
            return construct(self.cls, {self.fields[n].alias: v for n, v in known.items()} | extra)
        value = self.cls.__new__(self.cls)
        set_raw(value, "__dict__", {**fields, **extra})
        set_raw(value, "__fields_set__", set(given))
        return set_attributes(value, private)


def _defined(private: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in private.items() if type(v).__name__ != "PydanticUndefinedType"}
