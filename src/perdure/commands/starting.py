"""Accept a run. Pure, no I/O.

The statement that decides each race is named in `runs.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from perdure.commands.events import Change
from perdure.commands.run_changes import parent_cancelled, stop_thread
from perdure.commands.runs import RunRow, first_run
from perdure.journal import Op, Statement, with_params
from perdure.serde.serializer import Serializer
from perdure.types import EventKind


def caller_span() -> str | None:
    """The current span as a W3C `traceparent`. It does not import OpenTelemetry: if the caller has
    not, there is no span."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    at = api.get_current_span().get_span_context()
    if not at.is_valid:
        return None
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


ASKING = "asking"
"""Runs that rest until a person answers, as `only` of `start`."""


class Parent(NamedTuple):
    """The run that starts another one, under its lease."""

    thread_id: str
    id: str
    token: int
    depth: int
    ignores_parent_cancel: bool
    """Whether the child goes on when its parent is cancelled."""
    refuse: Callable[[], NoReturn]
    """Called if the lease is lost."""


class Beside(NamedTuple):
    """What is stored in the batch that accepts a run, before the run."""

    statements: Sequence[Statement]
    refuse: Callable[[], NoReturn]
    """Called if one of them refuses the batch."""


def start(
    serializer: Serializer,
    made: Change,
    *,
    graph: str,
    version: str,
    key: str | None,
    ready_at: int,
    setup: bytes,
    strategy: str,
    only: str | None = None,
    grace: int = 0,
    fingerprint: str | None = None,
    begun: bool = False,
    parent: Parent | None = None,
    traceparent: str | None = None,
    streams: bool = False,
    beside: Beside | None = None,
    webhook: str | None = None,
) -> Op[RunRow | None]:
    """Accept a run, or find the one accepted before with this key. None if the thread is busy.
    With `only`, the run takes the thread over from the runs in that state, whatever the strategy.
    A fork has `begun`, with a graph of this fingerprint. A child is refused if its parent has lost
    its lease. `traceparent` is the span of the caller, as W3C's trace context writes it. `streams`:
    what it produces is kept. What is `beside` is stored in the same batch. `webhook` is the topic
    of the messages for its own webhook."""
    params = {
        **made.params,
        "graph": graph,
        "version": version,
        "key": key,
        "ready_at": ready_at,
        "due_at": ready_at,
        "setup": setup,
        "webhook": webhook,
        "fingerprint": fingerprint,
        "begun": int(begun),
        "streams": int(streams),
        "reject": int(strategy == "reject"),
        "parent_id": None if parent is None else parent.id,
        "depth": 0 if parent is None else parent.depth + 1,
        "ignores_parent_cancel": int(parent is not None and parent.ignores_parent_cancel),
        "parent_reason": None if parent is None else parent_cancelled(parent.id),
    }
    statements = with_params(params, "count_run")
    if parent is not None:
        held = {"thread_id": parent.thread_id, "id": parent.id, "token": parent.token}
        statements.insert(0, Statement("fence", held))
    if beside is not None:
        statements[:0] = beside.statements
    data = {"graph": graph, "version": version, "key": key, "parent": params["parent_id"]}
    data["traceparent"] = traceparent
    found = Statement("find_run", params)
    inserted = [
        Statement("insert_run", params),
        made.event(serializer, EventKind.STARTED, {k: v for k, v in data.items() if v}),
    ]
    refuse: Callable[[], Any] | None = None if parent is None else parent.refuse
    if beside is not None:
        refuse = beside.refuse

    def op(between: Sequence[Statement], after: Sequence[Statement], otherwise: Any) -> Op[Any]:
        batch = [*statements, *between, *inserted, *after, found]
        return Op(
            "start", batch, first_run, write=True, key=found, proof=made.key, otherwise=otherwise
        )

    def take_over() -> Op[RunRow | None]:
        stopped = "idle" if strategy == "replace" else only
        alone, undo = strategy == "reject", strategy == "rollback"
        between = stop_thread(serializer, made, key, stopped, undo, grace, alone=alone)
        # Runs before it may be left: those that the strategy does not stop.
        return op(between, [Statement("make_next_due", params)], refuse)

    if only == ASKING:  # most threads have none, and the statements for those are many
        return op([Statement("refuse_waiting", params)], [], take_over)
    if only is not None or strategy in ("interrupt", "rollback", "replace"):
        return take_over()
    return op([], [], refuse)
