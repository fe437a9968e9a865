"""One stretch of a run in this process: its lease, and what its driver learns on the way.

Its name travels in LangGraph's config, so that it reaches every write of the run, in subgraphs too;
each write carries the lease's token and is refused when another worker has the run by then.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol
from weakref import WeakValueDictionary

from perdure.errors import LeaseLost
from perdure.journal import Journal, Op, Statement
from perdure.journal.clock import Clock
from perdure.operations import waits
from perdure.operations.events import change
from perdure.operations.run_payload import open_labels
from perdure.operations.runs import RunRow
from perdure.operations.waits import Body, Question
from perdure.serde.serializer import Serializer, where_read, where_run
from perdure.types import Durability, Kind, milliseconds

KEY = "__perdure"
"""Where a segment is named in `config["configurable"]`."""
_SEGMENTS: WeakValueDictionary[str, Segment] = WeakValueDictionary()


def find(configurable: Mapping[str, Any]) -> Segment | None:
    """The segment a call belongs to. Raises `LeaseLost` if its driver was given up long ago."""
    name = configurable.get(KEY)
    if name is None:
        return None
    segment = _SEGMENTS.get(name)
    if segment is None:
        raise LeaseLost(str(name).partition("/")[0])
    return segment


class Interrupt(Protocol):
    """What LangGraph hands to a saver for each interrupt."""

    value: Any
    id: str
    response_schema: Any


class Segment:
    """A claimed run."""

    def __init__(self, row: RunRow, journal: Journal, serializer: Serializer, clock: Clock) -> None:
        self.row, self.clock = row, clock
        self.name = f"{row.id}/{row.token}"
        _SEGMENTS[self.name] = self
        self.journal, self.serializer = journal, serializer
        self.saver: Any = None
        """Who is handed its checkpoints."""
        self.unstored: frozenset[tuple[str, ...]] = frozenset()
        """The nodes, by their names from the top, inside which no checkpoints are stored."""
        self.inline = False
        """Driven for a caller who waits."""
        self.unstored_tasks: dict[Any, Any] = {}
        """Where effects find their records, for tasks whose checkpoints are not stored."""
        self.secrets: dict[str, Any] = {}
        """Arguments of effects that must not be in what is stored of an error."""
        self.pulse: Any = None
        """The sign of life of the event loop it is driven in."""
        self._calls = 0
        self.durability: Durability = "auto"
        self.lost = False
        """Another worker has it: nothing more is written."""
        self.signal: BaseException | None = None
        """What an effect raised: it is to be tried again later, or nobody knows about it."""
        self.ending = False
        """LangGraph is done with it; effects that are on their way are waited for."""
        self.closing = False
        """Its driver is letting it go."""
        self.untouched = True
        """Nothing was queued for it yet: what is on disk is all there is."""
        self.labels = open_labels(serializer, row)
        """What the agent said of its run; noted with the next step."""
        self._labelled = False
        self.fingerprint: str | None = None
        """The shape of its graph, if it was another before: noted with the first step."""
        self.progressed = False
        self.asked = False
        """An interrupt reached the top: the run is about to rest."""
        self.moved_at = time.monotonic()
        """When it last made progress."""
        self.kept_until = float("inf")
        """When its lease runs out, if nobody keeps it."""
        self._questions: dict[str, Question] = {}
        self._depths: dict[str, tuple[int, int]] = {}
        self._reads: dict[str, dict[int, Any]] = {}
        self._fresh: set[str] = set()
        self._ordinals: dict[tuple[str, int], int] = {}
        self._reading = threading.Lock()

    @property
    def attempts(self) -> int:
        """The how-manieth attempt this is at the step it is at."""
        return 1 if self.progressed else self.row.attempts

    def check(self) -> None:
        """Raises `LeaseLost` once it is known that the run is another's, and what an effect raised
        to end the segment, if somebody swallowed that."""
        if self.lost:
            raise LeaseLost(self.row.id)
        if self.signal is not None:
            raise self.signal

    @contextlib.contextmanager
    def calling(self, nested: bool = False) -> Iterator[None]:
        """While an effect is on its way. None begins once the run is being let go, but those that
        another one calls, which is waited for."""
        self.check()
        with self._reading:
            if self.closing or (self.ending and not nested):
                raise LeaseLost(self.row.id)
            self._calls += 1
        try:
            yield
        finally:
            with self._reading:
                self._calls -= 1

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """While a plain effect is called in the event loop, and keeps it from giving a sign."""
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
        """Whether an effect is on its way, perhaps of a node that was cancelled."""
        with self._reading:
            return self._calls > 0

    def is_fresh(self, checkpoint_id: str) -> bool:
        """Whether this very segment made a checkpoint, so that its tasks cannot have run before."""
        return checkpoint_id in self._fresh

    def touch(self) -> None:
        """It made progress."""
        self.progressed = True
        self.moved_at = time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether the lease may be another's by now: then nothing is done before that is known."""
        return time.monotonic() > self.kept_until

    def refuse(self) -> NoReturn:
        """The journal refused a write of this segment."""
        self.lost = True
        raise LeaseLost(self.row.id)

    # -- for the saver

    @property
    def _params(self) -> dict[str, Any]:
        row = self.row
        return {"thread_id": row.thread_id, "id": row.id, "token": row.token}

    def fence(self) -> list[Statement]:
        """Refuses the batch it is in when the lease is lost."""
        return [Statement("fence", self._params)]

    def step(
        self, ns: str, checkpoint_id: str, metadata: Mapping[str, Any], nodes: Sequence[str]
    ) -> list[Statement]:
        """Counts a checkpoint as progress, under the same fence."""
        self.touch()
        self.untouched = False
        self._fresh.add(checkpoint_id)
        made = change(self.row.thread_id, self.row.id, self.clock.now())
        fingerprint, self.fingerprint = self.fingerprint, None
        data: dict[str, Any] = {"step": metadata.get("step"), "source": metadata.get("source")}
        data["checkpoint"] = checkpoint_id
        if nodes:
            data["nodes"] = list(nodes)
        if ns:
            data["ns"] = ns
        labels = None
        if self._labelled:
            self._labelled = False
            data["labels"] = dict(self.labels)
            labels = self.serializer.dumps(
                data["labels"], where_run("labels", self.row.id), "label()"
            )
        params = {
            **made.params,
            "token": self.row.token,
            "fingerprint": fingerprint,
            "labels": labels,
            "kind": "step",
            "body": made.body(self.serializer, data),
        }
        return [Statement("progress", params), Statement("insert_event", params)]

    def asks(
        self,
        interrupts: Sequence[Interrupt],
        before: list[Any],
        place: dict[str, Any],
    ) -> list[Statement]:
        """The waits of a task that was interrupted, for the batch of its writes."""
        self.moved_at = time.monotonic()
        if place["ns"] == "":
            self.asked = True
        statements = []
        depth = (len(place["ns"]), len(place["path"]))
        for one in interrupts:
            # A parent tells its child's interrupts again; the child is who asks.
            if depth < self._depths.get(one.id, depth):
                continue
            self._depths[one.id] = depth
            schema = one.response_schema if isinstance(one.response_schema, dict) else None
            question = self._questions.get(one.id) or _question(one.value)
            body = Body(one.value, schema, before)
            made = change(self.row.thread_id, self.row.id, self.clock.now())
            statements += waits.ask(
                self.serializer,
                made,
                token=self.row.token,
                question=question,
                body=body,
                interrupt_id=one.id,
                place=place,
            )
        return statements

    # -- for the code of the agent

    def expect(self, interrupt_id: str, question: Question) -> None:
        """More about an interrupt that is about to reach the saver."""
        self._questions[interrupt_id] = question

    def label(self, values: Mapping[str, Any]) -> None:
        """Say more of the run."""
        if any(name not in self.labels or self.labels[name] != values[name] for name in values):
            self.labels = {**self.labels, **values}
            self._labelled = True

    def ordinal(self, task: str, attempt: int) -> int:
        """The number of the next read of a task; each attempt at it counts anew."""
        with self._reading:
            n = self._ordinals.get((task, attempt), 0)
            self._ordinals[task, attempt] = n + 1
            return n

    def read(self, place: str, checkpoint_id: str | None, n: int, make: Any) -> Any:
        """The n-th recorded read of a task: what it was the first time, or `make()` now.

        It is queued before anything the task does with it, so whoever can see what came of it
        will find it here too.
        """
        self.check()
        task = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        with self._reading:
            known = self._reads.get(task)
        if known is None:
            # A task of a checkpoint that this very segment made cannot have run before. Not under
            # the lock: the journal may be in a transaction that asks for it.
            loaded = {} if checkpoint_id in self._fresh else self._load(task)
            with self._reading:
                known = self._reads.setdefault(task, loaded)
        if n not in known:
            known[n] = make()
            self.journal.defer(self._store(task, n, known[n]))
        return known[n]

    def _load(self, task: str) -> dict[int, Any]:
        params = {**self._params, "task": task}
        return self.journal.do(
            Op(
                "reads_of_task",
                [Statement("reads_of_task", params)],
                lambda rows: {
                    n: self.serializer.loads(body, where_read(self.row.id, task, n))
                    for n, body in rows[0]
                },
            )
        )

    def _store(self, task: str, n: int, value: Any) -> Op[None]:
        body = self.serializer.dumps(value, where_read(self.row.id, task, n))
        params = {**self._params, "task": task, "n": n, "body": body}
        return Op(
            "insert_read",
            [*self.fence(), Statement("insert_read", params)],
            lambda rows: None,
            write=True,
            otherwise=self.refuse,
        )


def _question(value: Any) -> Question:
    """What a plain `interrupt(value)` asks: a clock if it has a `wake_at`, else a person."""
    at = value.get("wake_at") if isinstance(value, dict) else None
    try:
        if isinstance(at, str):
            at = datetime.fromisoformat(at)
        elif isinstance(at, (int, float)) and not isinstance(at, bool):
            at = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):  # no time that there is
        at = None
    if isinstance(at, datetime):
        if at.tzinfo is None:
            at = at.astimezone()
        return Question(Kind.CLOCK, wake_at=milliseconds(at))
    return Question(Kind.HUMAN)
