"""A page is one file that loads and runs nothing, and what users wrote cannot become markup."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from perdure.views import charts, intervals, page
from perdure.views.charts import Row
from perdure.views.markup import Html, element, join

EVIL = "<script>alert('x')</script>\"&\x00\x1b[31m"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(f"{name}={value}" for name, value in attrs)


def every_chart(label: str) -> list[Html]:
    share, mean = intervals.estimate([1, 1, 0, 1]), intervals.estimate([0.2, 0.5, 0.7])
    moved = intervals.paired_difference([0, 0, 0, 1], [1, 1, 1, 1])
    rows = [Row(label, share, marked=True), Row("v2", share), Row("none", None)]
    return [
        charts.dot_plot(rows, title=label, unit=label),
        charts.dot_plot([Row(label, mean, note=label)], title=label, description=label),
        charts.difference_plot([Row(label, moved), Row("v2", mean)], title=label),
        charts.histogram([0.1, 0.5, 0.5, 0.9], title=label),
        charts.strip([(label, [0.1, 0.5, 0.5]), ("none", [])], title=label),
        charts.share_bar([(label, {label: 3, "edited": 1}), ("none", {})], title=label),
    ]


@pytest.mark.parametrize("label", ["v1", EVIL])
def test_charts_are_well_formed_and_say_what_they_draw(label: str) -> None:
    for chart in every_chart(label):
        root = ElementTree.fromstring(chart)
        name = "{http://www.w3.org/2000/svg}"
        assert [child.tag for child in root[:2]] == [f"{name}title", f"{name}desc"]
        assert root[1].text
        assert root.get("role") == "img"
        assert "script" not in {one.tag.removeprefix(name) for one in root.iter()}
        coordinates = re.findall(r' (?:x|y|x1|x2|cx|cy)="([^"]+)"', chart)
        assert all(-10 <= float(one) <= 470 for one in coordinates), chart


def test_a_chart_of_nothing_and_of_one_value_is_drawn() -> None:
    for values in ([], [0.5], [3.0, 3.0]):
        assert "<svg" in charts.histogram(values, title="x")
        assert "<svg" in charts.strip([("x", values)], title="x")
        assert "<svg" in charts.dot_plot([Row("x", intervals.estimate(values))], title="x")
    assert "<svg" in charts.difference_plot([], title="x")
    assert "<svg" in charts.share_bar([], title="x")


def test_a_difference_that_may_be_chance_is_drawn_as_an_open_point() -> None:
    chance = intervals.paired_difference([0, 1, 0, 1], [1, 0, 0, 1])
    real = intervals.paired_difference([0] * 20, [1] * 20)
    assert 'class="open"' in charts.difference_plot([Row("x", chance)], title="x")
    assert 'class="open"' not in charts.difference_plot([Row("x", real)], title="x")


def test_user_text_in_a_page_is_escaped() -> None:
    whole = page.page(
        EVIL,
        EVIL,
        page.section(EVIL, page.pre(EVIL), page.details(EVIL, EVIL), page.badge(EVIL, "bad")),
        page.table([EVIL], [[EVIL], [3]], caption=EVIL, numbers={0}),
        page.cards((EVIL, EVIL), (EVIL, EVIL, EVIL)),
        page.text_diff(EVIL, EVIL + " more"),
        page.figures(*(page.figure(one, EVIL) for one in every_chart(EVIL))),
        subtitle=EVIL,
    )
    tags = Tags()
    tags.feed(whole)
    assert "script" not in tags.names
    assert not {name for name in tags.names if name in ("img", "link", "iframe", "a", "object")}
    assert not any(one.startswith(("on", "src=", "href=", "style=")) for one in tags.attributes)
    assert "\x00" not in whole
    assert "\x1b" not in whole


def test_no_line_of_a_table_ends_inside_of_a_figure() -> None:
    kept = (
        "20\N{NO-BREAK SPACE}% (8–42\N{NO-BREAK SPACE}%, n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}20)"
    )
    assert kept in page.table(["score"], [["20 % (8–42 %, n = 20)"]])
    assert kept in page.cards(("score", "20 %", "20 % (8–42 %, n = 20)"))


def test_a_page_allows_its_own_style_sheet_and_nothing_else() -> None:
    whole = page.page("x", theme="dark")
    style = whole.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'".replace("'", "&#x27;") in whole
    assert "url(" not in style
    assert "@import" not in style
    assert 'data-theme="dark"' in whole
    assert "data-theme=" not in page.page("x").partition("<style>")[0]


def test_a_diff_marks_removed_and_added_words() -> None:
    marked = page.text_diff("Dear Ada, thank you.", "Dear Ada, thanks.")
    assert marked == "<pre>Dear Ada, <del>thank you</del><ins>thanks</ins>.</pre>"
    assert page.text_diff("same", "same") == "<pre>same</pre>"


def test_a_diff_shows_numbers_dates_and_addresses_whole() -> None:
    for before, after in (
        ("89.0", "44.5"),
        ("1,840.50", "1,840.00"),
        ("2026-10-20", "2026-10-21"),
        ("mia@example.com", "mia@example.org"),
    ):
        marked = page.text_diff(f"It is {before}.", f"It is {after}.")
        assert marked == f"<pre>It is <del>{before}</del><ins>{after}</ins>.</pre>"


def test_long_texts_of_the_same_words_are_compared_at_once() -> None:
    long = "line\n" * 5000
    assert page.text_diff(long, long + "more\n").endswith("<ins>more\n</ins></pre>")
    assert "<ins>" in page.text_diff("x" + "a b " * 900, "y" + "b a " * 900)


def test_parts_that_are_not_html_are_escaped() -> None:
    assert element("p", "a<b", Html("<br/>"), None, 3, class_="x", hidden=True, title=None) == (
        '<p class="x" hidden="">a&lt;b<br/>3</p>'
    )
    assert join("<", Html("<")) == "&lt;<"
