"""The model calls of a segment, counted until the steps they belong to are stored."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler


class ModelCalls(BaseCallbackHandler):
    """LangChain's callbacks for one segment. Once a step is stored, no task of it runs again, so
    its calls are not made again either."""

    run_inline = True  # else each node would cost two tasks of the event loop
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self._begun: dict[UUID, str] = {}
        self._made: Counter[str] = Counter()
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
                self._made[task] += calls

    def take(self, ns: str) -> int:
        """The calls in a step of the graph of this namespace, which is stored now."""
        if not self._made:
            return 0
        with self._lock:
            tasks = [one for one in self._made if not ns or one.startswith(f"{ns}|")]
            return sum(self._made.pop(one) for one in tasks)

    def _start(self, run_id: UUID, more: dict[str, Any]) -> None:
        self._begun[run_id] = (more.get("metadata") or {}).get("langgraph_checkpoint_ns", "")
