"""Deleting runs (`prune`), and what is left of a thread once its runs are deleted (`erase`).

Every statement checks again that the thread has no run: a run started meanwhile keeps its rows. The
thread's row is created if it is missing, locked first, and deleted last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from perdure.commands import runs
from perdure.commands.connection import Connection
from perdure.commands.run_reads import find_row
from perdure.commands.runs import RunRow
from perdure.errors import BadArgument, WrongState
from perdure.journal import (
    Op,
    Plan,
    Statement,
    all_rows,
    in_pieces,
    is_left,
    read_op,
    with_params,
    write_op,
)
from perdure.journal.names import check_text
from perdure.times import FIRST_MS, check_duration
from perdure.types import ENDED, State
from perdure.verbs import PAGE, check_member, recorded, verb

TABLES = (
    *("runs", "checkpoints", "values", "writes", "events", "effects", "waits", "joins", "signals"),
    *("reads", "outbox", "scores", "traces", "stream", "threads"),
    *("schedules", "losses"),
)
"""The tables with rows of threads, in the order in which `rows_of_thread` counts them."""


def erase_rows(thread_id: str, count: int) -> Op[bool]:
    """Erase up to `count` rows of a table of a thread without runs. True: rows are left."""
    params: dict[str, Any] = {"thread_id": thread_id, "count": count, "only": "no runs", "id": None}
    row = {"thread_id": thread_id, "now": 0, "change": 0}
    row |= dict.fromkeys(("graph", "assistant", "expires_at", "body"))
    tables = ("effects", "signals", "outbox", "schedules", "losses", "thread")
    names = ("lock_thread", *STATE, *(f"erase_{one}" for one in tables), "is_erasure_left")
    statements = [Statement("insert_thread", row), *with_params(params, *names)]
    return Op("erase_thread", statements, is_left, write=True)


def _last_to_end(on: Connection, thread_id: str) -> Plan[RunRow | None]:
    """A run of a thread, preferably one that has not ended."""
    head: RunRow | None = yield runs.head(thread_id)
    newest: list[RunRow] = [] if head else (yield runs.page(thread_id=thread_id, count=1))
    return head or next(iter(newest), None)


STATE = ("delete_state", "delete_state_writes", "delete_state_values")
"""What deletes the checkpoints of a thread."""

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
    return write_op(params, "note_rolled_back")


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
        names += STATE
    names += [f"delete_run_{what}" for what in ROWS_OF_RUN]
    names += ["delete_run", "retire_run", "is_run_left"]
    return Op("delete_run", with_params(params, *names), is_left, write=True)


def delete_run(on: Connection, run_id: str) -> Plan[None]:
    """Delete an ended run and its history. The state of its thread stays. Raises `WrongState`
    if it has not ended."""
    row = yield from find_row(on, run_id)
    if State(row.state) not in ENDED:
        why = "cancel it and wait until it has ended."
        raise WrongState(row.id, row.state, "be deleted", why)
    rows = on.journal.capabilities.delete_count
    yield from in_pieces(delete(row.thread_id, row.id, rows, keeps_state=True))


# -- pruning and erasing


@verb()
async def prune(
    on: Connection,
    *,
    older_than: timedelta,
    states: Iterable[State | str] = tuple(ENDED),
    limit: int | None = None,
    dry_run: bool = False,
) -> int:
    """Delete runs that ended some time ago, with their history.

    A run is deleted with its input, output, events, waits, answers, effects and scores. A
    thread without runs loses its checkpoints too. Effects with a business key stay, since they
    still prevent a second call. A child is kept until its parent has ended.

    An interruption leaves every run whole. On D1, which needs several transactions for a large
    run, it may leave one run `cancelled` and partly deleted; pruning again finishes it.

        deleted = await client.prune(older_than=timedelta(days=30))

    Args:
        older_than: Delete only runs whose last change is older than this.
        states: Only runs that ended in these states. By default `done`, `failed` and
            `cancelled`.
        limit: Maximum number of runs to delete. By default all of them.
        dry_run: Only count the runs.

    Returns:
        How many runs were deleted, or would be.

    Raises:
        BadArgument: A state is not one in which a run has ended.
    """
    wanted = [check_member(State, "a state", state) for state in states]
    if not set(wanted) <= ENDED:
        raise BadArgument("Only runs that ended can be pruned: done, failed, cancelled.")
    check_duration("older_than", older_than)
    return await _prune(on, older_than, [state.value for state in wanted], limit, dry_run)


@recorded("prune")
def _prune(
    on: Connection, older_than: timedelta, states: list[str], limit: int | None, dry_run: bool
) -> Plan[int]:
    """Each run is deleted in one transaction, or in as many as the database needs: after a crash
    between two of them, pruning again goes on with it."""
    before = on.clock.now() - round(older_than.total_seconds() * 1000)
    count, rows = 0, on.journal.capabilities.delete_count
    after = (FIRST_MS, "")
    while limit is None or count < limit:
        page: list[OldRun] = yield oldest(after, before, PAGE)
        old = [run for run in page if run.is_due(states, before)]
        for run in old if limit is None else old[: limit - count]:
            if not dry_run:
                yield from in_pieces(delete(run.thread_id, run.id, rows))
                on.forget(run.thread_id)
            count += 1
        if len(page) < PAGE:
            break
        after = (page[-1].created_at, page[-1].id)
    return count


@verb(effect=True)
def erase(on: Connection, thread_id: str) -> Plan[dict[str, int]]:
    """Delete everything the journal holds about a thread.

    It deletes the thread's runs, checkpoints, events, questions, answers, signals, recorded
    reads, effects, scores, streamed output and outbox messages. Effects with a business key are
    deleted too, and then no longer prevent a second call. Child runs and forks have their own
    threads: erase those as well. If it is interrupted, repeat it: that deletes the rest.

        await client.erase("customer-7")
        await client.scrub()

    Deleted bytes stay in the files of a database
    until it reuses the space, or `scrub` removes them, which `perdure erase` calls.

    Args:
        thread_id: The thread.

    Returns:
        How many rows were deleted, by table.

    Raises:
        WrongState: A run of the thread has not ended. Cancel it, wait for its end, and call
            again.
    """
    # Its runs go first, each in one transaction or in as many as the database needs, then
    # everything else, the row of the thread last. After a crash in between the next call finds
    # what is left.
    check_text("thread_id", thread_id)
    [counts] = yield read_op("rows_of_thread", {"thread_id": thread_id}, all_rows)
    rows = on.journal.capabilities.delete_count
    while (run := (yield from _last_to_end(on, thread_id))) is not None:
        if State(run.state) not in ENDED:
            why = "cancel it, wait until it has ended, and erase the thread again."
            raise WrongState(run.id, run.state, "be erased", why)
        yield from in_pieces(delete(thread_id, run.id, rows))
    yield from in_pieces(erase_rows(thread_id, rows))
    on.forget(thread_id)
    if (run := (yield from _last_to_end(on, thread_id))) is not None:
        raise WrongState(run.id, run.state, "be erased", "it was started meanwhile.")
    return {name: int(n) for name, n in zip(TABLES, counts, strict=True) if int(n)}
