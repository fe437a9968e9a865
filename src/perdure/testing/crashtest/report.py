"""The report of a crash test: its results as text, JSON and HTML."""

from __future__ import annotations

from typing import Any

from perdure.testing.crashtest.html import page
from perdure.testing.crashtest.model import finding_json
from perdure.testing.crashtest.results import Results, counts
from perdure.testing.crashtest.text import text


class Report(Results):
    """The results of a crash test, and their presentation."""

    def check(self) -> None:
        """Raise `AssertionError` with the findings as its message, if there are any."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        return text(self)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "place": self.place,
            "driver": self.driver,
            "database": self.database,
            "ok": self.ok,
            "verdict": self.verdict(),
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 1),
            "clean": {
                "state": self.state,
                "result": self.result,
                "effects": {name: calls.total() for name, calls in self.tally.effects.items()},
                "actions": self.tally.actions.total(),
                "model_calls": self.tally.models.total(),
                "findings": [finding_json(one) for one in self.findings],
            },
            "reached": self.reached,
            "points": [{"name": point.name, "n": point.n} for point in self.points],
            "counts": self.counts,
            "counts_in_recovery": counts(self.second),
            "findings": [
                {
                    **finding_json(group.finding),
                    "trials": len(group.trials),
                    "points": [str(point) for point in group.points],
                }
                for group in self.groups()
            ],
            "trials": [trial.to_json() for trial in self.trials],
        }

    def to_html(self) -> str:
        """One self-contained page."""
        return page(self)
