"""What this process knows to be committed, and what of it the database no longer has.

A database can go back in time: an asynchronous standby is promoted, the old primary of a cluster is
reached again, a backup is restored. What was acknowledged since then is gone, and a driver that
continued would write on top of an older history. So each process remembers the last acknowledged
change of each run, and other acknowledged writes by the key that finds them. They are compared with
the database when there is a reason:

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

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from perdure.errors import Loss, WentBack
from perdure.journal.operation import EventStatement, Op, Read, Row, Statement
from perdure.journal.sql import parameters

log = logging.getLogger("perdure")

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
                log.exception("A listener to the database's going back failed.")
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
