"""Accept a run: `Client.start`, and what starts runs in its name.

The statement that decides each race is named in `runs.py`.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, NoReturn

from perdure.commands import messages
from perdure.commands.connection import Connection
from perdure.commands.events import (
    Change,
    change,
    dump_event,
    parent_cancelled,
    stop_children,
    wake_joiners,
)
from perdure.commands.run_reads import get, show
from perdure.commands.runs import RunRow, first_run, redacted_setup
from perdure.commands.streams import kept_modes
from perdure.errors import BadArgument, ThreadBusy
from perdure.journal import EventStatement, Op, Plan, Statement, with_params
from perdure.journal.names import check_id, new_id, random_number
from perdure.langgraph_port import checkpoint_names
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import deadline, moment
from perdure.types import Durability, EventKind, Run, State, Strategy
from perdure.verbs import CALL, GRACE, call_key, check_dict, check_name, recorded, verb


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


def _start_op(
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


def stop_thread(
    serializer: Serializer,
    by: Change,
    key: str | None,
    only: str | None,
    undo: bool,
    grace: int,
    *,
    alone: bool = False,
) -> list[Statement]:
    """Cancel the earlier runs of a thread, for the batch of the run that takes it over. If it is to
    be `alone`, one run is cancelled at most, and none if others are under way too."""
    number, data = random_number(), {"by": by.run_id}
    params = {
        **by.params,
        "id": None,
        "change": number,
        "key": key,
        "only": only,
        "alone": int(alone),
        "undo": int(undo),
        "control_at": by.now + grace,
        "reason": f"run {by.run_id} took the thread over",
        "asked": EventKind.CANCELLING.value,
        "kind": EventKind.CANCELLED.value,
        "body": dump_event(
            serializer,
            number,
            by.now,
            (EventKind.CANCELLING, EventKind.CANCELLED),
            data,
            by.thread_id,
        ),
    }
    return [
        Statement("stop_thread", params),
        EventStatement("insert_stop_events", params, data),
        *with_params(params, "trace_changed", "close_waits"),
        *wake_joiners(by.params),
        messages.announce_ends(change(by.thread_id, by.run_id, by.now, number)),
        *stop_children(serializer, change(by.thread_id, "", by.now, number), grace),
    ]


def supersede(serializer: Serializer, by: Change) -> Op[None]:
    """Cancel the run before this one, if it waits."""
    return Op(
        "supersede",
        [
            Statement("lock_thread", by.params),
            *stop_thread(serializer, by, None, State.WAITING.value, False, 0),
            Statement("make_next_due", by.params),
        ],
        lambda rows: None,
        write=True,
    )


DEEPEST = 50
"""How many runs may be above a run in its tree."""

# -- accepting


def accept(
    on: Connection,
    graph: tuple[str, str],
    thread_id: str,
    setup: dict[str, Any],
    strategy: str,
    *,
    key: str | None = None,
    after: timedelta | datetime | None = None,
    reserve: float = 0.0,
    only: str | None = None,
    fingerprint: str | None = None,
    begun: bool = False,
    parent: Parent | None = None,
    run_id: str | None = None,
    beside: Beside | None = None,
    grace: timedelta = GRACE,
) -> Plan[RunRow]:
    """Accept a run of a graph, given as (name, version), or find the one of this key.

    For `reserve` seconds no worker claims it, only a caller that drives it itself. With `only`,
    runs in that state alone are stopped, whatever the strategy; the step of a run that is
    stopped may go on for its `grace`. What is `beside` is stored in the same batch.
    The URL in `setup["webhook"]` is told when the run ends, is held, or waits for a person.
    """
    # The effects of a run that a node of an evaluated one starts would not be simulated.
    on.refuse_in_evaluation("perdure.start")
    if parent is not None and parent.depth >= DEEPEST:
        raise BadArgument(
            f"Run {parent.id} has {parent.depth} runs above it, and cannot start a child: do "
            "its runs start each other endlessly? Start it with detached=True to begin a tree "
            "of its own."
        )
    check_command(setup.get("input"))
    url = setup.get("webhook")
    now = on.clock.now()
    made = change(thread_id, run_id or new_id(), now)
    begin = deadline("after", after, lambda: moment(now))
    ready = (now if begin is None else begin) + round(reserve * 1000)
    # As `runs.setup_place`.
    place = Place(f"setup of run {made.run_id}", (thread_id, *graph, key, now))
    row: RunRow | None = yield _start_op(
        on.serializer,
        made,
        graph=graph[0],
        version=graph[1],
        key=key,
        ready_at=ready,
        setup=on.serializer.dumps(redacted_setup(on.serializer, setup), place, "start", own=True),
        strategy=strategy,
        only=only,
        grace=round(grace.total_seconds() * 1000),
        fingerprint=fingerprint,
        begun=begun,
        parent=parent,
        traceparent=caller_span(),
        beside=beside,
        webhook=None if url is None else on.webhook_topic(url),
        streams=bool(setup.get("stream")),
    )
    if row is None:
        raise ThreadBusy(thread_id, "has not ended")
    return row


def check_command(input: Any) -> None:
    """Refuse a LangGraph `Command` that writes to a channel of LangGraph's own."""
    if (name := checkpoint_names.reserved_name(input)) is not None:
        raise BadArgument(
            f"The command names {name!r}, which LangGraph reserves. Update only keys of the state, "
            "and go only to nodes."
        )


def check_tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str):
        raise BadArgument(f"tags must be a list of texts, not the single text {tags!r}.")
    return [str(tag) for tag in tags]


def check_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    checked = check_dict("config", config)
    if "callbacks" in checked:
        raise BadArgument("config['callbacks'] cannot be stored; pass them to the graph instead.")
    inner = checked.get("configurable") or {}
    for name in ("thread_id", "checkpoint_id", "run_id"):
        if name in inner:
            raise BadArgument(
                f"config['configurable'][{name!r}] is set by the runtime; leave it out."
            )
    return checked


def make_setup(
    *,
    input: Any,
    metadata: Mapping[str, Any] | None,
    tags: Iterable[str],
    context: Any,
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What each segment of a run is started with."""
    setup: dict[str, Any] = {
        "metadata": check_dict("metadata", metadata),
        "tags": check_tags(tags),
        "config": check_config(config),
    }
    if input is not None:
        setup["input"] = input
    if context is not None:
        setup["context"] = context
    return setup


STRATEGIES = ("enqueue", "reject", "interrupt", "rollback")

_NAMESPACE = uuid.UUID("9a4b4f0e-5d1c-5b6e-8a51-7d7065726475")


@recorded("start", keep=lambda row: row.id)
def _accept(
    on: Connection,
    graph: str,
    version: str,
    thread_id: str | None,
    setup: dict[str, Any],
    *,
    key: str | None,
    after: timedelta | datetime | None,
    multitask_strategy: str,
    on_parent_cancel: str,
    detached: bool,
) -> Plan[RunRow | str]:
    key, parent = key or call_key(), None
    if thread_id is None:
        thread_id = str(
            uuid.uuid4() if key is None else uuid.uuid5(_NAMESPACE, json.dumps([graph, key]))
        )
    call = CALL.get()
    if not detached and call is not None:
        leave = on_parent_cancel == "leave"
        parent = yield from call.parent(on.journal, ignores_parent_cancel=leave)
    return (
        yield from accept(
            on,
            (graph, version),
            thread_id,
            setup,
            multitask_strategy,
            key=key,
            after=after,
            parent=parent,
        )
    )


@verb()
async def start(
    on: Connection,
    graph: str,
    input: Any = None,
    *,
    thread_id: str | None = None,
    key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    context: Any = None,
    config: Mapping[str, Any] | None = None,
    after: timedelta | datetime | None = None,
    durability: Durability | None = None,
    multitask_strategy: Strategy = "enqueue",
    version: str | None = None,
    on_parent_cancel: Literal["cancel", "leave"] = "cancel",
    detached: bool = False,
    webhook: str | None = None,
    stream: Iterable[str] | str = (),
    stream_subgraphs: bool = True,
) -> Run:
    """Accept a run. When this returns, the run is on disk, and workers will finish it.

    Input, context, config, metadata and tags are stored, and given to the graph again in each
    segment. If the call was interrupted, call it again with the same `key`: it returns the run
    that was accepted, or accepts it now.

        run = await client.start("campaign", {"to": "ada"}, key="ada-2026-05")

    In a node, this is an effect, and the run is a child of the node's run. A tree of runs may
    be 50 deep.

    Args:
        graph: The name of the graph, as it was registered.
        input: The graph's input. Without it the run continues from the last checkpoint of
            the thread, and fails if the thread has no checkpoint.
        thread_id: The thread, up to 1,024 bytes of text. By default a new thread; with a `key`,
            the thread of this graph and key.
        key: Idempotency key, up to 256 bytes. A key that was used on the thread returns the run
            it started, whatever else is passed, even a run of another graph. The same key
            starts another run on another thread, or, without a `thread_id`, for another graph.
        metadata: Data about the run, kept in `Run.metadata` and passed to the graph in its
            config. `runs` can search it.
        tags: Tags of the run, kept in `Run.tags` and passed to the graph in its config.
        context: LangGraph's runtime context.
        config: LangGraph's config, such as `{"recursion_limit": 50, "configurable": {…}}`. It
            must not have `callbacks`, which cannot be stored: give those to the graph.
            `thread_id`, `run_id` and `checkpoint_id` in `configurable` are set by the runtime.
        after: When to begin, as a delay or a time with a time zone. By default as soon as a
            worker is free.
        durability: When checkpoints are on disk: `auto`, `sync`, `async` or `exit`. By default
            that of the runtime that drives the run.
        multitask_strategy: What to do if the thread has a run that has not ended. `enqueue`
            waits for its end. `reject` raises `ThreadBusy`. `interrupt` cancels that run and
            keeps its checkpoints; if a worker drives it, it stops after its step, or after 10
            seconds. `rollback` does the same and deletes its checkpoints before the new run
            begins.
        version: The version of the graph. By default the version that this runtime registered
            last; in a process without graphs, the unversioned graph.
        on_parent_cancel: In a node: whether the run is cancelled with its parent (`cancel`), or
            continues (`leave`).
        detached: In a node: start a run without a parent.
        webhook: A URL to notify when the run ends, is held, or waits for a person. Only `https`
            URLs with public addresses, unless the runtime's `RunWebhooks` allow others.
        stream: LangGraph stream modes to keep for `stream()`: `values`, `updates`, `messages`,
            `custom`, `tasks`, `checkpoints`, `debug`, `events`. By default no output is kept.
        stream_subgraphs: Whether the output of subgraphs is kept too.

    Returns:
        The new run, in state `pending`, or the run that the key started before, in its current
            state.

    Raises:
        ThreadBusy: The thread has a run that has not ended, and `multitask_strategy` is
            `reject`. Nothing was stored.
        UnknownGraph: This runtime has graphs, but none of this name and version. A client never
            raises it.
        BadArgument: An argument is not valid, or the tree of runs is too deep.
        Unserializable: A value cannot be stored; the message says where it is. Nothing was
            stored.
        TypeNotAllowed: A value has a type that is not allowed: see `allow`. Nothing was stored.
        TooLarge: The input is larger than `max_bytes`, or than the database takes. Nothing was
            stored.
        Unavailable: The database did not answer in time. Nothing was stored.
    """
    name, version = on.resolve_graph(graph, version)
    if multitask_strategy not in STRATEGIES:
        raise BadArgument(
            f"multitask_strategy={multitask_strategy!r}: use one of {', '.join(STRATEGIES)}."
        )
    if durability is not None and durability not in ("auto", "sync", "async", "exit"):
        raise BadArgument(f"durability={durability!r}: use auto, sync, async or exit.")
    if on_parent_cancel not in ("cancel", "leave"):
        raise BadArgument(f"on_parent_cancel={on_parent_cancel!r}: use 'cancel' or 'leave'.")
    if key is not None:
        check_name("key", key)
    if thread_id is not None:
        thread_id = check_name("thread_id", check_id("thread", thread_id))
    setup = make_setup(input=input, metadata=metadata, tags=tags, context=context, config=config)
    if durability is not None:
        setup["durability"] = durability
    if webhook is not None:
        setup["webhook"] = webhook
        on.webhook_topic(webhook)  # raises now, not in an effect
    if kept := kept_modes(stream, stream_subgraphs):
        setup["stream"] = kept
    deadline("after", after, lambda: moment(0))
    row = await _accept(
        on,
        name,
        version,
        thread_id,
        setup,
        key=key,
        after=after,
        multitask_strategy=multitask_strategy,
        on_parent_cancel=on_parent_cancel,
        detached=detached,
    )
    on.wake(stopped=multitask_strategy in ("interrupt", "rollback"))
    if isinstance(row, str):  # its id, from the record of the effect
        return await on.journal.arun(get.plan(on, row))
    return await on.journal.arun(show(on, row))
