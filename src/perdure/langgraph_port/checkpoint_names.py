"""Names that LangGraph gives to channels, nodes and namespaces, in checkpoints and results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.langgraph_port.configs import HIDDEN

if TYPE_CHECKING:
    from langgraph.checkpoint.base import Checkpoint

START = "__start__"
"""The channel of a graph's input, and the node that reads it."""
END = "__end__"
"""The node that a graph's drawing ends with."""
INTERRUPT = "__interrupt__"
"""The key of interrupts in what a graph returns, and of its last stop in `versions_seen`."""
ERROR_SOURCE = "__error_source_node__"
"""The channel of the pending write that names the node whose error a handler is to see."""
COPY = "__copy__"
"""The `as_node` with which `update_state` copies a checkpoint and runs nothing."""
DELTA_SNAPSHOT = ("langgraph.checkpoint.serde.types", "_DeltaSnapshot")
"""The type of a `DeltaChannel`'s whole value in a checkpoint."""
_TASKS = "__pregel_tasks"
_JOIN = "join:"
_TRIGGERS = ("branch:to:", _JOIN)


def is_send(channel: str) -> bool:
    """A `Send` is a write to one channel of its own."""
    return channel == _TASKS


def pending_sends(values: Mapping[str, Any]) -> Sequence[Any]:
    """A checkpoint holds the `Send`s of the next step in the channel of `is_send`."""
    return values.get(_TASKS) or ()


def sent_nodes(values: Mapping[str, Any]) -> list[str]:
    """A `Send` has the name of its node."""
    return [send.node for send in pending_sends(values)]


def is_trigger(channel: str) -> bool:
    """An edge to a node is a channel that begins with `branch:to:` or, from several, `join:`."""
    return channel.startswith(_TRIGGERS) or channel in (START, _TASKS)


def reserved_name(command: Any) -> str | None:
    """A command writes its `update` to any channel, also to one of LangGraph's own, such as that of
    sends or answers; a name that begins with `branch:to:` is an edge. Its `goto` names nodes, which
    cannot have a reserved name either. None: the command names nothing reserved, or is no command.
    """
    if "langgraph.types" not in sys.modules:
        return None
    from langgraph._internal import _constants
    from langgraph.types import Command, Send

    if not isinstance(command, Command):
        return None
    goto = command.goto if isinstance(command.goto, (list, tuple)) else [command.goto]
    nodes = [to.node if isinstance(to, Send) else to for to in goto]
    reserved = {*_constants.RESERVED, _TASKS, _constants.RETURN, _constants.PREVIOUS}
    update = [key for key, _ in command._update_as_tuples()]
    for name in [*update, *nodes]:
        own = isinstance(name, str) and name.startswith((HIDDEN, *_TRIGGERS))
        if own or name in reserved or (name in (START, END) and name in update):
            return str(name)
    return None


def edge_channel(node: str) -> str:
    """The channel of the edges, conditions and gotos that lead to a node is named after it."""
    return f"branch:to:{node}"


def join_channel(starts: Sequence[str], end: str) -> str:
    """The channel of an edge from several nodes is named after all of them, in their order."""
    return f"{_JOIN}{'+'.join(starts)}:{end}"


def has_joined(channel: str, node: str, value: Any, partly: bool) -> bool:
    """A node that waits for several has the channel `join:a+b:node`; its value is the set of those
    that ended, or, for a deferred node, a tuple of that set and a mark. After it ran it is empty.
    """
    if not channel.startswith(_JOIN):
        return True
    came = value[0] if isinstance(value, tuple) else value
    names = channel.removeprefix(_JOIN).removesuffix(f":{node}")
    return bool(came) and (partly or len("+".join(came)) == len(names))


def is_node(name: str) -> bool:
    """Entries of `versions_seen` that begin with two underscores are no nodes of the user."""
    return name[:2] != "__"


def versions_at_stop(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`versions_seen` holds, beside those of nodes, the versions at the last breakpoint."""
    return checkpoint["versions_seen"].get(INTERRUPT, {})


def namespace_nodes(ns: str) -> list[tuple[str, str]]:
    """A namespace is `node:task|node:task`; a number as a part counts the subgraphs of one task.

    Gives each node with the namespace up to it.
    """
    parts = ns.split("|")
    return [
        (part.partition(":")[0], "|".join(parts[: depth + 1]))
        for depth, part in enumerate(parts)
        if not part.isdigit()
    ]
