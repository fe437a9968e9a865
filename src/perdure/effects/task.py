"""The task that a call of an effect belongs to.

An effect's key is a hash of its thread, task, name and number in the task: the same for every
attempt, process and deploy.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from perdure.commands import effects, runs
from perdure.commands.effects import EffectRow, Owner
from perdure.commands.runs import RunRow
from perdure.commands.starting import Parent
from perdure.effects.context import current
from perdure.effects.matching import CallPosition, TaskRecords, configurable
from perdure.errors import BadArgument, Damaged, OrderChanged
from perdure.execution.segment import Segment, segment_of
from perdure.journal import Journal, Op, Plan
from perdure.journal.clock import Clock
from perdure.langgraph_port import checkpoint_names, configs
from perdure.langgraph_port.configs import TaskInfo
from perdure.saver import Saver
from perdure.serde.serializer import Serializer
from perdure.types import PromptVersion

CHECKPOINT_TIMEOUT = 5.0
"""Seconds a checkpoint may take to reach the saver after its step began."""


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def hash_of(*parts: str) -> str:
    """The id of a task, or the key of an effect, from what it consists of."""
    return digest("\n".join(parts).encode())


def effect_key(thread_id: str, task: str, name: str, n: int) -> str:
    """The key of the n-th call of an effect in a task."""
    return hash_of(thread_id, task, name, str(n))


@dataclass
class TaskContext:
    """One execution of a task: whose it is, where its effects are stored, and their records.

    Attributes:
        checkpoints: The checkpoints this task belongs to, by namespace.
        durability: What a caller with only the saver asked LangGraph for.
        namespace: Where its recorded reads are.
        is_nested: Whether its effects are called by an effect.
        can_postpone: Whether a run without a segment can give its process back, too.
        outer_prompts: Of effects that an effect calls, the prompt versions that it has read.
        abandoned: Why no further effect of this execution is called.
    """

    owner: Owner
    id: str
    journal: Journal
    serializer: Serializer
    clock: Clock
    segment: Segment | None = None
    checkpoint_id: str = ""
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    saver: Saver | None = None
    durability: str = ""
    execution: int = 0
    namespace: str = ""
    is_nested: bool = False
    can_postpone: bool = False
    records: TaskRecords = field(default_factory=TaskRecords)
    outer_prompts: dict[PromptVersion, None] | None = None
    abandoned: OrderChanged | None = None

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
        progress = None if self.segment is None else self.segment.progress
        if self.is_nested or progress is None or not progress.is_new(self.checkpoint_id):
            checked = self.is_nested or self.segment is None or self.segment.has_checked_effects
            whole_run = None if checked else self.owner.run_id
            found = yield effects.of_task(
                self.owner.thread_id, self.id, self.owner.run_id, whole_run
            )
            rows, places = found
            for row in rows:
                row.check(self.serializer)
            for scope, task, name, n, key in places:
                if task and key != effect_key(scope, task, name, n):
                    raise Damaged(f"effect {key}", "its row was moved to another task or number")
            if self.segment is not None and whole_run:
                self.segment.has_checked_effects = True
        self.records.load(rows)

    def prompts_read(self) -> Iterable[PromptVersion]:
        """The prompt versions that the task has read so far."""
        if self.outer_prompts is not None:
            return self.outer_prompts
        return () if self.segment is None else self.segment.progress.prompts_of_task(self.namespace)

    def recorded_reads(self) -> list[str]:
        """The results of this task's recorded reads, as text."""
        return [] if self.segment is None else self.segment.reads.texts(self.namespace)

    def start_call(self, key: str) -> bool:
        """Be the only call with this key in this process. False: there is one already."""
        with _LOCK:
            in_progress = _IN_PROGRESS.setdefault(self.journal, set())
            is_free = key not in in_progress
            in_progress.add(key)
            return is_free

    def end_call(self, key: str) -> None:
        with _LOCK:
            _IN_PROGRESS[self.journal].discard(key)

    def wait_for_checkpoints(self) -> Plan[None]:
        """Wait until the saver has this task's checkpoints: LangGraph may start a step first."""
        waited = 0.0 if self.durability != "exit" else CHECKPOINT_TIMEOUT + 1
        while self.saver is not None and not (yield from self._has_checkpoints(self.saver)):
            if waited > CHECKPOINT_TIMEOUT:
                raise BadArgument(
                    "An effect was called before its checkpoint reached the saver. With "
                    "durability='exit' no checkpoint does before the graph returns: call the "
                    "graph without it. Nor does any of a subgraph compiled with "
                    "checkpointer=False, unless the runtime drives it. An effect that blocks the "
                    "event loop delays it: make it a coroutine, or call it in a thread."
                )
            pause = min(0.01, max(0.0002, waited))
            yield pause
            waited += pause

    def _has_checkpoints(self, saver: Saver) -> Plan[bool]:
        for ns, id in self.checkpoints.items():
            if not (yield from saver.has(self.owner.thread_id, ns, id)):
                return False
        return True


_TASKS: WeakKeyDictionary[Any, TaskContext] = WeakKeyDictionary()
_IN_PROGRESS: WeakKeyDictionary[Journal, set[str]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def current_task() -> tuple[TaskContext, int] | None:
    """The task this is called in, and the attempt at it. None outside of a run."""
    config = configurable()
    if not config or (info := configs.task_info(config)).scratchpad is None:
        return None
    segment = segment_of(config)
    saver = configs.checkpointer_of(config)
    if segment is None and not isinstance(saver, Saver):
        return None
    if isinstance(saver, Saver):
        saver.raised.check(config)  # a wait that was caught: no effect before its answer
    execution = info.execution
    with _LOCK:
        task = _TASKS.get(execution)
        if task is None:
            task = _TASKS[execution] = _task_of(config, segment, saver, info)
            task.execution, task.namespace = id(execution), info.namespace
    outer = current()
    if outer is not None and outer.is_verifying:
        return None
    if outer is None or outer.execution != id(execution):
        return task, info.attempt
    with _LOCK:
        if outer.task is None:
            # Nested effects belong to the effect that calls them: they are found when it is.
            id_, reads = hash_of(outer.key), f"effect {outer.key}"
            outer.task = replace(
                task,
                id=id_,
                is_nested=True,
                namespace=reads,
                records=TaskRecords(),
                outer_prompts=outer.prompts,
            )
            outer.task.execution = id(execution)
    return outer.task, info.attempt


def _task_of(
    config: Mapping[str, Any], segment: Segment | None, saver: Any, info: TaskInfo
) -> TaskContext:
    ns, above = info.namespace, configs.checkpoints_above(config)
    source = saver if segment is None else segment
    parts = (source.journal, source.serializer, source.clock, segment, info.checkpoint_id or "")
    if segment is None:
        thread_id, durability = str(config["thread_id"]), configs.durability_of(config) or ""
        task_id = hash_of(thread_id, ns)
        return TaskContext(Owner(thread_id), task_id, *parts, above, saver, durability)
    row, stored_ns = segment.row, _stored(ns, segment.unstored)
    owner, task_id = Owner(row.thread_id, row.id, row.token), hash_of(row.id, stored_ns)
    if segment.at_exit:
        return TaskContext(owner, task_id, *parts, above, segment.saver, "exit")
    if stored_ns == ns:
        return TaskContext(owner, task_id, *parts, above, segment.saver)
    above = {root: id for root, id in above.items() if len(root) < len(stored_ns)}
    task = TaskContext(owner, task_id, *parts, above, segment.saver)
    # One for the whole subgraph, and for each attempt at the node outside.
    nodes_of = checkpoint_names.namespace_nodes
    depth = len(nodes_of(ns)) - len(nodes_of(stored_ns))
    outer = configs.outer_scratchpad(info.scratchpad, depth)
    found = segment.unstored_tasks.setdefault((task_id, id(outer)), (outer, task))
    shared: TaskContext = found[1]
    return shared


def _stored(ns: str, unstored: frozenset[tuple[str, ...]]) -> str:
    """The namespace of the task that runs again as a whole: this one, or, in a subgraph that stores
    no checkpoints, the node outside."""
    names: tuple[str, ...] = ()
    for node, so_far in checkpoint_names.namespace_nodes(ns):
        names += (node,)
        if names in unstored:
            return so_far
    return ns


# -- calls of a client inside a run


def is_in_run() -> bool:
    """Whether effects that are called here are recorded."""
    return current_task() is not None


def is_parallel() -> bool:
    """Whether the calls of this node may come in another order when it runs again."""
    return not CallPosition(1).is_in_turn()


def parent_of_call(journal: Journal, *, ignores_parent_cancel: bool) -> Plan[Parent | None]:
    """The run that starts another one here, if that is in the same journal."""
    place = current_task()
    if place is None or place[0].segment is None:
        return None
    segment = place[0].segment
    row = segment.row
    if segment.journal is not journal:
        there: RunRow | None = yield runs.find(row.id)
        if there is None or there.token != row.token:
            return None
    return Parent(
        row.thread_id, row.id, row.token, row.depth, ignores_parent_cancel, segment.refuse
    )
