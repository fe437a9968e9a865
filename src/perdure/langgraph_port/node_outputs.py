"""A compiled graph whose nodes return something else than their functions do.

A node's `writers` are run on what its `bound` returned, one after the other: each is given what the
one before it gave. `ChannelWrite` passes it on. So a callable in front of them changes what the
node writes; also the input, which the writers of `__start__` write, and what `update_state` gives
to the writers of a node.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.langgraph_port.compiled_graphs import Graph


def with_outputs(graph: Graph, change: Callable[[Any], Any]) -> Graph:
    """A copy of a compiled graph in which `change` is called on what each node returns. Graphs that
    are nodes are copied too; not those that the function of a node calls."""
    from langgraph._internal._runnable import RunnableCallable
    from langgraph.pregel import Pregel

    made = copy.copy(graph)
    made.nodes = {}
    for name, node in graph.nodes.items():
        update: dict[str, Any] = {}
        if isinstance(node.bound, Pregel):
            inner = with_outputs(node.bound, change)
            update = {"bound": inner, "subgraphs": [inner]}
        if node.writers:
            first = RunnableCallable(change, trace=False, name="redact")
            update["writers"] = [first, *node.writers]
        made.nodes[name] = node.copy({"triggers": [*node.triggers], **update})
    return made.validate()
