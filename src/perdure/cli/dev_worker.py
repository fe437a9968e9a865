"""The child of `perdure dev`: it loads a project, drives it, and prints the feed of its events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import webbrowser
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perdure.cli.dev_options import DevOptions
from perdure.cli.langgraph_json import Project, find_project
from perdure.cli.log_output import EVENTS, SafeLines, guard_stderr, log_json
from perdure.cli.output import at_option, paint, print_error, print_status
from perdure.cli.target import measured, observed
from perdure.errors import BadArgument, Error
from perdure.text import printable

if TYPE_CHECKING:
    from perdure.cli.event_feed import EventFeed
    from perdure.runtime import Runtime
    from perdure.server.options import ServerSettings


def main(options: str, number: str, pipe: str) -> int:
    """Entry point of the child process. The supervisor handles interrupts from the terminal."""
    guard_stderr()
    signal.signal(signal.SIGINT, lambda *_: None)
    _stop_with_parent(int(pipe))
    return drive_project(DevOptions.of_json(options), child=int(number))


def drive_project(options: DevOptions, *, child: int = 0) -> int:
    """Load a project and drive it until stopped. Returns the exit code. `child` is the number of
    the supervisor's child, from 1; 0 without a supervisor."""
    from perdure.cli.event_feed import EventFeed
    from perdure.cli.graph_loading import load_project

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
        rt = observed(load_project(project))
        asyncio.run(drive(project, log_json(rt) if options.as_json else rt))
    except Error as error:
        print_error(error)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def _make_server(rt: Runtime, options: DevOptions) -> tuple[Any, str]:
    """The HTTP server of the project, without a worker, since the child already runs one; and the
    URL of its pages."""
    from perdure.cli.serve import check_exposure, import_server, make_app, pages_url

    settings: ServerSettings = {
        "worker": False,
        "hosts": options.hosts,
        "cors": options.cors,
        "insecure": options.insecure,
        "ui": options.ui,
    }
    measured(rt)
    app = make_app(rt, settings)
    await check_exposure(rt, settings, options.host, options.at)
    pages = ""
    if options.ui and options.socket is not None:
        pages = await pages_url(rt, settings, _address(options.socket))
    return import_server().HttpServer(app, grace=options.grace, handle_signals=False), pages


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
        "start": f"perdure start {next(iter(project.graphs))} --input JSON{at_option(options.at)}",
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


def _address(descriptor: int) -> str:
    from perdure.cli.serve import import_server

    with socket.socket(fileno=os.dup(descriptor)) as listening:
        address: str = import_server().address(listening)
        return address


def _stop_with_parent(pipe: int) -> None:
    """Stop when the process with the other end of the pipe is gone."""

    def wait() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
