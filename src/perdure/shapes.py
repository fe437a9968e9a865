"""How a value of each kind gives up its state, and is made again from it.

Two tables: `BUILTINS` for fixed kinds of the standard library and numpy, and `plan(cls)` for
classes that are pydantic models, dataclasses, enums or namedtuples. Making a value runs no
constructor or validator as long as the class has the fields it had.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import re
import sys
import uuid
import zoneinfo
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any

from perdure.errors import Unserializable

# kind on disk -> (type, to payload, from payload). A kind's letter never changes its meaning.
BUILTINS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "t": (tuple, list, tuple),
    "s": (set, list, set),
    "f": (frozenset, list, frozenset),
    "q": (deque, lambda v: [list(v), v.maxlen], lambda p: deque(p[0], p[1])),
    "d": (dt.datetime, lambda v: [v.isoformat(), v.tzinfo, v.fold], lambda p: _datetime(*p)),
    "D": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "T": (dt.time, lambda v: [v.isoformat(), v.tzinfo, v.fold], lambda p: _time(*p)),
    "l": (dt.timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda p: dt.timedelta(*p)),
    "z": (dt.timezone, lambda v: [v.utcoffset(None), v.tzname(None)], lambda p: _timezone(*p)),
    "Z": (zoneinfo.ZoneInfo, lambda v: v.key, zoneinfo.ZoneInfo),
    "u": (uuid.UUID, lambda v: v.bytes, lambda p: uuid.UUID(bytes=p)),
    "n": (decimal.Decimal, str, decimal.Decimal),
    "c": (complex, lambda v: [v.real, v.imag], lambda p: complex(*p)),
    "r": (re.Pattern, lambda v: [v.pattern, v.flags], lambda p: re.compile(*p)),
    "4": (ipaddress.IPv4Address, str, ipaddress.IPv4Address),
    "5": (ipaddress.IPv4Interface, str, ipaddress.IPv4Interface),
    "N": (ipaddress.IPv4Network, str, ipaddress.IPv4Network),
    "6": (ipaddress.IPv6Address, str, ipaddress.IPv6Address),
    "7": (ipaddress.IPv6Interface, str, ipaddress.IPv6Interface),
    "M": (ipaddress.IPv6Network, str, ipaddress.IPv6Network),
    "p": (pathlib.PurePosixPath, str, pathlib.PurePosixPath),
    "w": (pathlib.PureWindowsPath, str, pathlib.PureWindowsPath),
    "P": (pathlib.Path, str, pathlib.Path),
    "a": (object, lambda v: _array(v), lambda p: _from_array(*p)),  # numpy, see kind_of
}
KIND_OF = {cls: kind for kind, (cls, _, _) in BUILTINS.items() if cls is not object}


class Plan:
    """How one class gives up its state and is made again from it."""

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
        return self.cls(hashable(state))


class NamedTuplePlan(Plan):
    def __init__(self, cls: Any) -> None:
        self.cls = cls

    def take(self, value: Any) -> Any:
        return value._asdict()

    def make(self, state: Any) -> Any:
        return self.cls(**state)


class SlotsPlan(Plan):
    """Dataclasses, and the few plain classes with slots that LangGraph stores."""

    def __init__(self, cls: Any, names: tuple[str, ...], dataclass: bool) -> None:
        self.cls, self.names, self.dataclass = cls, names, dataclass

    def take(self, value: Any) -> Any:
        return {name: getattr(value, name) for name in self.names if hasattr(value, name)}

    def make(self, state: Any) -> Any:
        if self.dataclass and state.keys() != set(self.names):
            # The class changed since: its own constructor decides whether that is possible.
            return self.cls(**state)
        value = object.__new__(self.cls)
        for name, item in state.items():
            object.__setattr__(value, name, item)
        return value


class ModelPlan(Plan):
    """Pydantic models, restored field by field as pydantic's own `__setstate__` does.

    Messages leave out the fields that nobody set and that still have their default.
    """

    def __init__(self, cls: Any, message: bool) -> None:
        self.cls, self.message = cls, message
        self.names = frozenset(cls.model_fields)
        self.fixed: dict[str, Any] = {}
        self.fresh: dict[str, Callable[[], Any]] = {}
        for name, field in cls.model_fields.items():
            if field.default_factory is not None:
                self.fresh[name] = field.default_factory
            elif not field.is_required():
                self.fixed[name] = field.default
        self.defaults = {**self.fixed, **{n: make() for n, make in self._simple_fresh()}}
        self.message = message and self.defaults.keys() >= set(self.fresh)

    def _simple_fresh(self) -> Iterable[tuple[str, Callable[[], Any]]]:
        return [(n, make) for n, make in self.fresh.items() if make in (dict, list)]

    def take(self, value: Any) -> Any:
        given = value.__pydantic_fields_set__
        held = value.__dict__
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
        state: list[Any] = [chosen]
        if rest or extra or private:
            state.append(rest)
        if extra or private:
            state += [extra, _defined(private)]
        return state

    def make(self, state: Any) -> Any:
        parts: list[Any] = [*state, {}, None, None][: max(4, len(state))]
        chosen, rest, extra, private = (*state, *parts[len(state) :])[:4]
        held: dict[str, Any] = {**chosen, **rest}
        if self.message:
            for name, item in self.fixed.items():
                held.setdefault(name, item)
            for name, make in self.fresh.items():
                if name not in held:
                    held[name] = make()
        if held.keys() != self.names:
            # The class changed since: validation decides whether that is possible.
            return self.cls.model_validate({**held, **(extra or {})}, by_alias=False, by_name=True)
        value = self.cls.__new__(self.cls)
        if extra is None and self.cls.model_config.get("extra") == "allow":
            extra = {}
        if self.cls.__private_attributes__:
            private = {
                **{
                    name: attribute.get_default()
                    for name, attribute in self.cls.__private_attributes__.items()
                    if not _undefined(attribute.get_default())
                },
                **(private or {}),
            }
        object.__setattr__(value, "__dict__", held)
        object.__setattr__(value, "__pydantic_fields_set__", set(chosen))
        object.__setattr__(value, "__pydantic_extra__", extra)
        object.__setattr__(value, "__pydantic_private__", private)
        return value


class ModelV1Plan(Plan):
    def __init__(self, cls: Any) -> None:
        self.cls = cls

    def take(self, value: Any) -> Any:
        return dict(value.__dict__)

    def make(self, state: Any) -> Any:
        return self.cls(**state)


@lru_cache(maxsize=4096)
def plan(cls: Any) -> Plan:
    if not isinstance(cls, type) or "<locals>" in cls.__qualname__:
        raise Unserializable("", f"{cls!r} is defined inside a function and cannot be found again")
    if issubclass(cls, enum.Enum):
        return EnumPlan(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_asdict"):
        return NamedTuplePlan(cls)
    if hasattr(cls, "__pydantic_fields_set__"):
        return ModelPlan(cls, message=any(b.__name__ == "BaseMessage" for b in cls.__mro__))
    if hasattr(cls, "__fields__") and hasattr(cls, "__fields_set__"):
        return ModelV1Plan(cls)
    if is_dataclass(cls):
        return SlotsPlan(cls, tuple(f.name for f in dataclass_fields(cls)), dataclass=True)
    slots = tuple(name for name in getattr(cls, "__slots__", ()) if not name.startswith("__"))
    if slots and cls.__module__.startswith("langgraph."):
        return SlotsPlan(cls, slots, dataclass=False)
    raise Unserializable(
        "", f"{cls.__name__} is neither a pydantic model, dataclass, enum nor namedtuple"
    )


def kind_of(value: Any) -> str | None:
    """The built-in kind of a value whose exact type has none of its own."""
    if isinstance(value, pathlib.PurePath):
        return "P" if isinstance(value, pathlib.Path) else None
    if isinstance(value, type):
        raise Unserializable("", f"{value!r} is a class, not a value")
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return "a"
    return None


def hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _defined(private: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if not private else {k: v for k, v in private.items() if not _undefined(v)}


def _undefined(value: Any) -> bool:
    return type(value).__name__ == "PydanticUndefinedType"


def _datetime(text: str, zone: dt.tzinfo | None, fold: int) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _time(text: str, zone: dt.tzinfo | None, fold: int) -> dt.time:
    return dt.time.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _timezone(offset: dt.timedelta, name: str) -> dt.timezone:
    plain = dt.timezone(offset)
    return plain if plain.tzname(None) == name else dt.timezone(offset, name)


def _array(value: Any) -> list[Any]:
    if value.dtype.hasobject:
        raise Unserializable("", "a numpy array of Python objects")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    scalar = not hasattr(value, "__array_finalize__") or value.ndim == 0
    return [value.dtype.str, list(value.shape), order, value.tobytes(order=order), scalar]


def _from_array(dtype: str, shape: list[int], order: str, data: bytes, scalar: bool) -> Any:
    import numpy

    array = numpy.frombuffer(bytearray(data), dtype=numpy.dtype(dtype))
    array = array.reshape(shape, order="F" if order == "F" else "C")
    return array[()] if scalar else array
