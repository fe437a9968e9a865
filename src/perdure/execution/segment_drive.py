"""A segment that is ready to be driven, and how LangGraph left it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.runtime import RunControl
from langgraph.types import Command

from perdure.checkpoint.operations import CheckpointKey
from perdure.execution.graphs import Graph
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.langgraph_port import configs
from perdure.operations.runs import RunRow
from perdure.saver import Saver
from perdure.segments.segment import Segment

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


@dataclass(eq=False)
class Drive:
    """A segment that is ready to be driven: what LangGraph is called with."""

    segment: Segment
    graph: Graph
    input: Any
    config: RunnableConfig
    context: Any
    control: RunControl
    breakpoints: dict[str, Any] = field(default_factory=dict)
    """Breakpoints of this run, besides those the graph was compiled with."""
    stop: StopReason | None = None
    grace: tuple[int, int] | None = None
    """When its grace ends, as it was requested, and by the clock of this process."""
    give_up: Callable[[Ended], None] = lambda ended: None
    """Called when its driver is no longer waited for, with how the segment ended."""

    @property
    def row(self) -> RunRow:
        return self.segment.lease.row

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
            "durability": "exit" if self.segment.at_exit else self.graph.durability,
            "control": self.control,
            **self.breakpoints,
        }

    def ask_to_stop(self, why: StopReason) -> None:
        """Stop before the next step."""
        self.stop = self.stop or why
        self.control.request_drain(why.value)


class SegmentPlans:
    """What the plans before and after LangGraph share."""

    def __init__(self, saver: Saver, clock: Clock) -> None:
        self._saver, self.clock = saver, clock
        self.journal, self.serializer = saver.journal, saver.serializer


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
