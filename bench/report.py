"""The results of a run as tables, and where they stand in the pages of docs/benchmarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from upstream.differences import replace_block


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


def markdown(tables: Sequence[Table]) -> str:
    return "\n\n".join(table.markdown() for table in tables)


def fill(page: str, found: Mapping[str, Sequence[Table]], machine: str) -> str:
    """The page with its tables replaced, each between the marks with the measurement's name."""
    for name, tables in found.items():
        page = replace_block(page, name, markdown(tables))
    return replace_block(page, "machine", machine)
