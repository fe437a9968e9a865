"""Committing a batch of operations, and finding out what became of it. Settles tickets.

one transaction for all          the usual case
one of them is at fault          each alone, in order; only the guilty one's caller is told
a guard refused                  its `otherwise`, in its place
COMMIT sent, no reply            read our own key; if it is not there, send it again
the database is away             nothing is settled: the journal decides who is told
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from perdure.errors import Error, LeaseLost, Unavailable, WriteLost
from perdure.journal.operation import (
    Ambiguous,
    Backend,
    Committed,
    EventStatement,
    Op,
    Refused,
    Row,
)

T = TypeVar("T")
Results = Sequence[Sequence[Row]]

ATTEMPTS = 3
"""How often a batch is sent whose reply gets lost."""


class Ticket(Generic[T]):
    """An operation in the queue, and who waits for it."""

    __slots__ = ("_settled", "doubtful", "error", "events", "futures", "op", "value", "waited")

    def __init__(self, op: Op[T], waited: bool) -> None:
        self.op = op
        self.waited = waited
        self.doubtful = False  # it was in a commit whose outcome is still unknown
        self._settled = False
        self.events: list[EventStatement] = []  # of the batch that was sent last
        self.value: Any = None
        self.error: BaseException | None = None
        self.futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def settled(self) -> bool:
        return self._settled

    def settle(self) -> None:
        self._settled = True

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, (Error, LeaseLost, Refused)):
            cause = error
            error = Error(f"{self.op.name} failed: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        self.error = error
        self._settled = True

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


class Committer:
    """Commits batches on one database, one at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.away: Unavailable | None = None
        """Why the last batch could not be committed, if so."""
        self.lost: WriteLost | None = None
        """An operation that failed and that nobody waited for."""
        self.committed: deque[Committed] | None = None
        """The statements that stored events since the last look, if somebody looks."""

    def commit(self, batch: list[Ticket[Any]]) -> None:
        """Settle the tickets of a batch; none, or not all, when the database is away."""
        try:
            results = self._send_and_settle(batch)
        except Unavailable as error:
            self.away = error
        except Exception as error:
            if len(batch) > 1:
                # One of them is at fault. Each alone, in order: the others are not harmed.
                for ticket in batch:
                    self.commit([ticket])
                    if not ticket.settled():
                        return
            else:
                self._try_otherwise(batch[0], error)
        else:
            self.away = None
            for ticket, rows in zip(batch, results, strict=True):
                try:
                    ticket.value = ticket.op.result(rows)
                except Exception as error:
                    ticket.error = error
                ticket.settle()
                if self.committed is not None:
                    self.committed.extend(Committed(one, rows) for one in ticket.events)

    def _try_otherwise(self, ticket: Ticket[Any], error: Exception) -> None:
        if not isinstance(error, Refused) or ticket.op.otherwise is None:
            self._fail(ticket, error)
            return
        try:
            ticket.op = ticket.op.otherwise()
        except (Exception, LeaseLost) as mistake:
            self._fail(ticket, mistake)
        else:
            self.commit([ticket])

    def _send_and_settle(self, batch: list[Ticket[Any]]) -> list[Results]:
        """Commit a batch; when the reply is lost, find out by our own key, or run it again."""
        lost: Exception | None = None
        for attempt in range(ATTEMPTS):
            try:
                results = self._send(batch)
                # The one before may have been committed after all, behind our back.
                return self._check_results(batch, results) if attempt else results
            except Ambiguous as error:
                lost = error
            try:
                if self._is_committed(batch):
                    return [self._results_again(ticket) for ticket in batch]
            except (Ambiguous, Unavailable) as error:
                lost = error
                break
        for ticket in batch:
            ticket.doubtful = True
        raise Unavailable(
            f"A commit was sent and its outcome is unknown: {lost}. Calling again is safe: what "
            "is already stored is not stored twice."
        ) from lost

    def _send(self, batch: list[Ticket[Any]]) -> list[Results]:
        for ticket in batch:
            if ticket.op.prepare is not None:
                ticket.op.prepare()
        scripts = [ticket.op.render() for ticket in batch]
        if self.committed is not None:
            for ticket, script in zip(batch, scripts, strict=True):
                ticket.events = [one for one in script if isinstance(one, EventStatement)]
        rows = self._backend.commit([one for script in scripts for one in script])
        results: list[Results] = []
        start = 0
        for script in scripts:
            results.append(rows[start : start + len(script)])
            start += len(script)
        return results

    def _is_committed(self, batch: list[Ticket[Any]]) -> bool:
        """A batch is committed whole or not at all, so any trace of one of its operations decides.

        It must be one that was in no other commit before.
        """
        traces = [ticket.op.proof or ticket.op.key for ticket in batch if not ticket.doubtful]
        wanted = [trace for trace in traces if trace is not None]
        return any(self._backend.read(wanted)) if wanted else False

    def _check_results(self, batch: list[Ticket[Any]], sent: list[Results]) -> list[Results]:
        """The results of a batch that was sent twice: of what left a trace, what that says."""
        results = []
        for ticket, rows in zip(batch, sent, strict=True):
            trace = ticket.op.proof or ticket.op.key
            found = trace is not None and bool(self._backend.read([trace])[0])
            results.append(self._results_again(ticket) if found else rows)
        return results

    def _results_again(self, ticket: Ticket[Any]) -> Results:
        """The rows of an operation that is committed but whose reply was lost."""
        if ticket.op.key is not None:
            return self._backend.read([ticket.op.key])
        return [[] for _ in ticket.op.render()]

    def _fail(self, ticket: Ticket[Any], error: BaseException) -> None:
        ticket.fail(error)
        if not ticket.waited and not isinstance(error, LeaseLost):  # its segment knows
            self.lost = WriteLost(f"{ticket.op.name} could not be stored: {error}")
            self.lost.__cause__ = error
