"""Which run, task and attempt a call of an effect belongs to."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from perdure.effects.call_position import configurable
from perdure.effects.context import current
from perdure.effects.keys import hash_of
from perdure.effects.record_matching import TaskRecords
from perdure.errors import BadArgument
from perdure.journal import Journal, Op, Plan
from perdure.journal.clock import Clock
from perdure.operations import effects
from perdure.operations.effects import EffectRow, Owner
from perdure.saver import Saver
from perdure.segments.segment import Segment, find
from perdure.serde.serializer import Serializer

CHECKPOINT_TIMEOUT = 5.0
"""Seconds a checkpoint may take to reach the saver after its step began."""


@dataclass
class TaskContext:
    """One execution of a task: whose it is, where its effects are stored, and their records."""

    owner: Owner
    id: str
    journal: Journal
    serializer: Serializer
    clock: Clock
    segment: Segment | None
    checkpoint_id: str
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    """The checkpoints this task belongs to, by namespace."""
    saver: Saver | None = None
    durability: str = ""
    """What a caller with only the saver asked LangGraph for."""
    execution: int = 0
    is_nested: bool = False
    """Whether its effects are called by an effect."""
    can_postpone: bool = False
    """Whether a run without a segment can give its process back, too."""
    records: TaskRecords = field(default_factory=TaskRecords)

    @property
    def now(self) -> int:
        return self.clock.now()

    @property
    def is_sync(self) -> bool:
        """Whether every write is waited for."""
        configured = self.segment or self.saver
        return "sync" in (self.durability, configured and configured.durability)

    @property
    def postpones(self) -> bool:
        """Whether the run gives its process back for a long pause."""
        return self.can_postpone if self.segment is None else not self.segment.inline

    def guarded(self, op: Op[Any]) -> Op[Any]:
        """An operation that ends this segment when its lease is lost."""
        return op if self.segment is None else op._replace(otherwise=self.segment.refuse)

    def load_records(self) -> Plan[None]:
        """Read what is recorded for this task, if it can have run before."""
        if self.records.is_loaded:
            return
        rows: list[EffectRow] = []
        if self.is_nested or self.segment is None or not self.segment.is_fresh(self.checkpoint_id):
            rows = yield effects.of_task(self.owner.thread_id, self.id)
        self.records.load(rows)

    def start_call(self, place: tuple[str, str, str, int]) -> bool:
        """Be the only call at this place in this process. False: there is one already."""
        with _LOCK:
            in_progress = _IN_PROGRESS.setdefault(self.journal, set())
            is_free = place not in in_progress
            in_progress.add(place)
            return is_free

    def end_call(self, place: tuple[str, str, str, int]) -> None:
        with _LOCK:
            _IN_PROGRESS[self.journal].discard(place)

    def wait_for_checkpoints(self) -> Plan[None]:
        """Wait until the saver has this task's checkpoints: LangGraph may start a step first."""
        waited = 0.0 if self.durability != "exit" else CHECKPOINT_TIMEOUT + 1
        while self.saver is not None and not all(
            self.saver.has(self.owner.thread_id, ns, id) for ns, id in self.checkpoints.items()
        ):
            if waited > CHECKPOINT_TIMEOUT:
                raise BadArgument(
                    "An effect was called before its checkpoint reached the saver. With "
                    "durability='exit' no checkpoint does, nor any of a subgraph compiled with "
                    "checkpointer=False, unless the runtime drives it. An effect that blocks the "
                    "event loop delays it: make it a coroutine, or call it in a thread."
                )
            pause = min(0.01, max(0.0002, waited))
            yield pause
            waited += pause


_TASKS: WeakKeyDictionary[Any, TaskContext] = WeakKeyDictionary()
_IN_PROGRESS: WeakKeyDictionary[Journal, set[tuple[str, str, str, int]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def current_task() -> tuple[TaskContext, int] | None:
    """The task this is called in, and the attempt at it. None outside of a run."""
    config = configurable()
    scratchpad = config.get("__pregel_scratchpad")
    if scratchpad is None:
        return None
    segment = find(config)
    saver = config.get("__pregel_checkpointer")
    if segment is None and not isinstance(saver, Saver):
        return None
    info = getattr(config.get("__pregel_runtime"), "execution_info", None)
    attempt = getattr(info, "node_attempt", 1)
    # LangGraph makes this function anew for each execution of a task, and keeps it as long.
    execution = scratchpad.get_null_resume
    with _LOCK:
        task = _TASKS.get(execution)
        if task is None:
            task = _TASKS[execution] = _make(config, segment, saver, info)
            task.execution = id(execution)
    outer = current()
    if outer is not None and outer.is_verifying:
        return None
    if outer is None or outer.execution != id(execution):
        return task, attempt
    with _LOCK:
        if outer.task is None:
            # Nested effects belong to the effect that calls them: they are found when it is.
            outer.task = replace(
                task,
                id=hash_of(outer.key),
                execution=id(execution),
                is_nested=True,
                records=TaskRecords(),
            )
    return outer.task, attempt


def _outer(scratchpad: Any, levels: int) -> Any:
    """The scratchpad of the node that many graphs outside: another one for each attempt at it."""
    for _ in range(levels):
        function = scratchpad.get_null_resume
        held = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        parent = dict(held).get("parent_scratchpad")
        if parent is None or parent.cell_contents is None:
            break
        scratchpad = parent.cell_contents
    return scratchpad


def _make(config: Mapping[str, Any], segment: Segment | None, saver: Any, info: Any) -> TaskContext:
    ns = config.get("checkpoint_ns") or ""
    checkpoint_id = getattr(info, "checkpoint_id", None) or ""
    above = _above(config.get("checkpoint_map") or {})
    if segment is None:
        thread_id = str(config["thread_id"])
        owner, task = Owner(thread_id), hash_of(thread_id, ns)
        journal, serializer, clock = saver.journal, saver.serializer, saver.clock
        asked = config.get("__pregel_durability") or ""
        return TaskContext(
            owner, task, journal, serializer, clock, None, checkpoint_id, above, saver, asked
        )
    row, stored = segment.row, _stored(ns, segment.unstored)
    owner, task = Owner(row.thread_id, row.id, row.token), hash_of(row.id, stored)
    journal, serializer, clock = segment.journal, segment.serializer, segment.clock
    if stored == ns:
        return TaskContext(
            owner, task, journal, serializer, clock, segment, checkpoint_id, above, segment.saver
        )
    # One for the whole subgraph, and for each attempt at the node outside.
    above = {root: id for root, id in above.items() if len(root) < len(stored)}
    depth = sum(not part.isdigit() for part in ns.removeprefix(stored).split("|")) - 1
    outer = _outer(config["__pregel_scratchpad"], depth)
    context = TaskContext(
        owner, task, journal, serializer, clock, segment, checkpoint_id, above, segment.saver
    )
    found = segment.unstored_tasks.setdefault((task, id(outer)), (outer, context))
    shared: TaskContext = found[1]
    return shared


def _stored(ns: str, unstored: frozenset[tuple[str, ...]]) -> str:
    """The task that is run again as a whole: the one given, unless it is in a subgraph that stores
    nothing. Then it is the node outside."""
    names: tuple[str, ...] = ()
    parts = ns.split("|")
    for depth, part in enumerate(parts, 1):
        if not part.isdigit():  # the second subgraph of a node, and so on
            names += (part.partition(":")[0],)
        if names in unstored:
            return "|".join(parts[:depth])
    return ns


def _above(named: Mapping[str, str]) -> dict[str, str]:
    """The checkpoints LangGraph names. For a `@task` it names that of its caller once more, as if
    the caller had a namespace of its own."""
    shortest = {named[ns]: ns for ns in sorted(named, key=len, reverse=True)}
    return {ns: id for id, ns in shortest.items()}
