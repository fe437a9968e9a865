"""`@perdure.effect`: a function whose calls settle.

In a run of a graph, under the runtime or with only the saver, a call is recorded before and after
it is made. Anywhere else it is the plain function.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, overload

from perdure.effects import context, recording
from perdure.effects.filing import Spec
from perdure.effects.identity import Desk, Line, here
from perdure.effects.invocation import Calling, Functions
from perdure.effects.settlement import Raised, Returned, Settling
from perdure.errors import BadArgument
from perdure.types import Record, Retry

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("perdure")

ONCE, THRICE = Retry(attempts=1), Retry()
SPEC = "__perdure_effect__"
"""Where a decorated function keeps what it is."""


@overload
def effect(function: Callable[P, T], /) -> Callable[P, T]: ...


@overload
def effect(
    *,
    name: str | None = None,
    key: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    unknown: Literal["retry", "hold"] = "retry",
    transactional: bool = False,
    retry: Retry | None = THRICE,
    timeout: float | timedelta | None = None,
    compensate: Callable[..., Any] | None = None,
    record: Record | Iterable[str] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def effect(function: Any = None, /, **options: Any) -> Any:
    """Record the calls of a function that leave the process.

    name           part of the key; by default the name of the function
    key            gives a business key from the arguments; it guards across runs and threads
    verify         asks the far side, with the same arguments, about a call whose outcome is not
                   known: what it gives is the outcome, `Done(None)` if that is None; None means
                   that it did not happen
    unknown        without verify: "retry" calls again with the same key, "hold" holds the run
                   until a person says what became of it
    transactional  what it writes with `perdure.transaction()` is committed with its outcome
    retry          what becomes of an exception; None: it is final
    timeout        seconds, or a timedelta, for one attempt
    compensate     undoes it when its run is cancelled: called with the result, then the arguments
    record         what is kept of arguments and result: names of arguments, or a `Record`
    """
    if unknown := options.keys() - inspect.signature(Made.of).parameters.keys():
        raise BadArgument(f"@perdure.effect has no option {sorted(unknown)[0]!r}.")
    if function is None:
        return functools.partial(_decorate, options=options)
    return _decorate(function, options)


def _decorate(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    made = Made.of(function, **options)
    if made.is_async:

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await made.acall(args, kwargs)
    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return made.call(args, kwargs)

    setattr(wrapper, SPEC, made)
    return wrapper


@dataclass(frozen=True)
class Made:
    """A decorated function."""

    spec: Spec
    function: Callable[..., Any]
    signature: inspect.Signature
    is_async: bool

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        key: Callable[..., Any] | None = None,
        verify: Callable[..., Any] | None = None,
        unknown: str = "retry",
        transactional: bool = False,
        retry: Retry | None = THRICE,
        timeout: float | timedelta | None = None,
        compensate: Callable[..., Any] | None = None,
        record: Record | Iterable[str] | None = None,
    ) -> Made:
        _check_options(key, verify, compensate, retry, timeout)
        title = name or _name_of(function)
        _check(function, title, unknown, transactional, verify, timeout)
        if not isinstance(record, Record):
            record = Record(None if record is None else tuple(record))
        kept = record
        signature = inspect.signature(function)
        first = next(iter(signature.parameters), None)
        if "." in _name_of(function) and first in ("self", "cls"):
            kept = replace(kept, without=(*kept.without, first))
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        spec = Spec(
            title,
            key,
            verify,
            "hold" if unknown == "hold" else "retry",
            transactional,
            retry or ONCE,
            seconds,
            compensate,
            kept,
        )
        made = cls(spec, function, signature, inspect.iscoroutinefunction(function))
        _register(made)
        return made

    # -- the two colours

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return perform(
            lambda: self._plain(args, kwargs), lambda found: self._settling(found, args, kwargs)
        )

    async def acall(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await aperform(
            lambda: self._plain(args, kwargs), lambda found: self._settling(found, args, kwargs)
        )

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Calling:
        return Calling(self.spec.name, self.function, args, kwargs, context.plain())

    def _settling(
        self, found: tuple[Desk, int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Settling:
        desk, attempt = found
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        business = None
        if self.spec.key is not None:
            key = self.spec.key(*bound.args, **bound.kwargs)
            business = recording.key_text(self.spec.name, key)
        caller = Functions(
            self.spec, self.function, self.signature, desk.owner, desk.journal, desk.execution
        )
        line = Line(attempt)
        first = next(iter(bound.arguments), None)
        if first in ("self", "cls") and first in self.spec.record.without:
            line.instance = bound.arguments[first]
        home = _home(self.function)
        return Settling(desk, self.spec, dict(bound.arguments), line, caller, business, home=home)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", repr(function))).rpartition("<locals>.")[2]


def _home(function: Callable[..., Any]) -> str:
    """The module of a function, also if it was started as a script; two may have one name."""
    module = getattr(function, "__module__", "") or ""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else Path(getattr(main, "__file__", "") or "").stem


def _check_options(key: Any, verify: Any, compensate: Any, retry: Any, timeout: Any) -> None:
    for option, given in (("key", key), ("verify", verify), ("compensate", compensate)):
        if given is not None and not callable(given):
            raise BadArgument(f"{option}={given!r}: use a function of the effect's arguments.")
    if retry is not None and not isinstance(retry, Retry):
        raise BadArgument(f"retry={retry!r}: use perdure.Retry(attempts=...), or None.")
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not number and not isinstance(timeout, timedelta):
        raise BadArgument(f"timeout={timeout!r}: use seconds, or a timedelta.")


def _check(
    function: Callable[..., Any],
    name: str,
    unknown: str,
    transactional: bool,
    verify: Callable[..., Any] | None,
    timeout: Any,
) -> None:
    is_async = inspect.iscoroutinefunction(function)
    if not inspect.isroutine(function):
        raise BadArgument(f"@perdure.effect is for functions and methods, not for {function!r}.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadArgument(
            f"{name} yields its result in pieces, which cannot be recorded: collect them, and "
            "return the whole."
        )
    if unknown not in ("retry", "hold"):
        raise BadArgument(f"unknown={unknown!r}: use 'retry' or 'hold'.")
    if transactional and is_async:
        raise BadArgument(
            f"{name} is a coroutine: a transactional effect is a plain function, because nobody "
            "else can write to the journal while it is called."
        )
    if transactional and (verify is not None or timeout is not None):
        raise BadArgument(f"{name} is transactional: it takes neither verify= nor timeout=.")
    if not is_async and verify is not None and inspect.iscoroutinefunction(verify):
        raise BadArgument(f"{name} is a plain function, so its verify= must be one too.")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not seconds > 0:
        raise BadArgument(f"timeout={timeout!r}: use seconds, more than none.")


_KNOWN: dict[str, Made] = {}


def _register(made: Made) -> None:
    """Remember an effect by its name, for who has to undo it."""
    known = _KNOWN.get(made.spec.name)
    if known is not None and not _are_same(known, made) and _is_found_by_name(known):
        if not _is_found_by_name(made):
            return
        there = f"{known.function.__module__}.{known.function.__qualname__}"
        raise BadArgument(
            f"There is an effect {made.spec.name!r} with key= or compensate= already ({there}). "
            "They would take each other's outcomes: give one of them another name=."
        )
    _KNOWN[made.spec.name] = made


def _is_found_by_name(made: Made) -> bool:
    return made.spec.key is not None or made.spec.compensate is not None


def _are_same(one: Made, other: Made) -> bool:
    """Whether it is one function, that was decorated again or imported under another name."""
    homes = {one.function.__module__, other.function.__module__}
    same = one.function.__qualname__ == other.function.__qualname__
    return same and (len(homes) == 1 or "__main__" in homes)


def known(name: str) -> Made | None:
    """An effect of this process by its name."""
    return _KNOWN.get(name)


# -- who calls


def perform(plain: Callable[[], Calling], settling: Callable[[tuple[Desk, int]], Settling]) -> Any:
    """Make a call: settled in a run, plainly outside of any."""
    found = here()
    if found is None:
        return _ended(plain().run())
    desk, call = found[0], settling(found)
    with contextlib.nullcontext() if not _in_loop() else _blocking(desk, call.spec.name):
        return desk.journal.run(call.run())


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_WARNED: set[str] = set()


@contextlib.contextmanager
def _blocking(desk: Desk, name: str) -> Iterator[None]:
    """A plain effect is called by a coroutine: nothing else in its event loop goes on meanwhile."""
    if name not in _WARNED:
        _WARNED.add(name)
        log.warning(
            "effect %r is a plain function, and a coroutine calls it: the event loop, with every "
            "other run in it, stands still meanwhile. Make it a coroutine, or its node a plain "
            "function.",
            name,
        )
    with contextlib.nullcontext() if desk.segment is None else desk.segment.blocking():
        yield


async def aperform(
    plain: Callable[[], Calling], settling: Callable[[tuple[Desk, int]], Settling]
) -> Any:
    found = here()
    if found is None:
        return _ended(await plain().arun())
    return await shielded(found[0].journal.arun(settling(found).run()))


def _ended(outcome: Returned | Raised) -> Any:
    if isinstance(outcome, Raised):
        raise outcome.error
    return outcome.value


_BACKGROUND: set[asyncio.Task[Any]] = set()


async def shielded(call: Coroutine[Any, Any, T]) -> T:
    """Wait for a call. If the waiter is cancelled, it goes on, so that its outcome is recorded."""
    task = asyncio.create_task(call)
    _BACKGROUND.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    _BACKGROUND.discard(task)
    if not task.cancelled():
        task.exception()  # seen, if nobody waits for it any more
