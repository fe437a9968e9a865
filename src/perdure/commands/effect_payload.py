"""What is stored of an effect's arguments, results and exceptions. Pure."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from typing import Any

from perdure import text
from perdure.commands.effects import EffectRow
from perdure.errors import EffectFailed, TooLarge, Unserializable, forgot_await
from perdure.serde.redaction import fill, hide, is_secret, is_secret_value, redact
from perdure.serde.serializer import Serializer
from perdure.types import EffectState, Record

INJECTED = frozenset(["config", "runtime", "store", "writer", "run_manager", "callbacks"])
"""Parameters that LangGraph and LangChain fill by name, and fill again in the next process."""


def stored_arguments(record: Record, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments to store."""
    return {
        name: hide(value)
        for name, value in arguments.items()
        if (record.arguments is None or name in record.arguments)
        and name not in record.without
        and not is_secret(name)
        and not is_secret_value(value)
        and not (name in INJECTED and _is_injected(value))
    }


def _is_injected(value: Any) -> bool:
    home = type(value).__module__.partition(".")[0]
    return home in ("langgraph", "langchain_core", "langchain") or (
        isinstance(value, dict) and "configurable" in value
    )


def encode_arguments(serializer: Serializer, name: str, stored: Mapping[str, Any]) -> bytes:
    """The arguments as bytes. Raises an error that names an argument that cannot be stored."""
    try:
        return serializer.encode(stored, f"the arguments of effect {name!r}")
    except Exception:
        for argument, value in stored.items():
            serializer.encode(value, f"argument {argument!r} of effect {name!r}")
        raise


def dump_arguments(
    serializer: Serializer, row: EffectRow, data: bytes, stored: Mapping[str, Any]
) -> bytes:
    """The arguments, encoded as `data`, as a blob."""
    name = f"the arguments of effect {row.name!r}"
    blob = serializer.envelope.seal(data, row.arguments_place)
    serializer.check_blob(len(blob), name, lambda: serializer.largest_part(stored))
    return _check_size(serializer, blob, f"effect {row.name!r}")


def complete(
    serializer: Serializer, recorded: dict[str, Any], present: Mapping[str, Any]
) -> dict[str, Any]:
    """Recorded arguments, and from the present call what was not stored of them."""
    hides = names_of_secrets(serializer)
    filled = {
        name: fill(value, present[name], lambda value: serializer.redacted(hide(value)), hides)
        for name, value in recorded.items()
        if name in present and not hides(name)
    }
    return {**recorded, **present, **filled}


def names_of_secrets(serializer: Serializer) -> Callable[[Any], bool]:
    """Whether what has a name is a secret, by the name alone or by the policy."""
    redactor = serializer.redactor
    return is_secret if redactor is None else lambda n: is_secret(n) or redactor.hides(n)


def dump_result(
    serializer: Serializer, row: EffectRow, result: Any, usage: Any = None, interrupts: int = 0
) -> bytes:
    name = row.name
    if isinstance(result, (Iterator, AsyncIterator)) or inspect.isawaitable(result):
        raise Unserializable(
            f"the result of effect {name!r}",
            f"it is {type(result).__name__}, which comes in pieces: collect it inside the effect, "
            f"and return the whole.{forgot_await(result)}",
        )
    outcome = [result, usage, interrupts] if usage or interrupts else [result]
    place = row.outcome_place(EffectState.DONE)
    blob = serializer.dumps(outcome, place, f"the result of effect {name!r}")
    return _check_size(serializer, blob, place.name)


def _check_size(serializer: Serializer, blob: bytes, where: str) -> bytes:
    if len(blob) > serializer.limit:
        raise TooLarge(where, len(blob), serializer.limit)
    return blob


def dump_error(
    serializer: Serializer,
    row: EffectRow,
    state: EffectState,
    error: BaseException,
    secrets: Collection[str],
    interrupts: int = 0,
) -> bytes:
    """An exception that leaves an effect in a state: its text, and what is needed to raise one of
    the same type again."""
    kind = type(error)
    text = describe(serializer, error, secrets)
    args = [redact(one, secrets) if isinstance(one, str) else hide(one) for one in error.args]
    try:
        size = len(serializer.encode(args, "args"))
        # Half: the text, which repeats some of it, is stored beside it.
        fits = size <= serializer.largest_blob // 2
        storable = fits and redact(repr(args), secrets) == repr(args)
    except Exception:
        storable = False
    if not storable:
        args = [text["message"]]
    type_name = [kind.__module__, kind.__qualname__]
    args = serializer.redacted(args)
    stored = {**text, "asked": interrupts, "type": type_name, "args": args}
    return serializer.dumps(stored, row.outcome_place(state), own=True)


def describe(
    serializer: Serializer, error: BaseException, secrets: Collection[str]
) -> dict[str, str]:
    """The text of an exception, without secrets."""
    return text.describe_error(error, lambda text: redact(serializer.redacted_text(text), secrets))


def restore_error(key: str, stored: Mapping[str, Any]) -> Exception:
    """A recorded exception: of its own type if that is imported, else `EffectFailed`."""
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


def mark_recorded(error: Exception) -> Exception:
    """Mark an exception as the outcome of an effect: the next attempt at its run would raise it
    again."""
    setattr(error, _MARK, True)
    return error


def is_recorded(error: BaseException | None) -> bool:
    """Whether an exception is, or was caused by, a recorded one."""
    passed: set[int] = set()
    while error is not None and id(error) not in passed:
        if getattr(error, _MARK, False):
            return True
        passed.add(id(error))  # `raise error from error` is its own cause
        error = error.__cause__
    return False


def _exception_type(module: str, name: str) -> type[Exception] | None:
    """An exception class that is already imported. The lookup imports and runs nothing."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = vars(value).get(part) if hasattr(value, "__dict__") else None
    if not isinstance(value, type) or not issubclass(value, Exception):
        return None
    ours = [base for base in value.__mro__ if base.__module__ != "builtins"]
    return None if any("__new__" in vars(base) for base in ours) else value
