"""The observers of a runtime or client: they are called with its events, and around segments."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from perdure.errors import BadArgument
from perdure.failures import Failures
from perdure.journal import Journal, connect_later
from perdure.journal.clock import Clock
from perdure.observe.event_observer import observe as observe_events
from perdure.serde.serializer import Serializer
from perdure.types import Observer

log = logging.getLogger("perdure")


class Observed(Protocol):
    """The engine of a runtime or client. A sink adds its name to `sinks`."""

    serializer: Serializer
    failures: Failures

    @property
    def journal(self) -> Journal: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def sinks(self) -> list[str]: ...


class Observers:
    """Each is an object with one or more of these methods:

    on_event(kind, ...)   is called for each event that this process stored: see `types.Observer`
    on_commit(batch, s)   is called after each commit of the journal: `group_commit.Meter`
    attach(engine)        is called once, before the journal is opened
    nudge()               is called when a worker begins here, and when a segment it drove has ended
    on_lag(seconds)       is called four times a second, with how late the event loop of a worker is
    around(drive)         gives the context manager in which a worker drives a segment
    scrape()              gives the body of `GET /metrics`
    close()               is called before the journal is closed
    reopen()              is called after that, before the journal is opened again
    """

    def __init__(self, observe: Any = None) -> None:
        self._engine: Observed | None = None
        self._all: list[Any] = []
        self.sinks: list[str] = []  # the names of the sinks that this process has
        for one in _listed(observe):
            self.add(one)

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, observer: Any) -> None:
        """Add an observer, before the journal is opened."""
        if not _is_observer(observer):
            raise BadArgument(
                f"observe={observer!r}: an observer has a method on_event(kind, run_id, thread_id, "
                "data, at), or is one of perdure.observe. True takes those that the environment "
                "configures."
            )
        self._all.append(observer)
        if self._engine is not None and hasattr(observer, "attach"):
            observer.attach(self._engine)

    def attach(self, engine: Observed) -> None:
        """Attach each observer to its engine."""
        self._engine = engine
        for one in self._all:
            if hasattr(one, "attach"):
                one.attach(engine)

    def connect(self, url: str | None) -> Journal:
        """The journal at a URL, opened by its first use. Its commits are reported to the
        observers."""
        of_events = [one for one in self._all if isinstance(one, Observer)]
        journal = connect_later(url, has_listener=bool(of_events))
        for one in self._all:
            if hasattr(one, "on_commit"):
                journal.measure(one.on_commit)
        return observe_events(journal, of_events)

    @property
    def metrics(self) -> Any:
        """The observer with metrics to scrape, if there is one."""
        return next((one for one in self._all if hasattr(one, "scrape")), None)

    def nudge(self) -> None:
        """A worker has begun, or a segment has ended here."""
        self._call("nudge")

    def note_lag(self, seconds: float) -> None:
        """The event loop of a worker was so late."""
        self._call("on_lag", seconds)

    def _call(self, method: str, *arguments: Any) -> None:
        for one in self._all:
            if hasattr(one, method):
                with _kept_from_runs(method):
                    getattr(one, method)(*arguments)

    def around(self, drive: Any) -> contextlib.ExitStack:
        """While a worker drives a segment."""
        stack = contextlib.ExitStack()
        for one in self._all:
            if hasattr(one, "around"):
                with _kept_from_runs("around"):
                    stack.enter_context(one.around(drive))
        return stack

    def reopen(self) -> None:
        """The runtime is opened again."""
        for one in self._all:
            if hasattr(one, "reopen"):
                one.reopen()

    def close(self) -> None:
        self._call("close")


@contextlib.contextmanager
def _kept_from_runs(method: str) -> Iterator[None]:
    """What an observer raises is logged: it must not fail a run."""
    try:
        yield
    except Exception:
        log.exception("The observer failed in %s.", method)


def _listed(observe: Any) -> Iterable[Any]:
    if observe is None or observe is False:
        return ()
    if observe is True:
        from perdure.observe import from_env

        return from_env()
    is_one = _is_observer(observe) or not isinstance(observe, (list, tuple))
    return (observe,) if is_one else observe


def _is_observer(value: Any) -> bool:
    return hasattr(value, "on_event") or hasattr(value, "attach")


def check_is_new(observer: object, attached: object) -> None:
    """Raise if an observer observes a runtime or client already, perhaps one that was closed."""
    if attached is not None:
        raise BadArgument(
            f"This {type(observer).__name__} observes another runtime or client already: make one "
            "for each."
        )
