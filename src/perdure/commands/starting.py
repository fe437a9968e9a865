"""Accept a run: `Client.start`, and what starts runs in its name.

The statement that decides each race is named in `runs.py`.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, NoReturn, get_args

from perdure.commands import messages
from perdure.commands.connection import Connection
from perdure.commands.events import (
    WAKE_JOINERS,
    Change,
    change,
    dump_event,
    parent_cancelled,
    stop_children,
)
from perdure.commands.run_reads import get, show
from perdure.commands.runs import RunRow, first_run, redacted_setup
from perdure.commands.streams import kept_modes
from perdure.errors import BadArgument, ThreadBusy
from perdure.journal import EventStatement, Op, Plan, Statement, no_result, with_params
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

    @property
    def statements(self) -> Sequence[Statement]:
        held = {"thread_id": self.thread_id, "id": self.id, "token": self.token}
        return [Statement("fence", held)]

    @property
    def params(self) -> dict[str, Any]:
        return {
            "parent_id": self.id,
            "depth": self.depth + 1,
            "ignores_parent_cancel": int(self.ignores_parent_cancel),
            "parent_reason": parent_cancelled(self.id),
        }


NO_PARENT = {"parent_id": None, "depth": 0, "ignores_parent_cancel": 0, "parent_reason": None}


class Beside(NamedTuple):
    """What is stored in the batch that accepts a run, before the run."""

    statements: Sequence[Statement]
    refuse: Callable[[], NoReturn]
    """Called if one of them refuses the batch."""


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
    kinds = (EventKind.CANCELLING, EventKind.CANCELLED)
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
        "asked": kinds[0].value,
        "kind": kinds[1].value,
        "body": dump_event(serializer, number, by.now, kinds, data, by.thread_id),
    }
    return [
        Statement("stop_thread", params),
        EventStatement("insert_stop_events", params, data),
        *with_params(params, "trace_changed", "close_waits"),
        *with_params(by.params, *WAKE_JOINERS),
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
        no_result,
        write=True,
    )


DEEPEST = 50
"""How many runs may be above a run in its tree."""


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
    """Accept a run of a graph, given as (name, version), or find the one of this key. Raises
    `ThreadBusy`.

    For `reserve` seconds no worker claims it, only a caller that drives it itself. With `only`, the
    run takes the thread over from the runs in that state, whatever the strategy; the step of a run
    that is stopped may go on for its `grace`. A fork has `begun`, with a graph of this fingerprint.
    A child is refused if its parent has lost its lease. What is `beside` is stored in the same
    batch. The URL in `setup["webhook"]` is told when the run ends, is held, or waits for a person.
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
    serializer, (name, version), now = on.serializer, graph, on.clock.now()
    made = change(thread_id, run_id or new_id(), now)
    begin = deadline("after", after, lambda: moment(now))
    ready_at = (now if begin is None else begin) + round(reserve * 1000)
    # As `runs.setup_place`.
    place = Place(f"setup of run {made.run_id}", (thread_id, name, version, key, now))
    url = setup.get("webhook")
    params = {
        **made.params,
        "graph": name,
        "version": version,
        "key": key,
        "ready_at": ready_at,
        "due_at": ready_at,
        "setup": serializer.dumps(redacted_setup(serializer, setup), place, "start", own=True),
        "webhook": None if url is None else on.webhook_topic(url),
        "fingerprint": fingerprint,
        "begun": int(begun),
        "streams": int(bool(setup.get("stream"))),
        "reject": int(strategy == "reject"),
        **(parent.params if parent else NO_PARENT),
    }
    data = {"graph": name, "version": version, "key": key, "parent": params["parent_id"]}
    data["traceparent"] = caller_span()
    guards = [one for one in (beside, parent) if one is not None]
    refuse = guards[0].refuse if guards else None
    find = Statement("find_run", params)

    def op(
        between: Sequence[Statement],
        after: Sequence[Statement],
        otherwise: Callable[[], Any] | None,
    ) -> Op[RunRow | None]:
        batch = [
            *(statement for one in guards for statement in one.statements),
            Statement("allocate_run_number", params),
            *between,
            Statement("insert_run", params),
            made.event(serializer, EventKind.STARTED, {k: v for k, v in data.items() if v}),
            *after,
            find,
        ]
        return Op("start", batch, first_run, True, find, made.key, otherwise)

    def take_over() -> Op[RunRow | None]:
        stopped = "idle" if strategy == "replace" else only
        alone, undo = strategy == "reject", strategy == "rollback"
        seconds = grace.total_seconds()
        between = stop_thread(
            serializer, made, key, stopped, undo, round(seconds * 1000), alone=alone
        )
        # Runs before it may be left: those that the strategy does not stop.
        return op(between, [Statement("make_next_due", params)], refuse)

    if only == ASKING:  # most threads have none, and the statements for those are many
        row: RunRow | None = yield op([Statement("refuse_waiting", params)], [], take_over)
    elif only is not None or strategy in ("interrupt", "rollback", "replace"):
        row = yield take_over()
    else:
        row = yield op([], [], refuse)
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


def _check_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
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
    **more: Any,
) -> dict[str, Any]:
    """What each segment of a run is started with, without what is None."""
    if isinstance(tags, str):
        raise BadArgument(f"tags must be a list of strings, not the single string {tags!r}.")
    setup = {
        "metadata": check_dict("metadata", metadata),
        "tags": [str(tag) for tag in tags],
        "config": _check_config(config),
        "input": input,
        "context": context,
        **more,
    }
    return {name: value for name, value in setup.items() if value is not None}


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
    key, parent, call = key or call_key(), None, CALL.get()
    if thread_id is None:
        thread_id = str(
            uuid.uuid4() if key is None else uuid.uuid5(_NAMESPACE, json.dumps([graph, key]))
        )
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
    segment. If this was interrupted, repeat it with the same `key`: it returns the run that was
    accepted, or accepts it now.

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
            starts another run on another thread, or, without a thread, for another graph.
        metadata: Data about the run, kept with it and passed to the graph in its config. `runs`
            can search it.
        tags: Tags of the run, kept with it and passed to the graph in its config.
        context: LangGraph's runtime context.
        config: LangGraph's config, such as `{"recursion_limit": 50, "configurable": {…}}`. It
            must not have `callbacks`, which cannot be stored: give those to the graph.
            `thread_id`, `run_id` and `checkpoint_id` in `configurable` are set by the runtime.
        after: When to begin: a delay or a time. By default as soon as a worker is free.
        durability: When checkpoints are on disk: `auto`, `sync`, `async` or `exit`. By default
            that of the runtime that drives the run.
        multitask_strategy: What to do if the thread has a run that has not ended. `enqueue`
            waits for its end. `reject` starts nothing. `interrupt` cancels that run and
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
    for what, value, allowed in (
        ("multitask_strategy", multitask_strategy, get_args(Strategy)),
        ("durability", durability, (None, *get_args(Durability))),
        ("on_parent_cancel", on_parent_cancel, ("cancel", "leave")),
    ):
        if value not in allowed:
            raise BadArgument(f"{what}={value!r}: use one of {', '.join(filter(None, allowed))}.")
    if key is not None:
        check_name("key", key)
    if thread_id is not None:
        thread_id = check_name("thread_id", check_id("thread", thread_id))
    setup = make_setup(
        input=input,
        metadata=metadata,
        tags=tags,
        context=context,
        config=config,
        durability=durability,
        webhook=webhook,
        stream=kept_modes(stream, stream_subgraphs),
    )
    if webhook is not None:
        on.webhook_topic(webhook)  # raises now, not in an effect
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
