"""What is kept of an effect's arguments, results and exceptions. Pure."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from perdure.errors import BadArgument, EffectFailed, TooLarge, Unserializable
from perdure.journal.names import check_text
from perdure.operations import error_text
from perdure.serde.serializer import Serializer, scrub, where_effect
from perdure.types import Record

SECRETS = frozenset(
    {"auth", "authorization", "credentials", "passwd", "pwd", "token", "x-api-key", "cookie"}
    | {f"{kind}_token" for kind in ("access", "auth", "bearer", "id", "refresh", "session")}
)
ENDINGS = ("password", "secret", "api_key", "apikey", "access_key", "private_key", "secret_key")
"""Arguments with these names, or names that end so, are never kept; nor such keys of a dict."""
INJECTED = frozenset(["config", "runtime", "store", "writer", "run_manager", "callbacks"])
"""What LangGraph and LangChain give a function by its name: there again in the next process."""


def is_secret(name: Any) -> bool:
    """Whether what has this name must not be stored."""
    return isinstance(name, str) and (name.lower() in SECRETS or name.lower().endswith(ENDINGS))


def keep(record: Record, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are kept."""
    return {
        name: _without_secrets(value)
        for name, value in arguments.items()
        if (record.arguments is None or name in record.arguments)
        and name not in record.without
        and not is_secret(name)
        and not hasattr(value, "get_secret_value")
        and not (name in INJECTED and _is_injected(value))
    }


def _without_secrets(value: Any) -> Any:
    """A dict without the keys that are secrets, such as headers; anything else as it is."""
    if type(value) is dict and any(is_secret(key) for key in value):
        return {key: value[key] for key in value if not is_secret(key)}
    return value


def _is_injected(value: Any) -> bool:
    home = type(value).__module__.partition(".")[0]
    return home in ("langgraph", "langchain_core", "langchain") or (
        isinstance(value, dict) and "configurable" in value
    )


def encode_arguments(serializer: Serializer, name: str, kept: Mapping[str, Any]) -> bytes:
    """The bytes, or the argument that cannot be stored, by name."""
    try:
        return serializer.codec.encode(kept, f"the arguments of effect {name!r}")
    except Exception:
        for argument, value in kept.items():
            serializer.codec.encode(value, f"argument {argument!r} of effect {name!r}")
        raise


def close_arguments(serializer: Serializer, key: str, name: str, data: bytes) -> bytes:
    return _within(
        serializer,
        serializer.envelope.wrap(data, where_effect("arguments", key)),
        f"effect {name!r}",
    )


def digest(data: bytes) -> str:
    """What tells arguments apart."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def complete(recorded: dict[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded arguments, with what was not kept of them from the present call."""
    whole = {**present, **recorded}
    for name, value in recorded.items():
        given = present.get(name)
        if isinstance(value, dict) and isinstance(given, dict):
            missing = {key: given[key] for key in given if key not in value and is_secret(key)}
            whole[name] = {**value, **missing} if missing else value
    return whole


def close_result(
    serializer: Serializer, key: str, name: str, result: Any, usage: Any = None, asked: int = 0
) -> bytes:
    if isinstance(result, (Iterator, AsyncIterator)) or inspect.isawaitable(result):
        raise Unserializable(
            f"the result of effect {name!r}",
            f"it is {type(result).__name__}, which comes in pieces: collect it inside the effect, "
            "and return the whole",
        )
    outcome = [result, usage, asked] if usage or asked else [result]
    where = where_effect("outcome", key)
    return _within(
        serializer, serializer.dumps(outcome, where, f"the result of effect {name!r}"), where
    )


def _within(serializer: Serializer, blob: bytes, where: str) -> bytes:
    if len(blob) > serializer.limit:
        raise TooLarge(where, len(blob), serializer.limit)
    return blob


def close_error(
    serializer: Serializer,
    key: str,
    error: BaseException,
    secrets: Mapping[str, Any],
    asked: int = 0,
) -> bytes:
    """An exception: in words, and so that one of the same type can be raised again."""
    kind = type(error)
    words = describe(error, secrets)
    args = [scrub(one, secrets) if isinstance(one, str) else one for one in error.args]
    try:
        serializer.codec.encode(args, "args")
        leaks = scrub(repr(args), secrets) != repr(args)
    except Exception:
        leaks = True
    if leaks:
        args = [words["message"]]
    stored = {**words, "asked": asked, "type": [kind.__module__, kind.__qualname__], "args": args}
    return serializer.dumps(stored, where_effect("outcome", key))


def describe(error: BaseException, secrets: Mapping[str, Any]) -> dict[str, str]:
    """An exception in words, without these."""
    return {name: scrub(words, secrets) for name, words in error_text.describe_error(error).items()}


def open_error(serializer: Serializer, key: str, blob: bytes) -> Exception:
    """The exception of an effect that failed: of its type, if that is one of this process."""
    stored = serializer.loads(blob, where_effect("outcome", key))
    cls = _exception_type(*stored["type"])
    if cls is not None:
        with contextlib.suppress(TypeError):
            if cls.__module__ == "builtins":
                return cls(*stored["args"])
            error: Exception = cls.__new__(cls)
            error.args = tuple(stored["args"])
            return error
    return EffectFailed(key, stored["kind"], stored["message"])


_MARK = "__perdure_recorded__"


def recorded(error: Exception) -> Exception:
    """Mark an exception as the outcome of an effect: to drive its run again would give the same."""
    setattr(error, _MARK, True)
    return error


def is_recorded(error: BaseException | None) -> bool:
    """Whether an exception is, or comes from, one that is recorded."""
    while error is not None:
        if getattr(error, _MARK, False):
            return True
        error = error.__cause__
    return False


def _exception_type(module: str, name: str) -> type[Exception] | None:
    """An exception class that is imported already. Nothing is imported or run to find it."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    ours = [base for base in found.__mro__ if base.__module__ != "builtins"]
    return None if any("__new__" in vars(base) for base in ours) else found


def key_text(name: str, key: Any) -> str:
    """A business key as text: the same in every process."""
    if key is None:
        raise BadArgument(f"The key of effect {name!r} is None, which would be one for all calls.")
    try:
        text = key if isinstance(key, str) else json.dumps(key, sort_keys=True, **_COMPACT)
    except (TypeError, ValueError) as error:
        raise BadArgument(
            f"The key of effect {name!r} is {key!r}, but must be text, or fit into JSON: {error}"
        ) from None
    data = text.encode(errors="surrogatepass")
    if len(data) > LONGEST_KEY:
        text = f"{text[:40]}… {hashlib.blake2b(data, digest_size=16).hexdigest()}"
    return check_text("key", text)


_COMPACT: dict[str, Any] = {"separators": (",", ":")}
LONGEST_KEY = 200
"""Bytes of a business key that is kept as it is."""
