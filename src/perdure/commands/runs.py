"""Runs as they are stored: the row, its serialised parts, and the operations that read rows.

Callers accept runs in `starting.py`, and stop and resume them in `run_control.py`; what drivers do
is in `claims.py`. Which of two callers wins is decided by the statement named here:

    start and start, one key     insert_run: the key is unique
    start and the end of a run   allocate_run_number / lock_thread: one row per thread
    stop and the run's driver    end_segment: it reads `control` in the row
    a decision and the driver    continue_run, end_segment: the later one sees both
    a call's end and its claim   withdraw_run: only what the call has not begun
    a dead call and its claim    withdraw_run: only what is reserved no longer; claim_run
    stop and a child's start     fence: the start holds the row of its parent that stop_run changes.
                                 stop_descendants finds the child, or insert_run the `control`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Any, NamedTuple

from perdure.errors import BadArgument, Damaged, NotFound
from perdure.journal import (
    Op,
    Plan,
    Row,
    Rows,
    Statement,
    all_rows,
    first_as,
    read_op,
    row_as,
    rows_as,
    write_op,
)
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import FIRST_MS, LAST_MS
from perdure.types import Control, EventKind, RunError, State

NAMES = 1000
"""How many ids one statement looks for."""

TABLES_OF_IDS = {"run": "runs", "reflection": "runs", "wait": "waits", "effect": "effects"}

SHORTEST_PREFIX = 4
"""Minimum number of characters of the beginning of an id."""

LAST_ID = "\U0010ffff"
"""Sorts after every id."""

CANDIDATES = 5
"""Maximum number of candidates in an error; the statements return one more."""


class RunRow(NamedTuple):
    """A run as it is stored."""

    thread_id: str
    id: str
    n: int
    graph: str
    version: str
    key: str | None
    state: str
    due_at: int | None
    ready_at: int
    token: int
    attempts: int
    begun: int
    was: str | None
    control: str | None
    undo: int
    events: int
    created_at: int
    updated_at: int
    fingerprint: str | None
    reason: str | None
    setup: bytes
    output: bytes | None
    error: bytes | None
    saved_steps: int
    saved_effects: int
    saved_calls: int
    labels: bytes | None
    driven: str | None
    parent_id: str | None
    depth: int
    streams: int
    streamed: str | None
    webhook: str | None
    """Topic of the messages that tell the run's own webhook about it."""
    has_checkpoints: bool
    """Whether its thread has checkpoints."""


class GraphUse(NamedTuple):
    """A graph as runs were last driven with it, and how many of them are unfinished."""

    graph: str
    version: str
    fingerprint: str | None
    """None: they have not begun."""
    runs: int


class UnfinishedRun(NamedTuple):
    """The columns for a list of unfinished runs."""

    thread_id: str
    n: int
    id: str
    graph: str
    state: str


class Joined(IntEnum):
    """Whether the parent of a run joined it."""

    NO = 0
    YES = 1
    WAITS = 2
    """It waits for the run now."""


class ChildRow(NamedTuple):
    """A run that a node of another one started."""

    run: RunRow
    joined: Joined
    siblings: int
    """How many children its parent has."""


run_rows = rows_as(RunRow)


def first_run(rows: Rows) -> RunRow | None:
    return first_as(RunRow)(rows[-1:]) if rows else None


def find(run_id: str) -> Op[RunRow | None]:
    return read_op("run_by_id", {"id": run_id}, first_run)


def find_all(run_ids: Iterable[str]) -> Op[list[RunRow]]:
    """The runs of these ids that there are, in no order."""
    statements = [Statement("runs_by_ids", names) for names in names_in_pieces(run_ids)]
    return Op("runs_by_ids", statements, run_rows)


def names_in_pieces(names: Iterable[str]) -> list[dict[str, str]]:
    """The parameter `:names` of several statements, for a list that may be long."""
    every = sorted({*names})
    return [
        {"names": json.dumps(every[start : start + NAMES])} for start in range(0, len(every), NAMES)
    ]


def children(of: Iterable[str], most: int, count: int) -> Op[list[ChildRow]]:
    """The oldest children of these runs, at most `most` of each, and `count` in all."""
    return read_op(
        "children_of_runs",
        {"names": json.dumps(sorted(of)), "most": most, "count": count},
        lambda rows: [
            ChildRow(row_as(RunRow, run), Joined(joined or 0), siblings)
            for *run, joined, siblings in rows[0]
        ],
    )


def unfinished(first: str, last: str, after: tuple[int, str], count: int) -> Op[list[RunRow]]:
    """Runs that are not over, of graphs named from `first` up to `last`, oldest first."""
    params = {"first": first, "last": last, "after": after[0], "after_id": after[1]}
    return read_op("unfinished_runs", {**params, "count": count}, run_rows)


def unfinished_of_threads(
    first: str, last: str, after: tuple[str, int] | None, count: int
) -> Op[list[UnfinishedRun]]:
    """Unfinished runs of the threads with ids from `first` up to `last`, by thread. Ended runs are
    not read."""
    thread_id, n = after or (first, -1)
    params = {"after": thread_id, "after_n": n, "last": last, "count": count}
    return read_op(
        "unfinished_of_threads", params, lambda rows: [UnfinishedRun(*row) for row in rows[0]]
    )


def of_schedule(name: str, count: int) -> Op[list[RunRow]]:
    """The last runs that a schedule started on threads of their own, newest first."""
    thread = f"schedule:{name}@"  # and a time, which begins with a digit
    params = {"first": f"{thread}0", "last": f"{thread}:", "count": count}
    return read_op("last_runs_of_threads", params, run_rows)


def head(thread_id: str) -> Op[RunRow | None]:
    """The first run of a thread that is not over."""
    return read_op("head_of_thread", {"thread_id": thread_id}, first_run)


def after(thread_id: str, number: int, count: int) -> Op[list[RunRow]]:
    """The runs of a thread behind a number, in their order."""
    params = {"thread_id": thread_id, "after": number, "count": count}
    return read_op("runs_after", params, run_rows)


def page(
    *,
    thread_id: str | None = None,
    parent_id: str | None = None,
    states: Iterable[str] | None = None,
    graph: str | None = None,
    since: int = FIRST_MS,
    before: tuple[int, str] | None = None,
    count: int,
) -> Op[list[RunRow]]:
    """Runs of a thread, or children of a run, or all; newest first. Those of some states are found
    by an index; those that are done, or of a graph, by going through the newest runs."""
    at, id = before or (LAST_MS, LAST_ID)
    params = {
        "thread_id": thread_id,
        "parent_id": parent_id,
        "names": None if states is None else json.dumps(sorted(states)),
        "graph": graph,
        "since": since,
        "before": at,
        "before_id": id,
        "count": count,
    }
    if parent_id is not None or thread_id is not None:
        name = "runs_of_thread" if parent_id is None else "runs_of_parent"
        return read_op(name, params, run_rows)
    wanted = State if states is None else {State(state) for state in states}
    lists = [
        Statement(_LISTS.get(state, "runs_in_state"), {**params, "state": state.value})
        for state in ([State.DONE] if State.DONE in wanted else sorted(wanted))
    ]
    return Op(
        "runs_before",
        lists,
        lambda rows: sorted(run_rows(rows), key=lambda row: (row.created_at, row.id))[::-1][:count],
    )


_LISTS = {
    State.DONE: "runs_before",
    State.RUNNING: "running_runs",
    State.PENDING: "pending_runs",
}
"""The statements that list runs of these states, each by its index; `runs_before` lists all."""


def newer(
    *, since: int = FIRST_MS, until: int = LAST_MS, after: tuple[int, str], count: int
) -> Op[list[RunRow]]:
    """All runs behind a position, oldest first: the other direction of `page`."""
    params = {"since": since, "until": until, "after": after[0], "after_id": after[1]}
    return read_op("runs_newer", {**params, "count": count}, run_rows)


def held(after: tuple[int, str], count: int) -> Op[list[RunRow]]:
    """Held runs behind a position, oldest first."""
    params = {"after": after[0], "after_id": after[1], "count": count}
    return read_op("held_runs", params, run_rows)


def has_begun(row: RunRow) -> Op[bool]:
    """Whether the history of a run has a step or a question."""
    params = {"thread_id": row.thread_id, "id": row.id, "after": 0, "count": 1}
    params["names"] = json.dumps([EventKind.STEP, EventKind.WAIT])
    return read_op("events_after", params, lambda rows: bool(rows[0]))


def set_setup(row: RunRow, setup: bytes) -> Op[None]:
    """Replace the setup of a run, under the driver's lease."""
    params = {"thread_id": row.thread_id, "id": row.id, "token": row.token, "setup": setup}
    params |= {"streams": None, "webhook": None}
    return write_op(params, "fence", "set_setup")


def store_topology(fingerprint: str, topology: str) -> Op[None]:
    """Store the topology that a fingerprint stands for."""
    params = {"name": f"graph {fingerprint}", "body": topology.encode()}
    return write_op(params, "insert_entry")


def topology(fingerprint: str) -> Op[str | None]:
    """The topology that a fingerprint stands for."""
    return read_op(
        "entry",
        {"name": f"graph {fingerprint}"},
        lambda rows: bytes(rows[0][0][1]).decode() if rows[0] else None,
    )


def graphs_in_use() -> Op[list[GraphUse]]:
    """The graphs that unfinished runs were last driven with."""
    return read_op("graphs_in_use", {}, lambda rows: [GraphUse(*row) for row in rows[0]])


def last_driven_with(use: GraphUse, after: str, count: int) -> Op[list[RunRow]]:
    """Unfinished runs that were last driven with one graph, by id, after `after`."""
    return read_op(
        "runs_last_driven_with", {**use._asdict(), "after": after, "count": count}, run_rows
    )


# -- runs, waits and effects by the beginning of their ids


def resolve(what: str, prefix: str) -> Plan[str]:
    """The id of a run or wait, or the key of an effect, that begins with a prefix.

    Raises `NotFound`, or `BadArgument` if the prefix is too short or there are several.
    """
    rows: list[Row] = yield _ids_of_prefix(what, prefix)
    if rows and rows[0][0] == prefix:  # it sorts before those that it begins
        return prefix
    if not rows:
        raise NotFound(what, prefix)
    if len(prefix) < SHORTEST_PREFIX:
        raise BadArgument(
            f"There is no {what} {prefix!r}: give its id, or at least {SHORTEST_PREFIX} characters "
            "of its beginning."
        )
    if len(rows) > 1:
        named = "; ".join(f"{id} ({of}, thread {thread})" for id, of, thread in rows[:CANDIDATES])
        more = "; and more" if len(rows) > CANDIDATES else ""
        raise BadArgument(
            f"More than one {what} begins with {prefix}; give more of its id: {named}{more}."
        )
    return str(rows[0][0])


def with_prefix(what: str, prefix: str) -> Plan[list[str]]:
    """The ids that begin with a prefix; none if there are more than `CANDIDATES`."""
    rows: list[Row] = yield _ids_of_prefix(what, prefix)
    return [id for id, *_ in rows] if len(rows) <= CANDIDATES else []


def _ids_of_prefix(what: str, prefix: str) -> Op[list[Row]]:
    params = {"table": TABLES_OF_IDS[what], "first": prefix, "last": f"{prefix}{LAST_ID}"}
    return read_op("ids_of_prefix", params, all_rows)


_STATES = frozenset(State)

_OF_SETUP = frozenset(
    {"metadata", "config", "command", "place", "at", "durability", "version", "inline", "fork"}
    | {"interrupt_before", "interrupt_after", "evaluation", "stream", "webhook", "updates"}
)
"""Parts of a setup that are ids and settings, or are redacted in a way of their own."""

_BY_NAME = ("effects", "signals")
"""Parts of the policy of an evaluation whose keys are names, by which they are found."""


def place(row: RunRow, column: str) -> Place:
    """Where the labels, the output or the error of a run belong."""
    return Place(f"{column} of run {row.id}", (row.thread_id,))


def setup_place(row: RunRow) -> Place:
    """Where what a run was started with belongs."""
    columns = (row.thread_id, row.graph, row.version, row.key, row.created_at)
    return Place(f"setup of run {row.id}", columns)


def load_setup(serializer: Serializer, row: RunRow) -> dict[str, Any]:
    """What the run was started with, and the last command that continued it."""
    setup: dict[str, Any] = serializer.loads(row.setup, setup_place(row), dict)
    return setup


def dump_setup(serializer: Serializer, row: RunRow, setup: Mapping[str, Any]) -> bytes:
    return serializer.dumps(
        redacted_setup(serializer, setup), setup_place(row), "the command", own=True
    )


def redacted_setup(serializer: Serializer, setup: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is started with, as it is stored."""
    if not serializer.redacts:
        return dict(setup)
    made = dict(serializer.redacted_values(setup, _OF_SETUP))
    if made.get("metadata"):
        made["metadata"] = serializer.redacted_entries(made["metadata"])
    if (config := made.get("config")) and (given := config.get("configurable")):
        made["config"] = {**config, "configurable": serializer.redacted_entries(given)}
    if policy := made.get("evaluation"):
        parts = {part: serializer.redacted_values(policy[part], ()) for part in _BY_NAME}
        answers = serializer.redacted_values({"": policy["answers"]}, ())[""]
        made["evaluation"] = {**policy, **parts, "answers": answers}
    if command := made.get("command"):
        made["command"] = serializer.redacted_values(command, command.keys() - {"input"})
    return made


def load_labels(serializer: Serializer, row: RunRow) -> dict[str, Any]:
    """The labels the agent has given its run so far."""
    if row.labels is None:
        return {}
    labels: dict[str, Any] = serializer.loads(row.labels, place(row, "labels"), dict)
    return labels


def load_error(serializer: Serializer, row: RunRow) -> RunError | None:
    """The exception that ended the run or its last segment."""
    if row.error is None:
        return None
    stored = serializer.loads(row.error, place(row, "error"), dict)
    return RunError(*(str(stored.get(field.name, "")) for field in fields(RunError)))


def check_state(row: RunRow) -> None:
    """Raise `Damaged` if the run is in no state, or was asked to do something unknown."""
    if row.state not in _STATES or row.was not in (None, *_STATES):
        raise Damaged(f"run {row.id}", f"its state is {row.state!r}, and was {row.was!r}")
    if row.control not in (None, *Control):
        raise Damaged(f"run {row.id}", f"it was asked to {row.control!r}")


def state_of(row: RunRow) -> State:
    """The state of a run. One that is damaged needs a person."""
    return State(row.state) if row.state in _STATES else State.HELD


def maybe_control(stored: str | None) -> Control | None:
    """What a run was asked to do after its current step. Of a damaged row: nothing."""
    return next((one for one in Control if one == stored), None)


def stored_output(serializer: Serializer, row: RunRow) -> list[Any]:
    """The output as `dump_output` stored it."""
    stored: list[Any] = serializer.loads(row.output, place(row, "output"), list)
    return stored


StateAt = Callable[[str, str], Plan[Mapping[str, Any] | None]]
"""The state of a thread at a checkpoint."""


def load_output(serializer: Serializer, row: RunRow, state_at: StateAt) -> Plan[Any]:
    """What the run returned; None if it is in a checkpoint that was pruned."""
    if row.output is None:
        return None
    stored = stored_output(serializer, row)
    if len(stored) == 1:
        return stored[0]
    checkpoint_id, channels, rest = stored
    values = yield from state_at(row.thread_id, checkpoint_id)
    if values is None:
        return None
    if isinstance(channels, str):
        return values.get(channels)
    return rest | {channel: values[channel] for channel in channels if channel in values}


def tags_of(row: RunRow, setup: Mapping[str, Any]) -> list[str]:
    """The tags a run was started with, and one for what drove it last."""
    return [*(setup.get("tags") or ()), *([f"runtime:{row.driven}"] if row.driven else ())]


def dump_output(serializer: Serializer, row: RunRow, output: list[Any]) -> bytes:
    """A run's output: [value], or [checkpoint, channels, the rest] if it is in a checkpoint."""
    if len(output) == 1:
        return serializer.dumps(output, place(row, "output"), "the output")
    stored = [*output[:2], serializer.redacted(output[2], "the output")]
    return serializer.dumps(stored, place(row, "output"), "the output", own=True)


def dump_error(serializer: Serializer, row: RunRow, described: Mapping[str, Any]) -> bytes:
    stored = dict(serializer.redacted_values(described, ("kind",)))
    return serializer.dumps(stored, place(row, "error"), own=True)
