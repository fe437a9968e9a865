"""The child of `perdure dev`: it loads a project, drives it, and prints the feed of its events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from perdure.cli.graph_loading import load_project
from perdure.cli.logs import EVENTS, SafeLines, configure_logging, guard_stderr
from perdure.cli.output import (
    at_option,
    command_for,
    display_width,
    one_line,
    paint,
    print_error,
    print_status,
    truncate,
)
from perdure.cli.project import Project, find_project
from perdure.cli.serving import DevOptions, check_exposure, import_server, make_app
from perdure.cli.target import measured, observed
from perdure.client import Client
from perdure.commands import run_reads, streams
from perdure.errors import BadArgument, Error
from perdure.runtime import Runtime
from perdure.text import printable
from perdure.types import Event, EventKind, Run
from perdure.views.event_wording import EventView, Verb, view_event
from perdure.views.formatting import duration
from perdure.views.waiting_for import answer_action

INTERVAL = 0.25
"""Seconds between two looks of the feed, if the database is not to be asked less often."""
MARGIN = " " * 10
WIDEST_NAME = 28
"""Columns for the graph and its thread."""


def main(options: str, number: str, pipe: str) -> int:
    """Entry point of the child process. The supervisor handles interrupts from the terminal."""
    guard_stderr()
    signal.signal(signal.SIGINT, lambda *_: None)
    _stop_with_parent(int(pipe))
    return drive_project(DevOptions(**json.loads(options)), child=int(number))


def drive_project(options: DevOptions, *, child: int = 0) -> int:
    """Load a project and drive it until stopped. Returns the exit code. `child` is the number of
    the supervisor's child, from 1; 0 without a supervisor."""

    async def drive(project: Project, rt: Runtime) -> None:
        async with rt:
            served, pages = None, ""
            if options.socket is not None:
                served, pages = await _make_server(rt, options)
            feed = EventFeed(rt, await rt.now(), options.at)
            _introduce(project, rt, options, pages, again=child > 1)
            await _drive(rt, feed, served, options, supervised=child > 0)

    try:
        project = find_project(options.file)
        if project is None:
            raise BadArgument(f"{options.file} is gone.")
        # Loaded before the loop runs: a module of the project may run one of its own.
        rt = observed(load_project(project), log_events=options.as_json)
        if options.as_json:
            configure_logging(quiet=False, as_json=True)
        asyncio.run(drive(project, rt))
    except Error as error:
        print_error(error)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def _make_server(rt: Runtime, options: DevOptions) -> tuple[Any, str]:
    """The HTTP server of the project, without a worker, since the child already runs one; and the
    URL of its pages."""
    server, settings = import_server(), {"worker": False, **options.settings}
    measured(rt)
    app = make_app(rt, settings)
    await check_exposure(rt, settings, options.host, options.at)
    pages = ""
    if settings["ui"]:
        pages = await server.pages_url(rt, settings, _address(options.socket))
    return server.HttpServer(app, grace=options.grace, handle_signals=False), pages


async def _drive(
    rt: Runtime, feed: EventFeed, server: Any, options: DevOptions, *, supervised: bool
) -> None:
    _log_warnings(as_json=options.as_json)
    showing = asyncio.create_task(feed.follow())
    showing.add_done_callback(_report_end)
    signals = not supervised  # a terminal signals both processes; the supervisor sends SIGTERM once
    limits: Any = {"grace": timedelta(seconds=options.grace), "handle_signals": signals}
    working = asyncio.create_task(rt.work(concurrency=options.concurrency, **limits))

    def stop() -> None:
        working.cancel()
        if server is not None:
            server.stop()  # clients that come back wait for the next child

    if supervised:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await (working if server is None else _serve(server, options, working))
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        with contextlib.suppress(Error):
            await feed.look()


async def _serve(server: Any, options: DevOptions, working: asyncio.Task[Any]) -> None:
    """Serve until the worker has stopped."""
    working.add_done_callback(lambda _: server.stop())
    with socket.socket(fileno=options.socket) as listening:
        await server.serve(sockets=[listening])
    if not working.cancelling():
        working.cancel()  # the server could not start
    await working


def _log_warnings(*, as_json: bool) -> None:
    """Print warnings, except those about runs, which the feed shows as events."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not hasattr(record, "run_id") and record.name != EVENTS)
    handler.setFormatter(SafeLines("          %(message)s"))
    log = logging.getLogger("perdure")
    log.addHandler(handler)
    log.propagate = as_json


def _report_end(showing: asyncio.Task[None]) -> None:
    """Report a feed that failed. The worker goes on."""
    if not showing.cancelled() and (error := showing.exception()) is not None:
        print(
            f"perdure dev: the event feed failed: {printable(repr(error))}",
            file=sys.stderr,
            flush=True,
        )


def _introduce(
    project: Project, rt: Runtime, options: DevOptions, pages: str, *, again: bool
) -> None:
    """Print what was loaded, and open the pages; after a restart print only the graphs."""
    graphs = ", ".join(project.graphs)
    if again:
        return print_status("dev", f"driving {graphs} (pid {os.getpid()})")
    facts = {
        "graphs": graphs,
        "journal": rt.url,
        "worker": f"pid {os.getpid()}; you may kill it",
        "start": f"perdure start {next(iter(project.graphs))} JSON{at_option(options.at)}",
    }
    if options.socket is not None:
        facts["api"] = _address(options.socket)
    if pages:
        facts["pages"] = pages
    print_status("dev", str(project.file))
    for name, value in [*facts.items(), *(("note", note) for note in project.notes)]:
        print(f"  {paint(f'{name:8}', 'dim')} {value}", flush=True)
    if pages and options.browser:
        # In a thread: some browsers of the terminal return only when they are closed.
        threading.Thread(target=webbrowser.open, args=(pages,), daemon=True).start()


def _address(descriptor: int | None) -> str:
    with socket.socket(fileno=os.dup(descriptor or 0)) as listening:
        address: str = import_server().address(listening)
        return address


def _stop_with_parent(pipe: int) -> None:
    """Stop when the process with the other end of the pipe is gone."""

    def wait() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


# -- the feed


class EventFeed:
    """The events of a journal from a moment on, a line each. `at` is the target for commands to
    paste."""

    def __init__(self, client: Client, since: datetime, at: str | None = None) -> None:
        self._client, self._at = client, at
        self._feed = streams.EventFeed(client.engine.serializer, since)
        self._named: set[str] = set()
        self._columns = 0

    async def follow(self) -> None:
        """Print events until cancelled. The worker logs it when the journal is in trouble."""
        while True:
            with contextlib.suppress(Error):
                await self.look()
            await asyncio.sleep(max(INTERVAL, self._client.journal.capabilities.poll))

    async def look(self) -> None:
        """Print what is new."""
        runs: dict[str, Run] = {}
        for row, event in await self._client.journal.arun(self._feed.look()):
            if row.id not in runs:
                plan = run_reads.show(self._client.engine, row, output=False)
                runs[row.id] = await self._client.journal.arun(plan)
            await self._print_event(runs[row.id], event)

    async def _print_event(self, run: Run, event: Event) -> None:
        view = view_event(event, run.id, run.thread_id, format_time=local_time)
        if view.routine:
            return
        text = view.text
        if event.kind == EventKind.DONE:
            output = (await self._client.get(run.id)).output
            text += f" after {duration(event.at - run.created_at)}"
            text += "" if output is None else f"  {one_line(output)}"
        if run.id not in self._named:
            self._named.add(run.id)
            text += f"  run {run.id}"
        clock = paint(event.at.astimezone().strftime("%H:%M:%S"), "dim")
        name = truncate(f"{printable(run.graph)} {printable(run.thread_id)}", WIDEST_NAME)
        self._columns = max(self._columns, display_width(name))
        name += " " * (self._columns - display_width(name))
        print(f"{clock}  {name}  {paint(printable(text), view.tone)}")
        for line in await self._details(run, view):
            print(f"{MARGIN}{line}")
        sys.stdout.flush()

    async def _details(self, run: Run, view: EventView) -> Iterable[str]:
        """The lines below an event: an exception, or a question, and the command that goes on."""
        action, lines = view.action, [paint(printable(line), "red") for line in view.lines]
        if action is not None and action.verb is Verb.ANSWER:
            waits = await self._client.waits(run_id=run.id)
            wait = next((one for one in waits if one.id == action.ids[0]), None)
            action = None if wait is None else answer_action(wait)
            lines += [] if wait is None else [one_line(wait.value, 300)]
        return lines if action is None else [*lines, command_for(action, self._at)]


def local_time(at: datetime) -> str:
    """A time where this computer is; with its date unless it is today."""
    here = at.astimezone()
    today = here.date() == datetime.now().astimezone().date()
    return here.strftime("%H:%M:%S" if today else "%a %d %b %Y, %H:%M")
