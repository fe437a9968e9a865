"""How contenders are run: interleaved, in turning order, each on its own database."""

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bench.databases import Databases, Kind
from bench.report import Series


class Named(Protocol):
    """Whoever is measured."""

    @property
    def name(self) -> str: ...
    @property
    def database(self) -> Kind | None: ...


C = TypeVar("C", bound=Named)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: its databases, how thorough it is, and whom it leaves out."""

    databases: Databases
    quick: bool = False
    without: tuple[str, ...] = ()

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def field(self, *contenders: C) -> list[C]:
        """Those that take part in this run."""
        return [c for c in contenders if not any(w in c.name.lower() for w in self.without)]

    def interleave(
        self,
        what: str,
        contenders: Sequence[C],
        rounds: int,
        trial: Callable[[C, str, str], float],
        *,
        unit: str = "ms",
    ) -> Series:
        """`trial(contender, url, thread_id)` for every contender in every round.

        A contender keeps its database for all rounds and gets a new thread in each. The order turns
        by one place per round, so that nobody always follows the same neighbour.
        """
        series = Series()
        with ExitStack() as stack:
            urls = [stack.enter_context(self.databases.fresh(c.database)) for c in contenders]
            field = list(zip(contenders, urls, strict=True))
            for n in range(rounds):
                turn = n % max(len(field), 1)
                for contender, url in field[turn:] + field[:turn]:
                    gc.collect()
                    value = trial(contender, url, f"round-{n}")
                    series.add(contender.name, value)
                    shown = value * 1000 if unit == "ms" else value
                    say(f"{what} {n + 1}/{rounds}  {contender.name:<28} {shown:10.3f} {unit}")
        return series


def say(line: str) -> None:
    print(line, flush=True)
