"""What a graph is called with, and what the config of a running task holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.pregel import Pregel


SCRATCHPAD = "__pregel_scratchpad"
"""The key of what a task keeps while it runs: its answers, and the count of its interrupts."""
SAVER = "__pregel_checkpointer"
"""The key of the saver of a task's graph."""
CHECKPOINTS = "checkpoint_map"
"""The key of the checkpoints that a task belongs to, by namespace."""
_RUNTIME = "__pregel_runtime"


class TaskInfo(NamedTuple):
    """One execution of a task: a node, or a `@task`."""

    namespace: str
    checkpoint_id: str | None
    """Of the checkpoint its step began with."""
    attempt: int
    scratchpad: Any
    """Another one for each attempt. None outside of a task."""

    @property
    def execution(self) -> Any:
        """LangGraph makes this function anew for each execution of a task, and keeps it as long."""
        return self.scratchpad.get_null_resume


def task_info(configurable: Mapping[str, Any]) -> TaskInfo:
    """A task's config holds its scratchpad, and a `Runtime` whose `execution_info` numbers the
    attempt.
    """
    info = getattr(configurable.get(_RUNTIME), "execution_info", None)
    return TaskInfo(
        configurable.get("checkpoint_ns") or "",
        getattr(info, "checkpoint_id", None),
        getattr(info, "node_attempt", 1),
        configurable.get(SCRATCHPAD),
    )


def is_in_task(configurable: Mapping[str, Any]) -> bool:
    """`interrupt()` works where the config has a scratchpad."""
    return SCRATCHPAD in configurable


def outer_scratchpad(scratchpad: Any, levels: int) -> Any:
    """A scratchpad's `get_null_resume` closes over the scratchpad of the node outside."""
    for _ in range(levels):
        parent = closed_over(scratchpad.get_null_resume, "parent_scratchpad")
        if parent is None:
            break
        scratchpad = parent
    return scratchpad


def is_graph_run(configurable: Mapping[str, Any]) -> bool:
    """A graph that runs passes its `Runtime` to the saver; `get_state` and the like do not."""
    return _RUNTIME in configurable


def runtime_of(configurable: Mapping[str, Any]) -> Any:
    """A node's config holds the `Runtime`, with its store."""
    return configurable.get(_RUNTIME)


def set_runtime(configurable: dict[str, Any], runtime: Any) -> None:
    """A graph, or a function that asks for its store, takes the `Runtime` from the config."""
    configurable[_RUNTIME] = runtime


def checkpointer_of(configurable: Mapping[str, Any]) -> Any:
    """A task's config holds the saver of its graph."""
    return configurable.get(SAVER)


def durability_of(configurable: Mapping[str, Any]) -> str | None:
    """The config that reaches tasks and saver holds the caller's `durability`."""
    durability: str | None = configurable.get("__pregel_durability")
    return durability


def checkpoints_above(configurable: Mapping[str, Any]) -> dict[str, str]:
    """A task's config names, by namespace, the checkpoints it belongs to; for a `@task` that of its
    caller once more, as if the caller had a namespace of its own.
    """
    named: Mapping[str, str] = configurable.get(CHECKPOINTS) or {}
    shortest = {named[ns]: ns for ns in sorted(named, key=len, reverse=True)}
    return {ns: id for id, ns in shortest.items()}


def current_configurable() -> Mapping[str, Any]:
    """LangChain's context variable holds the config of the task that runs, if there is one."""
    from langchain_core.runnables.config import var_child_runnable_config

    return (var_child_runnable_config.get() or {}).get("configurable") or {}


@contextlib.contextmanager
def running_with(config: RunnableConfig) -> Iterator[None]:
    """LangChain and LangGraph find the config of the code that runs in a context variable."""
    from langchain_core.runnables.config import var_child_runnable_config

    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


HIDDEN = "__pregel_"
"""Keys of a config that begin with this reach every task, and neither metadata nor streams."""
RUN = "run_id"
"""Where LangGraph finds the run of a config, in its metadata."""
_PLACE = ("checkpoint_id", "checkpoint_ns", CHECKPOINTS)
OWN_KEYS = ("thread_id", *_PLACE)
"""Keys of a config that name a thread and a checkpoint of it."""


def full_config(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig | None) -> RunnableConfig:
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


def closed_over(function: Any, name: str) -> Any:
    """A variable that a function closes over, or None."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None
