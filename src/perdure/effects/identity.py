"""Where a call of an effect stands: whose it is, in which task, and which record is its own.

A call finds its record by task and name: first one with equal arguments, so that parallel calls
(gather, a ToolNode) find their own in whatever order they come; then, in the line of a node, the
one of its turn, so that a model that words its arguments differently gets the recorded outcome.
Beside that line the order says nothing, and a call with new arguments is a new one.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import langchain_core
import langgraph

from perdure.effects.context import current
from perdure.errors import BadArgument
from perdure.journal import Journal, Op, Plan
from perdure.journal.clock import Clock
from perdure.operations import effects
from perdure.operations.effects import EffectRow, Owner
from perdure.saver import Saver
from perdure.segments.segment import Segment, find
from perdure.serde.serializer import Serializer
from perdure.types import EffectState

ARRIVES = 5.0
"""Seconds a checkpoint may take to reach the saver after its step began."""


@dataclass
class Desk:
    """The effects of one task, as this execution of it finds them."""

    owner: Owner
    task: str
    journal: Journal
    serializer: Serializer
    clock: Clock
    segment: Segment | None
    checkpoint_id: str
    above: Mapping[str, str] = field(default_factory=dict)
    """The checkpoints this task belongs to, by namespace."""
    saver: Saver | None = None
    asked: str = ""
    """The durability LangGraph was told, by a caller with only the saver."""
    rows: dict[str, dict[int, EffectRow]] = field(default_factory=dict)
    """By name and number: what is recorded."""
    loaded: bool = False
    execution: int = 0
    nested: bool = False
    """Whether these are the effects that an effect calls."""
    resting: bool = False
    """Whether a run without a segment can rest, too."""
    taken: dict[tuple[int, str], set[int]] = field(default_factory=dict)
    """By attempt and name: what calls of this attempt at the task have found or made."""
    callers: dict[tuple[int, str, str], Any] = field(default_factory=dict)
    """By attempt, name and digest: whose method it was."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def now(self) -> int:
        return self.clock.now()

    @property
    def is_sync(self) -> bool:
        """Whether everything is waited for."""
        keeper = self.segment or self.saver
        return self.asked == "sync" or (keeper is not None and keeper.durability == "sync")

    @property
    def postpones(self) -> bool:
        """Whether the run can give its process back for a long pause."""
        return self.resting if self.segment is None else not self.segment.inline

    def refusable(self, op: Op[Any]) -> Op[Any]:
        """An operation that ends this segment when its lease is lost."""
        return op if self.segment is None else op._replace(otherwise=self.segment.refuse)

    def load(self) -> Plan[None]:
        """Read what is recorded for this task, if it can have run before."""
        if self.loaded:
            return
        rows: list[EffectRow] = []
        progress = None if self.segment is None else self.segment.progress
        if self.nested or progress is None or not progress.is_new(self.checkpoint_id):
            rows = yield effects.of_task(self.owner.thread_id, self.task)
        with self.lock:
            if not self.loaded:
                self.loaded = True
                for row in rows:
                    self.rows.setdefault(row.name, {})[row.n] = row

    def claim(
        self,
        name: str,
        digest: str,
        same: Callable[[EffectRow], bool],
        line: Line,
        *,
        cautious: bool = False,
    ) -> tuple[int, EffectRow | None]:
        """The number of a call, and its record if it has one. `cautious`: one that was cut off
        holds the run, so it is found by whoever comes, rather than that a second call is made."""
        with self.lock:
            rows = self.rows.setdefault(name, {})
            if line.number is not None:
                return line.number, rows.get(line.number)
            taken = self.taken.setdefault((line.attempt, name), set())
            caller = self.callers.setdefault((line.attempt, name, digest), line.instance)
            if caller is not line.instance and not line.is_in_turn():
                raise BadArgument(
                    f"{name} is called of two objects side by side, with equal arguments: after a "
                    "crash they could not be told apart. Give it an argument, or a key=, that can."
                )
            free = sorted(rows.keys() - taken)
            n = next((n for n in free if rows[n].digest == digest), None)
            if n is None:
                n = next((n for n in free if same(rows[n])), None)
            if n is None and free and line.is_in_turn():
                n = len(taken) if len(taken) in free else free[0]
            if n is None and cautious:
                n = next((n for n in free if rows[n].state == EffectState.OPEN), None)
            if n is None:
                n = len(taken)
                while n in rows or n in taken:
                    n += 1
            taken.add(n)
            return n, rows.get(n)

    def begin(self, place: tuple[str, str, str, int]) -> bool:
        """Be the one of this process who calls; False: somebody does already."""
        with _LOCK:
            calling = _CALLING.setdefault(self.journal, set())
            free = place not in calling
            calling.add(place)
            return free

    def end(self, place: tuple[str, str, str, int]) -> None:
        with _LOCK:
            _CALLING[self.journal].discard(place)

    def give_back(self, row: EffectRow, line: Line) -> None:
        """A call that was withdrawn: the next one of this attempt may find its record."""
        with self.lock:
            self.taken.get((line.attempt, row.name), set()).discard(row.n)

    def know(self, row: EffectRow) -> None:
        """Remember a row, for the next attempt at this task."""
        if row.task:
            with self.lock:
                self.rows.setdefault(row.name, {})[row.n] = row

    def wait_for_checkpoints(self) -> Plan[None]:
        """LangGraph may hand over a checkpoint while its step runs already."""
        waited = 0.0 if self.asked != "exit" else ARRIVES + 1
        while self.saver is not None and not all(
            self.saver.has(self.owner.thread_id, ns, id) for ns, id in self.above.items()
        ):
            if waited > ARRIVES:
                raise BadArgument(
                    "An effect was called whose checkpoint has not reached the saver. With "
                    "durability='exit' none does, nor any of a subgraph that was compiled with "
                    "checkpointer=False, unless the runtime drives it; an effect that blocks the "
                    "event loop keeps it away: make it a coroutine, or call it in a thread."
                )
            pause = min(0.01, max(0.0002, waited))
            yield pause
            waited += pause


class Line:
    """How a call came about: the attempt at its task, and whether its turn says something."""

    def __init__(
        self, attempt: int, *, beside: bool | None = None, number: int | None = None
    ) -> None:
        """`beside`: whether the order says nothing, if the caller knows."""
        self.attempt = attempt
        self.number = number
        """The number of the call, if it is known."""
        self.waited = 0
        self.instance: Any = None
        """Whose method it is, if it is one."""
        scratchpad = configurable().get("__pregel_scratchpad")
        self._counter: Any = getattr(scratchpad, "interrupt_counter", None)
        try:
            self._caller = asyncio.current_task()
        except RuntimeError:
            self._caller = None
        self._known = beside is not None
        self._beside = _is_beside(self._caller is None) if beside is None else beside

    def asked(self) -> int:
        """How many interrupts the task has come to so far, by LangGraph's counter."""
        counter = getattr(self._counter, "_counter", None)
        return 0 if counter is None else int(repr(counter.__self__)[len("count(") : -1])

    def skip(self, interrupts: int) -> None:
        """A recorded call came to these, and does not come to them again: the next is its own."""
        if self._counter is not None:
            for _ in range(interrupts):
                self._counter()

    def is_in_turn(self) -> bool:
        """Whether the node itself calls, and not something it runs side by side."""
        if self._known or self._beside or self._caller is None:
            return not self._beside
        if _is_langgraph(_code_of(self._caller.get_coro())):
            return True
        above = [t for t in asyncio.all_tasks() if getattr(t, "_fut_waiter", None) is self._caller]
        # LangGraph runs a node in a task of its own, or in one it made; a helper's is the node's.
        return any(_is_langgraph(_code_of(_innermost(task.get_coro()))) for task in above)


def _innermost(coroutine: Any) -> Any:
    """The coroutine that really waits, of those that wait for each other."""
    while inspect.iscoroutine(inner := getattr(coroutine, "cr_await", None)):
        coroutine = inner
    return coroutine


def _code_of(coroutine: Any) -> str:
    code = getattr(coroutine, "cr_code", None)
    return "" if code is None else code.co_filename


_LANGGRAPH = tuple(os.path.join(path, "") for path in langgraph.__path__)
_LANGCHAIN = os.path.join(os.path.dirname(langchain_core.__file__), "")


def _is_langgraph(file: str) -> bool:
    return file.startswith(_LANGGRAPH)


def _is_beside(in_thread: bool) -> bool:
    """Whether this is called by a tool of a ToolNode, or in a thread that the node started."""
    frame: FrameType | None = sys._getframe(1)
    in_tool, before = False, None
    while frame is not None:
        code = frame.f_code
        kind = _kind_of(code.co_filename)
        if kind == "tool node":
            return True
        if kind == "node":
            return False  # the node itself, or one of a graph inside of a tool
        in_tool = in_tool or kind == "tool"
        if in_thread and kind == "thread" and code.co_name == "wrapper":
            # Here a plain node begins beside a loop; or a tool, or a part of a chain.
            return in_tool or before == "runnable"
        before = kind
        frame = frame.f_back
    return in_thread


@functools.cache
def _kind_of(file: str) -> str | None:
    """What a file on the stack says of a call, if anything. Every call looks at all of them."""
    if file.startswith(_LANGGRAPH):
        tail = file.replace("\\", "/")
        if tail.endswith("/prebuilt/tool_node.py"):
            return "tool node"
        return "node" if tail.endswith("/pregel/_retry.py") else None
    if not file.startswith(_LANGCHAIN):
        return None
    tail = file.removeprefix(_LANGCHAIN).replace("\\", "/")
    if tail == "runnables/config.py":
        return "thread"
    if tail.startswith("runnables/"):
        return "runnable"
    return "tool" if tail.startswith("tools/") else None


_DESKS: WeakKeyDictionary[Any, Desk] = WeakKeyDictionary()
_CALLING: WeakKeyDictionary[Journal, set[tuple[str, str, str, int]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def configurable() -> dict[str, Any]:
    """The `configurable` of the node this is called in, or nothing."""
    if "langgraph" not in sys.modules:
        return {}
    from langgraph.config import get_config

    try:
        return get_config().get("configurable") or {}
    except RuntimeError:
        return {}


def here() -> tuple[Desk, int] | None:
    """The desk of the task this is called in, and the attempt at it; None outside of a run."""
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
        desk = _DESKS.get(execution)
        if desk is None:
            desk = _DESKS[execution] = _make(config, segment, saver, info)
            desk.execution = id(execution)
    outer = current()
    if outer is not None and outer.verifying:
        return None
    if outer is None or outer.execution != id(execution):
        return desk, attempt
    with _LOCK:
        if outer.desk is None:
            # They belong to the effect that calls them: found again when it is called again.
            outer.desk = replace(
                desk,
                task=task_hash(outer.key),
                execution=id(execution),
                rows={},
                taken={},
                callers={},
                lock=threading.Lock(),
                loaded=False,
                nested=True,
            )
    return outer.desk, attempt


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


def _make(config: Mapping[str, Any], segment: Segment | None, saver: Any, info: Any) -> Desk:
    ns = config.get("checkpoint_ns") or ""
    checkpoint_id = getattr(info, "checkpoint_id", None) or ""
    above = _above(config.get("checkpoint_map") or {})
    if segment is None:
        thread_id = str(config["thread_id"])
        owner, task = Owner(thread_id), task_hash(thread_id, ns)
        journal, serializer, clock = saver.journal, saver.serializer, saver.clock
        asked = config.get("__pregel_durability") or ""
        return Desk(
            owner, task, journal, serializer, clock, None, checkpoint_id, above, saver, asked
        )
    row, stored = segment.lease.row, _stored(ns, segment.unstored)
    owner, task = Owner(row.thread_id, row.id, row.token), task_hash(row.id, stored)
    journal, serializer, clock = segment.journal, segment.serializer, segment.clock
    if stored == ns:
        return Desk(
            owner, task, journal, serializer, clock, segment, checkpoint_id, above, segment.saver
        )
    # One for the whole subgraph, and for each attempt at the node outside.
    above = {root: id for root, id in above.items() if len(root) < len(stored)}
    depth = sum(not part.isdigit() for part in ns.removeprefix(stored).split("|")) - 1
    outer = _outer(config["__pregel_scratchpad"], depth)
    desk = Desk(
        owner, task, journal, serializer, clock, segment, checkpoint_id, above, segment.saver
    )
    shared: Desk = segment.desks.setdefault((task, id(outer)), (outer, desk))[1]
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


def task_hash(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()
