"""One segment of a run: `begin_segment` makes it a `Drive`, LangGraph is called with that, and
`finish_segment` stores what the outcome means. A run that stops at a breakpoint waits for a person
to let it go on.

Crash points and what each leaves behind for the next claim:

    answered with a command     the command is in the setup, in one batch with the answers; the
                                next driver applies it (`answers`)
    claimed, nothing driven     the lease runs out; attempts counts it
    answers handed over         the waits are `applied`, and are handed over again
    a step on disk              progress: attempts is 1 again, and the run goes on after that step
    interrupt on disk           its wait too, in the same batch; the run is still leased
    segment ended               waiting, done, failed ...: in one batch with its event, and with the
                                next run of the thread being due
"""

from __future__ import annotations

import contextlib
import functools
import json
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from queue import SimpleQueue
from threading import Thread
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.runtime import RunControl
from langgraph.types import Command

from perdure.checkpoint.rows import CheckpointKey
from perdure.commands.claims import SegmentEnd
from perdure.commands.runs import RunRow
from perdure.commands.waits import Question, WaitRow
from perdure.execution.duties import Outbox
from perdure.execution.graphs import Graph, GraphRegistry, is_newer, pending_nodes
from perdure.execution.segment import Segment
from perdure.journal import Journal, Plan
from perdure.journal.clock import Clock
from perdure.langgraph_port import checkpoint_names, configs
from perdure.observe.observers import Observers
from perdure.recorded_calls import RecordingConnection
from perdure.saver import Saver
from perdure.types import EventKind, Kind, State, WaitState

BREAKPOINTS = ("interrupt_before", "interrupt_after")


class StopReason(StrEnum):
    """Why a driver is asked to stop at the next step."""

    CANCEL = "cancel"
    PAUSE = "pause"
    SHUTDOWN = "shutdown"
    LOST = "lost"
    """Another worker has the run, or its time ran out."""


class Ended(StrEnum):
    """How a segment ended: the field of `Counts` that counts it."""

    DONE = "done"
    WAITING = "waiting"
    FAILED = "failed"
    HELD = "held"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    RELEASED = "released"
    LOST = "lost"


FROM_CHECKPOINT: Any = object()
"""The output is in the last checkpoint."""


@dataclass(frozen=True)
class Returned:
    """LangGraph returned: the graph is at its end, or waits."""

    output: Any = FROM_CHECKPOINT


@dataclass(frozen=True)
class Raised:
    """LangGraph raised."""

    error: BaseException


Outcome = Returned | Raised


class Drive(Segment):
    """A segment with what LangGraph is called with."""

    saver: Saver
    graph: Graph
    config: RunnableConfig
    control: RunControl
    input: Any = None
    context: Any = None
    breakpoints: Mapping[str, Any] = MappingProxyType({})
    """Breakpoints of this run, besides those the graph was compiled with."""
    stop: StopReason | None = None
    grace: tuple[int, int] | None = None
    """When its grace ends, as it was requested, and by the clock of this process."""

    give_up: Callable[[Ended], None] = staticmethod(lambda ended: None)
    """Called when its driver is no longer waited for, with how the segment ended."""

    @property
    def has_breakpoints(self) -> bool:
        return bool(self.breakpoints) or self.graph.has_breakpoints

    @property
    def arguments(self) -> dict[str, Any]:
        """What LangGraph is called with, besides input and config."""
        # LangGraph hands over each checkpoint, and the saver decides which of them are waited for;
        # but a caller's durability='exit' is kept: nothing is stored before the end.
        return {
            "context": self.context,
            "durability": "exit" if self.at_exit else self.graph.durability,
            "control": self.control,
            **self.breakpoints,
        }

    def ask_to_stop(self, why: StopReason) -> None:
        """Stop before the next step."""
        self.stop = self.stop or why
        self.control.request_drain(why.value)


class Driver(RecordingConnection):
    """What the plans before and after LangGraph work with: the connection of a runtime, with its
    saver, its graphs, and who is told of what."""

    def __init__(self, url: str | None, saver: Saver, observers: Observers) -> None:
        super().__init__(url, saver.serializer, observers)
        self.saver, self.graphs, self.outbox = saver, GraphRegistry(), Outbox()
        self.stored_topologies: set[str] = set()
        """Fingerprints of graphs whose topology is in the journal."""

    @functools.cached_property
    def journal(self) -> Journal:
        return self.saver.journal

    @functools.cached_property
    def clock(self) -> Clock:
        return super().clock


def is_resume(input: Any) -> bool:
    """Whether an input is LangGraph's way to answer an interrupt."""
    return isinstance(input, Command) and input.resume is not None


def latest_checkpoint(
    saver: Saver, thread_id: str, ns: str = "", id: str | None = None
) -> Plan[CheckpointTuple | None]:
    """A checkpoint of a thread, by default the latest."""
    return saver.reader.get_tuple(CheckpointKey(thread_id, ns, id), False)


def start_place(saver: Saver, row: RunRow, setup: Mapping[str, Any]) -> Plan[Mapping[str, Any]]:
    """The old checkpoint a run begins at, while it has made none of its own; else nothing."""
    place: Mapping[str, Any] = setup.get("place") or {}
    if not place or row.fingerprint is not None:  # which its first step stores
        return {}
    if row.begun:  # it asked something before its first step
        at = yield from latest_checkpoint(saver, row.thread_id)
        if at is not None and at.checkpoint["id"] == configs.root_checkpoint(place):
            return {}
    return place


def stop_at_breakpoint(drive: Drive) -> Plan[SegmentEnd | None]:
    """Store the wait of a run that stopped at a breakpoint. None if it did not."""
    at = yield from latest_checkpoint(drive.saver, drive.row.thread_id)
    nodes = [] if at is None else sorted(pending_nodes(json.loads(drive.graph.topology), at))
    if at is None or not nodes:
        return None
    yield drive.questions.ask_for_run(
        Question(Kind.HUMAN), {"breakpoint": nodes}, breakpoint_id(at), at.checkpoint["id"]
    )
    return SegmentEnd(State.WAITING, EventKind.WAITING, {})


def is_at_breakpoint(drive: Drive, found: Sequence[WaitRow], discarded: bool) -> Plan[bool]:
    """Whether a run is at a breakpoint, and no person has let it go on yet. `discarded`: whether
    its wait may have been deleted, because it could not be read."""
    row = drive.row
    open = [wait.interrupt_id for wait in found if wait.state == WaitState.OPEN]
    if any(id.startswith("breakpoint:") for id in open):
        return True
    unsure = row.was == State.RUNNING or drive.is_fork or discarded
    if not drive.has_breakpoints or not unsure:
        return False
    # Its driver may have died between the checkpoint and the wait; a fork may begin at one.
    at = yield from latest_checkpoint(drive.saver, row.thread_id)
    if at is None or any(wait.interrupt_id == breakpoint_id(at) for wait in found):
        return False
    before: CheckpointTuple | None = None
    if at.parent_config is not None:
        parent = at.parent_config["configurable"]["checkpoint_id"]
        before = yield from latest_checkpoint(drive.saver, row.thread_id, id=parent)
    return _has_stopped(drive.graph, drive.breakpoints, at, before)


def breakpoint_id(at: CheckpointTuple) -> str:
    """The interrupt id of the breakpoint at a checkpoint."""
    return f"breakpoint:{at.checkpoint['id']}"


def _has_stopped(
    graph: Graph, more: Mapping[str, Any], at: CheckpointTuple, before: CheckpointTuple | None
) -> bool:
    """Whether LangGraph stopped at this checkpoint because of a breakpoint, `more` included."""
    seen = checkpoint_names.versions_at_stop(at.checkpoint)
    versions = at.checkpoint["channel_versions"]
    if not any(is_newer(version, seen.get(channel)) for channel, version in versions.items()):
        return False
    stops = [graph.pregel.interrupt_before_nodes, more.get("interrupt_before")]
    if _is_among(pending_nodes(json.loads(graph.topology), at), stops):
        return True
    known = {} if before is None else before.checkpoint["versions_seen"]
    moved = at.checkpoint["versions_seen"].items()
    ran = [n for n, what in moved if what != known.get(n) and checkpoint_names.is_node(n)]
    return _is_among(ran, [graph.pregel.interrupt_after_nodes, more.get("interrupt_after")])


def _is_among(nodes: Iterable[str], stops: list[Any]) -> bool:
    return any(stop == "*" or node in (stop or ()) for node in nodes for stop in stops)


P = ParamSpec("P")
T = TypeVar("T")

Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class NodeThreadPool(ThreadPoolExecutor):
    """As many threads as are needed at once, reused, and not joined at exit.

    The standard pool has a handful of threads, and a process does not exit before they end: one
    function that never returns would keep a drained worker alive. It is a ThreadPoolExecutor by
    name only, because an event loop accepts nothing else.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._idle: list[SimpleQueue[Job | None]] = []

    @classmethod
    def serve(cls, loop: AbstractEventLoop) -> None:
        """Make this the pool of a loop, unless the application gave it one."""
        pool = getattr(loop, "_default_executor", None)
        if pool is None or getattr(pool, "_thread_name_prefix", None) == "asyncio":
            loop.set_default_executor(cls())

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            Thread(target=self._work, args=(jobs,), name="perdure-node", daemon=True).start()
        jobs.put((future, fn, args, kwargs))
        return future

    def _work(self, jobs: SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            _run(*job)
            del job
            self._idle.append(jobs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().put(None)


def _run(
    future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        # In an event loop these would end the loop, and with it every other run of the worker.
        raised = RuntimeError(f"{type(error).__name__}({error}) in a plain function")
        raised.__cause__ = error
        future.set_exception(raised)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
