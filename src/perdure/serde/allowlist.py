"""The switch that makes LangGraph tell savers which types a graph's schemas name."""

from __future__ import annotations

import sys


def ask_graphs_for_their_types() -> None:
    """Make LangGraph call `with_allowlist` on the saver of every graph compiled from now on.

    LangGraph has this for its own strict mode and reads the switch at every compile. It leaves a
    saver with LangGraph's own serializer as it was. Does nothing while LangGraph is not imported.
    """
    serde = sys.modules.get("langgraph._internal._serde")
    if serde is not None:
        serde.STRICT_MSGPACK_ENABLED = True  # type: ignore[attr-defined]
