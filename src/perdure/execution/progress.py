"""Progress of a segment: its checkpoints as steps of the run, its model calls, and when it last
moved."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from perdure.commands.effects import NOTHING_SAVED, Owner, Saved, count_saved
from perdure.commands.events import change, is_input
from perdure.commands.runs import RunRow, load_labels, place
from perdure.execution.stream_recorder import StreamRecorder
from perdure.journal import Statement
from perdure.journal.clock import Clock
from perdure.serde.serializer import Serializer
from perdure.types import EventKind, PromptVersion


class _PromptRead(NamedTuple):
    """A prompt version that a task has read."""

    task: str
    version: PromptVersion
    steps: dict[str, str]
    """The checkpoints that its steps began with, by namespace, of those not yet stored."""


class Progress:
    """The progress of one segment."""

    def __init__(
        self,
        row: RunRow,
        owner: Owner,
        serializer: Serializer,
        clock: Clock,
        fingerprint: str | None,
    ) -> None:
        """`fingerprint` is that of the graph, if it is not the run's."""
        self._row, self._owner = row, owner
        self.serializer, self._clock = serializer, clock
        self.fingerprint = fingerprint
        """Stored with the first step, then None; or with a question, if the run has none."""
        self.stream: StreamRecorder | None = None
        """What is kept of what the segment produces."""
        self.labels: Mapping[str, Any] = load_labels(serializer, row)
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
        return 1 if self.has_moved else self._row.attempts

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
        made = change(self._row.thread_id, self._row.id, self._clock.now())
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
            where = place(self._row, "labels")
            labels = self.serializer.dumps(data["labels"], where, "label()")
        params = {
            **made.params,
            "token": self._row.token,
            "fingerprint": fingerprint,
            "labels": labels,
            "streamed": None if self.stream is None else self.stream.mark(ns),
            "steps": int(bool(nodes)),
            "model_calls": self.model_calls.take(ns) if self.model_calls.made else 0,
        }
        if self._prompts and (read := self._take_prompts(ns, before)):
            data["prompts"] = [list(one) for one in read]
        counted: list[Statement] = []
        if self._saved is not NOTHING_SAVED:
            saved = self.take_saved()
            data |= saved.data
            counted = count_saved(self._owner, saved)
        event = made.event(self.serializer, EventKind.STEP, data)
        return [Statement("progress", params), *counted, event]


class ModelCalls(BaseCallbackHandler):
    """LangChain's callbacks for one segment. Once a step is stored, no task of it runs again, so
    its calls are not made again either."""

    run_inline = True  # else each node would cost two tasks of the event loop
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self._begun: dict[UUID, str] = {}
        self.made: Counter[str] = Counter()
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
                self.made[task] += calls

    def take(self, ns: str) -> int:
        """The calls in a step of the graph of this namespace, which is stored now."""
        with self._lock:
            tasks = [one for one in self.made if not ns or one.startswith(f"{ns}|")]
            return sum(self.made.pop(one) for one in tasks)

    def _start(self, run_id: UUID, more: dict[str, Any]) -> None:
        self._begun[run_id] = (more.get("metadata") or {}).get("langgraph_checkpoint_ns", "")
