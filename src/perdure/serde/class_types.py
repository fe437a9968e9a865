"""Classes of users: which adapter takes the state out of an object and restores it.

`adapter_for(cls)` is for pydantic models, dataclasses, enums, namedtuples, and classes derived from
str, int, float, list or dict; the standard library's types are in `builtin_types`. Restoring an
object runs no constructor or validator as long as the class has the fields it had. If it has not, a
new field gets its default, a removed one is dropped, and the class's own constructor or validation
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
from operator import attrgetter
from typing import Any, NamedTuple

from perdure.errors import Unserializable

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
_IMMUTABLE = (str, int, float, bool, bytes, type(None), enum.Enum)
_MISSING = object()

set_raw = object.__setattr__


class TypeChanged(ValueError):
    """A class is no longer what it was when the value was stored."""


class ClassAdapter(NamedTuple):
    """Takes the state out of objects of one class, and restores them from it."""

    get_state: Callable[[Any], Any]
    restore: Callable[[Any], Any]
    named: bool = False
    """Whether the state is a list of dicts by field name, so that a part has the path `.name`."""
    is_enum: bool = False


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


def _named_tuple(cls: Any) -> ClassAdapter:
    names = cls._fields

    def restore(state: Any) -> Any:
        (fields,) = state
        if tuple(fields) == names:
            return tuple.__new__(cls, fields.values())
        return construct(cls, {n: v for n, v in fields.items() if n in names})

    return ClassAdapter(lambda value: [dict(zip(names, value, strict=True))], restore, named=True)


def _subclass(cls: Any, base: Any) -> ClassAdapter:
    """Classes derived from str, int, float, list or dict."""
    plain_of, slots = _PLAIN[base], slots_of(cls)

    def restore(state: Any) -> Any:
        plain, attributes = state
        if base in (list, dict):
            value = base.__new__(cls)
            base.__init__(value, plain)
        else:
            value = base.__new__(cls, plain)
        return set_attributes(value, attributes or {})

    return ClassAdapter(lambda value: [plain_of(value), attributes_of(value, slots)], restore)


def _fields(cls: Any, names: tuple[str, ...], dataclass: bool) -> ClassAdapter:
    """Dataclasses, and the few plain classes with slots that LangGraph stores."""
    known = frozenset(names)

    def get_state(value: Any) -> Any:
        fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
        attributes = attributes_of(value) if hasattr(value, "__dict__") else None
        more = attributes and {
            name: item for name, item in attributes.items() if name not in fields
        }
        if len(fields) < len(names):
            return [fields, more, [name for name in names if name not in fields]]
        return [fields, more] if more else [fields]

    def restore(state: Any) -> Any:
        fields, attributes, unset = (*state, None, None)[:3]
        if known.symmetric_difference(fields) - set(unset or ()):
            if not dataclass:
                raise TypeChanged(f"{cls.__module__}.{cls.__qualname__} has other fields")
            init = [field.name for field in dataclass_fields(cls) if field.init]
            value = construct(cls, {n: fields[n] for n in init if n in fields})
            fields = {n: fields[n] for n in names if n in fields and n not in init}
        else:
            value = object.__new__(cls)
        set_attributes(value, fields)
        return set_attributes(value, attributes) if attributes else value

    return ClassAdapter(get_state, restore, named=True)


class _Pydantic:
    """Pydantic models, restored field by field as pydantic's own `__setstate__` does.

    The state is [fields that were set, other fields, extra, private, other names that were set,
    attributes], cut off behind the last that is not empty. Messages leave out the fields that were
    not set and still have their default.
    """

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
        fields_set = value.__pydantic_fields_set__
        fields = value.__dict__
        attributes = None
        if len(fields) != len(self.blank):
            fields, attributes = self._sort_out(value, fields)
        chosen = {name: fields[name] for name in fields if name in fields_set}
        if self.message:
            defaults = self.defaults
            rest = {
                name: item
                for name, item in fields.items()
                if name not in fields_set and (name not in defaults or item != defaults[name])
            }
        else:
            rest = {name: item for name, item in fields.items() if name not in fields_set}
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        more = None if len(fields_set) == len(chosen) else sorted(fields_set - chosen.keys())
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


def _defined(private: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in private.items() if type(v).__name__ != "PydanticUndefinedType"}


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
        return ClassAdapter(attrgetter("value"), cls, is_enum=True)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple(cls)
    if hasattr(cls, "__pydantic_fields_set__"):
        model = _Pydantic(cls, message=any(b.__name__ == "BaseMessage" for b in cls.__mro__))
        return ClassAdapter(model.get_state, model.restore, named=True)
    base = next(b for b in cls.__mro__ if not b.__flags__ & _HEAP_TYPE)
    if base in _PLAIN and not is_dataclass(cls):
        return _subclass(cls, base)
    if is_dataclass(cls) and base is object:
        return _fields(cls, tuple(f.name for f in dataclass_fields(cls)), dataclass=True)
    if cls.__module__.startswith("langgraph.") and (slots := slots_of(cls)):
        return _fields(cls, slots, dataclass=False)
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
        matches = [cls for cls in found.__subclasses__() if cls.__qualname__ == name]
        if len(matches) != 1:
            raise AttributeError(f"{plain} has {len(matches)} parametrizations called {name}")
        return matches[0]
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
