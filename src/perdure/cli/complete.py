"""What a shell may complete: states, and the names of graphs that have runs."""

from __future__ import annotations

from collections.abc import Iterator

STATES = ("pending", "running", "waiting", "paused", "held", "done", "failed", "cancelled")


def complete_state(incomplete: str) -> list[str]:
    return [state for state in STATES if state.startswith(incomplete)]


def complete_graph(incomplete: str) -> list[str]:
    """The graphs of the newest runs, of the journal that is the default here. Never fails."""
    try:
        return sorted(set(_graphs(incomplete)))
    except Exception:  # a shell that completes is no place for an error
        return []


def _graphs(incomplete: str) -> Iterator[str]:
    from perdure.cli.place import opened

    with opened(None) as client:
        for run in client.blocking.runs(limit=100, output=False):
            if run.graph.startswith(incomplete):
                yield run.graph
