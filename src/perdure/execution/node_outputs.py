"""What a node returns, redacted: the next node sees what is stored, with a crash or without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from langgraph.pregel import Pregel
from langgraph.types import Command

from perdure.errors import Error
from perdure.langgraph_port import compiled_graphs
from perdure.serde.serializer import Serializer


def with_redacted_outputs(
    graph: Pregel[Any, Any, Any, Any], serializer: Serializer
) -> Pregel[Any, Any, Any, Any]:
    """A graph whose nodes return what will be stored; the same graph without a policy."""
    if not serializer.redacts:
        return graph
    return compiled_graphs.with_outputs(graph, lambda value: redacted_output(serializer, value))


def redacted_output(serializer: Serializer, value: Any) -> Any:
    """A state, an update or a command, as it is stored. A value that cannot be stored stays as it
    is: its channel is not stored, or storing it raises."""
    if not serializer.redacts or value is None:
        return value
    if isinstance(value, Command):
        update = redacted_output(serializer, value.update)
        resume = _redacted(serializer, value.resume)
        if update is value.update and resume is value.resume:
            return value
        return replace(value, update=update, resume=resume)
    if type(value) is dict:
        made = {name: _redacted(serializer, {name: item}, name) for name, item in value.items()}
        return value if all(made[name] is value[name] for name in value) else made
    if type(value) is list:
        made_list = [redacted_output(serializer, one) for one in value]
        changed = any(one is not other for one, other in zip(made_list, value, strict=True))
        return made_list if changed else value
    return _redacted(serializer, value)


def _redacted(serializer: Serializer, value: Any, name: Any = None) -> Any:
    """A value, or with `name` the only value of a dict, redacted."""
    try:
        found = serializer.codec.redacted(value)
    except Error:
        found = value
    return found if name is None else next(iter(found.values()))
