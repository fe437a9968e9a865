"""One claimed stretch of a run, in the process that drives it, and its questions.

Its name travels in LangGraph's config, so that every write of the run finds it, in subgraphs too.
Each write carries the lease's token and is refused once another worker has claimed the run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary, proxy

from perdure.commands import waits
from perdure.commands.evaluation_policy import EvaluationPolicy
from perdure.commands.events import change
from perdure.commands.runs import RunRow
from perdure.commands.waits import Body, Question
from perdure.commands.webhooks import Endpoint
from perdure.errors import LeaseLost, NotDurable, WriteLost
from perdure.execution.progress import ClaimedRun, Progress, RecordedReads
from perdure.execution.stream_recorder import StreamRecorder
from perdure.journal import Op, Statement
from perdure.journal.clock import Clock
from perdure.journal.committer import QueuedOperation
from perdure.langgraph_port import checkpoint_names, configs
from perdure.text import is_user_code
from perdure.times import LATEST, milliseconds
from perdure.types import Durability, Kind

T = TypeVar("T")

KEY = configs.HIDDEN + "perdure"
"""Where a segment is named in `config["configurable"]`."""
_numbers = count()
_SEGMENTS: WeakValueDictionary[str, Segment] = WeakValueDictionary()
EVALUATED: WeakValueDictionary[str, Segment] = WeakValueDictionary()
"""Those of evaluations. While there are none, nothing asks what they refuse."""


def segment_of(configurable: Mapping[str, Any]) -> Segment | None:
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


class Segment(ClaimedRun):
    """One claimed stretch of a run. `inline`: a caller drives it; exceptions reach the caller and
    are not retried. `at_exit`: LangGraph stores it when it returns, and nothing before. `unstored`:
    paths of the nodes whose subgraphs store no checkpoints. `evaluation`: the policy that keeps
    everything it does in the process."""

    def __init__(
        self,
        row: RunRow,
        saver: Any,
        clock: Clock,
        *,
        durability: Durability = "auto",
        inline: bool = False,
        at_exit: bool = False,
        unstored: frozenset[tuple[str, ...]] = frozenset(),
        fingerprint: str | None = None,
        origin: Mapping[str, Any] | None = None,
        announced: Sequence[Endpoint] = (),
        evaluation: EvaluationPolicy | None = None,
    ) -> None:
        super().__init__(row, saver.journal, saver.serializer, clock)
        self.name = f"{row.id}/{row.token}/{next(_numbers)}"
        """Unique among all claims of all runs in this process: a database that went back gives
        tokens again."""
        self.saver, self.durability, self.evaluation = saver, durability, evaluation
        self.inline, self.at_exit, self.unstored = inline, at_exit, unstored
        self.progress = Progress(self, fingerprint)
        self.questions = Questions(self, announced)
        self.stream: StreamRecorder | None = None
        """Records what it produces, if its run keeps that."""
        self.is_fork = origin is not None
        self.reads = RecordedReads(self, self.progress, origin or {})
        self.unstored_tasks: dict[Any, Any] = {}
        """Where effects find their records, for tasks whose checkpoints are not stored."""
        self.secrets: set[str] = set()
        """Of arguments of effects, what is removed from what is stored of an error."""
        self.has_checked_effects = False
        """Whether every effect of the run was found where it was stored. What was moved would be
        called again."""
        self._lock = threading.Lock()
        self._calls = 0
        self._deferred: deque[QueuedOperation[Any]] = deque()
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

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is known to be lost, the signal that ends the segment
        if the agent's code swallowed it, or `WriteLost`."""
        if self.is_lost:
            raise LeaseLost(self.row.id)
        if self.signal is not None:
            raise self.signal
        if self._deferred and self._deferred[0].settled:
            self.check_stored()

    def defer(self, op: Op[T], *, hold: bool = False) -> QueuedOperation[T]:
        """Queue a write that the segment goes on without. Its end is refused if this one was."""
        queued = self.journal.defer(op, hold=hold, watched=True)
        with self._lock:
            self._deferred.append(queued)
        return queued

    def lost_write(self) -> WriteLost | None:
        """The first write that the segment went on without, and the database refused."""
        refused: QueuedOperation[Any] | None = None
        with self._lock:
            while refused is None and self._deferred and self._deferred[0].settled:
                if isinstance(self._deferred[0].error, Exception):
                    refused = self._deferred[0]  # it stays
                else:
                    self._deferred.popleft()
        if refused is None:
            return None
        lost = WriteLost(f"{refused.op.name} could not be stored: {refused.error}")
        lost.__cause__ = refused.error
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


class Interrupt(Protocol):
    """What LangGraph hands to a saver for each interrupt."""

    value: Any
    id: str
    response_schema: Any


class Answered(NamedTuple):
    """A question of a task, and its answer."""

    kind: Kind
    value: Any
    number: int
    """How many questions the task had asked before."""
    answer: Any


class Questions:
    """The questions of one segment: LangGraph's interrupts, stored as waits of the run."""

    def __init__(self, segment: Segment, announced: Sequence[Endpoint]) -> None:
        """`announced`: who gets a message of the outbox about each new question for a person."""
        self._segment: Segment = proxy(segment)  # which has this
        self._announced = announced
        self._expected: dict[str, list[tuple[Interrupt, Question]]] = {}
        self._depths: dict[str, tuple[int, int]] = {}
        self._answered: dict[str, list[Answered]] = {}  # by task
        self._used: dict[tuple[str, int], set[int]] = {}  # by task and attempt
        self.reached_top = False
        """Whether an interrupt reached the top of the graph: the run is about to wait."""
        self.in_command: Collection[str] = ()
        """Waits whose answers LangGraph gives to whichever task asks first. One that is asked again
        did not get its own."""

    def expect(self, interrupt: Interrupt, question: Question) -> None:
        """Say what an interrupt that is about to reach the saver waits for."""
        self._expected.setdefault(interrupt.id, []).append((interrupt, question))

    def _expectation(self, interrupt: Interrupt) -> Question:
        """What an interrupt waits for. Two questions of a task may have one id."""
        said = self._expected.get(interrupt.id, [])
        same = [question for one, question in said if one is interrupt]
        if same or said:
            return same[0] if same else said[-1][1]
        return _question(interrupt.value)

    def note_answer(self, task_id: str, answered: Answered) -> None:
        """Say what a task has asked, and what it was answered."""
        known = self._answered.setdefault(task_id, [])
        known.append(answered)
        known.sort(key=lambda one: one.number)

    def place_answer(
        self, task: tuple[str, int], index: int, answers: list[Any], kind: Kind, value: Any
    ) -> None:
        """Put the answer to this question where LangGraph reads it, or take away that of another.

        LangGraph answers the n-th question of a task with its n-th answer, also if the task, run
        again, asks something else there. `task` is its id and the attempt at it; `answers` are the
        answers as LangGraph has them.
        """
        known, used = self._answered.get(task[0], []), self._used.setdefault(task, set())
        free = [n for n, one in enumerate(known) if n not in used and one.kind is kind]
        equal = [n for n in free if self._is_same(known[n].value, value)]
        # Times may be computed again; sleeps are interchangeable.
        found = equal or (free if kind is Kind.CLOCK else [])
        if found and index <= len(answers):
            used.add(found[0])
            answers[index : index + 1] = [known[found[0]].answer]
        elif any(one.number == index for one in known):
            del answers[index:]

    def _is_same(self, one: Any, other: Any) -> bool:
        with contextlib.suppress(Exception):  # an array does not say yes or no
            if bool(one == other):
                return True
        encode = self._segment.serializer.encode
        return bool(encode(one, "a question") == encode(other, "a question"))

    def ask(
        self, interrupts: Sequence[Interrupt], before: list[Any], place: dict[str, Any]
    ) -> list[Statement]:
        """The statements that store a task's interrupts as waits, for the batch of its writes."""
        self._segment.progress.note_question()
        if place["ns"] == "":
            self.reached_top = True
        statements = []
        depth = (len(place["ns"]), len(place["path"]))
        for one in interrupts:
            # A parent repeats the interrupts of its child; the wait belongs to the child.
            if depth < self._depths.get(one.id, depth):
                continue
            self._depths[one.id] = depth
            schema = one.response_schema if isinstance(one.response_schema, dict) else None
            question, body = self._expectation(one), Body(one.value, schema, before)
            statements += self._ask(question, body, one.id, place)
        return statements

    def ask_for_run(
        self, question: Question, value: Any, interrupt_id: str, checkpoint_id: str = ""
    ) -> Op[None]:
        """Store a wait of the run itself, not of one of its tasks."""
        place = {"ns": "", "checkpoint_id": checkpoint_id, "task_id": "", "path": "", "stamp": 0}
        statements = self._ask(question, Body(value, None, []), interrupt_id, place)
        return self._segment.owner.fenced(*statements)

    def _ask(
        self, question: Question, body: Body, interrupt_id: str, place: dict[str, Any]
    ) -> list[Statement]:
        segment, announced = self._segment, self._announced
        asking = change(segment.row.thread_id, segment.row.id, segment.clock.now())
        if segment.evaluation is not None:
            announced = ()  # a message would reach a person, and a sleep would take its time
            if not interrupt_id.startswith("effect:"):  # that one is really retried
                question = _without_time(question, asking.now)
        return waits.ask(
            segment.serializer,
            asking,
            segment.row.token,
            question,
            body,
            interrupt_id,
            place,
            segment.progress.fingerprint,
            announced=announced if question.kind is Kind.HUMAN else (),
            reopened=self.in_command,
        )


def _without_time(question: Question, now: int) -> Question:
    """The same question, due now. What had a deadline keeps one."""
    if question.expires_at is not None:
        return question._replace(expires_at=now)
    return question._replace(wake_at=now)


def _question(value: Any) -> Question:
    """What a plain `interrupt(value)` waits for: the clock if it has a `wake_at`, else a person."""
    at = value.get("wake_at") if isinstance(value, dict) else None
    try:
        if isinstance(at, str):
            at = datetime.fromisoformat(at)
        elif isinstance(at, (int, float)) and not isinstance(at, bool):
            at = datetime.fromtimestamp(at, UTC)
        if isinstance(at, datetime) and at.tzinfo is None:
            at = at.astimezone()
    except (ValueError, OverflowError, OSError):  # not a time
        at = None
    if isinstance(at, datetime):
        return Question(Kind.CLOCK, wake_at=min(milliseconds(at), milliseconds(LATEST)))
    return Question(Kind.HUMAN)
