"""A value to the blob of one row, and back, strictly.

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

A decoder uses some stack for every list inside a list, so a forged document could crash the process
that reads it. ormsgpack limits one document. The documents inside its extension types, which are
decoded in the middle of it, are counted here.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC
from functools import partial
from typing import Any, TypeVar, cast

import ormsgpack

from perdure.errors import Damaged, Error, TooLarge, TypeNotAllowed, Unserializable, forgot_await
from perdure.serde.allowlist import KNOWN, KNOWN_NUMBERS, Allowlist
from perdure.serde.builtin_types import BUILTINS, letter_of
from perdure.serde.class_types import ClassAdapter, adapter_for, find
from perdure.serde.encryption import ChecksumEnvelope, EncryptedEnvelope, Envelope, Place
from perdure.serde.redaction import Redaction, Redactor, is_id
from perdure.types import Actor, Prompt

T = TypeVar("T")
Part = tuple[str, int]
"""The name of a part of a value, and its bytes."""
FindPart = Callable[[], Part | None]
"""Finds the largest part of a value that is refused."""

BUILTIN, OBJECT, KNOWN_TYPE, PAIRS = 1, 2, 3, 4

DEEPEST = 200
"""How deep values may nest."""
QUICK = 16
"""How deep objects may nest, with up to 255 lists and dicts inside each, in a value that is encoded
without counting its depth."""
NESTED = (DEEPEST + 2, QUICK * 256 + DEEPEST)
"""How many objects, and how many lists and dicts inside of objects, may be nested in a document."""
FEW = 16
"""Depth is not counted in a document that has at most so many lists and dicts: most are like that,
and counting takes longer than decoding."""

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


class Serializer:
    """Encodes values of the standard library, `KNOWN` types and allowed ones, and turns them into
    blobs, each bound to its place.

    With `redact` what it encodes has lost its secrets, unless it is our own. With `keys` it
    encrypts.
    """

    def __init__(
        self,
        allow: Iterable[type | tuple[str, ...]] = (),
        redact: Redaction | None = None,
        keys: Mapping[str, bytes] | None = None,
        limit: int = 256 * 1024 * 1024,
    ) -> None:
        self.allowlist, self.limit = Allowlist(allow), limit
        self.redactor = None if redact is None else Redactor(redact, _is_enum)
        self.redacts = redact is not None
        self.envelope: Envelope = ChecksumEnvelope() if keys is None else EncryptedEnvelope(keys)
        self.keep_to(None, None)
        self._adapters: dict[type, tuple[ClassAdapter, int, tuple[Any, ...]]] = {}
        self._known: dict[int, ClassAdapter] = {}
        # One hook per depth: ormsgpack calls back without saying how deep it is.
        self._hooks = [partial(self._extension, depth) for depth in range(QUICK + 1)]

    def keep_to(self, largest_blob: int | None, largest_batch: int | None) -> None:
        """Refuse what the journal's database does not take: bytes of one blob, and of one
        transaction. None: it takes any number."""
        self.largest_blob = sys.maxsize if largest_blob is None else largest_blob
        self.largest_batch = sys.maxsize if largest_batch is None else largest_batch
        self.largest_state = min(self.limit, self.largest_batch)
        """Bytes of a state: sooner or later it is stored whole, in one transaction."""

    # -- blobs

    def dumps(
        self, value: Any, place: Place, name: str | None = None, *, own: bool = False
    ) -> bytes:
        """The blob of a value. An error calls the value `name`, or by its place. `own`: it is made
        of ids and of parts that are redacted already."""
        data = self.encode(value, name or place.name, own=own)
        blob = self.envelope.seal(data, place)
        if len(blob) > self.largest_blob:
            self.check_blob(len(blob), name or place.name, lambda: self.largest_part(value))
        return blob

    def loads(self, blob: Any, place: Place, of: type | tuple[type, ...] = object) -> Any:
        """The value of a blob, of that type. Raises `Damaged`, `WrongKey` or `TypeNotAllowed`."""
        value = self.decode(self.envelope.unseal(blob, place), place.name)
        if not isinstance(value, of):
            raise Damaged(place.name, f"it holds a {type(value).__name__}")
        return value

    def check_blob(self, size: int, name: str, largest: FindPart = lambda: None) -> None:
        """Raise `TooLarge`, which names the largest part, if the journal's database does not take
        so many bytes in one blob."""
        if size > self.largest_blob:
            raise TooLarge(name, size, self.largest_blob, largest=largest(), in_database=True)

    def check_state(self, size: int, name: str, largest: FindPart) -> None:
        """Raise `TooLarge`, which names the largest part, for a state over `largest_state`."""
        if size > self.largest_state:
            in_database = size <= self.limit
            limit = self.largest_batch if in_database else self.limit
            raise TooLarge(name, size, limit, largest=largest(), in_database=in_database)

    def largest_part(self, value: Any) -> Part | None:
        """The path to what makes a value of dicts and dataclasses large, and its bytes."""
        largest, path = None, ""
        while parts := _parts(value):
            try:
                sizes = {key: len(self.encode(parts[key], key)) for key in parts}
            except Error:  # it is stored in another way
                break
            key = max(sizes, key=sizes.__getitem__)
            path, value = path + key, parts[key]
            largest = path, sizes[key]
        return largest

    # -- redaction, if there is a policy

    def redacted(self, value: T, path: str = "value") -> T:
        """A value as it is stored: without its secrets, and the same object if it has none."""
        if self.redactor is None:
            return value
        data = self.encode(value, path, own=True)
        clean = _clean(self.redactor, data, path)
        return value if clean == data else cast(T, self.decode(clean, path))

    def redacted_text(self, text: T) -> T:
        """A text, or None, as it is stored."""
        if self.redactor is None or not isinstance(text, str):
            return text
        return cast(T, self.redactor.text(text))

    def redacted_values(self, ours: Mapping[str, Any], ids: Collection[str]) -> Mapping[str, Any]:
        """A dict whose keys are ours, with its values as they are stored. What is under `ids` is
        identity, and left alone."""
        if self.redactor is None:
            return ours
        redacted = self.redacted
        return {k: v if k in ids else redacted(v, k) for k, v in ours.items()}

    def redacted_entries(self, entries: Mapping[str, Any]) -> Mapping[str, Any]:
        """Metadata, or a config, as it is stored. Its ids are left alone."""
        if self.redactor is None:
            return entries
        return {
            name: value if is_id(name) else self.redacted({name: value}, name)[name]
            for name, value in entries.items()
        }

    # -- values

    def encode(self, value: Any, path: str, *, own: bool = False) -> bytes:
        """The bytes of `value`. Raises `Unserializable` or `TypeNotAllowed` naming the path.

        `own`: it is our own, with redacted parts inside, and is not redacted as a whole.
        """
        try:
            data = ormsgpack.packb(value, default=self._hooks[0], option=_OPTION)
        except (TypeError, ValueError, RecursionError):
            # Objects that are nested deeply, a dict with keys that are not strings, or something to
            # be refused by name.
            data = self._encode_with_paths(value, path, self._convert)
        return data if own or self.redactor is None else _clean(self.redactor, data, path)

    def encode_pair(self, pair: list[Any], path: str) -> bytes:
        """The bytes of one [key, value] of the dict at `path`, refused as the dict would be."""
        data = None
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            if type(pair[0]) is str or not _has_nan(pair[0]):
                data = ormsgpack.packb(pair, default=self._hooks[0], option=_OPTION)
        if data is None:
            data = self._encode_with_paths(pair, path, self._convert_pair)
        return data if self.redactor is None else _clean(self.redactor, data, path, pair=True)

    def decode(self, data: bytes, location: str) -> Any:
        """The value that was encoded. Raises `TypeNotAllowed` or `Damaged` naming `location`."""

        cause: BaseException | None = None  # ormsgpack keeps nothing of what a hook raises
        objects = lists = 0  # that the hook is called inside of

        def hook(code: int, body: bytes) -> Any:
            nonlocal cause, objects, lists
            try:
                deeper = depth_at_most(body) if objects else 0
                objects, lists = objects + 1, lists + deeper
                if objects > NESTED[0] or lists > NESTED[1]:
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
        return ormsgpack.Ext(
            code, ormsgpack.packb(body, default=self._hooks[depth + 1], option=_OPTION)
        )

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
            return self._extension(max(0, len(ancestors) + QUICK - DEEPEST), value)
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
    return adapter_for(find(module, name)).is_enum


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


_CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""The bytes that a list or dict may begin with."""


def depth_at_most(data: bytes) -> int:
    """A bound of how deep the lists and dicts of a document are nested, outside its extensions."""
    headers = len(data) - len(data.translate(None, _CONTAINERS))
    if headers <= FEW:
        return headers
    deepest, level = -1, [ormsgpack.unpackb(data, ext_hook=lambda code, body: None)]
    while level:
        deepest += 1
        containers = [one for one in level if type(one) in (list, dict)]
        level = [
            item for one in containers for item in (one.values() if type(one) is dict else one)
        ]
    return deepest


def _parts(value: Any) -> dict[str, Any]:
    """The parts of a dict or dataclass, by how they are written behind it."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": one for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f".{field.name}": getattr(value, field.name, None) for field in fields(value)}
    return {}
