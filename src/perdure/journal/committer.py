"""Commits one batch of operations and finds out whether it was committed.

the usual case                   one transaction for all
one operation is at fault        each alone, in order; only its own caller gets the error
a guard refused                  its `otherwise`, in its place
the database went back in time   what was made before that fails: `acknowledged`
COMMIT sent, no reply            read the operation's own key; if it is missing, send again
the database is unavailable      nothing is settled: the queue decides who gets the error

A listener gets the committed events: after the commit, in order, once, in a separate thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, cast

from perdure.errors import Error, LeaseLost, Unavailable, WentBack, WriteLost
from perdure.journal.acknowledged import Acknowledged, Commit, Read
from perdure.journal.changes import ChangeFeed, changed_names
from perdure.journal.operation import (
    NOTHING,
    Ambiguous,
    Backend,
    EventStatement,
    InteractiveBackend,
    Op,
    Refused,
    Row,
    Size,
    Statement,
    Transaction,
    no_result,
)

T = TypeVar("T")
Results = Sequence[Sequence[Row]]

DRAIN = 5.0
"""Seconds that `close` waits for the listener."""
GATHER = 0.05
"""Seconds between two calls of the listener."""
IDLE = 0.5
"""Seconds after which the thread ends if nothing is committed."""
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

    def _send_and_settle(self, batch: list[QueuedOperation[Any]]) -> list[Results]:
        """Commit a batch. An operation of an earlier batch whose reply was lost is not sent again
        if that was committed."""
        if not (stored := self._stored(batch)):
            return self._send_until_known(batch) if batch else []
        left = [queued for queued in batch if queued not in stored]
        sent = iter(self._send_until_known(left) if left else [])
        return [stored[queued] if queued in stored else next(sent) for queued in batch]

    def _send_until_known(self, batch: list[QueuedOperation[Any]]) -> list[Results]:
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

    def _send(self, batch: list[QueuedOperation[Any]]) -> list[Results]:
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
        results: list[Results] = []
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

    def _stored(self, batch: list[QueuedOperation[Any]]) -> dict[QueuedOperation[Any], Results]:
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

    def _results_again(self, batch: list[QueuedOperation[Any]]) -> list[Results]:
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


class Committed(NamedTuple):
    """A committed statement that stores events."""

    statement: EventStatement
    returned: Sequence[Row] | None
    """The events that it stored; None: its reply was lost."""
    rows: Results
    """The rows of its operation."""


Listener = Callable[[Sequence[Committed], Read], None]
"""Called with the statements of one or more commits, and a function that reads rows."""


class CommitListener:
    """The queue of committed events, and the thread that passes them to the listener.

    Waking the thread at each commit would cost more than its work. So it passes the first events at
    once, later ones every `GATHER` seconds, and ends when none came for a while.
    """

    def __init__(self, listener: Listener, read: Read) -> None:
        self._listener, self._read = listener, read
        self._committed: deque[Committed] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._urgent = threading.Event()
        """Set while a caller waits for the queue to be empty."""

    def note(self, statements: Sequence[Statement], rows: Results, *, again: bool) -> None:
        """Queue the event statements of a committed operation. `again`: its reply was lost, and its
        rows are those of its key, or of a second copy."""
        for n, one in enumerate(statements):
            if isinstance(one, EventStatement):
                self._committed.append(Committed(one, None if again else rows[n], rows))

    def tell(self) -> None:
        """Wake the thread if something is queued."""
        with self._lock:
            if not self._committed:
                return
            if self._thread is not None:
                self._woken.set()
                return
            thread = threading.Thread(target=self._tell_all, name="perdure-observer", daemon=True)
            try:
                thread.start()
                self._thread = thread
                return
            except RuntimeError:  # no thread can be started, or the interpreter is ending
                pass
        self._tell_queued()

    def drain(self) -> None:
        """Wait until the listener has everything, unless the listener itself calls this."""
        self.tell()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._urgent.set()
            self._woken.set()
            thread.join(DRAIN)
            self._urgent.clear()

    def _tell_all(self) -> None:
        while True:
            self._woken.clear()
            if self._tell_queued():
                self._urgent.wait(GATHER)
            elif self._urgent.is_set() or not self._woken.wait(IDLE):
                with self._lock:
                    if not self._committed:
                        self._thread = None
                        return

    def _tell_queued(self) -> bool:
        """Pass what is queued to the listener. False if nothing is."""
        committed = [self._committed.popleft() for _ in range(len(self._committed))]
        if not committed:
            return False
        try:
            self._listener(committed, self._read)
        except BaseException:  # an observer may raise anything; it still gets the next events
            logging.getLogger("perdure").exception("Telling an observer of events failed.")
        return True
