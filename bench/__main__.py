"""`python -m bench`: measure, print progress, write the tables of docs/benchmarks."""

import argparse
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from bench.accept import accept
from bench.agent import agent
from bench.d1 import d1
from bench.databases import databases, describe
from bench.drive import drive
from bench.due import due
from bench.effects import effects
from bench.load import load
from bench.observing import observing
from bench.recovery import recovery
from bench.report import Table, fill, markdown
from bench.rounds import Bench, say
from bench.server import server
from bench.steps import steps
from bench.stored import stored
from bench.turns import turns

PAGES: dict[str, dict[str, Callable[[Bench], list[Table]]]] = {
    "core": {
        "steps": steps,
        "bytes": stored,
        "turns": turns,
        "load": load,
        "accept": accept,
        "drive": drive,
        "recovery": recovery,
        "due": due,
    },
    "effects": {"effects": effects, "agent": agent},
    "observing": {"observing": observing},
    "server": {"server": server},
    "d1": {"d1": d1},
}
PLACE = Path(__file__).parent.parent / "docs" / "benchmarks"
MEASUREMENTS = {name: run for page in PAGES.values() for name, run in page.items()}


def main() -> None:
    args = _arguments()
    without = tuple(word.lower() for word in args.without)
    warnings.filterwarnings("ignore", message=".*DeltaChannel.*")
    logging.disable(logging.WARNING)  # stock savers log each type they load
    printed = bool(args.quick or args.without or args.only)
    with databases(postgres="postgres" not in without) as places:
        bench = Bench(places, quick=args.quick, without=without)
        if args.only:
            _print(*_measure(args.only, bench))
            return
        for page in PAGES:
            found, machine = _measure(list(PAGES[page]), bench)
            if printed:
                _print(found, machine)
                continue
            path = PLACE / f"{page}.md"
            path.write_text(fill(path.read_text(), found, machine))
            say(f"wrote {path.name}")


def _measure(names: Sequence[str], bench: Bench) -> tuple[dict[str, list[Table]], str]:
    start = perf_counter()
    found = {name: MEASUREMENTS[name](bench) for name in names}
    minutes = f"{(perf_counter() - start) / 60:.1f} minutes"
    if bench.quick:
        minutes += ", **a quick run: too few rounds to quote**"
    return found, describe(bench.databases, minutes)


def _print(found: dict[str, list[Table]], machine: str) -> None:
    parts = [f"## {name}\n\n{markdown(tables)}" for name, tables in found.items()]
    say("\n" + "\n\n".join([*parts, machine]))


def _names(words: str) -> list[str]:
    return words.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it runs")
    parser.add_argument(
        "--only",
        nargs="+",
        type=_names,
        metavar="NAME,NAME",
        default=[],
        help="only these measurements; prints them and writes no page",
    )
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        metavar="WORD",
        help="leave out contenders by word; prints the pages and writes none",
    )
    args = parser.parse_args()
    args.only = [name for names in args.only for name in names]
    if unknown := [name for name in args.only if name not in MEASUREMENTS]:
        known = ", ".join(MEASUREMENTS)
        parser.error(f"no such measurement: {', '.join(unknown)}; there are {known}")
    return args


if __name__ == "__main__":
    main()
