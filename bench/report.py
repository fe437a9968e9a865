"""The results of a run as tables and bars, and where they stand in the pages of docs/benchmarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from upstream.differences import replace_block


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit that the project set itself, and the measured value."""

    what: str
    limit: float
    measured: float | None
    at_most: bool = True
    unit: str = "×"

    @property
    def is_met(self) -> bool:
        if self.measured is None:
            return False
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def row(self) -> list[str]:
        unit = self.unit if self.unit in ("", "×") else f" {self.unit}"
        found = "–" if self.measured is None else f"{self.measured:.2f}{unit}"
        sign = "≤" if self.at_most else "≥"
        return [self.what, f"{sign} {self.limit:g}{unit}", found]


MISSED = ["missed", "limit", "measured"]


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def markdown(self) -> str:
        """The first column is text, the others are figures."""
        rule = ["---"] + ["---:"] * (len(self.head) - 1)
        lines = ["| " + " | ".join(row) + " |" for row in (self.head, *self.rows)]
        lines.insert(1, "|" + "|".join(rule) + "|")
        return (f"**{self.title}**\n\n" if self.title else "") + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Section:
    """One measurement: its tables, and the bars it judges."""

    tables: Sequence[Table]
    bars: Sequence[Bar] = ()

    def markdown(self) -> str:
        return "\n\n".join(table.markdown() for table in self.tables)


class Series:
    """One figure per contender and round. Rounds are compared pairwise: a slow minute hits both."""

    def __init__(self) -> None:
        self._found: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        self._found.setdefault(name, []).append(value)

    @property
    def names(self) -> list[str]:
        return list(self._found)

    def last(self, name: str) -> float:
        return self._found[name][-1]

    def median(self, name: str) -> float:
        return median(self._found[name])

    def ratio(self, name: str, to: str) -> float | None:
        """The median over the rounds of name / to; None when either was not measured."""
        ratios = self.ratios(name, to)
        return median(ratios) if ratios else None

    def ratios(self, name: str, to: str) -> list[float]:
        """name / to of each round."""
        pairs = zip(self._found.get(name, ()), self._found.get(to, ()), strict=False)
        return [one / other for one, other in pairs]

    def spread(self, name: str) -> str:
        """Slowest minus fastest round, as a share of the median."""
        found = self._found[name]
        return f"±{(max(found) - min(found)) / 2 / median(found):.0%}"


def times(ratio: float | None) -> str:
    """A ratio as people write it: 0.34×, 12×."""
    if ratio is None:
        return "–"
    return f"{ratio:.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


def millis(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.2f} MB"


def bars(sections: Mapping[str, Section]) -> str:
    """How many are met, and the others."""
    every = [bar for section in sections.values() for bar in section.bars]
    missed = [bar.row() for bar in every if not bar.is_met]
    told = f"{len(every) - len(missed)} of {len(every)} are met."
    return f"{told}\n\n{Table(MISSED, missed).markdown()}" if missed else told


def fill(page: str, sections: Mapping[str, Section], machine: Table, note: str) -> str:
    """The page with its tables replaced, each between the marks with the measurement's name."""
    for name, section in sections.items():
        page = replace_block(page, name, section.markdown())
    page = replace_block(page, "machine", f"{note}\n\n{machine.markdown()}")
    return replace_block(page, "bars", bars(sections))
