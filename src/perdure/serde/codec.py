"""Values to bytes and back, strictly.

What is guaranteed: a value that was encoded decodes to an equal value of the same types, or
`encode` refuses it by name and path. (One exception: bytearray and memoryview come back as
bytes.) Decoding never imports or calls anything outside the allowlist, never runs a
constructor, validator or `__post_init__` of a type whose fields are unchanged, and never hands
out plain data in place of a blocked type.

The format is MessagePack. Extension types:

    1 BUILTIN  [letter, payload]            a built-in type, see `builtin_types`
    2 OBJECT   [module, qualname, state]    an allowed class, see `class_types`
    3 KNOWN    [number, state]              the same, for the types in `allowlist.KNOWN`
    4 PAIRS    [[key, value], ...]          a dict whose keys are not all strings
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from functools import partial
from typing import Any, TypeVar, cast

import ormsgpack

from perdure.errors import Damaged, Error, TypeNotAllowed, Unserializable, forgot_await
from perdure.serde.allowlist import KNOWN, KNOWN_NUMBERS, Allowlist
from perdure.serde.builtin_types import BUILTINS, letter_of
from perdure.serde.class_types import ClassAdapter, EnumAdapter, adapter_for, find
from perdure.serde.depth import depth_at_most, is_within
from perdure.serde.redaction import Redaction, Redactor
from perdure.types import Actor, Prompt

T = TypeVar("T")

BUILTIN, OBJECT, KNOWN_TYPE, PAIRS = 1, 2, 3, 4

DEEPEST = 200
"""How deep objects, dicts with keys that are not strings, and values that contain them may nest."""
QUICK = 16
"""How deep objects may nest in a value that is encoded without counting its depth. ormsgpack takes
lists up to 255 deep inside each."""
NESTED = (DEEPEST + 2, QUICK * 256 + DEEPEST)
"""How many objects, and how many lists and dicts inside of objects, may be nested in one value."""
OUTER, FEW = 8, 16
"""Depth is not counted in an object that is inside no other: ormsgpack itself takes lists at most
1,022 deep. Nor is it in up to `OUTER` nested objects with up to `FEW` lists and dicts each. Most
values are like that, and counting takes longer than decoding."""

_OPTION = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
TEXTS = (Prompt, Actor)
"""Texts with attributes: stored as the plain text."""
_ATOMS = frozenset((str, int, float, bool, bytes, bytearray, memoryview, type(None)))


class Codec:
    """Encodes and decodes values of the standard library, `KNOWN` types and allowed ones.

    With `redact` what it encodes has lost its secrets, unless it is our own.
    """

    def __init__(
        self, allow: Iterable[type | tuple[str, ...]] = (), redact: Redaction | None = None
    ) -> None:
        self.allowlist = Allowlist(allow)
        self.redactor = None if redact is None else Redactor(redact, _is_enum)
        self._adapters: dict[type, tuple[ClassAdapter, int, tuple[Any, ...]]] = {}
        self._known: dict[int, ClassAdapter] = {}
        # One hook per depth: ormsgpack calls back without saying how deep it is.
        self._hooks = [partial(self._extension, depth) for depth in range(QUICK + 1)]
        self._deep_hooks = [partial(self._deep_extension, n) for n in range(DEEPEST + 1)]

    def encode(self, value: Any, path: str, *, own: bool = False) -> bytes:
        """The bytes of `value`. Raises `Unserializable` or `TypeNotAllowed` naming the path.

        `own`: it is our own, with redacted parts inside, and is not redacted as a whole.
        """
        try:
            data = ormsgpack.packb(value, default=self._hooks[0], option=_OPTION)
        except (TypeError, ValueError, RecursionError):
            # Objects that are nested deeply, a dict with keys that are not strings, or something to
            # be refused by name.
            data = self._encode_deep(value) or self._encode_with_paths(value, path, self._convert)
        return data if own or self.redactor is None else _clean(self.redactor, data, path)

    def redacted(self, value: T, path: str = "value") -> T:
        """A value as it is stored: without its secrets, and the same object if it has none."""
        if self.redactor is None:
            return value
        data = self.encode(value, path, own=True)
        clean = _clean(self.redactor, data, path)
        return value if clean == data else cast(T, self.decode(clean, path))

    def encode_pair(self, pair: list[Any], path: str) -> bytes:
        """The bytes of one [key, value] of the dict at `path`, refused as the dict would be."""
        data = self._encode_pair(pair, path)
        return data if self.redactor is None else _clean(self.redactor, data, path, pair=True)

    def _encode_pair(self, pair: list[Any], path: str) -> bytes:
        try:
            if type(pair[0]) is str or not _has_nan(pair[0]):
                return ormsgpack.packb(pair, default=self._hooks[0], option=_OPTION)
        except (TypeError, ValueError, RecursionError):
            if (data := self._encode_deep(pair)) is not None:
                return data
        return self._encode_with_paths(pair, path, self._convert_pair)

    def decode(self, data: bytes, location: str) -> Any:
        """The value that was encoded. Raises `TypeNotAllowed` or `Damaged` naming `location`."""

        cause: BaseException | None = None  # ormsgpack keeps nothing of what a hook raises
        objects = lists = 0  # that the hook is called inside of

        def hook(code: int, body: bytes) -> Any:
            nonlocal cause, objects, lists
            try:
                few = FEW if objects < OUTER else 0
                deeper = depth_at_most(body, few, location) if objects else 0
                objects, lists = objects + 1, lists + deeper
                if objects > NESTED[0] or lists > NESTED[1] + OUTER * FEW:
                    raise Damaged(location, "it is nested too deeply")
                value = self._restore(code, ormsgpack.unpackb(body, ext_hook=hook), location)
                objects, lists = objects - 1, lists - deeper
                return value
            except BaseException as error:
                cause = cause or error
                raise

        try:
            return ormsgpack.unpackb(data, ext_hook=hook)
        except Exception as error:
            reason = cause or error
        if isinstance(reason, Error) or not isinstance(reason, Exception):
            raise reason
        raise Damaged(location, f"{type(reason).__name__}: {reason}") from reason

    # -- the fast way: no paths, gives up at the first unusual value

    def _extension(self, depth: int, value: Any) -> ormsgpack.Ext | str:
        if value is UTC:  # with every time of ours
            return _UTC
        if type(value) in TEXTS:
            return str(value)
        if depth >= QUICK:
            raise RecursionError
        return self._extended(value, self._hooks[depth + 1])

    def _extended(self, value: Any, hook: Callable[[Any], Any]) -> ormsgpack.Ext:
        cls = type(value)
        found = self._adapters.get(cls)
        if found is not None:
            adapter, code, head = found
            body: list[Any] = [*head, adapter.get_state(value)]
        elif (letter := letter_of(value)) is not None:
            code, body = BUILTIN, [letter, BUILTINS[letter][1](value)]
        else:
            adapter, code, head = self._prepare(cls)
            body = [*head, adapter.get_state(value)]
        return ormsgpack.Ext(code, ormsgpack.packb(body, default=hook, option=_OPTION))

    def _encode_deep(self, value: Any) -> bytes | None:
        """The bytes of a value whose objects are nested deeply; None: it is not to be stored so."""
        try:
            data = ormsgpack.packb(value, default=self._deep_hooks[0], option=_OPTION)
        except (TypeError, ValueError, RecursionError):
            return None
        return data if is_within(data, *NESTED) else None

    def _deep_extension(self, depth: int, value: Any) -> ormsgpack.Ext | str:
        if depth == DEEPEST:
            raise RecursionError
        if type(value) in TEXTS:
            return str(value)
        return _UTC if value is UTC else self._extended(value, self._deep_hooks[depth + 1])

    def _prepare(self, cls: type) -> tuple[ClassAdapter, int, tuple[Any, ...]]:
        """How objects of `cls` are stored, if it is allowed; remembered, as that may not change."""
        adapter = adapter_for(cls)
        key = (cls.__module__, cls.__qualname__)
        self.allowlist.check(*key, "")
        number = KNOWN_NUMBERS.get(key)
        found = (adapter, OBJECT, key) if number is None else (adapter, KNOWN_TYPE, (number,))
        return self._adapters.setdefault(cls, found)

    # -- decoding

    def _restore(self, code: int, body: Any, location: str) -> Any:
        if code == KNOWN_TYPE:
            number, state = body
            adapter = self._known.get(number)
            if adapter is None:
                module, name = KNOWN[number]
                adapter = self._known[number] = self._adapter_named(module, name, location)
            return adapter.restore(state)
        if code == BUILTIN:
            letter, payload = body
            return BUILTINS[letter][2](payload)
        if code == OBJECT:
            module, name, state = body
            return self._adapter_named(module, name, location).restore(state)
        if code == PAIRS:
            return {key: value for key, value in body}  # noqa: C416 (each pair is a list of two)
        raise ValueError(f"unknown extension type {code}")

    def _adapter_named(self, module: str, name: str, location: str) -> ClassAdapter:
        """The adapter of the class of that name; only an allowed one is imported."""
        self.allowlist.check(module, name, location)
        try:
            return adapter_for(find(module, name))
        except (ImportError, AttributeError) as error:
            cause: Exception = error
            reason = f"no longer exists ({error})"
        except Unserializable as error:
            cause, reason = error, f"can no longer be deserialised: {error.reason}"
        raise Damaged(
            location,
            f"its type {module}.{name} {reason}",
            "Bring the class back as it was, and retry the run.",
        ) from cause

    # -- the slow way: walks through everything and knows the path

    def _encode_with_paths(self, value: Any, path: str, convert: Callable[..., Any]) -> bytes:
        try:
            return _pack(convert(value, path, {}))
        except RecursionError:
            raise Unserializable(path, "it is nested too deeply") from None

    def _convert(self, value: Any, path: str, ancestors: dict[int, None]) -> Any:
        """`value` in types MessagePack has. `ancestors` has the ids of what contains it."""
        cls = type(value)
        if cls in _ATOMS:
            return _atom(value, path)
        if id(value) in ancestors:
            raise Unserializable(path, "it contains itself")
        if len(ancestors) >= DEEPEST:
            raise Unserializable(path, f"it is nested more than {DEEPEST} deep")
        ancestors[id(value)] = None
        try:
            if cls is list:
                return self._convert_list(value, path, ancestors)
            if cls is dict:
                return self._convert_dict(value, path, ancestors)
            return self._convert_object(value, path, ancestors)
        finally:
            del ancestors[id(value)]

    def _convert_list(self, items: list[Any], path: str, ancestors: dict[int, None]) -> Any:
        return [self._convert(item, f"{path}[{n}]", ancestors) for n, item in enumerate(items)]

    def _convert_dict(self, value: dict[Any, Any], path: str, ancestors: dict[int, None]) -> Any:
        pairs = [self._convert_pair(pair, path, ancestors) for pair in value.items()]
        if all(type(key) is str for key, _ in pairs):
            return dict(pairs)
        return ormsgpack.Ext(PAIRS, _pack(pairs))

    def _convert_pair(
        self, pair: Sequence[Any], path: str, ancestors: dict[int, None]
    ) -> list[Any]:
        key, item = pair
        if _has_nan(key):
            raise Unserializable(path, "a key is NaN, which equals nothing when it is read back")
        converted = self._convert(key, f"{path} (key {key!r})", ancestors)
        return [converted, self._convert(item, f"{path}[{key!r}]", ancestors)]

    def _convert_object(
        self, value: Any, path: str, ancestors: dict[int, None]
    ) -> ormsgpack.Ext | str:
        try:
            return self._extension(0, value)
        except Exception:  # the code below finds it again and names it
            head: tuple[Any, ...]
            state, adapter = None, None
        if hint := forgot_await(value):
            raise Unserializable(path, f"it is a {type(value).__name__}.{hint}")
        try:
            if (letter := letter_of(value)) is not None:
                code, head, state = BUILTIN, (letter,), BUILTINS[letter][1](value)
            else:
                adapter, code, head = self._prepare(type(value))
                state = adapter.get_state(value)
        except Unserializable as error:
            raise Unserializable(path, error.reason) from None
        except TypeNotAllowed as error:
            raise TypeNotAllowed(error.module, error.name, path) from None
        except RecursionError:
            raise
        except Exception as error:
            raise Unserializable(path, f"{type(error).__name__}: {error}") from error
        if adapter is not None and adapter.named:
            converted: Any = [self._convert_part(part, path, ancestors) for part in state]
        elif type(state) is list:
            converted = self._convert_list(state, path, ancestors)
        else:
            converted = self._convert(state, path, ancestors)
        return ormsgpack.Ext(code, _pack([*head, converted]))

    def _convert_part(self, part: Any, path: str, ancestors: dict[int, None]) -> Any:
        if type(part) is not dict:
            return self._convert(part, path, ancestors)
        return {
            _atom(name, path): self._convert(item, f"{path}.{name}", ancestors)
            for name, item in part.items()
        }


_pack: Callable[[Any], bytes] = partial(ormsgpack.packb, option=_OPTION)
_NO_OFFSET = ormsgpack.Ext(BUILTIN, _pack(["l", [0, 0, 0]]))
_UTC = ormsgpack.Ext(BUILTIN, _pack(["z", [_NO_OFFSET, "UTC"]]))


def _clean(redactor: Redactor, data: bytes, path: str, *, pair: bool = False) -> bytes:
    try:
        return redactor.clean(data, pair=pair)
    except RecursionError:
        raise Unserializable(path, "it is nested too deeply to be redacted") from None


def _is_enum(module: str, name: str) -> bool:
    return isinstance(adapter_for(find(module, name)), EnumAdapter)


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
