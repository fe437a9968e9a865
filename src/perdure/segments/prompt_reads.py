"""Which prompt versions the tasks of a segment have read.

A read is kept in memory until something of the run that it touched is stored: the step its task was
in, an effect's outcome, a question, the writes of the task. It goes into that batch, so it costs no
commit of its own. If the process dies before, the node runs again, and reads its prompts again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from perdure.journal import Journal, Statement
from perdure.journal.clock import Clock
from perdure.operations import prompts
from perdure.operations.effects import Owner
from perdure.segments.lease import Lease
from perdure.serde.serializer import Serializer
from perdure.types import Prompt, PromptVersion

_STORED: WeakKeyDictionary[Journal, set[PromptVersion]] = WeakKeyDictionary()
"""The versions whose texts are known to be in the journal."""


@dataclass(frozen=True)
class _Read:
    """What a task has read."""

    task: str
    version: PromptVersion
    steps: dict[str, str]
    """The checkpoints that the steps it is in began with, by namespace, of those not yet stored."""


class PromptReads:
    """The prompt versions that one segment has read."""

    def __init__(
        self, lease: Lease, journal: Journal, serializer: Serializer, clock: Clock
    ) -> None:
        self._owner = Owner(lease.thread_id, lease.run_id, lease.token)
        self._serializer, self._clock = serializer, clock
        self._stored = _STORED.setdefault(journal, set())
        self._lock = threading.Lock()
        self._texts: dict[PromptVersion, Prompt] = {}
        self._new_of_run: dict[PromptVersion, None] = {}
        self._of_run: set[PromptVersion] = set()
        self._reads: list[_Read] = []
        self._written: set[PromptVersion] = set()

    def keep(self, prompt: Prompt) -> None:
        """Have the text stored, unless the journal is known to have it."""
        if prompt.id not in self._stored and prompt.id not in self._written:
            with self._lock:
                self._texts[prompt.id] = prompt

    def note(
        self, task: str, checkpoints: Mapping[str, str], versions: Iterable[PromptVersion]
    ) -> None:
        """Note that a task, of these checkpoints, has read these versions."""
        with self._lock:
            known = {one.version for one in self._reads if one.task == task}
            for version in versions:
                if version not in known:
                    self._reads.append(_Read(task, version, dict(checkpoints)))
                if version not in self._of_run:
                    self._of_run.add(version)
                    self._new_of_run[version] = None

    def of_task(self, task: str) -> list[PromptVersion]:
        """What a task has read so far."""
        with self._lock:
            return [one.version for one in self._reads if one.task == task]

    def of_task_id(self, ns: str, task_id: str) -> list[PromptVersion]:
        """The same, of a task that is known by its id and the namespace of its graph."""
        with self._lock:
            found = [
                one.version
                for one in self._reads
                if one.task.startswith(ns) and one.task.rpartition(":")[2] == task_id
            ]
        return list(dict.fromkeys(found))

    def of_step(self, ns: str, before: str | None) -> list[PromptVersion]:
        """What the tasks of a step have read that began with a checkpoint, those of subgraphs
        included. The next step has its own."""
        found: dict[PromptVersion, None] = {}
        with self._lock:
            left = []
            for one in self._reads:
                if before is not None and one.steps.get(ns) == before:
                    found[one.version] = None
                    del one.steps[ns]
                if one.steps:
                    left.append(one)
            self._reads = left
        return sorted(found)

    def uses(
        self, target: str, target_id: str, versions: Iterable[PromptVersion], *, flush: bool = True
    ) -> list[Statement]:
        """The statements that store what a step, effect or question has read, for its batch; with
        `flush`, and what the run has read since the last."""
        used = prompts.uses(self._owner, target, target_id, versions)
        return [*self.flush(), *used] if flush else used

    def flush(self) -> list[Statement]:
        """The statements that store the run's new reads and texts, for any of its batches."""
        with self._lock:
            texts, self._texts = self._texts, {}
            new, self._new_of_run = self._new_of_run, {}
            self._written.update(texts)
        now = self._clock.now() if texts else 0
        return [
            *(prompts.insert(self._serializer, prompt, now) for prompt in texts.values()),
            *prompts.uses(self._owner, prompts.RUN, "", new),
        ]

    def confirm(self) -> None:
        """Note that all batches so far are on disk."""
        self._stored.update(self._written)
