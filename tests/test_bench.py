"""The tables of the benchmark pages stand where the benchmark puts them, and the overview quotes
them."""

import re

import pytest

from bench.__main__ import PAGES, PLACE
from bench.report import Table, fill


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_place_for_each_measurement(name: str) -> None:
    page = (PLACE / f"{name}.md").read_text()
    marks = re.findall(r"^<!-- (\w+) -->$", page, re.MULTILINE)
    assert marks == [mark for one in [*PAGES[name], "machine"] for mark in (one, "end")]


def test_every_page_is_of_a_measurement() -> None:
    assert {path.stem for path in PLACE.glob("*.md")} == {*PAGES, "index"}


def test_a_run_replaces_tables_and_machine_and_nothing_else() -> None:
    marks = {name: f"<!-- {name} -->\nold\n<!-- end -->" for name in ("steps", "machine")}
    page = "# Core\n\n" + "\n\nBy hand.\n\n".join(marks.values())
    filled = fill(page, {"steps": [Table(["", "per step"], [["ours", "1 ms"]])]}, "2026, 2 cores.")
    assert filled.count("By hand.") == 1
    assert "old" not in filled
    assert "|  | per step |\n|---|---:|\n| ours | 1 ms |" in filled
    assert "2026, 2 cores." in filled


def test_the_overview_quotes_figures_that_stand_in_the_tables() -> None:
    tables = "".join((PLACE / f"{name}.md").read_text() for name in PAGES)
    rows = [line for line in (PLACE / "index.md").read_text().splitlines() if line[:2] == "| "]
    figures = re.findall(r"\d[\d.,]*(?: (?:ms|s|%|M)\b|[×%])|\d,\d{3}", "\n".join(rows))
    assert len(figures) > 40
    assert not [one for one in figures if one.strip(",") not in tables]
