"""Values to bytes and back, strictly.

What is guaranteed: a value that was encoded decodes to an equal value of the same types, or
`encode` refuses it by name and path. Decoding never imports or calls anything outside the
allowlist, never runs a constructor, validator or `__post_init__` of a type whose fields are
unchanged, and never hands out plain data in place of a blocked type.

The format is MessagePack. Extension types:

    1 BUILTIN  [kind, payload]              fixed kinds of the standard library, numpy
    2 OBJECT   [module, qualname, state]    an allowed pydantic model, dataclass, enum, namedtuple
    3 KNOWN    [number, state]              the same, for the types in `KNOWN`
    4 PAIRS    [[key, value], ...]          a dict whose keys are not all strings
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

import ormsgpack

from perdure.errors import Damaged, Error, TypeNotAllowed, Unserializable
from perdure.shapes import BUILTINS, KIND_OF, hashable, kind_of, plan

BUILTIN, OBJECT, KNOWN_TYPE, PAIRS = 1, 2, 3, 4

_OPTION = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)

# Types every graph may store. A type's place in this tuple is its number on disk: append only.
KNOWN: tuple[tuple[str, str], ...] = (
    ("langchain_core.messages.human", "HumanMessage"),
    ("langchain_core.messages.ai", "AIMessage"),
    ("langchain_core.messages.tool", "ToolMessage"),
    ("langchain_core.messages.system", "SystemMessage"),
    ("langchain_core.messages.chat", "ChatMessage"),
    ("langchain_core.messages.function", "FunctionMessage"),
    ("langchain_core.messages.modifier", "RemoveMessage"),
    ("langchain_core.messages.base", "BaseMessage"),
    ("langchain_core.messages.base", "BaseMessageChunk"),
    ("langchain_core.messages.human", "HumanMessageChunk"),
    ("langchain_core.messages.ai", "AIMessageChunk"),
    ("langchain_core.messages.tool", "ToolMessageChunk"),
    ("langchain_core.messages.system", "SystemMessageChunk"),
    ("langchain_core.messages.chat", "ChatMessageChunk"),
    ("langchain_core.messages.function", "FunctionMessageChunk"),
    ("langchain_core.documents.base", "Document"),
    ("langgraph.types", "Send"),
    ("langgraph.types", "Interrupt"),
    ("langgraph.types", "Command"),
    ("langgraph.types", "Overwrite"),
    ("langgraph.types", "TimeoutPolicy"),
    ("langgraph.types", "StateSnapshot"),
    ("langgraph.types", "PregelTask"),
    ("langgraph.store.base", "Item"),
    ("langgraph.store.base", "GetOp"),
    ("langgraph.checkpoint.serde.types", "_DeltaSnapshot"),
)
_NUMBER = {key: number for number, key in enumerate(KNOWN)}


def type_keys(allow: Iterable[type | tuple[str, ...]]) -> set[tuple[str, str]]:
    """`(module, qualname)` of types given as classes or as pairs."""
    keys = set()
    for item in allow:
        if isinstance(item, type):
            keys.add((item.__module__, item.__qualname__))
        elif len(item) == 2:
            keys.add((item[0], item[1]))
        else:
            raise Error(f"allow= takes classes or (module, name) pairs, not {item!r}")
    return keys


class Codec:
    """Encodes and decodes values of the standard library, `KNOWN` types and allowed ones."""

    def __init__(self, allow: Iterable[type | tuple[str, ...]] = ()) -> None:
        self.allowed = frozenset(KNOWN) | type_keys(allow)

    def allow(self, more: Iterable[type | tuple[str, ...]]) -> None:
        """Widen the allowlist. Types already allowed stay."""
        keys = type_keys(more)
        if not keys <= self.allowed:
            self.allowed |= keys

    def encode(self, value: Any, path: str) -> bytes:
        """The bytes of `value`. Raises `Unserializable` or `TypeNotAllowed` naming the path."""
        try:
            return ormsgpack.packb(value, default=self._extension, option=_OPTION)
        except (TypeError, ValueError, RecursionError):
            # Either a dict with keys that are not strings, or something to be refused by name.
            lifted = self._lift(value, path, set())
            return ormsgpack.packb(lifted, default=self._extension, option=_OPTION)

    def decode(self, data: bytes, where: str) -> Any:
        """The value that was encoded. Raises `TypeNotAllowed` or `Damaged` naming `where`."""

        def hook(code: int, body: bytes) -> Any:
            return self._revive(code, ormsgpack.unpackb(body, ext_hook=hook), where)

        try:
            return ormsgpack.unpackb(data, ext_hook=hook)
        except Error:
            raise
        except Exception as error:
            raise Damaged(where, f"{type(error).__name__}: {error}") from error

    def _extension(self, value: Any) -> ormsgpack.Ext:
        if isinstance(value, _Pairs):
            return ormsgpack.Ext(PAIRS, self.encode(value.pairs, ""))
        cls: Any = type(value)
        kind = KIND_OF.get(cls) or kind_of(value)
        if kind is not None:
            return ormsgpack.Ext(BUILTIN, self.encode([kind, BUILTINS[kind][1](value)], ""))
        key = (cls.__module__, cls.__qualname__)
        shape = plan(cls)
        if not self._is_allowed(*key):
            raise TypeNotAllowed(*key, "")
        state = shape.take(value)
        number = _NUMBER.get(key)
        if number is not None:
            return ormsgpack.Ext(KNOWN_TYPE, self.encode([number, state], ""))
        return ormsgpack.Ext(OBJECT, self.encode([*key, state], ""))

    def _revive(self, code: int, body: Any, where: str) -> Any:
        if code == PAIRS:
            return {hashable(key): value for key, value in body}
        if code == BUILTIN:
            return BUILTINS[body[0]][2](body[1])
        if code == KNOWN_TYPE:
            (module, name), state = KNOWN[body[0]], body[1]
        elif code == OBJECT:
            module, name, state = body
        else:
            raise ValueError(f"unknown extension type {code}")
        if not self._is_allowed(module, name):
            raise TypeNotAllowed(str(module), str(name), where)
        return plan(_find(module, name, where)).make(state)

    def _is_allowed(self, module: str, name: str) -> bool:
        # LangGraph names a nested class by its last part only.
        return (module, name) in self.allowed or (module, name.rpartition(".")[2]) in self.allowed

    def _lift(self, value: Any, path: str, above: set[int]) -> Any:
        """`value` with every odd-keyed dict made a `_Pairs`; refuses what cannot be stored.

        Only walked when the fast path failed, so it may be slow and exact.
        """
        if isinstance(value, (dict, list, tuple)) and type(value) in (dict, list, tuple):
            if id(value) in above:
                raise Unserializable(path, "it contains itself")
            if len(above) > 400:
                raise Unserializable(path, "it is nested more than 400 deep")
            above = above | {id(value)}
        if type(value) is dict:
            lifted = [
                (
                    self._lift_key(key, path, above),
                    self._lift(item, f"{path}[{key!r}]", above),
                )
                for key, item in value.items()
            ]
            if all(type(key) is str for key, _ in lifted):
                return dict(lifted)
            return _Pairs([list(pair) for pair in lifted])
        if type(value) in (list, tuple):
            items = [self._lift(item, f"{path}[{n}]", above) for n, item in enumerate(value)]
            return items if type(value) is list else tuple(items)
        if isinstance(value, (str, int, float, bytes, bytearray, memoryview, type(None))):
            return self._lift_atom(value, path)
        if not isinstance(value, (dict, list)):  # those are subclasses, stored as their base
            self._refuse(value, path)
        return value

    def _lift_key(self, key: Any, path: str, above: set[int]) -> Any:
        if isinstance(key, float) and math.isnan(key):
            raise Unserializable(path, "a key is NaN, which equals nothing when it is read back")
        return self._lift(key, f"{path} (key {key!r})", above)

    def _lift_atom(self, value: Any, path: str) -> Any:
        try:
            ormsgpack.packb(value, default=self._extension, option=_OPTION)
        except (TypeError, ValueError):
            if isinstance(value, str):
                reason = "the text has a lone surrogate, which UTF-8 cannot hold"
            else:
                reason = "the integer is over 64 bits; store it as text or Decimal"
            raise Unserializable(path, reason) from None
        return value

    def _refuse(self, value: Any, path: str) -> None:
        """Raise if this one object cannot be stored, with the path to the part that cannot."""
        try:
            for name, part in _parts(value):
                self._lift(part, f"{path}.{name}", set())
            self._extension(value)
        except Unserializable as error:
            inside = error.path if error.path.startswith(path) else path
            raise Unserializable(inside, error.reason) from None
        except TypeNotAllowed as error:
            raise TypeNotAllowed(error.module, error.name, error.where or path) from None
        except RecursionError:
            raise Unserializable(path, "it is nested too deeply or contains itself") from None


class _Pairs:
    """A dict on its way to disk whose keys are not all strings."""

    def __init__(self, pairs: list[list[Any]]) -> None:
        self.pairs = pairs


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """The named parts of an object, to say which of them cannot be stored."""
    if hasattr(value, "__pydantic_fields_set__") or is_dataclass(value):
        held = getattr(value, "__dict__", None)
        if held is None:
            held = {f.name: getattr(value, f.name, None) for f in dataclass_fields(value)}
        return list(held.items())
    return []


def _find(module: str, name: str, where: str) -> Any:
    """The class of that name; only called for allowed names, so importing is safe."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise Damaged(
            where, f"its type {module}.{name} no longer exists ({error}); bring it back"
        ) from error
    return found
