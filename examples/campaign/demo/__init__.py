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
from typing import NoReturn

from rich.console import Console

from ..clock import SharedClock
from ..postoffice import PostOffice
from .conductor import Conductor
from .crew import Nursery
from .engine import Month
from .judge import Judge, Result, summary
from .plan import Plan, draw
from .screen import Screen, console

if importlib.util.find_spec("langgraph.checkpoint.sqlite") is None:
    raise ModuleNotFoundError(name="langgraph-checkpoint-sqlite")

START = datetime(2026, 10, 5, 6, tzinfo=UTC)
"""A Monday. Clocks in Europe and America change later in the month."""


def month(
    make: Callable[[Plan, Path, PostOffice, SharedClock], Month],
    title: str,
    plan: Plan,
    nursery: Nursery,
    folder: Path,
    on: Console,
) -> Result:
    """Let an engine live through the month."""
    folder.mkdir()
    clock = SharedClock(folder / "clock")
    clock.move_to(START)
    with contextlib.ExitStack() as stack:
        office = stack.enter_context(PostOffice(plan.faults))
        lived = stack.enter_context(make(plan, folder, office, clock))
        screen = stack.enter_context(Screen(on, plan, title, clock.now()))
        conductor = Conductor(plan, lived, office, clock, screen)
        office.on = conductor.reached
        lived.staff(nursery)
        stack.callback(lived.crew.end)
        try:
            conductor.play()
            return Judge(plan, lived, office, conductor).judge(screen.seconds)
        finally:
            conductor.over = True


def main(contacts: int = 5, seed: int | None = None, plain: bool = False) -> int:
    """Run the demo. Returns the exit code."""
    return play(_beside_stock, contacts, seed, plain=plain)


def play(
    show: Callable[[Console, Plan, Path], Result], contacts: int, seed: int | None, *, plain: bool
) -> int:
    """Show a demo, and clean up. 0: perdure's figures are right; 1: they are not; 2: wrong use."""
    if not 3 <= contacts <= 10:
        print(f"The demo writes to 3 to 10 contacts, not to {contacts}.", file=sys.stderr)
        return 2
    on = console(plain=plain)
    plan = draw(random.randrange(10_000) if seed is None else seed, contacts)  # noqa: S311
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name, _ends_well():
        folder = Path(name)
        logging.basicConfig(filename=folder / "log", level=logging.WARNING, force=True)
        try:
            result = show(on, plan, folder)
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
    said = (folder / "log").read_text(errors="replace")
    return f"Last output of the processes:\n{said[-3000:] or 'nothing'}"


def _beside_stock(on: Console, plan: Plan, folder: Path) -> Result:
    on.print("Starting a mail server, a listener for replies, and worker processes ...\n")
    with Nursery(folder) as nursery:
        from .months import Campaign, Stock  # LangGraph takes its time, in both processes

        nursery.wait()
        people = f"{len(plan.contacts)} people"
        title = f"perdure: a month of mail to {people}, while its workers are killed"
        ours = month(Campaign, title, plan, nursery, folder / "perdure", on)
        title = "The same month with stock LangGraph and its SQLite saver"
        stock = month(Stock, title, plan, nursery, folder / "stock", on)
    summary(on, plan, ours, stock)
    return ours


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
