"""The page of an experiment, or of several beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from perdure.service.views import charts, page
from perdure.service.views.charts import Row
from perdure.service.views.experiment_tables import (
    failure_table,
    headline,
    measure_text,
    score_table,
    score_text,
    short,
)
from perdure.service.views.experiments import (
    ExampleRow,
    ExperimentsView,
    Outcome,
    ScoreRow,
)
from perdure.service.views.formatting import count, difference, estimate, utc_time
from perdure.service.views.markup import Html, element, join
from perdure.service.views.value_text import value_text

MOST_EXAMPLES = 200
"""Examples on one page."""
FEW = 3
"""Examples that are open from the start."""


RunLink = Callable[[str], object]
"""How a run is named: by its id, or as a link."""


def experiment_page(view: ExperimentsView, *, theme: page.Theme = "auto") -> str:
    """A self-contained page: figures first, then the examples that changed or failed."""
    body = experiment_body(view)
    return page.page(experiment_title(view), body, subtitle=headline(view), theme=theme)


def experiment_title(view: ExperimentsView) -> str:
    """The names of the experiments, as far as there is room."""
    names = [one.name for one in view.columns]
    return " and ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} others"


def experiment_body(
    view: ExperimentsView, run_link: RunLink = str, time: Callable[[datetime], object] = utc_time
) -> Html:
    """What is on that page, below its title: for a frame of its own."""
    return join(
        _cards(view),
        page.section("Scores", *_score_section(view)),
        _failures(view),
        _changed(view, run_link) if view.is_comparison else _examples(view, run_link),
        _measures(view),
        _experiments(view, time),
    )


def _cards(view: ExperimentsView) -> Html:
    last, numbers = view.columns[-1], [row for row in view.scores if not row.is_category]
    items = [(row.name, *_figure(view, row)) for row in numbers[:3]]
    changed = [("changed", str(len(view.changed)), f"of {count(len(view.examples), 'example')}")]
    failed = ("failed", str(last.failed), f"of {count(last.examples, 'example')}")
    unfinished = [("unfinished", str(last.unfinished), "")] if last.unfinished else []
    compared = changed if view.is_comparison else []
    return page.cards(*items, *compared, failed, *unfinished)


def _figure(view: ExperimentsView, row: ScoreRow) -> tuple[str, str]:
    """The figure of the last experiment; with its interval, or its difference to the first."""
    figure, _, note = estimate(row.estimates[-1]).partition(" (")
    if view.is_comparison:
        note = f"{difference(row.differences[-1])}"
    return figure, note.rstrip(")") if "(" not in note else note


def _score_section(view: ExperimentsView) -> list[Html]:
    numbers = [row for row in view.scores if not row.is_category]
    plots = _comparison_plots(view, numbers) if view.is_comparison else _plots(numbers)
    names = [one.name for one in view.columns]
    for row in view.scores:
        if row.is_category:
            bars = list(zip(names, row.labels, strict=True))
            plots.append(
                page.figure(
                    charts.share_bar(bars, title=row.name), f"{row.name}: share of examples"
                )
            )
    head, rows = score_table(view)
    table = page.table(head, rows, caption="95 % confidence intervals; n counts examples.")
    return [page.figures(*plots), table]


def _plots(scores: Sequence[ScoreRow]) -> list[Html]:
    """Shares on one axis; each other score on its own, with every example."""
    shares = [row for row in scores if row.estimates[0] and row.estimates[0].share]
    plots = []
    if shares:
        rows = [Row(row.name, row.estimates[0]) for row in shares]
        chart = charts.dot_plot(rows, title="Share of examples with each score")
        plots.append(page.figure(chart, "Share of examples"))
    for row in scores:
        if row not in shares:
            chart = charts.histogram(row.values[0], title=f"{row.name} of each example")
            plots.append(page.figure(chart, f"{row.name}: number of examples by score"))
    return plots


def _comparison_plots(view: ExperimentsView, scores: Sequence[ScoreRow]) -> list[Html]:
    names = [one.name for one in view.columns]
    plots = []
    for row in scores:
        rows = [
            Row(name, one, marked=n == 0)
            for n, (name, one) in enumerate(zip(names, row.estimates, strict=True))
        ]
        plots.append(page.figure(charts.dot_plot(rows, title=row.name), row.name))
    for at, name in enumerate(names[1:], 1):
        for shares in (True, False):
            rows = [
                Row(row.name, one)
                for row in scores
                if (one := row.differences[at]) is not None and one.share is shares
            ]
            if rows:
                caption = f"difference to {names[0]}, example by example"
                caption = caption if len(names) == 2 else f"{name}: {caption}"
                chart = charts.difference_plot(rows, title=caption)
                plots.append(page.figure(chart, caption, "Filled: the interval excludes zero."))
    return plots


def _measures(view: ExperimentsView) -> Html | None:
    if not view.measures:
        return None
    names = [one.name for one in view.columns]
    plots = []
    for row in view.measures:
        rows = [Row(*pair) for pair in zip(names, row.estimates, strict=True)]
        chart = charts.dot_plot(rows, title=f"{row.name} per example")
        plots.append(page.figure(chart, f"{row.name} per example"))
    return page.section("Time and tokens", page.figures(*plots))


def _failures(view: ExperimentsView) -> Html | None:
    if not view.failed:
        return None
    head, rows = failure_table(view, MOST_EXAMPLES)
    return page.section("Failed", page.table(head, rows, caption="A failed example has no score."))


def _changed(view: ExperimentsView, run_link: RunLink) -> Html:
    rows = view.changed
    if not rows:
        return page.section("Examples that changed", element("p", "Every score is the same."))
    shown = [_details(view, row, n < FEW, run_link) for n, row in enumerate(rows[:MOST_EXAMPLES])]
    return page.section("Examples that changed", *shown, _more(len(rows)))


def _examples(view: ExperimentsView, run_link: RunLink) -> Html:
    rows = sorted(view.examples, key=lambda row: (not row.failed, row.total))
    shown = [_details(view, row, n < FEW, run_link) for n, row in enumerate(rows[:MOST_EXAMPLES])]
    note = element("p", "Failed first, then by the sum of their scores.", class_="note")
    return page.section("Examples", note, *shown, _more(len(rows)))


def _more(number: int) -> Html | None:
    left = number - MOST_EXAMPLES
    return element("p", f"{count(left, 'example')} more; see --json.") if left > 0 else None


def _details(view: ExperimentsView, row: ExampleRow, is_open: bool, run_link: RunLink) -> Html:
    first = row.outcomes[0]
    parts = [_labelled("Input", page.pre(value_text(row.input)))]
    if row.expected is not None:
        parts.append(_labelled("Expected", page.pre(value_text(row.expected))))
    outputs = [
        _output(
            column.name if view.is_comparison else "Output", one, first if n else None, run_link
        )
        for n, (column, one) in enumerate(zip(view.columns, row.outcomes, strict=True))
    ]
    return page.details(
        _summary(view, row), page.columns(*parts), page.columns(*outputs), open=is_open
    )


def _summary(view: ExperimentsView, row: ExampleRow) -> Html:
    badges: list[Html] = []
    if row.failed:
        badges.append(page.badge("failed", "bad"))
    if view.is_comparison:
        for name, values in row.changes.items():
            badges.append(page.badge(f"{name} {' → '.join(map(score_text, values))}"))
    elif one := row.outcomes[0]:
        badges += [page.badge(f"{name} {score_text(value)}") for name, value in one.scores.items()]
    return join(short(row.input) or row.id, " ", *(join(one, " ") for one in badges))


def _output(label: str, one: Outcome | None, first: Outcome | None, run_link: RunLink) -> Html:
    if one is None:
        return _labelled(label, element("p", "Not in this version of the dataset."))
    texts = [value_text(output) for output in one.outputs]
    before = value_text(first.outputs[0]) if first else ""
    shown = [page.text_diff(before, text) if before and text else page.pre(text) for text in texts]
    errors = [element("p", page.badge("error", "bad"), " ", error) for error in one.errors]
    notes = [f"{name}: {text}" for name, text in one.comments.items()]
    facts: list[object] = [measure_text(name, value) for name, value in one.measures.items()]
    facts += [join("run ", run_link(id)) for id in one.run_ids if id]
    lines = [element("p", note, class_="note") for note in notes]
    if facts:
        parts = (join(" · " if n else None, fact) for n, fact in enumerate(facts))
        lines.append(element("p", *parts, class_="note"))
    return _labelled(label, *errors, *shown, *lines)


def _labelled(label: str, *parts: Html) -> Html:
    return join(element("h3", label), *parts)


def _experiments(view: ExperimentsView, time: Callable[[datetime], object]) -> Html:
    rows = [
        (
            one.name,
            f"{one.dataset} version {one.version}",
            one.target,
            time(one.created_at),
            value_text(dict(one.metadata)) if one.metadata else "–",
        )
        for one in view.columns
    ]
    head = ("experiment", "dataset", "target", "began", "metadata")
    return page.section("Experiments", page.table(head, rows, caption="What was evaluated."))
