"""The options of an effect, and which of them fit together."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Literal

from perdure.errors import BadArgument
from perdure.journal.names import check_text
from perdure.types import Record, Retry

ONCE, THRICE = Retry(attempts=1), Retry()


@dataclass(frozen=True)
class EffectSpec:
    """An effect: its name and its options.

    Attributes:
        reads: It changes nothing on the far side: a second call after a crash only costs money.
            So its intent is queued without waiting, and its outcome is committed soon, but not
            waited for.
        keeps_errors: Whether an exception is an outcome. If not, the call is still to be made.
        trust_errors: With `unknown="hold"`: whether an exception means that nothing happened.
        identity: A call gets a record only if all these arguments are equal.
        in_journal: What it does is in a journal, under its key. So it makes no difference on
            which object it is called, and its outcome is never unknown for good.
    """

    name: str
    key: Callable[..., Any] | None = None
    verify: Callable[..., Any] | None = None
    unknown: Literal["retry", "hold"] = "retry"
    transactional: bool = False
    retry: Retry = THRICE
    timeout: float | None = None
    compensate: Callable[..., Any] | None = None
    record: Record = Record()  # noqa: RUF009 (it is frozen)
    reads: bool = False
    keeps_errors: bool = True
    trust_errors: bool = False
    identity: tuple[str, ...] = ()
    in_journal: bool = False

    @property
    def may_stay_open(self) -> bool:
        """Whether a run may end without the outcome of a call that was cut off."""
        return self.reads or self.in_journal

    @property
    def needs_unique_name(self) -> bool:
        """Whether its name alone finds its outcomes, or its compensation."""
        return self.key is not None or self.compensate is not None

    @property
    def shares_withdrawn(self) -> bool:
        """Whether the next call, whatever its arguments, takes the place of one that raised."""
        return self.reads and not self.keeps_errors


OPTIONS = frozenset(
    {field.name for field in fields(EffectSpec)}
    - {"reads", "keeps_errors", "trust_errors", "identity", "in_journal"}
)
"""What `@perdure.effect` takes."""


def make_spec(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    unknown: str = "retry",
    retry: Retry | None = THRICE,
    timeout: float | timedelta | None = None,
    record: Record | Iterable[str] | None = None,
    **others: Any,
) -> EffectSpec:
    """The options of a decorated function. Raises `BadArgument` if they do not fit."""
    own_name = str(getattr(function, "__qualname__", "")).rpartition("<locals>.")[2]
    if not inspect.isroutine(function):
        raise BadArgument(f"@perdure.effect is for functions and methods, not for {function!r}.")
    record, first = record_of(record), next(iter(inspect.signature(function).parameters), None)
    if "." in own_name and first in ("self", "cls"):
        record = replace(record, without=(*record.without, first))
    spec = EffectSpec(
        name or own_name,
        unknown=check_unknown(unknown),
        retry=ONCE if retry is None else retry,
        timeout=seconds_of(timeout),
        record=record,
        **others,
    )
    _check(function, spec)
    return spec


def seconds_of(timeout: Any) -> float | None:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise BadArgument(f"timeout={timeout!r}: use more than 0 seconds, or a timedelta.")
    return seconds


def record_of(record: Record | Iterable[str] | None) -> Record:
    if isinstance(record, Record):
        return record
    return Record(None if record is None else tuple(record))


def check_unknown(unknown: str) -> Literal["retry", "hold"]:
    if unknown not in ("retry", "hold"):
        raise BadArgument(f"unknown={unknown!r}: use 'retry' or 'hold'.")
    return "hold" if unknown == "hold" else "retry"


def _check(function: Callable[..., Any], spec: EffectSpec) -> None:
    """Refuse options of a wrong type, and a function that cannot be an effect with them."""
    for option in ("key", "verify", "compensate"):
        value = getattr(spec, option)
        if value is not None and not callable(value):
            raise BadArgument(f"{option}={value!r}: use a function of the effect's arguments.")
    if not isinstance(spec.retry, Retry):
        raise BadArgument(f"retry={spec.retry!r}: use perdure.Retry(attempts=...), or None.")
    name, is_async = spec.name, inspect.iscoroutinefunction(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadArgument(
            f"{name} yields its result in pieces, which cannot be recorded: collect them, and "
            "return the whole."
        )
    if spec.transactional and is_async:
        raise BadArgument(
            f"{name} is a coroutine: a transactional effect must be a plain function, because the "
            "journal accepts no other write during its call."
        )
    if spec.transactional and (spec.verify is not None or spec.timeout is not None):
        raise BadArgument(f"{name} is transactional: it takes neither verify= nor timeout=.")
    if not is_async and inspect.iscoroutinefunction(spec.verify):
        raise BadArgument(f"{name} is a plain function, so its verify= must be one too.")


MAX_BUSINESS_KEY = 200
"""Longest business key, in bytes, that is stored as it is; the end of a longer one is hashed."""


def business_key(name: str, key: Any) -> str:
    """What `key=` returned for effect `name`, as text that is the same in every process."""
    if key is None:
        raise BadArgument(f"The key of effect {name!r} is None: all its calls would share it.")
    try:
        compact = (",", ":")
        text = key if isinstance(key, str) else json.dumps(key, sort_keys=True, separators=compact)
    except (TypeError, ValueError) as error:
        raise BadArgument(
            f"The key of effect {name!r} is {key!r}. Return text, or a value JSON can hold: {error}"
        ) from None
    data = text.encode(errors="surrogatepass")
    if len(data) > MAX_BUSINESS_KEY:
        text = f"{text[:40]}… {hashlib.blake2b(data, digest_size=16).hexdigest()}"
    return check_text("key", text)
