"""What recovery saved and what crashes cost, day by day and by graph: from sums, pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta

from perdure.operations.saved import DaySaved, SavedTotal
from perdure.service.views import page, time_charts
from perdure.service.views.formatting import duration, number
from perdure.service.views.markup import Html

EPOCH = date(1970, 1, 1)
NOTHING = SavedTotal(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class SavedHistory:
    """What runs saved and lost, by day and by graph."""

    days: tuple[tuple[date, SavedTotal], ...]
    """Every day of the period, oldest first, including empty ones."""
    graphs: tuple[tuple[str, SavedTotal], ...]
    """By name, those with the most crashes first."""

    @property
    def total(self) -> SavedTotal:
        return _sum(total for _, total in self.days)


def saved_history(rows: Iterable[DaySaved], first: date, last: date) -> SavedHistory:
    """The history from `first` to `last`, both included."""
    by_day: dict[date, list[SavedTotal]] = {}
    by_graph: dict[str, list[SavedTotal]] = {}
    for row in rows:
        by_day.setdefault(EPOCH + timedelta(days=row.day), []).append(row.total)
        by_graph.setdefault(row.graph, []).append(row.total)
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    graphs = [(name, _sum(totals)) for name, totals in by_graph.items()]
    return SavedHistory(
        tuple((day, _sum(by_day.get(day, ()))) for day in days),
        tuple(sorted(graphs, key=lambda one: (-one[1].recoveries, one[0]))),
    )


def _sum(totals: Iterable[SavedTotal]) -> SavedTotal:
    return SavedTotal(*map(sum, zip(NOTHING, *totals, strict=True)))


def saved_plots(history: SavedHistory) -> Html:
    """Bars by day: what was not done again, and what crashes cost. Tokens if there are any."""
    plots = [
        _plot("Effects not called again", history, "effects"),
        _plot("Crashes", history, "recoveries"),
        _plot("Time lost", history, "lost_ms"),
    ]
    if history.total.tokens:
        plots.insert(1, _plot("Tokens not paid for again", history, "tokens"))
    return page.figures(*plots)


def _plot(title: str, history: SavedHistory, what: str) -> Html:
    days = [(day, float(getattr(total, what))) for day, total in history.days]
    words = _lost if what == "lost_ms" else number
    if what == "lost_ms":
        days = [(day, value / 1000) for day, value in days]
    return page.figure(time_charts.bars(days, title=f"{title} by day", words=words), title)


def _lost(seconds: float) -> str:
    return duration(timedelta(seconds=seconds))
