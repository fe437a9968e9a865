"""What a compiled graph says of itself: its types, its output at a checkpoint, inner graphs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.pregel import Pregel

    Graph = Pregel[Any, Any, Any, Any]


def ask_graphs_for_their_types(*, load: bool) -> None:
    """LangGraph has a switch, read at every compile, that makes it call `with_allowlist` on the
    saver with the types a graph's schemas name. It leaves a saver with LangGraph's own serializer
    as it was.

    Without `load`, does nothing while LangGraph is not imported.
    """
    if load or "langgraph._internal._serde" in sys.modules:
        from langgraph._internal import _serde

        _serde.STRICT_MSGPACK_ENABLED = True  # type: ignore[attr-defined]


def types_of(graph: Graph) -> set[tuple[str, ...]]:
    """What a compile would give to `with_allowlist` can be made for a compiled graph, too."""
    from langgraph._internal._serde import build_serde_allowlist

    schemas = [graph.context_schema] if graph.context_schema else None
    return build_serde_allowlist(schemas=schemas, channels=graph.channels)


def types_in(schemas: Sequence[Any]) -> set[tuple[str, ...]]:
    """The types that schemas name, as a compile would give them to `with_allowlist`."""
    from langgraph._internal._serde import build_serde_allowlist

    return build_serde_allowlist(schemas=list(schemas))


def output_at(graph: Graph, at: CheckpointTuple, saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph's channels, made from a checkpoint, can be read as the graph does for its output."""
    from langgraph.errors import EmptyChannelError
    from langgraph.pregel._checkpoint import channels_from_checkpoint
    from langgraph.pregel._io import read_channels

    channels, _ = channels_from_checkpoint(
        graph.channels, at.checkpoint, saver=saver, config=at.config
    )
    try:
        return read_channels(channels, graph.output_channels)
    except EmptyChannelError:
        return None


def graphs_in(runnable: Any) -> list[Graph]:
    """LangGraph looks for subgraphs in a node's runnable, the steps of a sequence, and what its
    function (`func`, `afunc`) reaches from outside its scope.
    """
    from langgraph.pregel import Pregel
    from langgraph.pregel._utils import get_function_nonlocals

    if isinstance(runnable, Pregel):
        return [runnable]
    parts = list(getattr(runnable, "steps", ()))
    for function in (getattr(runnable, "func", None), getattr(runnable, "afunc", None)):
        if isinstance(function, FunctionType):
            held = get_function_nonlocals(function)
            parts += [getattr(one, "__self__", one) for one in held]
    return [graph for part in parts if part is not runnable for graph in graphs_in(part)]
