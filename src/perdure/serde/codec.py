"""Values to bytes and back, strictly.

What is guaranteed: a value that was encoded decodes to an equal value of the same types, or
`encode` refuses it by name and path. (One exception: bytearray and memoryview come back as
bytes.) Decoding never imports or calls anything outside the allowlist, never runs a
constructor, validator or `__post_init__` of a type whose fields are unchanged, and never hands
out plain data in place of a blocked type.

The format is MessagePack. Extension types:

    1 BUILTIN  [kind, payload]              fixed kinds of values, see `kinds`
    2 OBJECT   [module, qualname, state]    an allowed class, see `shapes.plan`
    3 KNOWN    [number, state]              the same, for the types in `KNOWN`
    4 PAIRS    [[key, value], ...]          a dict whose keys are not all strings
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from functools import partial
from typing import Any

import ormsgpack

from perdure import langgraph_port
from perdure.errors import Damaged, Error, TypeNotAllowed, Unserializable
from perdure.serde.builtin_types import BUILTINS, kind_of
from perdure.serde.class_types import Plan, find, plan

BUILTIN, OBJECT, KNOWN_TYPE, PAIRS = 1, 2, 3, 4

DEEPEST = 200
"""How deep objects, or odd-keyed dicts, may be nested. Reading takes less stack than writing."""

_OPTION = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_ATOMS = frozenset((str, int, float, bool, bytes, bytearray, memoryview, type(None)))

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
    langgraph_port.DELTA_SNAPSHOT,
    ("langgraph.store.base", "SearchItem"),
    ("langchain_core.messages.base", "TextAccessor"),
    ("langchain_core.runnables.utils", "AddableDict"),
)
_NUMBER = {key: number for number, key in enumerate(KNOWN)}


def type_keys(allow: Iterable[type | tuple[str, ...]]) -> set[tuple[str, str]]:
    """`(module, qualname)` of types given as classes or as pairs."""
    keys = set()
    for item in allow:
        if isinstance(item, type):
            keys.add((item.__module__, item.__qualname__))
        elif type(item) is tuple and len(item) == 2:
            keys.add((item[0], item[1]))
        else:
            raise Error(f"allow= takes classes or (module, name) pairs, not {item!r}")
    return keys


class Codec:
    """Encodes and decodes values of the standard library, `KNOWN` types and allowed ones."""

    def __init__(self, allow: Iterable[type | tuple[str, ...]] = ()) -> None:
        self.allowed = {*KNOWN, *type_keys(allow)}
        self._ready: dict[type, tuple[Plan, int, tuple[Any, ...]]] = {}
        self._known: dict[int, Plan] = {}
        # One hook per depth: ormsgpack calls back without saying how deep it is.
        self._hooks = [partial(self._extension, depth) for depth in range(DEEPEST + 1)]

    def allow(self, more: Iterable[type | tuple[str, ...]]) -> None:
        """Widen the allowlist. Types already allowed stay."""
        self.allowed.update(type_keys(more))

    def encode(self, value: Any, path: str) -> bytes:
        """The bytes of `value`. Raises `Unserializable` or `TypeNotAllowed` naming the path."""
        try:
            return ormsgpack.packb(value, default=self._hooks[0], option=_OPTION)
        except (TypeError, ValueError, RecursionError):
            # Either a dict with keys that are not strings, or something to be refused by name.
            return self._encode_slowly(value, path, self._lift)

    def encode_pair(self, pair: list[Any], path: str) -> bytes:
        """The bytes of one [key, value] of the dict at `path`, refused as the dict would be."""
        try:
            if type(pair[0]) is str or not _has_nan(pair[0]):
                return ormsgpack.packb(pair, default=self._hooks[0], option=_OPTION)
        except (TypeError, ValueError, RecursionError):
            pass
        return self._encode_slowly(pair, path, self._lift_pair)

    def decode(self, data: bytes, where: str) -> Any:
        """The value that was encoded. Raises `TypeNotAllowed` or `Damaged` naming `where`."""

        cause: BaseException | None = None  # ormsgpack keeps nothing of what a hook raises

        def hook(code: int, body: bytes) -> Any:
            nonlocal cause
            try:
                return self._revive(code, ormsgpack.unpackb(body, ext_hook=hook), where)
            except BaseException as error:
                cause = cause or error
                raise

        try:
            return ormsgpack.unpackb(data, ext_hook=hook)
        except Exception as error:
            reason = cause or error
        if isinstance(reason, Error) or not isinstance(reason, Exception):
            raise reason
        raise Damaged(where, f"{type(reason).__name__}: {reason}") from reason

    # -- the fast way: no paths, gives up at the first thing out of the ordinary

    def _extension(self, depth: int, value: Any) -> ormsgpack.Ext:
        if value is UTC:  # with every time of ours
            return _UTC
        if depth == DEEPEST:
            raise RecursionError
        cls = type(value)
        ready = self._ready.get(cls)
        if ready is not None:
            shape, code, head = ready
            body: list[Any] = [*head, shape.take(value)]
        elif (kind := kind_of(value)) is not None:
            code, body = BUILTIN, [kind, BUILTINS[kind][1](value)]
        else:
            shape, code, head = self._prepare(cls)
            body = [*head, shape.take(value)]
        hook = self._hooks[depth + 1]
        return ormsgpack.Ext(code, ormsgpack.packb(body, default=hook, option=_OPTION))

    def _prepare(self, cls: type) -> tuple[Plan, int, tuple[Any, ...]]:
        """How objects of `cls` are stored, if they may be; remembered, as it may not change."""
        shape = plan(cls)
        key = (cls.__module__, cls.__qualname__)
        if not self._is_allowed(*key):
            raise TypeNotAllowed(*key, "")
        number = _NUMBER.get(key)
        ready = (shape, OBJECT, key) if number is None else (shape, KNOWN_TYPE, (number,))
        return self._ready.setdefault(cls, ready)

    def _is_allowed(self, module: str, name: str) -> bool:
        if (module, name) in self.allowed:
            return True
        # LangGraph names a nested class by its last part only; Page[int] goes with Page.
        plain = name.partition("[")[0]
        last = plain.rpartition(".")[2] + name[len(plain) :]
        return not self.allowed.isdisjoint({(module, plain), (module, last)})

    # -- the way back

    def _revive(self, code: int, body: Any, where: str) -> Any:
        if code == KNOWN_TYPE:
            number, state = body
            shape = self._known.get(number)
            if shape is None:
                module, name = KNOWN[number]
                shape = self._known[number] = self._found(module, name, where)
            return shape.make(state)
        if code == BUILTIN:
            kind, payload = body
            return BUILTINS[kind][2](payload)
        if code == OBJECT:
            module, name, state = body
            return self._found(module, name, where).make(state)
        if code == PAIRS:
            return {key: value for key, value in body}  # noqa: C416 (each pair is a list of two)
        raise ValueError(f"unknown extension type {code}")

    def _found(self, module: str, name: str, where: str) -> Plan:
        """The plan of the class of that name; only an allowed one is imported."""
        if not self._is_allowed(module, name):
            raise TypeNotAllowed(str(module), str(name), where)
        try:
            return plan(find(module, name))
        except (ImportError, AttributeError) as error:
            reason = f"its type {module}.{name} no longer exists ({error}); bring it back"
            raise Damaged(where, reason) from error
        except Unserializable as error:
            raise Damaged(where, f"its type {module}.{name} is none: {error.reason}") from error

    # -- the slow way: once over everything, knows where it is

    def _encode_slowly(self, value: Any, path: str, lift: Callable[..., Any]) -> bytes:
        try:
            return _pack(lift(value, path, {}))
        except RecursionError:
            raise Unserializable(path, "it is nested too deeply") from None

    def _lift(self, value: Any, path: str, above: dict[int, None]) -> Any:
        """`value` in terms MessagePack has. `above` holds the ids of what it is inside of."""
        cls = type(value)
        if cls in _ATOMS:
            return _atom(value, path)
        if id(value) in above:
            raise Unserializable(path, "it contains itself")
        if len(above) >= DEEPEST:
            raise Unserializable(path, f"it is nested more than {DEEPEST} deep")
        above[id(value)] = None
        try:
            if cls is list:
                return [self._lift(item, f"{path}[{n}]", above) for n, item in enumerate(value)]
            if cls is dict:
                return self._lift_dict(value, path, above)
            return self._lift_object(value, path, above)
        finally:
            del above[id(value)]

    def _lift_dict(self, value: dict[Any, Any], path: str, above: dict[int, None]) -> Any:
        pairs = [self._lift_pair(pair, path, above) for pair in value.items()]
        if all(type(key) is str for key, _ in pairs):
            return dict(pairs)
        return ormsgpack.Ext(PAIRS, _pack(pairs))

    def _lift_pair(self, pair: Sequence[Any], path: str, above: dict[int, None]) -> list[Any]:
        key, item = pair
        if _has_nan(key):
            raise Unserializable(path, "a key is NaN, which equals nothing when it is read back")
        lifted = self._lift(key, f"{path} (key {key!r})", above)
        return [lifted, self._lift(item, f"{path}[{key!r}]", above)]

    def _lift_object(self, value: Any, path: str, above: dict[int, None]) -> ormsgpack.Ext:
        try:
            return self._extension(len(above) - 1, value)
        except Exception:  # whatever it is, below it is found again and named
            head: tuple[Any, ...]
            state, shape = None, None
        try:
            if (kind := kind_of(value)) is not None:
                code, head, state = BUILTIN, (kind,), BUILTINS[kind][1](value)
            else:
                shape, code, head = self._prepare(type(value))
                state = shape.take(value)
        except Unserializable as error:
            raise Unserializable(path, error.reason) from None
        except TypeNotAllowed as error:
            raise TypeNotAllowed(error.module, error.name, path) from None
        except RecursionError:
            raise
        except Exception as error:
            raise Unserializable(path, f"{type(error).__name__}: {error}") from error
        if shape is not None and shape.named:
            lifted: Any = [self._lift_part(part, path, above) for part in state]
        elif type(state) is list:
            lifted = [self._lift(item, f"{path}[{n}]", above) for n, item in enumerate(state)]
        else:
            lifted = self._lift(state, path, above)
        return ormsgpack.Ext(code, _pack([*head, lifted]))

    def _lift_part(self, part: Any, path: str, above: dict[int, None]) -> Any:
        if type(part) is not dict:
            return self._lift(part, path, above)
        return {
            _atom(name, path): self._lift(item, f"{path}.{name}", above)
            for name, item in part.items()
        }


_pack: Callable[[Any], bytes] = partial(ormsgpack.packb, option=_OPTION)
_UTC = ormsgpack.Ext(
    BUILTIN, _pack(["z", [ormsgpack.Ext(BUILTIN, _pack(["l", [0, 0, 0]])), "UTC"]])
)


def _atom(value: Any, path: str) -> Any:
    try:
        _pack(value)
    except (TypeError, ValueError):
        if isinstance(value, str):
            reason = "the text has a lone surrogate, which UTF-8 cannot hold"
        else:
            reason = "the integer is over 64 bits; store it as text or Decimal"
        raise Unserializable(path, reason) from None
    return value


def _has_nan(key: Any) -> bool:
    if isinstance(key, (tuple, frozenset)):
        return any(map(_has_nan, key))
    return bool(key != key)  # which is what NaN is, of every numeric type
