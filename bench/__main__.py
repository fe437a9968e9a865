"""`python -m bench`: measure, print progress, write the pages and plots of docs/benchmarks."""

import argparse
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from bench import plots
from bench.accept import accept
from bench.agent import agent
from bench.commits import commits
from bench.crowd import crowd
from bench.d1 import d1
from bench.databases import databases
from bench.drive import drive
from bench.due import due
from bench.effects import effects
from bench.fsyncs import fsyncs
from bench.imports import imports
from bench.load import load
from bench.machine import describe
from bench.observing import observing
from bench.recovery import recovery
from bench.reflections import reflections
from bench.report import Section, page
from bench.rounds import Bench, say
from bench.server import server
from bench.sleepers import sleepers
from bench.steps import steps
from bench.stored import stored
from bench.texts import PAGES, Page
from bench.tick import tick
from bench.turns import turns
from bench.ui import ui

MEASUREMENTS: dict[str, Callable[[Bench], Section]] = {
    "steps": steps,
    "bytes": stored,
    "turns": turns,
    "load": load,
    "concurrent": crowd,
    "fsyncs": fsyncs,
    "import": imports,
    "accept": accept,
    "drive": drive,
    "recovery": recovery,
    "due": due,
    "sleeping": sleepers,
    "commits": commits,
    "effects": effects,
    "agent": agent,
    "observing": observing,
    "reflections": reflections,
    "server": server,
    "pages": ui,
    "tick": tick,
    "d1": d1,
}

PLACE = Path(__file__).parent.parent / "docs" / "benchmarks"


def main() -> None:
    args = _arguments()
    without = tuple(word.lower() for word in args.without)
    warnings.filterwarnings("ignore", message=".*DeltaChannel.*")
    logging.disable(logging.WARNING)  # stock savers log each type they load
    with databases(postgres="postgres" not in without) as places:
        bench = Bench(places, quick=args.quick, without=without)
        if args.only:
            some = Page("Benchmarks", "", args.only)
            say("\n" + _measure(some, bench, args.quick))
            return
        for name in args.pages or PAGES:
            text = _measure(PAGES[name], bench, args.quick)
            if args.quick or args.without:
                say("\n" + text)
            else:
                (PLACE / f"{name}.md").write_text(text)
                say(f"wrote {name}.md")
    if not args.quick and not args.without:
        plots.main()


def _measure(wanted: Page, bench: Bench, quick: bool) -> str:
    start, machine = perf_counter(), describe(bench.databases)
    sections = [MEASUREMENTS[name](bench) for name in wanted.measurements]
    minutes = (perf_counter() - start) / 60
    note = f"This run took {minutes:.1f} minutes."
    if quick:
        note = f"**A quick run ({minutes:.1f} minutes): too few rounds to quote.**"
    return page(wanted.title, wanted.introduction, sections, machine, note, wanted.remarks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it runs")
    some = parser.add_mutually_exclusive_group()
    some.add_argument(
        "--pages", nargs="+", choices=PAGES, metavar="NAME", default=[], help="write only these"
    )
    some.add_argument(
        "--only",
        nargs="+",
        choices=MEASUREMENTS,
        metavar="NAME",
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
    return parser.parse_args()


if __name__ == "__main__":
    main()
