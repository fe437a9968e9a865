"""`python -m bench`: measure, print progress, write `docs/benchmarks/core.md`."""

import argparse
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

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

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "core.md"


def main() -> None:
    args = _arguments()
    names = args.only or list(MEASUREMENTS)
    without = tuple(word.lower() for word in args.without)
    warnings.filterwarnings("ignore", message=".*DeltaChannel.*")
    logging.disable(logging.WARNING)  # stock savers log each type they load
    start = perf_counter()
    with databases(postgres="postgres" not in without) as places:
        bench = Bench(places, quick=args.quick, without=without)
        machine = describe(places)
        sections = [MEASUREMENTS[name](bench) for name in names]
    minutes = (perf_counter() - start) / 60
    text = page(sections, machine, _note(args, minutes))
    out = args.out or (None if args.quick or args.only or args.without else PAGE)
    if out is None:
        say("\n" + text)
    else:
        out.parent.mkdir(exist_ok=True)
        out.write_text(text)
        say(f"wrote {out} after {minutes:.1f} minutes")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, metavar="NAME", default=[])
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="WORD", help="leave out contenders by word"
    )
    parser.add_argument(
        "--out", type=Path, help="the page; a partial run only prints it unless this is given"
    )
    return parser.parse_args()


def _note(args: argparse.Namespace, minutes: float) -> str:
    if args.quick:
        return f"**A quick run ({minutes:.1f} minutes): too few rounds to quote.**"
    return f"The whole run took {minutes:.1f} minutes."


if __name__ == "__main__":
    main()
