"""What is waited for until it is on disk. Decided by `durability`:

    sync    every checkpoint
    auto    the checkpoint after which the run hands control back (nothing more is triggered),
            an interrupt and an error; the others are committed with them, at most 20 ms later.
            Anything that leaves the process waits for all before it.
    async   nothing; committed within 20 ms
    exit    like auto, and between two such points it is committed about once a second

A caller that passes LangGraph's own `durability="sync"` gets `sync` for that call. A run that the
runtime drives is waited for as a whole, before its worker releases it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from perdure import langgraph_port
from perdure.checkpoint.cache import CheckpointCache
from perdure.checkpoint.config import key_of
from perdure.checkpoint.row_format import RowFormat
from perdure.checkpoint.task_writes import PutWrites, TaskWriter
from perdure.checkpoint.writer import Put, Writer
from perdure.errors import Error
from perdure.journal import Journal
from perdure.journal.committer import QueuedOperation
from perdure.journal.names import check_text
from perdure.segments.segment import Segment, find
from perdure.serde.redaction import redact
from perdure.types import Durability


class CheckpointQueue:
    """Queues checkpoints and writes; returns each that must be waited for."""

    def __init__(
        self, durability: Durability, row_format: RowFormat, cache: CheckpointCache, max_bytes: int
    ) -> None:
        self._durability = durability
        self._writer = Writer(row_format, cache, max_bytes)
        self._task_writer = TaskWriter(row_format, cache, max_bytes)

    def put(self, journal: Journal, put: Put, *, blocking: bool) -> QueuedOperation[None] | None:
        """Queue a checkpoint. Return it if the caller must wait until it is durable."""
        key, segment = key_of(put.config), find(put.config["configurable"])
        asked = langgraph_port.durability_of(put.config["configurable"])
        mode: Durability = "sync" if asked == "sync" else self._durability
        if segment is not None:
            segment.check()
            mode = "sync" if segment.is_overdue else segment.durability
        queued, stopped = self._writer.put(
            journal,
            key,
            put,
            segment,
            # Coroutines come in order, and a run that is put at its exit writes nothing before.
            arriving=blocking and asked != "exit",
            hold=mode == "exit",
        )
        if mode == "sync" or journal.full:
            return queued
        if segment is not None or mode == "async":
            return None
        triggers = map(langgraph_port.is_trigger, put.checkpoint.get("updated_channels") or ())
        return queued if stopped or (key.ns == "" and not any(triggers)) else None

    def put_writes(
        self,
        journal: Journal,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> QueuedOperation[None] | None:
        """Queue the writes of a task. Return them if the caller must wait for them."""
        thread_id, ns, checkpoint_id = key_of(config)
        if checkpoint_id is None:
            raise Error(f"put_writes for thread {thread_id!r} names no checkpoint_id.")
        check_text("task_id", task_id)
        check_text("task_path", task_path)
        stops = any(channel in (INTERRUPT, ERROR) for channel, _ in writes)
        if any(channel == ERROR and isinstance(value, BaseException) for channel, value in writes):
            # LangGraph adds what a task wrote before it failed or was cancelled, and would take
            # that for all it had to write: where to go next could be missing.
            marks = (*WRITES_IDX_MAP, langgraph_port.ERROR_SOURCE)
            writes = [one for one in writes if one[0] in marks]
        mode = self._durability
        if (segment := find(config["configurable"])) is not None:
            segment.check()
            mode = segment.durability
            if segment.secrets:
                writes = [(channel, _redacted(value, segment)) for channel, value in writes]
        queued = self._task_writer.put(
            journal,
            PutWrites(thread_id, ns, checkpoint_id, writes, task_id, task_path, segment),
            stops=stops,
            hold=mode == "exit",
        )
        wait = (stops and mode != "async" and segment is None) or journal.full
        return queued if wait else None


def _redacted(value: Any, segment: Segment) -> Any:
    """An exception as text, without secrets; anything else as it is."""
    return redact(repr(value), segment.secrets) if isinstance(value, BaseException) else value
