"""What LangGraph's configs and checkpoints say, and nothing else in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint

from perdure import langgraph_port
from perdure.checkpoint.operations import CheckpointKey
from perdure.checkpoint.reader import configurable
from perdure.errors import Error
from perdure.journal.names import check_text
from perdure.segments.segment import Segment, find


def key_of(config: RunnableConfig) -> CheckpointKey:
    wanted = config.get("configurable") or {}
    given = wanted.get("thread_id")
    if given is None or given == "":
        raise Error("The config names no thread: pass {'configurable': {'thread_id': ...}}.")
    thread_id = check_text("thread_id", str(given))
    ns = wanted.get("checkpoint_ns") or ""
    id = wanted.get("checkpoint_id") or None
    if ns:
        check_text("checkpoint_ns", ns)
    if id is not None:
        check_text("checkpoint_id", id)
    return CheckpointKey(thread_id, ns, id)


def is_running(config: RunnableConfig) -> bool:
    """Whether a run of a graph asks, and not code that looks at its state."""
    return langgraph_port.is_graph_run(config["configurable"])


def check_texts(name: str, values: Iterable[Any]) -> list[str]:
    if isinstance(values, str):
        raise Error(f"Pass a list of {name}s, not the single text {values!r}.")
    return [check_text(name, str(value)) for value in values]


def config_for(config: RunnableConfig, id: str) -> RunnableConfig:
    wanted = config["configurable"]
    return configurable(str(wanted["thread_id"]), wanted.get("checkpoint_ns") or "", id)


def hands_back(checkpoint: Checkpoint) -> bool:
    """Whether nothing more seems to be triggered by this checkpoint."""
    return not any(map(langgraph_port.is_trigger, checkpoint.get("updated_channels") or ()))


def segment_of(config: RunnableConfig) -> Segment | None:
    """The segment this call belongs to, if the runtime drives it."""
    return find(config["configurable"])


def is_untouched(config: RunnableConfig) -> bool:
    """Whether a run asks that has written nothing yet, so that the queue holds nothing for it.

    The worker that drove its thread before has released it, and waited until that was on disk.
    """
    segment = segment_of(config)
    return segment is not None and not segment.progress.has_written


def is_blank(config: RunnableConfig) -> bool:
    """Whether a run asks for the first checkpoint of a thread that has none."""
    if not is_untouched(config) or config["configurable"].get("checkpoint_id"):
        return False
    segment = segment_of(config)
    return segment is not None and not segment.lease.row.has_checkpoints
