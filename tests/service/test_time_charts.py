"""Charts over time, and scores summed up: pure, and readable without colour."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from xml.etree import ElementTree

from perdure.types import Score, ScoreKind
from perdure.views.formatting import data_size
from perdure.views.score_summary import score_plots, summarise
from perdure.views.time_charts import bars, curve

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def is_svg(text: str) -> bool:
    return ElementTree.fromstring(text).tag.endswith("svg")


def test_a_curve_says_where_it_begins_and_ends() -> None:
    samples = [(NOW - timedelta(days=n), 1e6 * (10 - n)) for n in range(9, -1, -1)]
    drawn = curve(samples, title="Size", words=data_size)
    assert is_svg(drawn)
    assert "From 1 MB on 23 May to 10 MB on 1 Jun." in drawn
    assert "style=" not in drawn
    xs = [float(x) for x in re.findall(r"([\d.]+),", drawn.partition('points="')[2])[:10]]
    assert xs == sorted(xs)


def test_a_curve_of_one_sample_and_of_none_can_be_drawn() -> None:
    assert is_svg(curve([(NOW, 5.0)], title="Size"))
    assert is_svg(curve([(NOW, 0.0), (NOW, 0.0)], title="Size"))
    assert "No samples yet." in curve([], title="Size")


def test_bars_name_each_day_that_has_a_value() -> None:
    days = [(date(2026, 5, 30), 3.0), (date(2026, 5, 31), 0.0), (date(2026, 6, 1), 1.0)]
    drawn = bars(days, title="Crashes")
    assert is_svg(drawn)
    assert drawn.count("<rect") == 2
    assert "30 May: 3; 1 Jun: 1" in drawn
    assert "Nothing." in bars([(date(2026, 6, 1), 0.0)], title="Crashes")
    assert is_svg(bars([], title="Crashes"))


def score(name: str, value: float | None = None, label: str | None = None) -> Score:
    kind = ScoreKind.CATEGORY if label else ScoreKind.NUMBER
    return Score("run", name, value, "", NOW, kind=kind, label=label)


def test_scores_are_summed_up_by_name_and_graph() -> None:
    given = [("a", score("replied", 1.0)), ("a", score("replied", 0.0))]
    given += [("b", score("replied", 1.0)), ("a", score("tone", label="warm"))]
    given += [("a", score("words", 12.5))]
    replied, tone, words = summarise(given)
    assert (replied.n, replied.estimates["a"].share, replied.estimates["b"].n) == (3, True, 1)
    assert tone.labels == {"a": {"warm": 1}}
    assert not words.estimates["a"].share
    assert score_plots((replied, tone, words)).count("<svg") == 3
