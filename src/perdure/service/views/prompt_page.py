"""The page of prompt versions: outcome by version, the newest beside the one before, the texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from perdure.service.prompts import OutcomeChange, as_estimate, compare, outcome_title
from perdure.service.views import charts, page
from perdure.service.views.charts import Row
from perdure.service.views.formatting import count, difference, estimate, utc_time
from perdure.service.views.intervals import Estimate
from perdure.service.views.markup import Html
from perdure.types import PromptRecord


def prompt_page(
    records: Sequence[PromptRecord],
    pair: tuple[PromptRecord, PromptRecord] | None = None,
    *,
    theme: page.Theme = "auto",
) -> str:
    """A self-contained page of these versions. `pair` is what is compared; by default the last two
    versions of each prompt."""
    groups = [(name, list(some)) for name, some in groupby(records, key=lambda one: one.name)]
    parts = [_prompt(name, some, pair) for name, some in groups]
    runs = sum(one.runs for one in records)
    subtitle = f"{count(len(records), 'version')}, read by {count(runs, 'run')}"
    title = f"Prompt {groups[0][0]}" if len(groups) == 1 else "Prompts"
    return page.page(title, *parts, subtitle=subtitle, theme=theme)


def _prompt(
    name: str, versions: list[PromptRecord], pair: tuple[PromptRecord, PromptRecord] | None
) -> Html:
    pairs = [pair] if pair is not None else [(versions[-2], versions[-1])] if versions[1:] else []
    body: list[object] = [_versions(versions), page.figures(*_plots(versions))]
    for before, after in pairs:
        body += _comparison(before, after)
    body += [
        page.details(f"Text of {version_title(one)}", page.pre(one.damaged or one.text))
        for one in versions
    ]
    return page.section(name, *body)


def version_title(one: PromptRecord) -> str:
    return one.version


def _versions(versions: list[PromptRecord]) -> Html:
    titles = _titles(versions)
    rows = [
        [
            version_title(one),
            utc_time(one.first_at),
            f"{one.runs:,}",
            *(estimate(_estimates(one).get(title)) for title in titles),
        ]
        for one in versions
    ]
    head = ["version", "since", "runs", *titles]
    return page.table(head, rows, caption="Mean or share, 95 % interval, scores", numbers={2})


def _plots(versions: list[PromptRecord]) -> list[Html]:
    """One plot for each score: the versions below each other."""
    newest = versions[-1].version
    plots = []
    for title in _titles(versions):
        rows = [
            Row(version_title(one), _estimates(one).get(title), marked=one.version == newest)
            for one in versions
        ]
        plots.append(page.figure(charts.dot_plot(rows, title=title)))
    return plots


def _comparison(before: PromptRecord, after: PromptRecord) -> list[object]:
    changes = compare(before, after)
    names = f"{version_title(before)} and {version_title(after)}"
    table = page.table(
        ["score", version_title(before), version_title(after), "difference", ""],
        [
            [
                one.title,
                estimate(one.before),
                estimate(one.after),
                difference(one.difference),
                page.badge(*verdict(one)),
            ]
            for one in changes
        ],
        caption=f"What changed between {names}",
    )
    plots = []
    for shares in (True, False):
        rows = [
            Row(one.title, one.difference)
            for one in changes
            if one.difference is not None and one.difference.share is shares
        ]
        if rows:
            unit = "percentage points" if shares else ""
            title = f"{version_title(after)} against {version_title(before)}"
            plots.append(page.figure(charts.difference_plot(rows, title=title, unit=unit)))
    text = page.details(f"Text: {names}", page.text_diff(before.text, after.text), open=True)
    return [table, page.figures(*plots), text]


def verdict(change: OutcomeChange) -> tuple[str, page.Tone]:
    """What a difference says, in words. Which direction is better only the reader knows."""
    if change.difference is None:
        return "one of them has no scores", "plain"
    if not change.difference.apart_from_zero:
        return "may be chance", "plain"
    return ("higher" if change.difference.value > 0 else "lower"), "warn"


def _titles(versions: Sequence[PromptRecord]) -> list[str]:
    found = {outcome_title(one.score, one.label) for row in versions for one in row.outcomes}
    return sorted(found)


def _estimates(record: PromptRecord) -> dict[str, Estimate]:
    return {outcome_title(one.score, one.label): as_estimate(one) for one in record.outcomes}
