"""The standard library's types and numpy's, each with a letter of its own on disk."""

from __future__ import annotations

import datetime as dt
import decimal
import ipaddress
import pathlib
import re
import sys
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from perdure.errors import Unserializable

# letter -> (type, to payload, from payload). A letter never changes its meaning.
BUILTINS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "t": (tuple, list, tuple),
    "s": (set, lambda v: _in_order(v), set),
    "f": (frozenset, lambda v: _in_order(v), frozenset),
    "q": (deque, lambda v: [list(v), v.maxlen], lambda p: deque(p[0], p[1])),
    "O": (OrderedDict, dict, OrderedDict),
    "C": (Counter, dict, Counter),
    "e": (defaultdict, lambda v: [_factory(v), dict(v)], lambda p: _defaultdict(*p)),
    "d": (dt.datetime, lambda v: _iso(v), lambda p: _from_iso(dt.datetime, *p)),
    "D": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "T": (dt.time, lambda v: _iso(v), lambda p: _from_iso(dt.time, *p)),
    "l": (dt.timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda p: dt.timedelta(*p)),
    "z": (dt.timezone, lambda v: [v.utcoffset(None), v.tzname(None)], lambda p: _timezone(*p)),
    "Z": (zoneinfo.ZoneInfo, lambda v: _zone_key(v), zoneinfo.ZoneInfo),
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
    "P": (type(pathlib.Path()), str, pathlib.Path),
    "a": (object, lambda v: _array(v), lambda p: _from_array(*p)),  # numpy, see letter_of
}
LETTERS = {cls: letter for letter, (cls, _, _) in BUILTINS.items() if cls is not object}
_FACTORIES = {f.__name__: f for f in (bool, dict, float, int, list, set, str, tuple)}


def letter_of(value: Any) -> str | None:
    """The letter of a value's type; None: it is not a built-in type."""
    letter = LETTERS.get(type(value))
    if letter is not None:
        return letter
    if isinstance(value, type):
        raise Unserializable("", f"{value!r} is a class, not a value")
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    return "a" if type(value) in (numpy.ndarray, value.dtype.type) else None


def _iso(value: Any) -> list[Any]:
    return [value.isoformat(), value.tzinfo, value.fold]


def _from_iso(cls: Any, text: str, zone: dt.tzinfo | None, fold: int) -> Any:
    return cls.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _in_order(members: Iterable[Any]) -> list[Any]:
    """The members of a set in an order that is the same in every process: so is what is made of
    the bytes, such as a hash."""
    try:
        return sorted(members, key=repr)
    except Exception:  # one of them cannot say what it is
        return list(members)


def _timezone(offset: dt.timedelta, name: str) -> dt.timezone:
    plain = dt.timezone(offset)
    return plain if plain.tzname(None) == name else dt.timezone(offset, name)


def _zone_key(zone: Any) -> str:
    if zone.key is None:
        raise Unserializable("", "a ZoneInfo without a key cannot be found again")
    return str(zone.key)


def _factory(value: defaultdict[Any, Any]) -> str | None:
    factory: Any = value.default_factory
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise Unserializable("", f"a defaultdict can be stored with list, int, …, not {factory!r}")
    return str(name)


def _defaultdict(factory: str | None, items: dict[Any, Any]) -> defaultdict[Any, Any]:
    return defaultdict(None if factory is None else _FACTORIES[factory], items)


def _array(value: Any) -> list[Any]:
    from numpy.lib.format import descr_to_dtype, dtype_to_descr

    dtype = value.dtype
    if dtype.hasobject:
        raise Unserializable("", "a numpy array of Python objects")
    descr = dtype.str if dtype.names is None else dtype_to_descr(dtype)
    if descr_to_dtype(descr) != dtype:
        raise Unserializable("", f"numpy's {dtype!r} cannot be stored")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    scalar = not isinstance(value, sys.modules["numpy"].ndarray)
    return [descr, list(value.shape), order, value.tobytes(order=order), scalar]


def _from_array(descr: Any, shape: list[int], order: Any, data: bytes, scalar: bool) -> Any:
    import numpy
    from numpy.lib.format import descr_to_dtype

    dtype = descr_to_dtype(descr)
    array = numpy.ndarray(shape, dtype, buffer=bytearray(data) or None, order=order)
    if dtype.hasobject or array.nbytes != len(data):
        raise ValueError("an array of another size or of objects")
    return array[()] if scalar else array
