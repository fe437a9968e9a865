"""The tables of the benchmark pages stand where the benchmark puts them, and the overview and its
plots are of these tables.

`python -m bench.plots` draws the plots and brings the overview up to date.
"""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.__main__ import PAGES
from bench.plots import CHARTS, PLACE, PLOTS, WIDTH, Figures, number, overview, written
from bench.report import Bar, Section, Table, fill


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_place_for_each_measurement(name: str) -> None:
    page = (PLACE / f"{name}.md").read_text()
    marks = re.findall(r"^<!-- (\w+) -->$", page, re.MULTILINE)
    assert marks == [mark for one in [*PAGES[name], "machine", "bars"] for mark in (one, "end")]


def test_every_page_is_of_a_measurement() -> None:
    assert {path.stem for path in PLACE.glob("*.md")} == {*PAGES, "index"}


def test_a_run_replaces_tables_machine_and_bars_and_nothing_else() -> None:
    marks = {name: f"<!-- {name} -->\nold\n<!-- end -->" for name in ("steps", "machine", "bars")}
    page = "# Core\n\n" + "\n\nBy hand.\n\n".join(marks.values())
    table = Table(["", "per step"], [["ours", "1 ms"]])
    bars = [Bar("a", 1, 2.0), Bar("b", 1, 1.0), Bar("c", 3, 1.5, at_most=False, unit="s")]
    filled = fill(page, {"steps": Section([table], bars)}, table, "It took a minute.")
    assert filled.count("By hand.") == 2
    assert "old" not in filled
    assert "|  | per step |\n|---|---:|\n| ours | 1 ms |" in filled
    assert "1 of 3 are met.\n\n| missed | limit | measured |\n" in filled
    assert "| a | ≤ 1× | 2.00× |\n| c | ≥ 3 s | 1.50 s |\n<!-- end -->" in filled


def test_the_overview_and_its_plots_are_of_the_tables() -> None:
    drawn = written(Figures())
    stale = [path.name for path, text in drawn.items() if path.read_text() != text]
    assert not stale, f"{', '.join(stale)}: run python -m bench.plots"
    assert {*PLOTS.iterdir()} == {path for path in drawn if path.suffix == ".svg"}


@pytest.mark.parametrize("name", CHARTS)
def test_a_plot_is_on_the_overview_and_stays_on_its_card(name: str) -> None:
    assert f"../images/plots/{name}.svg" in (PLACE / "index.md").read_text()
    root = ElementTree.fromstring((PLOTS / f"{name}.svg").read_text())
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= WIDTH
    assert [one.text for one in root.iter("{http://www.w3.org/2000/svg}desc")] != [None]


def test_a_figure_is_looked_up_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "core.md").write_text(
        "# Core\n\n## Speed\n\n**Fast**\n\n"
        "|  | per step | rate |\n|---|---:|---:|\n| ours | 0.5 ms | 1,456 (2.08×) |\n\n"
        "## Internal bars\n\n1 of 2 are met.\n\n| missed | limit | measured |\n|---|---:|---:|\n"
        "| a | ≤ 1× | 2× |\n"
    )
    figures = Figures(tmp_path)
    place = "<!-- core > Speed > Fast > ours > per step -->"
    assert overview(figures, f"It takes 7 s{place}.") == f"It takes 0.5 ms{place}."
    assert figures.text("core > Speed > Fast > ours > rate") == "1,456"
    assert figures.text("core > Speed > Fast > ours > rate ()") == "2.08×"
    bars = overview(figures, "<!-- bars -->\nold\n<!-- end -->")
    assert "\n1 of 2 are met: [core](core.md#internal-bars) 1 of 2.\n<!-- end -->" in bars
    with pytest.raises(KeyError, match="no such figure"):
        figures.text("core > Speed > Fast > theirs > per step")


def test_every_figure_of_the_overview_that_names_its_place_is_replaced() -> None:
    text = (PLACE / "index.md").read_text()
    blank = re.sub(r"[\d.,]+(?: \w+| %|[×%])?<!-- (\w+ >)", r"9<!-- \1", text)
    assert blank != text
    assert overview(Figures(), blank) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.405 ms", 0.000405), ("1,862", 1862), ("2.64×", 2.64), ("1.11 s", 1.11), ("+4.8%", 4.8)],
)
def test_a_figure_is_a_number(text: str, expected: float) -> None:
    assert number(text) == pytest.approx(expected)
