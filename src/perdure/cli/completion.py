"""Shell completion: states, and the names of graphs that have runs."""

from __future__ import annotations

STATES = ("pending", "running", "waiting", "paused", "held", "done", "failed", "cancelled")


def complete_state(incomplete: str) -> list[str]:
    return [state for state in STATES if state.startswith(incomplete)]


def complete_graph(incomplete: str) -> list[str]:
    """The graphs of the newest runs in the default journal. Never raises."""
    from perdure.cli.target import client_at

    try:
        with client_at(None) as client:
            newest = client.blocking.runs(limit=100, output=False)
    except Exception:  # a shell that completes must not show an error
        return []
    return sorted({run.graph for run in newest if run.graph.startswith(incomplete)})
