"""Commits one batch of operations and finds out whether it was committed.

the usual case                   one transaction for all
one operation is at fault        each alone, in order; only its own caller gets the error
a guard refused                  its `otherwise`, in its place
the database went back in time   what was made before that fails: `went_back`
COMMIT sent, no reply            read the operation's own key; if it is missing, send again
the database is unavailable      nothing is settled: the queue decides who gets the error
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from perdure.errors import Error, LeaseLost, Unavailable, WentBack, WriteLost
from perdure.journal.changes import ChangeFeed, CommitListener, changed_names
from perdure.journal.operation import (
    NOTHING,
    Ambiguous,
    Backend,
    InteractiveBackend,
    Op,
    Refused,
    Row,
    Rows,
    Size,
    Statement,
    Transaction,
    no_result,
)
from perdure.journal.went_back import Acknowledged, Commit

T = TypeVar("T")

log = logging.getLogger("perdure")

ATTEMPTS = 3
"""How often a batch is sent whose reply gets lost."""


@dataclass(slots=True, eq=False)
class QueuedOperation(Generic[T]):
    """An operation in the queue, its outcome, and the coroutines that wait for it."""

    op: Op[T]
    waited: bool
    watched: bool = False  # the caller that deferred it checks its error
    epoch: int = 0  # of the history that it was made on
    size: Size = NOTHING  # if the database limits it
    doubtful: bool = False  # it was in a commit whose outcome is still unknown
    resent: bool = False  # its reply was lost: it may be committed when it is sent again
    sent: Sequence[Statement] = ()
    settled: bool = False
    value: Any = None
    error: BaseException | None = None
    futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = field(
        default_factory=list
    )

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, (Error, LeaseLost, Refused)):
            cause = error
            error = Error(f"{self.op.name} failed: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        self.error = error
        self.settled = True

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


class Committer:
    """Commits batches on one database, one at a time."""

    def __init__(self, backend: Backend, acknowledged: Acknowledged) -> None:
        self.backend, self._acknowledged = backend, acknowledged
        self._bounded = backend.capabilities.bounded
        self.unavailable: Unavailable | None = None
        """Why the last batch could not be committed, if so."""
        self.lost: WriteLost | None = None
        """A failed operation that had no caller waiting for it."""
        self.listener: CommitListener | None = None
        self.feed: ChangeFeed | None = None

    def commit(self, batch: list[QueuedOperation[Any]]) -> None:
        """Settle the operations of a batch; not all of them when the database is unavailable."""
        for queued in [*batch]:
            if queued.epoch != self._acknowledged.epoch:  # made before the database went back
                queued.fail(cast(WentBack, self._acknowledged.went_back))
                batch = [one for one in batch if one is not queued]
        try:
            results = self._send_and_settle(batch)
        except Unavailable as error:
            self.unavailable = error
        except Exception as error:
            if len(batch) > 1:
                # One of them is at fault. Each alone, in order: the others are not harmed.
                for queued in batch:
                    self.commit([queued])
                    if not queued.settled:
                        return
            else:
                self._try_otherwise(batch[0], error)
        else:
            self.unavailable = None
            commits = []
            for queued, rows in zip(batch, results, strict=True):
                op = queued.op if queued.waited else None
                commits.append(Commit(queued.sent, rows, op, queued.resent))
            self._acknowledged.note(commits)
            for queued, rows in zip(batch, results, strict=True):
                try:
                    if queued.op.result is not no_result:
                        queued.value = queued.op.result(rows)
                except Exception as error:
                    queued.error = error
                queued.settled = True
                if self.listener is not None:
                    self.listener.note(queued.sent, rows, again=queued.resent)
            if self.feed is not None and self.feed.watches:
                self.feed.note({name for queued in batch for name in changed_names(queued.sent)})

    def _try_otherwise(self, queued: QueuedOperation[Any], error: Exception) -> None:
        if not isinstance(error, Refused) or queued.op.otherwise is None:
            self._fail(queued, error)
            return
        try:
            queued.op = queued.op.otherwise()
        except (Exception, LeaseLost) as mistake:
            self._fail(queued, mistake)
        else:
            queued.resent = False
            self.commit([queued])

    def _send_and_settle(self, batch: list[QueuedOperation[Any]]) -> list[Rows]:
        """Commit a batch. An operation of an earlier batch whose reply was lost is not sent again
        if that was committed."""
        if not (stored := self._stored(batch)):
            return self._send_until_known(batch) if batch else []
        left = [queued for queued in batch if queued not in stored]
        sent = iter(self._send_until_known(left) if left else [])
        return [stored[queued] if queued in stored else next(sent) for queued in batch]

    def _send_until_known(self, batch: list[QueuedOperation[Any]]) -> list[Rows]:
        """Commit a batch; when the reply is lost, read our own key, or send it again."""
        lost: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                sent = self._send(batch)
                if not (stored := self._stored(batch)):
                    return sent
                # Of what was sent twice, its trace decides, where there is one.
                return [stored.get(queued, rows) for queued, rows in zip(batch, sent, strict=True)]
            except Ambiguous as error:
                lost = error
            except Refused:
                # What refused it may be its own first copy, which arrived late.
                if len(batch) > 1 or not (stored := self._stored(batch)):
                    raise
                return [*stored.values()]
            for queued in batch:
                queued.resent = True
            try:
                if self._is_committed(batch):
                    return self._results_again(batch)
            except WentBack:
                raise
            except (Ambiguous, Unavailable) as error:
                lost = error
                break
        for queued in batch:
            queued.doubtful = True
        raise _unknown_outcome(lost) from lost

    def transact(self, work: Callable[[Transaction], T], proof: Statement) -> T:
        """Commit what `work` does; when the reply is lost, read `proof`, or do the work again.

        Work that is done again must be refused if the first was committed after all.
        """
        done: list[T] = []
        noted: list[tuple[Statement, list[Row]]] = []

        def doing(transaction: Transaction) -> None:
            ran: list[tuple[Statement, list[Row]]] = []

            def run(statements: Sequence[Statement]) -> list[list[Row]]:
                rows = transaction.run(statements)
                ran.extend(zip(statements, rows, strict=True))
                return rows

            done[:] = [work(Transaction(transaction.connection, run))]
            noted[:] = ran

        lost: Ambiguous | None = None
        for _ in range(ATTEMPTS):
            try:
                cast(InteractiveBackend, self.backend).transact(doing)
                break
            except Ambiguous as error:
                lost = error
            except Refused:
                if lost is None or not self.backend.settle([proof])[0]:
                    raise
                break
            if self.backend.settle([proof])[0]:
                break
        else:
            raise _unknown_outcome(lost) from lost
        statements, rows = [one for one, _ in noted], [rows for _, rows in noted]
        self._acknowledged.note([Commit(statements, rows)])
        if self.listener is not None:
            self.listener.note(statements, rows, again=False)
        return done[0]

    def _send(self, batch: list[QueuedOperation[Any]]) -> list[Rows]:
        for queued in batch:
            if queued.op.prepare is not None:
                queued.op.prepare()
        every: list[Statement] = []
        for queued in batch:
            statements = queued.op.statements
            queued.sent = statements() if callable(statements) else statements
            every += queued.sent
        if self._bounded and len(batch) == 1:  # it may be an `otherwise`, not checked so far
            self.backend.capabilities.check(batch[0].op.name, every)
        rows = self.backend.commit(every)
        results: list[Rows] = []
        start = 0
        for queued in batch:
            end = start + len(queued.sent)
            results.append(rows[start:end])
            start = end
        return results

    def _is_committed(self, batch: list[QueuedOperation[Any]]) -> bool:
        """Whether a batch was committed, by the trace of an operation that is in no other."""
        traces = [queued.op.proof or queued.op.key for queued in batch if not queued.doubtful]
        wanted = [trace for trace in traces if trace is not None]
        return any(self.backend.settle(wanted)) if wanted else False

    def _stored(self, batch: list[QueuedOperation[Any]]) -> dict[QueuedOperation[Any], Rows]:
        """The operations that were sent twice and have left their trace, with their results."""
        traces: dict[QueuedOperation[Any], Statement] = {}
        for queued in batch:
            if queued.resent and (trace := queued.op.proof or queued.op.key) is not None:
                traces[queued] = trace
        if not traces:
            return {}
        results = zip(traces, self.backend.settle([*traces.values()]), strict=True)
        stored = [queued for queued, rows in results if rows]
        return dict(zip(stored, self._results_again(stored), strict=True)) if stored else {}

    def _results_again(self, batch: list[QueuedOperation[Any]]) -> list[Rows]:
        """The rows of operations that are committed but whose reply was lost."""
        keys = [queued.op.key for queued in batch if queued.op.key is not None]
        rows = iter(self.backend.settle(keys) if keys else [])
        return [
            [[] for _ in queued.op.render()] if queued.op.key is None else [next(rows)]
            for queued in batch
        ]

    def _fail(self, queued: QueuedOperation[Any], error: BaseException) -> None:
        queued.fail(error)
        if not (
            queued.waited or queued.watched or isinstance(error, LeaseLost)
        ):  # its segment knows
            self.lost = WriteLost(f"{queued.op.name} could not be stored: {error}")
            self.lost.__cause__ = error


def _unknown_outcome(lost: Exception | None) -> Unavailable:
    return Unavailable(
        f"A commit was sent and its outcome is unknown: {lost}. Calling again is safe: what is "
        "already stored is not stored twice."
    )
