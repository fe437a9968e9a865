"""The results of a run as tables, bars, and the page `docs/benchmarks/core.md`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise of the project, and what was measured."""

    what: str
    limit: float
    measured: float | None
    at_most: bool = True
    unit: str = "×"

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        met = self.measured <= self.limit if self.at_most else self.measured >= self.limit
        apart = abs(self.measured - self.limit) / self.limit
        return f"{'met' if met else '**missed**'} by {apart:.0%}"

    def row(self) -> list[str]:
        sign = "≤" if self.at_most else "≥"
        found = "–" if self.measured is None else f"{self.measured:.2f}{_unit(self.unit)}"
        return [self.what, f"{sign} {self.limit:g}{_unit(self.unit)}", found, self.verdict]


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
    """One measurement: how it was done, what came out, which bars it judges."""

    title: str
    text: str
    tables: Sequence[Table]
    bars: Sequence[Bar] = field(default_factory=tuple)

    def markdown(self) -> str:
        return "\n\n".join([f"## {self.title}", self.text, *(t.markdown() for t in self.tables)])


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


_INTRODUCTION = """\
Written by `make bench`; do not edit. perdure's saver beside LangGraph's own, and its runtime beside
DBOS, in one run, contenders interleaved round by round, each checked to have stored what it was
given. Ratios are medians of the ratios of each round; milliseconds and the like are orientation
only and differ between machines."""


def page(sections: Sequence[Section], machine: Table, note: str) -> str:
    """The whole document: bars first, then the machine, then a section per measurement."""
    bars = [bar.row() for section in sections for bar in section.bars]
    parts = [
        "# Benchmarks",
        _INTRODUCTION,
        note,
        "## Bars",
        Table(["bar", "wanted", "measured", "verdict"], bars).markdown()
        if bars
        else "None judged.",
        "## Machine",
        machine.markdown(),
        *(section.markdown() for section in sections),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _unit(unit: str) -> str:
    return unit if unit in ("", "×") else f" {unit}"
