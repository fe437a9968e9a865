"""Erasing what is left of a thread once its runs are deleted (`runs.delete`).

Every statement checks again that the thread has no run: a run started meanwhile keeps its rows. The
thread's row is created if it is missing, locked first, and deleted last.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from perdure.journal import Op, Statement, is_left, read_op, with_params

TABLES = (
    *("runs", "checkpoints", "values", "writes", "events", "effects", "waits", "joins", "signals"),
    *("reads", "outbox", "scores", "traces", "stream", "threads"),
    *("schedules", "losses"),
)
"""The tables with rows of threads, in the order in which `rows_of_thread` counts them."""


def rows_of_thread(thread_id: str) -> Op[dict[str, int]]:
    """Number of rows of a thread by table, without tables that have none."""
    return read_op(
        "rows_of_thread",
        {"thread_id": thread_id},
        lambda rows: {name: int(n) for name, n in zip(TABLES, rows[0][0], strict=True) if int(n)},
    )


def erase(thread_id: str, count: int) -> Op[bool]:
    """Erase up to `count` rows of a table of a thread without runs. True: rows are left."""
    params: dict[str, Any] = {"thread_id": thread_id, "count": count, "only": "no runs", "id": None}
    row = {"thread_id": thread_id, "now": 0, "change": 0}
    row |= dict.fromkeys(("graph", "assistant", "expires_at", "body"))
    state = ("delete_state", "delete_state_writes", "delete_state_values")
    tables = (
        "effects",
        "signals",
        "outbox",
        "schedules",
        "losses",
        "thread",
    )
    names = ("lock_thread", *state, *(f"erase_{one}" for one in tables), "is_erasure_left")
    statements = [Statement("insert_thread", row), *with_params(params, *names)]
    return Op("erase_thread", statements, is_left, write=True)


DELETING = "it is being deleted: prune again to finish that"
"""The reason of a run that is deleted in several pieces, until the last."""

ROWS_OF_RUN = (
    *("events", "reads", "stream", "effects", "signals", "joins", "waits"),
    *("scores", "traces", "turn"),
)
"""What is deleted with a run, each by its statement, in this order."""


def rolled_back(thread_id: str) -> Op[list[str]]:
    """Runs of a thread that were stopped by `rollback` and still have checkpoints to delete."""
    return read_op(
        "runs_to_roll_back", {"thread_id": thread_id}, lambda rows: [row[0] for row in rows[0]]
    )


def note_rolled_back(thread_id: str, run_id: str) -> Op[None]:
    """Note that the checkpoints of a run have been deleted."""
    params = {"thread_id": thread_id, "id": run_id}
    return Op(
        "note_rolled_back", [Statement("note_rolled_back", params)], lambda rows: None, write=True
    )


class OldRun(NamedTuple):
    """What decides whether a run is to be deleted."""

    thread_id: str
    id: str
    state: str
    created_at: int
    updated_at: int
    is_deleted_in_part: int
    has_live_parent: int

    def is_due(self, states: Collection[str], before: int) -> bool:
        """Whether it ended in one of these states before a time, and no parent needs it; or its
        deletion was begun."""
        is_old = self.state in states and self.updated_at <= before
        return not self.has_live_parent and (is_old or bool(self.is_deleted_in_part))


def oldest(after: tuple[int, str], before: int, count: int) -> Op[list[OldRun]]:
    """The oldest runs behind a position, accepted before a time."""
    at, id = after
    params = {"after": at, "after_id": id, "before": before, "count": count, "deleting": DELETING}
    return read_op("oldest_runs", params, lambda rows: [OldRun(*row) for row in rows[0]])


def delete(thread_id: str, run_id: str, count: int, *, keeps_state: bool = False) -> Op[bool]:
    """Delete an ended run with all its rows, and, unless it `keeps_state`, the checkpoints of a
    thread left without runs: up to `count` rows of a table. True: rows are left, so it has to be
    done again.

    The state of the thread goes first and at once, the run's own row last. A crash between two such
    operations leaves a cancelled run whose reason is `DELETING`; pruning again finds it.
    """
    params = {"thread_id": thread_id, "id": run_id, "count": count, "deleting": DELETING}
    params["keeps_state"] = int(keeps_state)
    names = ["lock_thread"]
    if not keeps_state:
        params["only"] = "alone"
        names += ["delete_state", "delete_state_writes", "delete_state_values"]
    names += [f"delete_run_{what}" for what in ROWS_OF_RUN]
    names += ["delete_run", "retire_run", "is_run_left"]
    return Op("delete_run", with_params(params, *names), is_left, write=True)
