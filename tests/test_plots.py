"""The benchmark pages say what their source says; the overview and its plots are of their tables.

`python -m bench.plots` draws the plots and writes the overview again.
"""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.pages import Cell, Figures, number
from bench.plots import CHARTS, PLOTS, WIDTH, overview, written
from bench.report import Table, page
from bench.texts import PAGES, TEXTS

BENCHMARKS = Path(__file__).parent.parent / "docs" / "benchmarks"
ANY = "\0"


class Anything:
    """A value that no format refuses."""

    def __format__(self, spec: str) -> str:
        return ANY


def words(text: str) -> list[str]:
    """The paragraphs of a page, without its tables, and without the notes about a single run."""
    before, _, after = text.partition("\n\n## Machine\n\n")
    bars = after[after.index("## Internal bars") :]
    parts = [*before.split("\n\n"), after.split("\n\n")[0], *bars.split("\n\n")[:2]]
    return [part for part in parts if not re.match(r"\||\*\*[^\n]+\*\*$", part)]


def source(name: str) -> list[str]:
    """The same of the source, in which figures are not known."""
    wanted, none = PAGES[name], Table([""], [])
    sections = []
    for one in wanted.measurements:
        text = TEXTS[one]
        names = re.findall(r"\{(\w+)", text.title + text.lead + text.method)
        values: dict[str, Any] = {name: Anything() for name in names}
        sections.append(text.section([none], **values))
    return words(page(wanted.title, wanted.introduction, sections, none, ANY, wanted.remarks))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_its_source_says(name: str) -> None:
    text = (BENCHMARKS / f"{name}.md").read_text()
    for said, meant in zip(words(text), source(name), strict=True):
        pattern = "(?s:.+?)".join(map(re.escape, meant.split(ANY)))
        assert re.fullmatch(pattern, said), f"the page: {said}\n\nthe source: {meant}"
    assert PAGES[name].remarks in text


def test_every_text_is_on_a_page() -> None:
    on_pages = [name for one in PAGES.values() for name in one.measurements]
    assert sorted(on_pages) == sorted(TEXTS)
    assert {path.stem for path in BENCHMARKS.glob("*.md")} == {*PAGES, "index"}


def test_the_overview_and_its_plots_are_of_the_tables() -> None:
    drawn = written(Figures())
    stale = [path.name for path, text in drawn.items() if path.read_text() != text]
    assert not stale, f"{', '.join(stale)}: run python -m bench.plots"
    assert {*PLOTS.iterdir()} == {path for path in drawn if path.suffix == ".svg"}


@pytest.mark.parametrize("name", CHARTS)
def test_a_plot_is_on_the_overview_and_stays_on_its_card(name: str) -> None:
    assert f"../images/plots/{name}.svg" in (BENCHMARKS / "index.md").read_text()
    root = ElementTree.fromstring((PLOTS / f"{name}.svg").read_text())
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= WIDTH
    assert [one.text for one in root.iter("{http://www.w3.org/2000/svg}desc")] != [None]


def test_a_figure_is_looked_up_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "core.md").write_text(
        "# Core\n\n## Speed\n\n**Fast**\n\n"
        "|  | per step | rate |\n|---|---:|---:|\n| ours | 0.5 ms | 1,456 (2.08×) |\n\n"
        "## Internal bars\n\n| bar | limit | measured | verdict |\n|---|---:|---:|---:|\n"
        "| a | ≤ 1× | 2× | **missed** by 100% |\n| b | ≤ 1× | 1× | met by 0% |\n"
    )
    figures = Figures(tmp_path)
    template = "It takes {{core > Speed > Fast > ours > per step}}."
    assert overview(figures, template) == "It takes 0.5 ms.\n"
    assert figures.text(Cell("core", "Speed", "Fast", "ours", "rate")) == "1,456"
    assert figures.text(Cell("core", "Speed", "Fast", "ours", "rate ()")) == "2.08×"
    assert overview(figures, "{{bars}}").startswith(
        "1 of 2 are met, 1 are missed.\n\n**[Core](core.md#internal-bars)**: 1 of 2 missed\n\n|"
    )
    with pytest.raises(KeyError, match="no such figure"):
        figures.text(Cell("core", "Speed", "Fast", "theirs", "per step"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.405 ms", 0.000405), ("1,862", 1862), ("2.64×", 2.64), ("1.11 s", 1.11), ("+4.8%", 4.8)],
)
def test_a_figure_is_a_number(text: str, expected: float) -> None:
    assert number(text) == pytest.approx(expected)
