"""Where a run is at each point, in the words of its own graph: nodes, effects, steps.

    in node mail, after effect send
    after effect send in node mail, before its outcome was stored
    after node mail ended, before that was stored

A point is a statement of the journal, which says little to the author of an agent. So the
observer of a process also follows its nodes, by LangChain's callbacks, and its effects.
"""

from __future__ import annotations

from typing import Any

_CLAIMING = {"claim", "insert_claim_events", "claimed", "next_claimable", "workers", "expire"}
_ENDING = {"end_segment", "consume_waits", "close_stale_waits"}
_STEPS = {"progress", "insert_checkpoint", "put"}


class Phases:
    """The phase of one process. The observer calls it in the order things happen."""

    def __init__(self) -> None:
        self.during = ""
        """What the driver of the test does just now, if it does not drive."""
        self._running: dict[Any, str] = {}
        """Nodes that run now."""
        self._ended = ""
        """The node that ended last, and how, until that is stored."""
        self._stored = ""
        """The node whose step was stored last."""
        self._effect = ""
        """The effect whose outcome was stored last, in a node that still runs."""
        self._called: list[str] = []
        """Effects that returned, until their outcomes are stored."""
        self._writes: set[str] = set()
        """What the transaction that is being made stores."""
        self._records = False
        """Whether effects are recorded at all: not by LangGraph alone."""

    def enter(self, run: Any, node: str) -> None:
        """A node begins."""
        self._running[run] = node
        self._ended = self._effect = ""

    def leave(self, run: Any, how: str) -> None:
        """A node ended, began to wait, or raised."""
        if (node := self._running.pop(run, None)) is not None:
            self._ended, self._effect = f"node {node} {how}", ""

    def at(self, name: str, node: str | None) -> str:
        """The phase of a point, which the process reaches in this node, if it is known."""
        place, _, side = name.rpartition(".")
        if place.startswith("effect "):
            where = f"{place} in node {node}" if node else place
            if side == "before":
                return f"right before {where}"
            self._called.append(where)
            self._effect = "" if self._records else where
        self._note(place, side)
        return self._words(place)

    def _note(self, place: str, side: str) -> None:
        self._records = self._records or place == "insert_effect"
        if side == "after" and place in ("write_effect", *_STEPS, *_ENDING):
            self._writes.add(place)
        if side == "after" and place in ("commit", "put"):
            self._commit()

    def _commit(self) -> None:
        """What was written is stored."""
        if "write_effect" in self._writes and self._called:
            self._effect = self._called.pop(0)
        if self._writes & _STEPS and self._ended:
            self._stored, self._ended = self._ended.split()[1], ""
        self._writes.clear()

    def _words(self, place: str) -> str:
        if self.during:
            return self.during
        if self._called and self._records:
            return f"after {self._called[0]}, before its outcome was stored"
        if self._running:
            nodes = " and ".join(dict.fromkeys(self._running.values()))
            after = f", after {self._effect.partition(' in node ')[0]}" if self._effect else ""
            return f"in node {nodes}{after}"
        if self._writes & _ENDING or place in _ENDING:
            return "while its end, or its wait, was stored"
        if self._ended:
            return f"after {self._ended}, before that was stored"
        if self._stored:
            return f"after the step of node {self._stored} was stored"
        if place in _CLAIMING:
            return "while a worker claimed the run"
        return "before its next node"
