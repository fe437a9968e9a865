"""Erasing what is left of a thread once its runs are deleted (`runs.delete`).

Every statement checks again that the thread has no run: a run started meanwhile keeps its rows. The
thread's row is created if it is missing, locked first, and deleted last.
"""

from __future__ import annotations

from perdure.journal import Op, is_left, read_op, with_params

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


def newest_of_thread(thread_id: str) -> Op[tuple[str, str] | None]:
    """The id and state of a run of a thread, preferably one that has not ended."""
    return read_op(
        "newest_of_thread",
        {"thread_id": thread_id},
        lambda rows: (rows[0][0][0], rows[0][0][1]) if rows[0] else None,
    )


def erase(thread_id: str, count: int) -> Op[bool]:
    """Erase up to `count` rows of a table of a thread without runs. True: rows are left."""
    params = {"thread_id": thread_id, "count": count, "only": "no runs", "id": None}
    state = ("delete_state", "delete_state_writes", "delete_state_values")
    tables = (
        "effects",
        "signals",
        "outbox",
        "schedules",
        "losses",
        "thread",
    )
    names = ("keep_thread", *state, *(f"erase_{one}" for one in tables), "is_erasure_left")
    return Op("erase_thread", with_params(params, *names), is_left, write=True)
