"""Commits one batch of operations and finds out whether it was committed.

the usual case                   one transaction for all
one operation is at fault        each alone, in order; only its own caller gets the error
a guard refused                  its `otherwise`, in its place
the database went back in time   what was made before that fails: `Acknowledged`
COMMIT sent, no reply            read the operation's own key; if it is missing, send again
the database is unavailable      nothing is settled: the queue decides who gets the error

`Acknowledged` is what this process knows to be committed, and what of it the database no longer
has. A database can go back in time: an asynchronous standby is promoted, the old primary of a
cluster is reached again, a backup is restored. What was acknowledged since then is gone, and a
driver that continued would write on top of an older history. So each process remembers the last
acknowledged change of each run, and other acknowledged writes by the key that finds them. They are
compared with the database when there is a reason:

    PostgreSQL   a new connection leads to another timeline, or to an earlier place
                 (`postgres_history`)
    SQLite       another file is at the path (`SQLite._check_file`)
    each         a lease has fewer events than when it was renewed before (`LeaseKeeper`), or the
                 heartbeat of this process is older than it wrote it (`Presence`)

Commits are ordered, so what is lost is the newest of it, and what is older than something that is
there was deleted since, by retention or by a person. Only if it certainly went back, there may be
newer commits, of before it was noticed. Everything that is missing is named, logged and
stored in `perdure_losses`; what is queued is refused, because it was made on the history that is
gone; listeners drop what they drive.

A process that dies takes its memory with it: what it alone had acknowledged is not named then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar, cast

from perdure.errors import Error, LeaseLost, Loss, Unavailable, WentBack, WriteLost
from perdure.journal.changes import ChangeFeed, CommitListener, changed_names
from perdure.journal.operation import (
    NOTHING,
    Ambiguous,
    Backend,
    EventStatement,
    InteractiveBackend,
    Op,
    Read,
    Refused,
    Row,
    Rows,
    Size,
    Statement,
    Transaction,
    no_result,
)
from perdure.journal.sql import parameters

T = TypeVar("T")

log = logging.getLogger("perdure")

ATTEMPTS = 3
"""How often a batch is sent whose reply gets lost."""
MOST_RUNS = 10_000
"""Runs that are remembered: those that changed last."""
MOST_OTHERS = 1_000
"""Other writes that are remembered."""
KEPT = 24 * 3600.0
"""Seconds for which they are remembered: retention may have deleted older ones."""
AT_ONCE = 200
"""Rows that are looked up in one visit."""
NAMED = 20
"""Losses that one line of the log names."""


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


# -- what is known to be committed


class _Write(NamedTuple):
    """An acknowledged write: the last change of a run, or another."""

    find: Statement
    """Finds a row if it is there."""
    at: float
    name: str = ""
    """Of the operation; empty: it is of a run."""
    n: int = -1
    """The number of the last event of a run, if the reply was not lost."""

    def loss(self, read: Read) -> Loss:
        params, what, run_id = self.find.params, self.name, None
        if not what:
            run_id = params["id"]
            [rows] = read([Statement("find_run", {**params, "key": None})])
            what = "its last changes" if rows else "the run"
        at = datetime.now(UTC) - timedelta(seconds=time.monotonic() - self.at)
        return Loss(str(params.get("thread_id") or ""), run_id, what, at)


class Commit(NamedTuple):
    """A committed operation. `op`: a caller waited for it; `again`: its reply was lost, and the
    rows are those of its key."""

    statements: Sequence[Statement]
    rows: Sequence[Sequence[Row]]
    op: Op[Any] | None = None
    again: bool = False


class Acknowledged:
    """The acknowledged writes of one journal in one process. It may be used from any thread."""

    def __init__(self) -> None:
        self.epoch = 0
        """How often the database was found to have gone back."""
        self.went_back: WentBack | None = None
        """The last time."""
        self.listeners: list[Callable[[WentBack], None]] = []
        """Called before anyone uses the older database. They may defer operations of the journal,
        and must not use it in any other way."""
        self._runs: OrderedDict[Any, _Write] = OrderedDict()
        self._others: OrderedDict[Any, _Write] = OrderedDict()
        self._lock = threading.Lock()

    def reopen(self) -> None:
        """Continue in a forked process: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def note(self, commits: Iterable[Commit]) -> None:
        """Note the runs that committed statements changed or deleted, or the operation that changed
        none by its key."""
        now = time.monotonic()
        with self._lock:
            for statements, rows, op, again in commits:
                is_of_run = False
                for n, statement in enumerate(statements):
                    params = statement.params
                    if statement.name == "delete_run":
                        self._runs.pop(params["id"], None)
                    if not isinstance(statement, EventStatement):
                        continue
                    is_of_run = True
                    own_rows = [(params["thread_id"], params["id"], -1)] if params.get("id") else []
                    for thread_id, run_id, number, *_ in own_rows if again else rows[n]:
                        own = {"thread_id": thread_id, "id": run_id, "change": params["change"]}
                        write = _Write(Statement("find_event", own), now, n=number)
                        self._runs[run_id] = write
                        self._runs.move_to_end(run_id)
                if op is not None and op.key is not None and not is_of_run:
                    name = op.key.name
                    find = {one: op.key.params[one] for one in parameters()[name]}
                    key = (name, *find.values())
                    self._others[key] = _Write(Statement(name, find), now, op.name)
                    self._others.move_to_end(key)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
            while len(self._others) > MOST_OTHERS:
                self._others.popitem(last=False)

    def last_event(self, run_id: str) -> int:
        """The number of the last event of a run that was acknowledged here; -1 if none was."""
        run = self._runs.get(run_id)
        return -1 if run is None else run.n

    def compare(self, read: Read, why: str, *, is_certain: bool = False) -> None:
        """Compare with a database that may have gone back, and `why`. `is_certain`: it has, even if
        nothing is missing of what is remembered. Raises `WentBack`, after telling the listeners."""
        since = time.monotonic() - KEPT
        with self._lock:
            every = [*self._runs.items(), *self._others.items()]
        newest = sorted((one for one in every if one[1].at >= since), key=lambda one: -one[1].at)
        missing: dict[Any, _Write] = {}
        for key, write, is_there in _looked_up(newest, read):
            if not is_there:
                missing[key] = write
            elif not is_certain:
                break
        losses = tuple(write.loss(read) for write in reversed(missing.values()))
        with self._lock:  # another thread may have found the same
            known = [self._runs.pop(key, None) or self._others.pop(key, None) for key in missing]
            if not (any(known) or is_certain):
                return
            self.epoch += 1
        self.went_back = error = WentBack(why, losses)
        _log(error)
        for listener in self.listeners:
            try:
                listener(error)
            except Exception:
                log.exception("Dropping what was based on a lost history failed.")
        raise error


def _looked_up(
    writes: Sequence[tuple[Any, _Write]], read: Read
) -> Iterator[tuple[Any, _Write, bool]]:
    """Each with whether it is there. The first alone: usually it is."""
    begin, end = 0, 1
    while begin < len(writes):
        some = writes[begin:end]
        for (key, write), rows in zip(some, read([one.find for _, one in some]), strict=True):
            yield key, write, bool(rows)
        begin, end = end, end + AT_ONCE


def warn_unreplicated(names: str, standbys: int) -> str | None:
    """A warning if commits do not wait for the standbys that there are."""
    if names or not standbys:
        return None
    return (
        f"synchronous_standby_names is empty, and the server has standbys ({standbys}): commits do "
        "not wait for them, so a failover loses what was acknowledged just before it."
    )


def _log(error: WentBack) -> None:
    log.error("%s", error)
    for begin in range(0, len(error.losses), NAMED):
        named = "; ".join(str(loss) for loss in error.losses[begin : begin + NAMED])
        log.error("Acknowledged, and no longer in the database: %s", named)
