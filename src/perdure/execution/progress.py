"""What a segment has done so far: its checkpoints as steps of the run, its model calls, when it
last moved, and its recorded reads.

A value read by a task is the same when the task runs again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar
from uuid import UUID
from weakref import proxy

from langchain_core.callbacks import BaseCallbackHandler

from perdure.commands.effects import NOTHING_SAVED, Owner, Saved, record_saved
from perdure.commands.events import change, is_input
from perdure.commands.runs import RunRow, load_labels, place
from perdure.errors import LeaseLost
from perdure.execution.stream_recorder import StreamRecorder
from perdure.journal import Journal, Statement, read_op
from perdure.journal.clock import Clock
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.types import EventKind, PromptVersion

T = TypeVar("T")


class _PromptRead(NamedTuple):
    """A prompt version that a task has read."""

    task: str
    version: PromptVersion
    steps: dict[str, str]
    """The checkpoints that its steps began with, by namespace, of those not yet stored."""


class ClaimedRun:
    """A claimed run, and with what it is written: its lease's token is in its `owner`, so what
    comes after another claim is refused."""

    def __init__(self, row: RunRow, journal: Journal, serializer: Serializer, clock: Clock) -> None:
        self.row, self.owner = row, Owner(row.thread_id, row.id, row.token)
        self.journal, self.serializer, self.clock = journal, serializer, clock
        self.is_lost = False
        """Whether another worker has the run: nothing more is written."""

    def refuse(self) -> NoReturn:
        """The journal refused a write of this segment."""
        self.is_lost = True
        raise LeaseLost(self.row.id)


class Progress:
    """The progress of one segment."""

    def __init__(self, claim: ClaimedRun, fingerprint: str | None) -> None:
        """`fingerprint` is that of the graph, if it is not the run's."""
        self._claim: ClaimedRun = proxy(claim)  # which has this
        self.fingerprint = fingerprint
        """Stored with the first step, then None; or with a question, if the run has none."""
        self.stream: StreamRecorder | None = None
        """What is kept of what the segment produces."""
        self.labels: Mapping[str, Any] = load_labels(claim.serializer, claim.row)
        """What the agent added to the metadata of its run."""
        self._labelled = False
        self._made: set[str] = set()
        self.has_moved = False
        """Whether it stored a step, or an effect's outcome."""
        self.has_written = False
        """Whether something was queued for it: until then all there is of the run is on disk."""
        self._moved_at = time.monotonic()
        self._saved, self._saving = NOTHING_SAVED, threading.Lock()
        self._prompts: list[_PromptRead] = []
        self.model_calls = ModelCalls()
        self.steps = 0
        """How many steps it finished, at the top of the graph."""

    @property
    def attempts(self) -> int:
        """Attempt number at the current step."""
        return 1 if self.has_moved else self._claim.row.attempts

    @property
    def idle_seconds(self) -> float:
        """Seconds since it last moved."""
        return time.monotonic() - self._moved_at

    def is_new(self, checkpoint_id: str | None) -> bool:
        """Whether this segment made the checkpoint, so that its tasks cannot have run before."""
        return checkpoint_id in self._made

    def move(self) -> None:
        """Note that it made progress."""
        self.has_moved = True
        self._moved_at = time.monotonic()

    def note_question(self) -> None:
        """Note that it asked something: alive, but not a step further."""
        self._moved_at = time.monotonic()

    def note_saved(self, name: str, key: str, task: str, model_calls: int, tokens: int) -> None:
        """Note an outcome that came from its record, in the task of this namespace. The next event
        that is stored counts it: what a process replays before it dies, without storing anything,
        is counted by the next one."""
        with self._saving:
            self._saved = self._saved.plus(name, key, model_calls, tokens)
        self.model_calls.add(task, model_calls)

    def take_saved(self) -> Saved:
        """What was noted since the last call, for the event that counts it."""
        with self._saving:
            saved, self._saved = self._saved, NOTHING_SAVED
            return saved

    def note_prompt(
        self, task: str, checkpoints: Mapping[str, str], version: PromptVersion
    ) -> None:
        """Note that a task has read this version of a prompt. `checkpoints` are those that the
        steps it is in began with, by namespace: the event of each names the version."""
        with self._saving:
            self._prompts.append(_PromptRead(task, version, dict(checkpoints)))

    def prompts_of_task(self, task: str) -> list[PromptVersion]:
        """The prompt versions that a task has read so far."""
        with self._saving:
            return [read.version for read in self._prompts if read.task == task]

    def _take_prompts(self, ns: str, before: str | None) -> list[PromptVersion]:
        """The prompt versions that the tasks of a step have read, those of subgraphs included. The
        step began with the checkpoint `before`."""
        if not self._prompts:
            return []
        with self._saving:
            of_step = [one for one in self._prompts if before and one.steps.get(ns) == before]
            for read in of_step:
                del read.steps[ns]
            self._prompts = [read for read in self._prompts if read.steps]
        return sorted({read.version for read in of_step})

    def label(self, values: Mapping[str, Any]) -> None:
        """Add labels. They are stored with the next step."""
        labels = self.labels
        if any(name not in labels or labels[name] != values[name] for name in values):
            self.labels = {**labels, **values}
            self._labelled = True

    def step(
        self,
        ns: str,
        checkpoint_id: str,
        before: str | None,
        metadata: Mapping[str, Any],
        nodes: Sequence[str],
    ) -> list[Statement]:
        """The statements that count a checkpoint as a step, under the fence, for its batch. The
        step began with the checkpoint `before`."""
        self.has_moved = self.has_written = True
        self._moved_at = time.monotonic()
        self._made.add(checkpoint_id)
        claim, row = self._claim, self._claim.row
        step = change(row.thread_id, row.id, claim.clock.now())
        fingerprint, self.fingerprint = self.fingerprint, None
        data: dict[str, Any] = {"step": metadata.get("step"), "source": metadata.get("source")}
        data["checkpoint"] = checkpoint_id
        if nodes:
            data["nodes"] = list(nodes)
        if ns:
            data["ns"] = ns
        elif not is_input(data):
            self.steps += 1
        labels = None
        if self._labelled:
            self._labelled = False
            data["labels"] = dict(self.labels)
            labels = claim.serializer.dumps(data["labels"], place(row, "labels"), "label()")
        params = {
            **step.params,
            "token": row.token,
            "fingerprint": fingerprint,
            "labels": labels,
            "streamed": None if self.stream is None else self.stream.mark(ns),
            "steps": int(bool(nodes)),
            "model_calls": self.model_calls.take(ns) if self.model_calls.counts else 0,
        }
        if self._prompts and (read := self._take_prompts(ns, before)):
            data["prompts"] = [list(one) for one in read]
        counted: list[Statement] = []
        if self._saved is not NOTHING_SAVED:
            saved = self.take_saved()
            data |= saved.data
            counted = record_saved(claim.owner, saved)
        event = step.event(claim.serializer, EventKind.STEP, data)
        return [Statement("progress", params), *counted, event]


class ModelCalls(BaseCallbackHandler):
    """LangChain's callbacks for one segment. Once a step is stored, no task of it runs again, so
    its calls are not made again either."""

    run_inline = True  # else each node would cost two tasks of the event loop
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self._begun: dict[UUID, str] = {}
        self.counts: Counter[str] = Counter()
        """By the namespace of the task that made them."""
        self._lock = threading.Lock()

    def on_chat_model_start(
        self, serialized: dict[str, Any] | None, messages: Any, *, run_id: UUID, **more: Any
    ) -> None:
        self._start(run_id, more)

    def on_llm_start(
        self, serialized: dict[str, Any] | None, prompts: Any, *, run_id: UUID, **more: Any
    ) -> None:
        self._start(run_id, more)

    def on_llm_end(self, response: Any, *, run_id: UUID, **more: Any) -> None:
        task = self._begun.pop(run_id, None)
        if task is not None:
            self.add(task, 1)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        self._begun.pop(run_id, None)

    def add(self, task: str, calls: int) -> None:
        """Count calls of the task of this namespace, or calls that it found recorded."""
        if calls:
            with self._lock:
                self.counts[task] += calls

    def take(self, ns: str) -> int:
        """The calls in a step of the graph of this namespace, which is stored now."""
        with self._lock:
            tasks = [one for one in self.counts if not ns or one.startswith(f"{ns}|")]
            return sum(self.counts.pop(one) for one in tasks)

    def _start(self, run_id: UUID, more: dict[str, Any]) -> None:
        self._begun[run_id] = (more.get("metadata") or {}).get("langgraph_checkpoint_ns", "")


def _task_id(place: str) -> str:
    return hashlib.blake2b(place.encode(), digest_size=16).hexdigest()


class RecordedReads:
    """The recorded reads of one segment."""

    def __init__(self, claim: ClaimedRun, progress: Progress, origin: Mapping[str, Any]) -> None:
        """`origin` is the run that this one is a fork of, and the ids its tasks had there."""
        self._claim: ClaimedRun = proxy(claim)  # which has this
        self._progress, self._origin = progress, origin
        self._by_task: dict[str, dict[int, Any]] = {}
        self._ordinals: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def read_next(
        self, task: str, attempt: int, checkpoint_id: str | None, make: Callable[[], T]
    ) -> T:
        """The next read of a task. Each attempt at the task counts from 0."""
        with self._lock:
            n = self._ordinals.get((task, attempt), 0)
            self._ordinals[task, attempt] = n + 1
        return self.read(task, checkpoint_id, n, make)

    def read(self, place: str, checkpoint_id: str | None, n: int, make: Callable[[], T]) -> T:
        """The n-th read of a task: the recorded value, or `make()`, which is then recorded.

        It is queued before anything that the task does with it, so it is in the journal wherever
        its consequences are.
        """
        task = _task_id(place)
        with self._lock:
            known = self._by_task.get(task)
        if known is None:
            # Not under the lock: the journal may be in a transaction that asks for it.
            is_first = self._progress.is_new(checkpoint_id)
            loaded = {} if is_first else self._load(self._claim.owner.params, task)
            if not loaded and not is_first and self._origin:
                loaded = self._inherit(place, task)
            with self._lock:
                known = self._by_task.setdefault(task, loaded)
        if n not in known:
            known[n] = make()
            self._store(task, n, known[n])
        value: T = known[n]
        return value

    def texts(self, place: str) -> list[str]:
        """The results of the reads at a place so far, as text."""
        with self._lock:
            known = self._by_task.get(_task_id(place), {})
            return [str(value) for value in known.values()]

    def _store(self, task: str, n: int, value: Any) -> None:
        run = self._claim.owner.params
        body = self._claim.serializer.dumps(value, _place(run, task, n), own=True)
        params = {**run, "task": task, "n": n, "body": body}
        store = self._claim.owner.fenced(Statement("insert_read", params))
        self._claim.journal.defer(store._replace(otherwise=self._claim.refuse))

    def _load(self, run: Mapping[str, Any], task: str) -> dict[int, Any]:
        params = {"thread_id": run["thread_id"], "id": run["id"], "task": task}
        rows = self._claim.journal.do(read_op("reads_of_task", params, lambda rows: rows[0]))
        loads = self._claim.serializer.loads
        return {n: loads(body, _place(run, task, n)) for n, body in rows}

    def _inherit(self, place: str, task: str) -> dict[int, Any]:
        """The times that the task read in the run that this one is a fork of, now recorded here: a
        sleep goes on, and is not begun again. Random values are drawn again."""
        first, bar, rest = place.partition("|")
        node, _, id = first.rpartition(":")
        there = f"{node}:{self._origin['tasks'].get(id, id)}{bar}{rest}"
        found = self._load(self._origin, _task_id(there))
        times = {n: value for n, value in found.items() if type(value) is int}
        for n, value in times.items():
            self._store(task, n, value)
        return times


def _place(run: Mapping[str, Any], task: str, n: int) -> Place:
    return Place(f"read {n} of task {task!r} of run {run['id']}", (run["thread_id"],))
