"""Experiments as tables of texts: for a terminal, for a failed check, for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.service.views.experiments import (
    SECONDS,
    ExampleRow,
    ExperimentsView,
    ScoreRow,
)
from perdure.service.views.formatting import count, difference, estimate, number, utc_time
from perdure.service.views.value_text import value_text

CELL = 60
"""Characters of an input or output in a table."""


class Table(NamedTuple):
    """Headers and rows of texts."""

    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def __str__(self) -> str:
        columns = list(zip(self.headers, *self.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (self.headers, *self.rows)
        ]
        return "\n".join(lines)


def headline(view: ExperimentsView) -> str:
    """What was evaluated, in a line."""
    first = view.columns[0]
    if not view.is_comparison:
        return (
            f"{first.dataset} version {first.version}, {count(first.examples, 'example')}, "
            f"target {first.target}, {utc_time(first.created_at)}"
        )
    datasets = dict.fromkeys(f"{one.dataset} version {one.version}" for one in view.columns)
    both = count(len([row for row in view.examples if None not in row.outcomes]), "example")
    return f"{', '.join(datasets)}; {both} in all, compared with {first.name}"


def score_table(view: ExperimentsView, *, measures: bool = True) -> Table:
    """Scores and measures by experiment, with their differences to the first."""
    first, *others = [one.name for one in view.columns]
    single = len(others) == 1
    against = ["difference" if single else f"{name} to {first}" for name in others]
    means = (first, *others) if others else ("mean",)
    headers = ("score", *means, *against)
    rows = [
        (row.name, *_figures(row), *map(difference, row.differences[1:]))
        for row in (*view.scores, *(view.measures if measures else ()))
    ]
    return Table(headers, rows)


def _figures(row: ScoreRow) -> list[str]:
    if row.is_category:
        return [labels_text(one) for one in row.labels]
    alone = len(row.estimates) == 1
    return [estimate(one, n=alone) for one in row.estimates]


def labels_text(labels: Mapping[str, int]) -> str:
    """Categories with their counts, the most frequent first."""
    ordered = sorted(labels.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {n}" for name, n in ordered) or "–"


def result_table(view: ExperimentsView, examples: Sequence[ExampleRow]) -> Table:
    """Examples of a single experiment with what came out."""
    names = [row.name for row in view.scores]
    rows = []
    for example in examples:
        [one] = example.outcomes
        if one is None:
            continue
        outputs = one.errors[0] if one.errors else short(one.outputs[0])
        scores = [score_text(one.scores.get(name)) for name in names]
        rows.append((example.id, short(example.input), short(example.expected), outputs, *scores))
    return Table(("example", "input", "expected", "output", *names), rows)


def change_table(view: ExperimentsView, examples: Sequence[ExampleRow]) -> Table:
    """Examples of a comparison whose scores changed, a row for each score."""
    rows = [
        (*((example.id, short(example.input)) if n == 0 else ("", "")), name, *map(score_text, row))
        for example in examples
        for n, (name, row) in enumerate(example.changes.items())
    ]
    return Table(("example", "input", "score", *(one.name for one in view.columns)), rows)


def failure_table(view: ExperimentsView, most: int | None = None) -> Table:
    """Examples that failed, and why."""
    rows = [
        (example.id, short(example.input), column.name, error)
        for example in view.failed[:most]
        for column, one in zip(view.columns, example.outcomes, strict=True)
        for error in (one.errors if one else ())
    ]
    return Table(("example", "input", "experiment", "error"), rows)


def score_text(value: float | str | None) -> str:
    """A score of one example."""
    return "–" if value is None else value if isinstance(value, str) else number(value)


def measure_text(name: str, value: float) -> str:
    return f"{number(value)} s" if name == SECONDS else number(value)


def short(value: object) -> str:
    """A value in a line of a table."""
    text = value_text(value)
    text = " ".join((text.replace("\n", ", ") if isinstance(value, Mapping) else text).split())
    return text if len(text) <= CELL else f"{text[: CELL - 1].rstrip()}…"
