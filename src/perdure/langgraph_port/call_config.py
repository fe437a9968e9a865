"""The config that a graph is called with: where it begins, and which run it is a part of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.langgraph_port.task_config import CHECKPOINTS, SAVER

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from perdure.langgraph_port.compiled_graphs import Graph

HIDDEN = "__pregel_"
"""Keys of a config that begin with this reach every task, and neither metadata nor streams."""
RUN = "run_id"
"""Where LangGraph finds the run of a config, in its metadata."""
_PLACE = ("checkpoint_id", "checkpoint_ns", CHECKPOINTS)
OWN_KEYS = ("thread_id", *_PLACE)
"""Keys of a config that name a thread and a checkpoint of it."""


def full_config(graph: Graph, config: RunnableConfig | None) -> RunnableConfig:
    """A graph merges the config of the code around it, its own, and the caller's."""
    from langgraph._internal._config import ensure_config

    return ensure_config(graph.config, config)


def is_nested(configurable: Mapping[str, Any]) -> bool:
    """A task's config has the key of its graph's saver, even without a saver. No other has it."""
    return SAVER in configurable


def inherits_run(config: RunnableConfig) -> bool:
    """Whether a config names the run of the node around it: metadata is inherited. A graph takes no
    input if the last checkpoint of its thread is of the run that its config names."""
    from langchain_core.runnables.config import var_child_runnable_config

    around = ((var_child_runnable_config.get() or {}).get("metadata") or {}).get(RUN)
    return around is not None and (config.get("metadata") or {}).get(RUN) == around


def place_of(configurable: Mapping[str, Any]) -> dict[str, Any]:
    """A config names a checkpoint by its id, and by its ids in each namespace if that is one of a
    subgraph. A namespace alone names none.
    """
    place = {key: configurable[key] for key in _PLACE if configurable.get(key)}
    return {} if [*place] == ["checkpoint_ns"] else place


def root_checkpoint(place: Mapping[str, Any]) -> str | None:
    """Of a place in a subgraph, the checkpoint of the graph itself is in the map, by ''."""
    named: Mapping[str, str] = place.get(CHECKPOINTS) or {}
    if place.get("checkpoint_ns") or set(named) - {""}:
        return None
    return named.get("") or place.get("checkpoint_id")


def is_own_key(key: str) -> bool:
    """LangGraph's own keys of a config name a checkpoint, or begin with two underscores."""
    return key in OWN_KEYS or key.startswith("__")
