"""The task that a call of an effect belongs to, and which of the task's records is the call's own.

An effect's key is a hash of its thread, task, name and number in the task: the same for every
attempt, process and deploy.

A call finds its record by task and name: first one with equal arguments, so that parallel calls
(gather, a ToolNode) find their own in any order; then, for calls a node makes one after the other,
the one with the most equal arguments, and of several the one at the same position, so that a model
that words its arguments differently gets the recorded outcome. Calls of a ToolNode, of `gather` and
of threads that the node starts may come in any order when it runs again: new arguments make a new
record.

A match with other arguments is provisional. If a later call of the same attempt has more arguments
in common with the record, the calls come in another order than before (a set, in a process with
another hash seed). Then the attempt is abandoned, and from now on (`min_equal`, on disk) a record
of this name matches only calls with more equal arguments than the one that wrongly matched it. Each
abandoned attempt raises `min_equal`, so there are at most as many repetitions as arguments.

A call that is made for the first time after a provisional match may have arguments that come from a
wrong outcome: it is unconfirmed. If the attempt is abandoned and a new call of that name equals
none that was made, it may be the unconfirmed one with its right arguments: a person decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from perdure.commands import effects, runs
from perdure.commands.effects import EffectRow, Owner, Unconfirmed
from perdure.commands.runs import RunRow
from perdure.commands.starting import Parent
from perdure.effects.context import current
from perdure.errors import BadArgument, Damaged, OrderChanged
from perdure.execution.segment import Segment, find
from perdure.journal import Journal, Op, Plan
from perdure.journal.clock import Clock
from perdure.langgraph_port import call_stack, checkpoint_names, configs, task_interrupts
from perdure.langgraph_port.configs import TaskInfo
from perdure.saver import Saver
from perdure.serde.serializer import Serializer
from perdure.types import EffectState, PromptVersion


def configurable() -> dict[str, Any]:
    """The `configurable` of the node this is called in, or nothing."""
    if "langgraph" not in sys.modules:
        return {}
    from langgraph.config import get_config

    try:
        return get_config().get("configurable") or {}
    except RuntimeError:
        return {}


class CallPosition:
    """How a call came about: the attempt at its task, and whether its turn identifies it."""

    def __init__(
        self, attempt: int, *, is_parallel: bool | None = None, instance: Any = None
    ) -> None:
        """`is_parallel`: whether other calls may come before it, if the caller knows. `instance`:
        the object whose method is called."""
        self.attempt, self.instance = attempt, instance
        self._counter = task_interrupts.interrupt_counter(configurable())
        self._caller: asyncio.Task[Any] | None = None
        if is_parallel is None:
            with contextlib.suppress(RuntimeError):
                self._caller = asyncio.current_task()
            is_parallel = call_stack.is_beside(self._caller is None)
        self._is_parallel = is_parallel

    def interrupts_so_far(self) -> int:
        """How many interrupts the task has come to."""
        return task_interrupts.interrupts_so_far(self._counter)

    def skip_interrupts(self, count: int) -> None:
        """Count the interrupts of a recorded call, which does not come to them again."""
        if self._counter is not None:
            for _ in range(count):
                self._counter()

    def is_in_turn(self) -> bool:
        """Whether the node itself calls, and not something it runs in parallel."""
        if self._is_parallel or self._caller is None:
            return not self._is_parallel
        return call_stack.is_of_node(self._caller)


ALL = 1 << 30
"""The count of equal arguments if none differs."""


class Match(NamedTuple):
    """What a call found.

    Attributes:
        n: Its number in the task.
        row: Its record, if it has one.
        min_equal: Set if the record is its own and another call of this attempt matched it: how
            many arguments must be equal from now on.
        equal: How many of its arguments equal the recorded ones.
        unconfirmed: Whether this attempt had a provisional match before.
        other: What may be this call, made with wrong arguments in an abandoned attempt.
    """

    n: int
    row: EffectRow | None
    min_equal: int = 0
    equal: int = ALL
    unconfirmed: bool = False
    other: EffectRow | None = None


class TaskRecords:
    """The effect records of one task, and those the calls of each attempt at it have matched."""

    def __init__(self) -> None:
        self.is_loaded = False
        self._rows: dict[str, dict[int, EffectRow]] = {}  # by name and number
        # By attempt and name: the numbers that are matched, and how many arguments were equal.
        self._matched: dict[tuple[int, str], dict[int, int]] = {}
        self._provisional: set[int] = set()  # attempts with a provisional match
        self._instances: dict[tuple[int, str, str], Any] = {}  # by attempt, name and digest
        self._lock = threading.Lock()

    def load(self, rows: Iterable[EffectRow]) -> None:
        """Add what is stored, once."""
        with self._lock:
            if not self.is_loaded:
                self.is_loaded = True
                for row in rows:
                    self._rows.setdefault(row.name, {})[row.n] = row

    def remember(self, row: EffectRow) -> None:
        """Keep the newest version of a row, for the next attempt at this task."""
        if row.task:
            with self._lock:
                self._rows.setdefault(row.name, {})[row.n] = row

    def release(self, row: EffectRow, position: CallPosition) -> None:
        """Let the next call of the same attempt match the record of a call that was withdrawn."""
        with self._lock:
            self._matched.get((position.attempt, row.name), {}).pop(row.n, None)

    def match_record(
        self,
        name: str,
        digest: str,
        equal_arguments: Callable[[EffectRow], int],
        position: CallPosition,
        *,
        match_open: bool,
        shares_withdrawn: bool,
    ) -> Match:
        """The record of a call. `equal_arguments` counts those it shares with a record, `ALL` if
        none differs; less than 0 if it cannot be one of this call.

        `match_open`: an interrupted call holds its run, so the next call matches it, whatever its
        arguments, rather than risk a second call. `shares_withdrawn`: the record of a call that
        raised is anybody's.
        """
        with self._lock:
            rows = self._rows.setdefault(name, {})
            self._check_instance(name, digest, position)
            matched = self._matched.setdefault((position.attempt, name), {})
            free = sorted(rows.keys() - matched.keys())
            equal = [n for n in free if rows[n].digest == digest]
            counts = {n: ALL if equal else equal_arguments(rows[n]) for n in equal or free}
            provisional = {n: count for n, count in matched.items() if count < ALL}
            if provisional and ALL not in counts.values():
                own = {n: equal_arguments(rows[n]) for n in provisional}
                wrong = self._find_wrong_match(provisional, own, counts, position)
                if wrong is not None:
                    return Match(wrong, rows[wrong], min_equal=matched[wrong] + 1)
            n = self._choose(rows, counts, len(matched), position)
            if n is None and match_open:
                n = next((n for n in free if rows[n].state == EffectState.OPEN), None)
            unconfirmed = position.attempt in self._provisional
            if n is None:
                other = self._find_unconfirmed(rows, free, digest, counts)
                n = len(matched)
                while n in rows or n in matched:
                    n += 1
                matched[n] = ALL
                return Match(n, None, unconfirmed=unconfirmed, other=other)
            withdrawn = shares_withdrawn and rows[n].state == EffectState.AGAIN
            matched[n] = ALL if withdrawn else counts[n]
            if matched[n] < ALL:
                self._provisional.add(position.attempt)
            return Match(n, rows[n], equal=matched[n], unconfirmed=unconfirmed)

    def _choose(
        self, rows: dict[int, EffectRow], counts: dict[int, int], turn: int, position: CallPosition
    ) -> int | None:
        """Of the free records the one with equal arguments; in turn, that with the most."""
        least = max((row.min_equal for row in rows.values()), default=0)
        most = max(counts.values(), default=-1)
        if most < least or (most < ALL and not position.is_in_turn()):
            return None
        best = [
            n
            for n, count in counts.items()
            if count == most and (most == ALL or not (rows[n].unconfirmed and self._order_changed))
        ]
        return turn if most < ALL and turn in best else next(iter(best), None)

    def _find_wrong_match(
        self,
        provisional: dict[int, int],
        own: dict[int, int],
        free: dict[int, int],
        position: CallPosition,
    ) -> int | None:
        """The provisional match that this call has more in common with than the call that has it,
        and than with any free record."""
        least = max(free.values(), default=-1)
        if not position.is_in_turn():
            least = ALL - 1
        claims = {n: count for n, count in own.items() if count > max(provisional[n], least)}
        return max(claims, key=lambda n: claims[n]) if claims else None

    @property
    def _order_changed(self) -> bool:
        """Whether an attempt was abandoned because of its order of calls."""
        return any(row.min_equal for rows in self._rows.values() for row in rows.values())

    def _find_unconfirmed(
        self, rows: dict[int, EffectRow], free: list[int], digest: str, counts: dict[int, int]
    ) -> EffectRow | None:
        """A record that may be of this call, made with wrong arguments in an abandoned attempt."""
        unconfirmed = [n for n in free if rows[n].unconfirmed == Unconfirmed.YES]
        if not unconfirmed or not self._order_changed:
            return None
        if any(digest in row.provisional_digests.split() for row in rows.values()):
            return None  # that attempt has made this very call
        return rows[max(unconfirmed, key=lambda n: counts.get(n, 0))]

    def _check_instance(self, name: str, digest: str, position: CallPosition) -> None:
        call = (position.attempt, name, digest)
        instance = self._instances.setdefault(call, position.instance)
        if instance is not position.instance and not position.is_in_turn():
            raise BadArgument(
                f"{name} is called in parallel on two objects with equal arguments: after a crash "
                "the calls could not be told apart. Give it an argument, or a key=, that differs."
            )


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
    segment = find(config)
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
