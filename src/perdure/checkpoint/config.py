"""What LangGraph's configs say, and nothing else in them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig

from perdure.checkpoint.operations import LAST, CheckpointKey, CheckpointRow, WritesRow
from perdure.errors import Error
from perdure.journal.names import check_text
from perdure.langgraph_port.configs import HIDDEN

PAGE = 32
"""Checkpoints read at once by a listing."""
READ = f"{HIDDEN}perdure_read"
"""In a config: the newest checkpoint of its thread, read already; see `already_read`."""


def configurable(thread_id: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


Found = tuple[CheckpointRow | None, list[WritesRow]]
"""A checkpoint with its writes, as `operations.checkpoint_at` reads it."""


def already_read(config: RunnableConfig, found: Found) -> RunnableConfig:
    """A config for which a saver need not read the newest checkpoint of its thread: it is found."""
    return {**config, "configurable": {**config["configurable"], READ: found}}


def key_of(config: RunnableConfig) -> CheckpointKey:
    wanted = config.get("configurable") or {}
    thread_id = wanted.get("thread_id")
    if thread_id is None or thread_id == "":
        raise Error("The config names no thread: pass {'configurable': {'thread_id': ...}}.")
    ns, id = wanted.get("checkpoint_ns") or "", wanted.get("checkpoint_id") or None
    if isinstance(ns, str) and isinstance(id, str | None):
        return _key(str(thread_id), ns, id)
    return _key.__wrapped__(str(thread_id), ns, id)  # which refuses them


@functools.lru_cache(maxsize=1024)
def _key(thread_id: str, ns: str, id: str | None) -> CheckpointKey:
    check_text("thread_id", thread_id)
    if ns:
        check_text("checkpoint_ns", ns)
    if id is not None:
        check_text("checkpoint_id", id)
    return CheckpointKey(thread_id, ns, id)


class Search(NamedTuple):
    """What a listing looks for, and how far it got."""

    thread_id: str | None
    ns: str | None
    id: str | None
    filter: Mapping[str, Any] | None
    before: tuple[str, str, str]
    limit: int | None

    @classmethod
    def of(
        cls,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Search:
        if config is not None and not config.get("configurable"):
            raise Error("The config names no thread. To list all threads, pass None.")
        wanted = config["configurable"] if config else {}
        thread_id = wanted.get("thread_id")
        edge = before["configurable"].get("checkpoint_id") if before else None
        exact = wanted.get("checkpoint_id")
        ns = wanted.get("checkpoint_ns")
        for name, text in (("checkpoint_ns", ns), ("checkpoint_id", exact), ("before", edge)):
            if text is not None:
                check_text(name, text)
        return cls(
            None if thread_id is None else check_text("thread_id", str(thread_id)),
            ns,
            exact,
            filter,
            (edge, "", "") if edge else (f"{exact} " if exact else LAST, LAST, LAST),
            limit,
        )

    def after(self, rows: Sequence[CheckpointRow], found: int) -> Search | None:
        """The search continued behind these rows; None when it is over."""
        if len(rows) < PAGE or (self.limit is not None and found >= self.limit):
            return None
        last = rows[-1]
        if self.id is not None and last.id < self.id:
            return None
        limit = None if self.limit is None else self.limit - found
        return self._replace(before=(last.id, last.thread_id, last.ns), limit=limit)
