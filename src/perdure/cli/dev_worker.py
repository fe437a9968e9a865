"""The child of `perdure dev`: it loads a project, drives it, and prints the feed of its events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.langgraph_json import Project, find_project
from perdure.cli.log_output import EVENTS, log_json
from perdure.cli.output import at_option, paint, print_error, print_status
from perdure.cli.target import observed
from perdure.errors import BadArgument, Error

if TYPE_CHECKING:
    from perdure.cli.event_feed import EventFeed
    from perdure.runtime import Runtime


def main(file: str, at: str, concurrency: str, grace: str, log: str, number: str, pipe: str) -> int:
    """The child's process. An interrupt from the terminal is left to the supervisor."""
    signal.signal(signal.SIGINT, lambda *_: None)
    _stop_with_parent(int(pipe))
    options: Any = {"as_json": log == "json", "child": int(number)}
    return drive_project(Path(file), at, int(concurrency), float(grace), **options)


def drive_project(
    file: Path, at: str, concurrency: int, grace: float, *, as_json: bool = False, child: int = 0
) -> int:
    """Load a project and drive it until stopped. Returns the exit code. `as_json` logs its events
    to stderr, beside the feed. `child` is the number of the supervisor's child, from 1; 0 without a
    supervisor."""
    from perdure.cli.event_feed import EventFeed
    from perdure.cli.graph_loading import load_project

    async def drive(project: Project, rt: Runtime) -> None:
        async with rt:
            feed = EventFeed(rt, await rt.now(), at)
            _introduce(project, rt, at, again=child > 1)
            how: Any = {"supervised": child > 0, "as_json": as_json}
            await _drive(rt, feed, concurrency, grace, **how)

    try:
        project = find_project(file)
        if project is None:
            raise BadArgument(f"{file} is gone.")
        # Loaded before the loop runs: a module of the project may run one of its own.
        rt = observed(load_project(project))
        asyncio.run(drive(project, log_json(rt) if as_json else rt))
    except Error as error:
        print_error(error)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def _drive(
    rt: Runtime,
    feed: EventFeed,
    concurrency: int,
    grace: float,
    *,
    supervised: bool,
    as_json: bool,
) -> None:
    _log_warnings(as_json=as_json)
    showing = asyncio.create_task(feed.follow())
    showing.add_done_callback(_report_end)
    signals = not supervised  # a terminal signals both processes; the supervisor sends SIGTERM once
    working = asyncio.create_task(
        rt.work(concurrency=concurrency, grace=timedelta(seconds=grace), handle_signals=signals)
    )
    if supervised:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await working
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        with contextlib.suppress(Error):
            await feed.look()


def _log_warnings(*, as_json: bool) -> None:
    """Print warnings, but not those about a run: the feed shows its events."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not hasattr(record, "run_id") and record.name != EVENTS)
    handler.setFormatter(logging.Formatter("          %(message)s"))
    log = logging.getLogger("perdure")
    log.addHandler(handler)
    log.propagate = as_json


def _report_end(showing: asyncio.Task[None]) -> None:
    """A feed that fails does not stop the worker, but says so."""
    if not showing.cancelled() and (error := showing.exception()) is not None:
        print(f"perdure dev: nothing more is shown: {error!r}", file=sys.stderr, flush=True)


def _introduce(project: Project, rt: Runtime, at: str, *, again: bool) -> None:
    """Print what was found; after a restart only the graphs."""
    graphs = ", ".join(project.graphs)
    if again:
        return print_status("dev", f"driving {graphs} (pid {os.getpid()})")
    facts = {
        "graphs": graphs,
        "journal": rt.url,
        "worker": f"pid {os.getpid()}; you may kill it",
        "start": f"perdure start {next(iter(project.graphs))} --input JSON{at_option(at)}",
    }
    print_status("dev", str(project.file))
    for name, value in [*facts.items(), *(("note", note) for note in project.notes)]:
        print(f"  {paint(f'{name:8}', 'dim')} {value}", flush=True)


def _stop_with_parent(pipe: int) -> None:
    """Stop when the process with the other end of the pipe is gone."""

    def wait() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
