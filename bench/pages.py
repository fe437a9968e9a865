"""The figures of the committed benchmark pages, read back from their Markdown tables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PLACE = Path(__file__).parent.parent / "docs" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a figure stands: a page, a section, the title of a table, a row and a column."""

    page: str
    section: str
    table: str
    row: str
    column: str


class Figures:
    """Every table of every page, by page, section and title."""

    def __init__(self, folder: Path = PLACE) -> None:
        self._tables: dict[tuple[str, str, str], list[list[str]]] = {}
        self._titles: dict[str, str] = {}
        for path in sorted(folder.glob("*.md")):
            if path.name != "index.md":
                self._read(path.stem, path.read_text(encoding="utf-8"))

    def text(self, cell: Cell) -> str:
        """The cell without what it has in parentheses; a column named `… ()` is only that."""
        inner = cell.column.endswith(" ()")
        column, found = cell.column.removesuffix(" ()"), self._table(cell)
        [values] = [row for row in found[1:] if row[0] == cell.row] or [[]]
        if column not in found[0] or not values:
            raise KeyError(f"no such figure: {cell}")
        before, _, after = values[found[0].index(column)].partition(" (")
        return after.removesuffix(")") if inner else before

    def number(self, cell: Cell) -> float:
        """The figure, in seconds, megabytes or as it stands."""
        return number(self.text(cell))

    def bars(self, page: str) -> Sequence[Sequence[str]]:
        """The rows of a page's internal bars: what, limit, measured, verdict."""
        return self._tables[page, "Internal bars", ""][1:]

    def pages(self) -> list[str]:
        return sorted({page for page, _, _ in self._tables})

    def title(self, page: str) -> str:
        return self._titles[page]

    def _table(self, cell: Cell) -> list[list[str]]:
        return self._tables[cell.page, cell.section, cell.table]

    def _read(self, page: str, text: str) -> None:
        section = title = ""
        self._titles[page] = text.partition("\n")[0].removeprefix("# ")
        rows: list[list[str]] = []
        for line in text.splitlines():
            if line.startswith("|"):
                if not rows:
                    rows = self._tables.setdefault((page, section, title), [])
                if not re.fullmatch(r"[|:-]+", line):
                    rows.append([part.strip() for part in line[1:-1].split("|")])
                continue
            if rows:
                rows, title = [], ""
            if line.startswith("## "):
                section, title = line[3:], ""
            elif found := re.fullmatch(r"\*\*(.+)\*\*", line):
                title = found[1]


_UNITS = {"ms": 0.001}


def number(text: str) -> float:
    """0.405 ms is 0.000405, 1,862 is 1862.0, 2.64× is 2.64."""
    found = re.match(r"([+-]?[\d,]+(?:\.\d+)?)\s*(\w*)", text)
    if found is None:
        raise ValueError(f"not a figure: {text}")
    return float(found[1].replace(",", "")) * _UNITS.get(found[2], 1.0)
