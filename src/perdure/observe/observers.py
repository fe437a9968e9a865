"""The observers of a runtime or client: called with its events and commits, and around segments.

An event's statement stores it only if its change was made, and some decide its kind in SQL. So
observers get what the statement returned; if its reply was lost, what is found in the journal.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from perdure.commands import runs
from perdure.commands.runs import RunRow
from perdure.errors import BadArgument
from perdure.failures import Failures
from perdure.journal import Journal, Read, Statement, connect_later, rows_as
from perdure.journal.changes import Committed
from perdure.journal.clock import Clock
from perdure.serde.serializer import Serializer
from perdure.times import moment
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

    def _with(self, method: str) -> list[Any]:
        return [one for one in self._all if hasattr(one, method)]

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
        for one in self._with("attach"):
            one.attach(engine)

    def connect(self, url: str | None) -> Journal:
        """The journal at a URL, opened by its first use. Its commits are reported to the
        observers."""
        of_events = [one for one in self._all if isinstance(one, Observer)]
        journal = connect_later(url, has_listener=bool(of_events))
        for one in self._with("on_commit"):
            journal.measure(one.on_commit)
        return observe(journal, of_events)

    @property
    def metrics(self) -> Any:
        """The observer with metrics to scrape, if there is one."""
        return next(iter(self._with("scrape")), None)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of each observer that has it. What it raises must not fail a run."""
        for one in self._with(method):
            with _logged(method):
                getattr(one, method)(*arguments)

    def around(self, drive: Any) -> contextlib.ExitStack:
        """While a worker drives a segment."""
        stack = contextlib.ExitStack()
        for one in self._with("around"):
            with _logged("around"):
                stack.enter_context(one.around(drive))
        return stack

    def reopen(self) -> None:
        """The runtime is opened again."""
        for one in self._with("reopen"):
            one.reopen()


@contextlib.contextmanager
def _logged(method: str) -> Iterator[None]:
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


# -- events that were committed


class StoredEvent(NamedTuple):
    """The columns of an event that the statement which stores it returns."""

    thread_id: str
    run_id: str
    n: int
    at: int
    kind: str


def observe(journal: Journal, observers: Sequence[Observer]) -> Journal:
    """Have observers called for each event that is committed from now on through this journal."""

    def listener(committed: Sequence[Committed], read: Read) -> None:
        for event in _stored(committed, read):
            for one in observers:
                try:
                    one.on_event(*event)
                except Exception:
                    log.exception("The observer failed at the event %r of run %s.", *event[:2])

    if observers:
        journal.listen(listener)
    return journal


def _stored(committed: Sequence[Committed], read: Read) -> Iterator[tuple[Any, ...]]:
    """The events that each statement stored: kind, run id, thread id, data, time. That of a claim
    has the graph and the segment, which are in the rows that the claim returned."""
    for one in committed:
        claims = {row.id: {"graph": row.graph, "segment": row.token} for row in _claimed(one)}
        for row in _read_again(one, read) if one.returned is None else one.returned:
            event = StoredEvent(*row)
            data = {**one.statement.event, **claims.get(event.run_id, {})}
            yield event.kind, event.run_id, event.thread_id, data, moment(event.at)


def _claimed(committed: Committed) -> list[RunRow]:
    is_claim = committed.statement.name == "insert_claim_events"
    return rows_as(RunRow)(committed.rows[:1]) if is_claim else []


def _read_again(committed: Committed, read: Read) -> list[Any]:
    """What a statement whose reply was lost would have returned."""
    change = committed.statement.params["change"]
    places = [
        Statement("find_event", {"thread_id": thread_id, "id": run_id, "change": change})
        for thread_id, run_id in _runs_of(committed, read)
    ]
    return [row for rows in read(places) for row in rows] if places else []


def _runs_of(committed: Committed, read: Read) -> list[tuple[str, str]]:
    """The runs that a statement may have stored an event of, as (thread, run)."""
    name, params = committed.statement
    if name == "insert_claim_events":
        return [(row.thread_id, row.id) for row in _claimed(committed)]
    if name == "insert_stop_events" and params["id"] is None:  # the runs of a thread
        page = runs.page(thread_id=params["thread_id"], count=1000)
        return [(row.thread_id, row.id) for row in page.result(read(page.render()))]
    if name == "insert_descendant_events":
        [found] = read([Statement("descendants", params)])
        return [(thread_id, run_id) for thread_id, run_id in found]
    return [(params["thread_id"], params["id"])]
