"""Scores of several runs, summarized by name and graph, with plots. Pure.

Numbers that are only 0 and 1 become a share, other numbers a mean, each with its interval;
categories are counted. Only the reader knows whether a higher score is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perdure.types import Score, ScoreKind
from perdure.views import charts, page
from perdure.views.charts import Row
from perdure.views.intervals import Estimate, are_hits, mean, share
from perdure.views.markup import Html


@dataclass(frozen=True)
class NamedScores:
    """The scores of one name."""

    name: str
    n: int
    estimates: Mapping[str, Estimate]
    """Of the numbers, by graph."""
    labels: Mapping[str, Mapping[str, int]]
    """How often each category was given, by graph."""
    comments: int
    """Number of scores that are only a comment."""


def summarise(scores: Iterable[tuple[str, Score]]) -> tuple[NamedScores, ...]:
    """Scores, each with the graph of its run, by name. Damaged ones are left out."""
    by_name: dict[str, list[tuple[str, Score]]] = {}
    for graph, score in scores:
        if not score.damaged:
            by_name.setdefault(score.name, []).append((graph, score))
    return tuple(_summary(name, by_name[name]) for name in sorted(by_name))


def _summary(name: str, found: list[tuple[str, Score]]) -> NamedScores:
    numbers: dict[str, list[float]] = {}
    labels: dict[str, Counter[str]] = {}
    for graph, score in found:
        if score.kind is ScoreKind.NUMBER and score.value is not None:
            numbers.setdefault(graph, []).append(score.value)
        elif score.label is not None:
            labels.setdefault(graph, Counter())[score.label] += 1
    hits = are_hits(value for values in numbers.values() for value in values)
    estimates = {
        graph: share(round(sum(values)), len(values)) if hits else mean(values)
        for graph, values in sorted(numbers.items())
    }
    comments = sum(score.kind is ScoreKind.TEXT for _, score in found)
    return NamedScores(name, len(found), estimates, dict(sorted(labels.items())), comments)


def score_plots(summaries: Iterable[NamedScores]) -> Html:
    """A plot for each score: its share or mean by graph, or how its categories divide."""
    plots = []
    for one in summaries:
        if one.estimates:
            rows = [Row(graph, found) for graph, found in one.estimates.items()]
            plots.append(page.figure(charts.dot_plot(rows, title=one.name), one.name))
        if one.labels:
            bars = list(one.labels.items())
            plots.append(page.figure(charts.share_bar(bars, title=one.name), one.name))
    return page.figures(*plots)
