"""The state of one claimed stretch of a run, in the process that drives it.

Its name travels in LangGraph's config, so that every write of the run finds it, in subgraphs too.
Each write carries the lease's token and is refused once another worker has claimed the run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

from perdure.commands.effects import Owner
from perdure.commands.evaluation_policy import EvaluationPolicy
from perdure.commands.runs import RunRow
from perdure.commands.webhooks import Endpoint
from perdure.errors import LeaseLost, NotDurable, WriteLost
from perdure.execution.progress import Progress
from perdure.execution.questions import Questions
from perdure.execution.recorded_reads import RecordedReads
from perdure.execution.stream_recorder import StreamRecorder
from perdure.journal import Journal, Op
from perdure.journal.clock import Clock
from perdure.journal.committer import QueuedOperation
from perdure.langgraph_port import checkpoint_names, configs
from perdure.serde.serializer import Serializer
from perdure.text import is_user_code
from perdure.types import Durability

T = TypeVar("T")

KEY = configs.HIDDEN + "perdure"
"""Where a segment is named in `config["configurable"]`."""
_numbers = count()
_SEGMENTS: WeakValueDictionary[str, Segment] = WeakValueDictionary()
EVALUATED: WeakValueDictionary[str, Segment] = WeakValueDictionary()
"""Those of evaluations. While there are none, nothing asks what they refuse."""


def find(configurable: Mapping[str, Any]) -> Segment | None:
    """The segment a call belongs to. Raises `LeaseLost` if its driver gave it up long ago."""
    name = configurable.get(KEY)
    if name is None:
        return None
    segment = _SEGMENTS.get(name)
    if segment is None or segment.is_void:
        raise LeaseLost(str(name).partition("/")[0])
    return segment


_DRIVEN: ContextVar[Segment | None] = ContextVar("perdure_driven", default=None)


@contextlib.contextmanager
def driving(segment: Segment) -> Iterator[None]:
    """While LangGraph runs a segment. What its nodes call knows it then, also where no config does:
    in a graph with another checkpointer."""
    token = _DRIVEN.set(segment)
    try:
        yield
    finally:
        _DRIVEN.reset(token)


def driven() -> Segment | None:
    """The segment that a worker drives here. None if there is none, and in a thread that a node
    started without its context."""
    return _DRIVEN.get()


def is_evaluating() -> bool:
    """Whether this process drives a run of an evaluation."""
    # Other threads add segments meanwhile: `values` would find that its dictionary changed.
    segments = [ref() for ref in EVALUATED.valuerefs()]
    return any(one is not None and not one.closing for one in segments)


@dataclass(eq=False)
class LoopPulse:
    """The sign of life of the event loop that a segment is driven in, in whose thread it is made.
    The lease keeper's thread watches it."""

    beaten: float = field(default_factory=time.monotonic)
    excused: int = 0
    """Number of plain effects, called by coroutines, that block the loop now."""

    _thread: int = field(default_factory=threading.get_ident)
    _native: int = field(default_factory=threading.get_native_id)
    _seen: tuple[float, float] = (0.0, 0.0)
    """The last beat that was seen, and how long its thread had waited for CPUs by then."""

    @property
    def at(self) -> float:
        return time.monotonic() if self.excused else self.beaten

    def beat(self) -> None:
        self.beaten = time.monotonic()

    def watch(self, excused: float) -> None:
        """See whether it beats. For so many seconds the whole process stood still."""
        if excused:
            self.beaten = min(time.monotonic(), self.beaten + excused)
        if self.beaten != self._seen[0]:
            self._seen = (self.beaten, self._waited())

    def why_late(self) -> str:
        """Why it does not beat, as far as its thread shows that."""
        late, waited = time.monotonic() - self.beaten, self._waited() - self._seen[1]
        text = f"its event loop did not respond for {late:.1f} s"
        if waited > late / 2:
            return f"{text}: the machine is starved, its thread waited {waited:.1f} s for a CPU"
        frame, place = sys._current_frames().get(self._thread), ""  # noqa: SLF001  no other way
        while frame is not None and "/asyncio/" not in (file := frame.f_code.co_filename):
            if not place or is_user_code(file):
                place = f", blocked by {frame.f_code.co_name} ({file}:{frame.f_lineno})"
            frame = None if is_user_code(file) else frame.f_back
        return text + place

    def _waited(self) -> float:
        """Seconds that its thread could have run, but had no CPU. 0 where the system hides it."""
        try:
            scheduled = Path(f"/proc/self/task/{self._native}/schedstat").read_text()
            return int(scheduled.split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


class Segment:
    """A claimed run. `inline`: a caller drives it; exceptions reach the caller and are not retried.
    `at_exit`: LangGraph stores it when it returns, and nothing before. `unstored`: paths of the
    nodes whose subgraphs store no checkpoints. `evaluation`: the policy that keeps everything it
    does in the process."""

    def __init__(
        self,
        row: RunRow,
        journal: Journal,
        serializer: Serializer,
        clock: Clock,
        *,
        saver: Any = None,
        durability: Durability = "auto",
        inline: bool = False,
        at_exit: bool = False,
        unstored: frozenset[tuple[str, ...]] = frozenset(),
        fingerprint: str | None = None,
        origin: Mapping[str, Any] | None = None,
        announced: Sequence[Endpoint] = (),
        evaluation: EvaluationPolicy | None = None,
    ) -> None:
        self.evaluation = evaluation
        self.row, self.owner = row, Owner(row.thread_id, row.id, row.token)
        self.name = f"{row.id}/{row.token}/{next(_numbers)}"
        """Unique among all claims of all runs in this process: a database that went back gives
        tokens again."""
        self.journal, self.serializer, self.clock = journal, serializer, clock
        self.saver, self.durability = saver, durability
        self.inline, self.at_exit, self.unstored = inline, at_exit, unstored
        self.progress = Progress(row, self.owner, serializer, clock, fingerprint)
        # A message about a question would reach a person; a sleep would take its time.
        self.questions = Questions(
            self.owner,
            self.progress,
            clock,
            announced=announced if evaluation is None else (),
            at_once=evaluation is not None,
        )
        self.stream: StreamRecorder | None = None
        """Records what it produces, if its run keeps that."""
        self.is_fork = origin is not None
        self.reads = RecordedReads(journal, self.owner, self.progress, self.refuse, origin or {})
        self.unstored_tasks: dict[Any, Any] = {}
        """Where effects find their records, for tasks whose checkpoints are not stored."""
        self.secrets: set[str] = set()
        """Of arguments of effects, what is removed from what is stored of an error."""
        self.has_checked_effects = False
        """Whether every effect of the run was found where it was stored. What was moved would be
        called again."""
        self._lock = threading.Lock()
        self._calls = 0
        self._deferred: list[QueuedOperation[Any]] = []
        self.is_lost = False
        """Whether another worker has the run: nothing more is written."""
        self.is_void = False
        """Whether the database went back in time since it was claimed: another history may give its
        token again, so nothing of it is sent to the journal any more."""
        self.ending = False
        """Whether LangGraph has returned: no further effect begins."""
        self.closing = False
        """Whether its driver is ending it."""
        self.keeps_resume = False
        """Whether the answer of a command, which is at the checkpoint, is still to be taken."""
        self.pulse: LoopPulse | None = None
        """That of the event loop it is driven in."""
        self.signal: BaseException | None = None
        """What an effect raised to end the segment: it is postponed, or its outcome unknown."""
        self._leased_until = float("inf")
        _SEGMENTS[self.name] = self
        if evaluation is not None:
            EVALUATED[self.name] = self

    def keep(self, seconds: float) -> None:
        """Note that the lease was renewed: it runs out in so many seconds."""
        self._leased_until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left of the lease."""
        return self._leased_until - time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether the lease may have run out. Then nothing is done before that is known."""
        return time.monotonic() > self._leased_until

    def refuse(self) -> NoReturn:
        """The journal refused a write of this segment."""
        self.is_lost = True
        raise LeaseLost(self.row.id)

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is known to be lost, the signal that ends the segment
        if the agent's code swallowed it, or `WriteLost`."""
        if self.is_lost:
            raise LeaseLost(self.row.id)
        if self.signal is not None:
            raise self.signal
        first = self._deferred[:1]
        if first and first[0].settled:
            self.check_stored()

    def defer(self, op: Op[T], *, hold: bool = False) -> QueuedOperation[T]:
        """Queue a write that the segment goes on without. Its end is refused if this one was."""
        queued = self.journal.defer(op, hold=hold, watched=True)
        with self._lock:
            self._deferred.append(queued)
        return queued

    def lost_write(self) -> WriteLost | None:
        """The first write that the segment went on without, and the database refused."""
        with self._lock:
            stored = 0
            for queued in self._deferred:
                if not queued.settled or isinstance(queued.error, Exception):
                    break
                stored += 1
            del self._deferred[:stored]  # the first that was refused stays
            first = self._deferred[0] if self._deferred else None
        if first is None or not first.settled or not isinstance(first.error, Exception):
            return None
        lost = WriteLost(f"{first.op.name} could not be stored: {first.error}")
        lost.__cause__ = first.error
        return lost

    def check_stored(self) -> None:
        """Raise `WriteLost` if there is such a write."""
        if (lost := self.lost_write()) is not None:
            raise lost

    def check_answerable(self, configurable: Mapping[str, Any]) -> None:
        """Raise `NotDurable` if an answer could not be handed to the task of this config."""
        names: tuple[str, ...] = ()
        for node, _ in checkpoint_names.namespace_nodes(configurable.get("checkpoint_ns") or ""):
            names = (*names, node)
            if names in self.unstored:
                raise NotDurable(
                    f"Nothing can be asked or waited for in the subgraph of the node {node!r}: "
                    "it has checkpointer=False, and starts over each time, without the answer. "
                    "Compile it without a checkpointer."
                )

    @contextlib.contextmanager
    def calling(self, nested: bool = False) -> Iterator[None]:
        """While an effect is under way. Once the segment ends, only effects that are called by
        another one, which is waited for, can begin."""
        self.check()
        with self._lock:
            if self.closing or (self.ending and not nested):
                raise LeaseLost(self.row.id)
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """While a plain effect, called in the event loop, keeps the loop from beating."""
        if self.pulse is None:
            yield
            return
        self.pulse.excused += 1
        try:
            yield
        finally:
            self.pulse.beat()
            self.pulse.excused -= 1

    @property
    def is_busy(self) -> bool:
        """Whether an effect is under way, perhaps of a node that was cancelled."""
        with self._lock:
            return self._calls > 0

    def end_with(self, signal: BaseException) -> None:
        """End the segment with the first of these signals, even if the agent swallows it."""
        self.signal = self.signal or signal
