"""Interrupts that were raised in tasks that have not ended: none of them can be caught and skipped.

LangGraph waits by an exception, which the agent's code may catch. So each interrupt is noted where
it is raised, for its task and for those around it. When the task ends without it, its interrupt is
stored in place of what it returned, as if it had not been caught: it runs again with the answer.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.errors import GraphInterrupt

from perdure.errors import WaitCaught
from perdure.execution.segment import KEY
from perdure.langgraph_port import checkpoint_names, configs
from perdure.langgraph_port.configs import TaskInfo

Writes = Sequence[tuple[str, Any]]

MOST = 1000
"""Maximum number of tasks remembered: one that is abandoned leaves its interrupts behind."""


@dataclass
class _Raised:
    """What was raised in one attempt at a task."""

    nodes: dict[str, str]
    """The node of the task, then of those around it, by the task's id."""
    execution: weakref.ref[Any]
    attempt: int
    lease: Any
    """Of the segment, if there is a runtime."""
    interrupts: Sequence[Any]
    is_settled: bool = False
    """Whether the task has ended, and those around it have not."""


class RaisedInterrupts:
    """The interrupts of the tasks of one saver."""

    def __init__(self) -> None:
        self._by_task: dict[str, _Raised] = {}
        self._lock = threading.Lock()

    def note(self, configurable: Mapping[str, Any], interrupts: Sequence[Any]) -> None:
        """Note what is raised in the task of this config. The first one of a task counts: its
        answer is the next that the task will get."""
        info = configs.task_info(configurable)
        levels = reversed(checkpoint_names.namespace_nodes(info.namespace))
        raised = _Raised(
            {_task_id(ns): node for node, ns in levels},
            weakref.ref(info.execution),
            info.attempt,
            configurable.get(KEY),
            interrupts,
        )
        with self._lock:
            # A graph inside a node repeats what was raised in it.
            known = [one for found in self._by_task.values() for one in found.interrupts]
            if self._of(info) is None and any(one not in known for one in interrupts):
                self._by_task[_task_id(info.namespace)] = raised
            while len(self._by_task) > MOST:
                del self._by_task[next(iter(self._by_task))]

    def _of(self, info: TaskInfo) -> _Raised | None:
        """What was raised in this attempt at a task, and not stored yet."""
        found = self._by_task.get(_task_id(info.namespace))
        same = found is not None and found.execution() is info.execution
        return found if found is not None and same and found.attempt == info.attempt else None

    def check(self, configurable: Mapping[str, Any]) -> None:
        """Raise again what was raised in the task of this config, and caught."""
        if not self._by_task:
            return
        info = configs.task_info(configurable)
        with self._lock:
            found = self._of(info)
        if found is not None:
            raise GraphInterrupt(found.interrupts)

    def settle(self, task_id: str, lease: Any, writes: Writes) -> tuple[Writes, WaitCaught | None]:
        """What is stored of a task that ended, and the error if it caught its interrupt."""
        if not self._by_task:
            return writes, None
        with self._lock:
            own, inside = self._take(task_id, lease)
        raised = [own] if own is not None else inside
        by_channel = dict(writes)
        if not raised or (ERROR in by_channel and not isinstance(by_channel[ERROR], WaitCaught)):
            return writes, None  # a task that failed is not over, and asks again
        interrupts = tuple(one for found in raised for one in found.interrupts)
        if by_channel.get(INTERRUPT) and (own is None or by_channel[INTERRUPT][0] is interrupts[0]):
            return writes, None
        kept: Writes = [(INTERRUPT, interrupts)]
        if RESUME in by_channel:
            kept = [*kept, (RESUME, by_channel[RESUME])]
        is_caught = INTERRUPT not in by_channel and ERROR not in by_channel
        return kept, WaitCaught(raised[0].nodes[task_id]) if is_caught else None

    def _take(self, task_id: str, lease: Any) -> tuple[_Raised | None, list[_Raised]]:
        """What was raised in a task that ends now, and inside of it."""
        own = self._by_task.get(task_id)
        if own is not None and (own.is_settled or own.lease != lease):
            del self._by_task[task_id]  # of an earlier execution
            own = None
        if own is not None:
            own.is_settled = True
            if len(own.nodes) == 1:
                del self._by_task[task_id]
        inside = {
            id: found
            for id, found in self._by_task.items()
            if id != task_id and task_id in found.nodes
        }
        for id in inside:
            del self._by_task[id]
        return own, [found for found in inside.values() if found.lease == lease]


def _task_id(ns: str) -> str:
    return ns.rpartition(":")[2]
