"""`make demo`: a month of an e-mail campaign in about a minute, while its workers are killed.

Everything is real except the time and the people: a mail server that fails, a listener for incoming
mail, SQLite, worker processes, SIGKILL. Workers are killed at points that a seed decides (a
contact, a touch, a moment of the SMTP conversation) and at random moments. When nothing is running,
the clock that all processes share moves to whatever is due next.

Then stock LangGraph and its SQLite saver get the same month (`stock.py`), and the mail server's own
log judges both. Exit code 0: with perdure every touch that should be sent was sent once, none after
a reply, and every thread is in the right final state.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from rich import box
from rich.console import Console
from rich.table import Table

from .clock import SharedClock
from .conductor import Conductor, Result
from .crew import warm_up
from .months import Campaign, Month, Stock
from .plan import Plan, draw
from .postoffice import PostOffice

if importlib.util.find_spec("langgraph.checkpoint.sqlite") is None:
    raise ModuleNotFoundError(name="langgraph-checkpoint-sqlite")

START = datetime(2026, 10, 5, 6, tzinfo=UTC)
"""A Monday. Clocks in Europe and America change later in the month."""


def month(
    begin: Callable[[Plan, Path, PostOffice, SharedClock], Month],
    title: str,
    plan: Plan,
    folder: Path,
    on: Console,
    **options: Any,
) -> Result:
    """Let an engine live through the month; `options` are those of the conductor."""
    folder.mkdir()
    clock = SharedClock(folder / "clock")
    clock.move_to(START)
    with contextlib.ExitStack() as stack:
        office = stack.enter_context(PostOffice(plan.faults, late=1.2))
        engine: Month = begin(plan, folder, office, clock)
        stack.enter_context(engine)
        on.print(f"{title}\n", style="bold")
        conductor = Conductor(plan, engine, office, clock, on, **options)
        office.on = conductor.reached
        engine.staff()
        stack.callback(engine.crew.end)
        try:
            conductor.play()
            return conductor.judge()
        finally:
            conductor.over = True


def main(contacts: int = 5, seed: int | None = None, plain: bool = False) -> int:
    """Run the demo. Returns the exit code."""
    return play(_beside_stock, contacts, seed, plain=plain)


def arguments(description: str) -> dict[str, Any]:
    """The options of a demo from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--contacts", type=int, default=5, help="3 to 10")
    parser.add_argument("--seed", type=int, help="the same one gives the same month")
    parser.add_argument("--plain", action="store_true", help="no colours")
    return vars(parser.parse_args())


def play(
    demo: Callable[[Console, Plan, Path], Result], contacts: int, seed: int | None, *, plain: bool
) -> int:
    """Show a demo, and clean up. 0: perdure's figures are right; 1: they are not; 2: wrong use."""
    if not 3 <= contacts <= 10:
        print(f"The demo writes to 3 to 10 contacts, not to {contacts}.", file=sys.stderr)
        return 2
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    on = Console(no_color=plain, highlight=False, width=None if sys.stdout.isatty() else 100)
    plan = draw(random.randrange(10_000) if seed is None else seed, contacts)
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name, _ends_well():
        folder = Path(name)
        logging.basicConfig(filename=folder / "log", level=logging.WARNING, force=True)
        try:
            result = demo(on, plan, folder)
        except KeyboardInterrupt:
            on.print("Interrupted; everything is cleaned up.")
            return 130
        except RuntimeError as error:
            on.print(f"{error}\n{_last_words(folder)}", markup=False)
            return 1
        for line in result.wrong:
            on.print(f"WRONG  {line}", markup=False)
        if result.wrong:
            on.print(_last_words(folder), markup=False)
    return 1 if result.wrong else 0


def _last_words(folder: Path) -> str:
    """The end of what the processes logged."""
    log = "".join(log.read_text(errors="replace") for log in sorted(folder.glob("**/log")))
    return f"Last output of the processes:\n{log[-3000:] or 'nothing'}"


def _beside_stock(on: Console, plan: Plan, folder: Path) -> Result:
    on.print("Starting a mail server, a listener for replies, and worker processes ...\n")
    warm_up()
    people = f"{len(plan.contacts)} people"
    title = f"perdure: a month of mail to {people}, while its workers are killed"
    ours = month(Campaign, title, plan, folder / "perdure", on)
    title = "The same month with stock LangGraph and its SQLite saver"
    stock = month(Stock, title, plan, folder / "stock", on)
    show(on, plan, {"perdure": figures(ours), "stock LangGraph": figures(stock)})
    on.print(
        "Counted by the mail server's own log. Stock LangGraph runs the same graph with its "
        "SQLite saver and durability='sync', is resumed where it left off, and is killed at "
        "the same points of its sends. It checks for a reply, and its own table, before each "
        "send. If it is killed or cut off between the acceptance of a mail and its next write, "
        "it sends again. It sees a reply that arrives during a send too late.\n",
        style="dim",
    )
    return ours


def figures(result: Result) -> dict[str, str]:
    """How a month went, in figures."""
    return {
        "touches sent": f"{result.sent} of {result.touches}",
        "duplicates": str(result.duplicates),
        "sends after a reply": str(result.after_reply),
        "replies, bounces, unsubscribes honoured": f"{result.honoured} of {result.endings}",
        "drafts decided by a person": str(result.decided),
        "drafts still held at the end": f"{result.held} of {result.should_be_held}",
        "threads in the right final state": f"{result.right} of {len(result.plan.contacts)}",
        "processes killed": str(result.killed),
        "  of those in the middle of a send": str(result.by_plan),
        "seconds": f"{result.seconds:.0f}",
    }


def show(on: Console, plan: Plan, columns: dict[str, dict[str, str]]) -> None:
    """The figures of one engine, or of several side by side."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2))
    table.add_column(f"one month, {len(plan.contacts)} contacts, seed {plan.seed}")
    for engine in columns:
        table.add_column(engine, justify="right")
    for rows in zip(*(column.items() for column in columns.values()), strict=True):
        table.add_row(rows[0][0], *(value for _, value in rows))
    on.print(table)


@contextlib.contextmanager
def _ends_well() -> Iterator[None]:
    """Treat SIGTERM or a closed terminal like Ctrl-C: everything is cleaned up."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
