"""How an object of each class gives up its state, and is made again from it.

`plan(cls)` is for classes that are pydantic models, dataclasses, enums, namedtuples, or derive
from str, int, float, list or dict; fixed kinds of values are in `kinds`. Making an object runs
no constructor or validator as long as the class has the fields it had. If it has not, a new
field gets its default, a removed one is dropped, and the class's own constructor or validation
decides; what it refuses is `TypeChanged`.
"""

from __future__ import annotations

import copy
import enum
import importlib
from collections.abc import Callable, Iterable
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

from perdure.errors import Unserializable

_IMMUTABLE = (str, int, float, bool, bytes, type(None), enum.Enum)


class TypeChanged(ValueError):
    """A class is no longer what it was when the value was stored."""


class Plan:
    """How one class gives up its state and is made again from it."""

    named = False
    """Whether the state is a list of dicts by name, so that a part has the path `.name`."""

    def take(self, value: Any) -> Any:
        raise NotImplementedError

    def make(self, state: Any) -> Any:
        raise NotImplementedError


class EnumPlan(Plan):
    def __init__(self, cls: Any) -> None:
        self.cls = cls

    def take(self, value: Any) -> Any:
        return value.value

    def make(self, state: Any) -> Any:
        return self.cls(state)


class NamedTuplePlan(Plan):
    named = True

    def __init__(self, cls: Any) -> None:
        self.cls, self.names = cls, cls._fields

    def take(self, value: Any) -> Any:
        return [dict(zip(self.names, value, strict=True))]

    def make(self, state: Any) -> Any:
        (held,) = state
        if tuple(held) == self.names:
            return tuple.__new__(self.cls, held.values())
        return _changed(self.cls, {n: v for n, v in held.items() if n in self.names})


class BasePlan(Plan):
    """Classes derived from str, int, float, list or dict."""

    def __init__(self, cls: Any, base: Any) -> None:
        self.cls, self.base = cls, base
        self.slots = _slots(cls)

    def take(self, value: Any) -> Any:
        base = self.base
        plain = base(value) if base in (list, dict) else _PLAIN[base](value)
        return [plain, _beside(value, self.slots)]

    def make(self, state: Any) -> Any:
        plain, beside = state
        if self.base in (list, dict):
            value = self.base.__new__(self.cls)
            self.base.__init__(value, plain)
        else:
            value = self.base.__new__(self.cls, plain)
        return _set(value, beside or {})


_PLAIN: dict[Any, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


class SlotsPlan(Plan):
    """Dataclasses, and the few plain classes with slots that LangGraph stores."""

    named = True

    def __init__(self, cls: Any, names: tuple[str, ...], dataclass: bool) -> None:
        self.cls, self.names, self.dataclass = cls, names, dataclass
        self.known = frozenset(names)

    def take(self, value: Any) -> Any:
        held = {name: getattr(value, name) for name in self.names if hasattr(value, name)}
        beside = _beside(value) if hasattr(value, "__dict__") else None
        more = beside and {name: item for name, item in beside.items() if name not in held}
        if len(held) < len(self.names):
            return [held, more, [name for name in self.names if name not in held]]
        return [held, more] if more else [held]

    def make(self, state: Any) -> Any:
        held, beside, unset = (*state, None, None)[:3]
        if self.known.symmetric_difference(held) - set(unset or ()):
            if not self.dataclass:
                raise TypeChanged(f"{self.cls.__module__}.{self.cls.__qualname__} has other fields")
            init = [field.name for field in dataclass_fields(self.cls) if field.init]
            value = _changed(self.cls, {n: held[n] for n in init if n in held})
            held = {n: held[n] for n in self.names if n in held and n not in init}
        else:
            value = object.__new__(self.cls)
        _set(value, held)
        return _set(value, beside) if beside else value


class ModelPlan(Plan):
    """Pydantic models, restored field by field as pydantic's own `__setstate__` does.

    The state is [fields that were set, other fields, extra, private, what else was set, beside],
    cut off behind the last that is not empty. Messages leave out the fields that nobody set
    and that still have their default.
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
        self.names = frozenset(cls.model_fields)
        self.message = message
        # In the class's order. What is not to be left out must be in the state.
        left_out = self.defaults.keys() - self.fresh.keys() if message else ()
        self.blank = {n: self.defaults[n] if n in left_out else _GONE for n in cls.model_fields}
        self.required = [
            n for n in self.blank if self.blank[n] is _GONE and not (message and n in self.fresh)
        ]
        self.privates = cls.__private_attributes__
        self.extras = cls.model_config.get("extra") == "allow"

    def take(self, value: Any) -> Any:
        given = value.__pydantic_fields_set__
        held = value.__dict__
        beside = None
        if len(held) != len(self.blank):
            held, beside = self._sort_out(value, held)
        chosen = {name: held[name] for name in held if name in given}
        if self.message:
            defaults = self.defaults
            rest = {
                name: item
                for name, item in held.items()
                if name not in given and (name not in defaults or item != defaults[name])
            }
        else:
            rest = {name: item for name, item in held.items() if name not in given}
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        more = None if len(given) == len(chosen) else sorted(given - chosen.keys())
        if extra or private or more or beside:
            state = [chosen, rest, extra, _defined(private), more, beside]
            while len(state) > 1 and not state[-1]:
                state.pop()
            return state
        return [chosen, rest] if rest else [chosen]

    def _sort_out(self, value: Any, held: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        if missing := self.names - held.keys():
            raise Unserializable("", f"it lacks its own field {sorted(missing)[0]!r}")
        beside = {name: item for name, item in _beside(value).items() if name not in self.names}
        return {name: held[name] for name in held if name in self.names}, beside

    def make(self, state: Any) -> Any:
        chosen, rest = state[0], state[1] if len(state) > 1 else {}
        extra, private, more, beside = (*state[2:], None, None, None, None)[:4]
        held = {**self.blank, **chosen, **rest}
        if self.message:
            for name, make in self.fresh.items():
                if held[name] is _GONE:
                    held[name] = make()
        gone = [name for name in self.required if held[name] is _GONE]
        if gone or len(held) != len(self.blank):
            value = self._validated({**chosen, **rest, **(extra or {})}, rest)
        else:
            value = self.cls.__new__(self.cls)
            if extra is None and self.extras:
                extra = {}
            _setattr(value, "__dict__", held)
            _setattr(value, "__pydantic_fields_set__", {*chosen, *more} if more else {*chosen})
            _setattr(value, "__pydantic_extra__", extra)
            _setattr(value, "__pydantic_private__", None)
        if self.privates:
            _setattr(value, "__pydantic_private__", self._private(private or {}))
        if beside:
            value.__dict__.update(beside)
        return value

    def _validated(self, held: dict[str, Any], rest: dict[str, Any]) -> Any:
        try:
            value = self.cls.model_validate(held, by_alias=True, by_name=True)
        except Exception as error:
            raise _type_changed(self.cls, error) from error
        _setattr(value, "__pydantic_fields_set__", value.__pydantic_fields_set__ - rest.keys())
        return value

    def _private(self, stored: dict[str, Any]) -> dict[str, Any]:
        held = {name: item for name, item in stored.items() if name in self.privates}
        for name in self.privates.keys() - stored.keys():
            default = self.privates[name].get_default()
            if not _undefined(default):
                held[name] = default
        return held


class ModelV1Plan(Plan):
    """Models of `pydantic.v1`, restored as its `__setstate__` does."""

    named = True

    def __init__(self, cls: Any) -> None:
        self.cls, self.fields = cls, cls.__fields__

    def take(self, value: Any) -> Any:
        state = value.__getstate__()
        held = {name: item for name, item in state["__dict__"].items() if name in self.fields}
        extra = {name: item for name, item in state["__dict__"].items() if name not in held}
        return [held, extra, state["__private_attribute_values__"], sorted(value.__fields_set__)]

    def make(self, state: Any) -> Any:
        held, extra, private, given = state
        if held.keys() != self.fields.keys():
            known = {n: v for n, v in held.items() if n in self.fields}
            return _changed(self.cls, {self.fields[n].alias: v for n, v in known.items()} | extra)
        value = self.cls.__new__(self.cls)
        _setattr(value, "__dict__", {**held, **extra})
        _setattr(value, "__fields_set__", set(given))
        return _set(value, private)


@lru_cache(maxsize=4096)
def plan(cls: Any) -> Plan:
    """How objects of `cls` are taken apart and made. Raises `Unserializable` if they cannot be."""
    if not isinstance(cls, type):
        raise Unserializable("", f"{cls!r} is not a class")
    shape = _shape(cls)
    if "<locals>" in cls.__qualname__:
        raise Unserializable("", f"{cls!r} is defined inside a function and cannot be found again")
    try:
        found = find(cls.__module__, cls.__qualname__)
    except (ImportError, AttributeError):
        found = None
    if found is not cls:
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise Unserializable("", f"{cls!r} is not what {name} names, and cannot be found again")
    return shape


def _shape(cls: Any) -> Plan:
    if issubclass(cls, enum.Enum):
        return EnumPlan(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return NamedTuplePlan(cls)
    if hasattr(cls, "__pydantic_fields_set__"):
        return ModelPlan(cls, message=any(b.__name__ == "BaseMessage" for b in cls.__mro__))
    if hasattr(cls, "__fields__") and hasattr(cls, "__fields_set__"):
        return ModelV1Plan(cls)
    base = next(b for b in cls.__mro__ if not b.__flags__ & _HEAP_TYPE)
    if base in (str, int, float, list, dict) and not is_dataclass(cls):
        return BasePlan(cls, base)
    if is_dataclass(cls) and base is object:
        return SlotsPlan(cls, tuple(f.name for f in dataclass_fields(cls)), dataclass=True)
    if cls.__module__.startswith("langgraph.") and (slots := _slots(cls)):
        return SlotsPlan(cls, slots, dataclass=False)
    raise Unserializable(
        "",
        f"{cls.__name__} is neither a pydantic model, dataclass, enum nor namedtuple; keep it "
        "outside the state",
    )


def find(module: str, name: str) -> Any:
    """The class that is called so, and calls itself so. Imports its module.

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


_HEAP_TYPE = 1 << 9
_GONE = object()
_setattr = object.__setattr__


def _slots(cls: Any) -> tuple[str, ...]:
    """The names of all slots of a class and its bases, outermost base first."""
    names: list[str] = []
    for base in reversed(cls.__mro__):
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in names if not name.startswith("__"))


def _beside(value: Any, slots: Iterable[str] = ()) -> dict[str, Any]:
    """What was set on an object, without what it only computed and can compute again."""
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return held | {
        name: item
        for name, item in getattr(value, "__dict__", {}).items()
        if not name.startswith("__") and not _is_cached(type(value), name)
    }


def _is_cached(cls: Any, name: str) -> bool:
    return any(isinstance(base.__dict__.get(name), cached_property) for base in cls.__mro__)


def _set(value: Any, held: dict[str, Any]) -> Any:
    for name, item in held.items():
        _setattr(value, name, item)
    return value


def _changed(cls: Any, arguments: dict[str, Any]) -> Any:
    try:
        return cls(**arguments)
    except Exception as error:
        raise _type_changed(cls, error) from error


def _type_changed(cls: Any, error: Any) -> TypeChanged:
    told = str(error)
    if hasattr(error, "errors"):  # pydantic's, which would also quote the values
        told = ", ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
        )
    return TypeChanged(
        f"{cls.__module__}.{cls.__qualname__} has other fields than when this was stored, and "
        f"cannot be made from the old ones ({told}); give new fields a default"
    )


def _defined(private: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if not private else {k: v for k, v in private.items() if not _undefined(v)}


def _undefined(value: Any) -> bool:
    return type(value).__name__ == "PydanticUndefinedType"
