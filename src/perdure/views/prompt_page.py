"""The page of prompt versions: outcome by version, the newest beside the one before, the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby

from perdure.service.prompts import OutcomeChange, as_estimate, compare, outcome_title
from perdure.types import PromptRecord
from perdure.views import charts, page
from perdure.views.charts import Row
from perdure.views.formatting import count, difference, estimate, utc_time
from perdure.views.intervals import Estimate
from perdure.views.markup import Html, element, join

Pair = tuple[PromptRecord, PromptRecord]
Time = Callable[[datetime], object]
"""How a time is shown."""


def prompt_page(
    records: Sequence[PromptRecord], pair: Pair | None = None, *, theme: page.Theme = "auto"
) -> str:
    """A self-contained page of these versions. `pair` is what is compared; by default the last two
    versions of each prompt."""
    names = list(dict.fromkeys(one.name for one in records))
    title = f"Prompt {names[0]}" if len(names) == 1 else "Prompts"
    parts = [prompt_body(records, pair)]
    subtitle = f"{count(len(records), 'version')}. Intervals are 95 % confidence intervals."
    return page.page(title, *parts, subtitle=subtitle, theme=theme)


def prompt_body(
    records: Sequence[PromptRecord], pair: Pair | None = None, time: Time = utc_time
) -> Html:
    """What is on that page, below its title: for a frame of its own."""
    groups = [(name, list(some)) for name, some in groupby(records, key=lambda one: one.name)]
    parts = (
        page.section(name if groups[1:] else "Versions", *_prompt(some, pair, time))
        for name, some in groups
    )
    return join(*parts)


def _prompt(versions: list[PromptRecord], pair: Pair | None, time: Time) -> list[object]:
    body: list[object] = [_versions(versions, time)]
    if pair is None and versions[1:]:
        pair = versions[-2], versions[-1]
    if plots := _plots(versions):
        body += [element("h3", "Outcome by version"), page.figures(*plots)]
    else:
        body.append(element("p", "Nothing that they touched was scored yet."))
    if pair is not None:
        body += _comparison(*pair)
    texts = (page.details(f"Text of {one.version}", page.pre(_text(one))) for one in versions)
    return [*body, *texts]


def _text(one: PromptRecord) -> str:
    return one.damaged or one.text


def _versions(versions: list[PromptRecord], time: Time) -> Html:
    rows = [
        [one.version, time(one.first_at), f"{one.runs:,}", page.badge("newest") if last else ""]
        for one, last in zip(versions, [False] * (len(versions) - 1) + [True], strict=True)
    ]
    caption = f"Versions of {versions[0].name}, oldest first."
    return page.table(["version", "since", "runs", ""], rows, numbers={2}, caption=caption)


def _plots(versions: list[PromptRecord]) -> list[Html]:
    """One plot for each score: the versions below each other."""
    plots = []
    found = {outcome_title(one.score, one.label) for row in versions for one in row.outcomes}
    for title in sorted(found):
        rows = [
            Row(one.version, _estimates(one).get(title), marked=one is versions[-1])
            for one in versions
        ]
        plots.append(page.figure(charts.dot_plot(rows, title=title), title))
    return plots


def _comparison(before: PromptRecord, after: PromptRecord) -> list[object]:
    changes = compare(before, after)
    rows = [
        [
            one.title,
            estimate(one.before),
            estimate(one.after),
            join(page.unbroken(difference(one.difference)), " ", page.badge(*verdict(one))),
        ]
        for one in changes
    ]
    plots = []
    for shares, caption in ((True, "Difference in percentage points"), (False, "Difference")):
        drawn = [
            Row(one.title, one.difference)
            for one in changes
            if one.difference is not None and one.difference.share is shares
        ]
        if drawn:
            title = f"{caption}, {after.version} against {before.version}"
            chart = charts.difference_plot(drawn, title=title)
            note = "A filled point is more than chance: its interval leaves zero out."
            plots.append(page.figure(chart, caption, note))
    body: list[object] = [element("h3", f"{after.version} against {before.version}")]
    if rows:
        head = ["score", before.version, after.version, "difference"]
        caption = f"Scores of {after.version} against {before.version}."
        body += [page.table(head, rows, caption=caption), page.figures(*plots)]
    text = page.text_diff(_text(before), _text(after))
    return [*body, page.details("What changed in the text", text, open=True)]


def verdict(change: OutcomeChange) -> tuple[str, page.Tone]:
    """What a difference says, in words. Which direction is better only the reader knows."""
    if change.difference is None:
        return "one of them has no scores", "plain"
    if not change.difference.apart_from_zero:
        return "may be chance", "plain"
    return ("higher" if change.difference.value > 0 else "lower"), "warn"


def _estimates(record: PromptRecord) -> dict[str, Estimate]:
    return {outcome_title(one.score, one.label): as_estimate(one) for one in record.outcomes}
