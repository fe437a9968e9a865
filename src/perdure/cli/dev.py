"""`perdure dev`: the graphs of a LangGraph project, driven durably while they are being written.

Two processes. This one watches the project's files; its child has the graphs, drives them, and
shows what happens. When a file changes, or the child dies, there is a new child: runs are in the
journal, so they go on, with the new code. Code that cannot be loaded is told, and waits for the
next change. When this one is gone, even by SIGKILL, the child notices, and stops too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.errors import BadArgument, Error

if TYPE_CHECKING:
    import asyncio

    from perdure.cli.project import Project
    from perdure.runtime import Runtime

Snapshot = dict[Path, tuple[int, int]]

EVERY = 0.3
"""Seconds between two looks at the files."""
PATIENCE = 5.0
"""Seconds beyond its grace that a child has to stop."""
TOLD = 2
"""The exit code of a child that said what is wrong."""
CHILD = "import sys; from perdure.cli.dev import main; sys.exit(main(*sys.argv[1:]))"
SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


def dev(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="With a langgraph.json, or below one.")
    ] = Path("."),
    reload: Annotated[bool, typer.Option(help="Start anew when a file changes.")] = True,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Segments at once.")] = 50,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="For steps to end before it starts anew.")
    ] = 10,
) -> None:
    """Drive a LangGraph project durably, and show what happens."""
    from perdure.cli.place import typed
    from perdure.cli.project import URL, absolute, find_project

    here = find_project()
    project = find_project(folder)
    if project is None:
        raise BadArgument(
            f"There is no langgraph.json in {folder.absolute()}, nor above it. Start where your "
            "project is, or drive a Runtime: perdure worker module:name."
        )
    if os.environ.get(URL):
        os.environ[URL] = absolute(os.environ[URL], Path.cwd())
    at = "" if here is not None and here.file == project.file else typed(str(folder))
    os.chdir(project.folder)
    if reload:
        code = Supervisor(project.file, [at, str(concurrency), str(grace)], grace).run()
    else:
        code = child(project.file, at, concurrency, grace)
    raise typer.Exit(code)


# -- the one that watches


class Supervisor:
    """Has a child that drives, as long as it is not told to stop."""

    def __init__(self, file: Path, arguments: list[str], grace: float) -> None:
        self._file, self._arguments, self._grace = file, arguments, grace
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._begun = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self._stopping.is_set():
            before = snapshot(self._file)
            ours, alive = os.pipe()  # whose other end closes when this process is gone
            try:
                child = self._child = self._begin(ours)
                os.close(ours)
                self._watch(child, before)
                if self._stopping.is_set() and child.poll() is None:
                    _say("stopping at the next step; once more, and it stops at once")
                self._end(child)
            finally:
                os.close(alive)
        _say("stopped; what is not over goes on when you start it again")
        return 0

    def _stop(self, number: int, frame: object) -> None:
        """The first time the child drains, the second time it dies."""
        if self._child is not None and self._stopping.is_set():
            self._child.kill()
        elif self._child is not None:
            self._ask(self._child)
        self._stopping.set()

    def _ask(self, child: subprocess.Popen[bytes]) -> None:
        """Once: a second time would be rude."""
        if child is not self._asked:
            self._asked = child
            child.terminate()

    def _begin(self, alive: int) -> subprocess.Popen[bytes]:
        self._begun += 1
        arguments = [str(self._file), *self._arguments, str(self._begun > 1), str(alive)]
        return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], pass_fds=(alive,))

    def _watch(self, child: subprocess.Popen[bytes], before: Snapshot) -> None:
        """Until there is to be another child, or none."""
        code = None
        while not self._stopping.is_set():
            now = snapshot(self._file)
            if changed := [path for path in {**now, **before} if now.get(path) != before.get(path)]:
                return _say(f"{os.path.relpath(changed[0])} changed: starting anew")
            if code is None and (code := child.poll()) is not None:
                if code < 0:
                    return _say(f"killed by {signal.Signals(-code).name}: starting anew")
                _say("waiting for a change of the project's files")
            time.sleep(EVERY)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        self._ask(child)
        try:
            child.wait(self._grace + PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def snapshot(file: Path) -> Snapshot:
    """The code of a project, and when each file of it was changed."""
    from perdure.cli.project import find_project

    roots = {file.parent}
    with contextlib.suppress(Error):  # which the child tells
        roots |= {*getattr(find_project(file), "paths", ())}
    found = {}
    for path in {path for root in roots for path in _code(root)} | {file}:
        with contextlib.suppress(OSError):  # it is gone since
            stat = path.stat()
            found[path] = stat.st_mtime_ns, stat.st_size
    return found


def _code(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        ]
        yield from (Path(place, name) for name in files if name.endswith((".py", ".env")))


def _say(sentence: str) -> None:
    from perdure.cli.tell import paint

    print(paint(f"perdure dev: {sentence}", "bold"), flush=True)


# -- the one that drives


def child(
    file: Path, at: str, concurrency: int, grace: float, *, again: bool = False, alone: bool = True
) -> int:
    """Load a project and drive it until told to stop. Gives the exit code."""
    import asyncio

    from perdure.cli.project import find_project

    try:
        project = find_project(file)
        if project is None:
            raise BadArgument(f"{file} is gone.")
        rt = project.load()

        async def drive() -> None:
            async with rt:
                _introduce(project, rt, at, again)
                await _drive(rt, at, concurrency, grace, alone)

        asyncio.run(drive())
    except Error as error:
        from perdure.cli.tell import sentence

        print(f"perdure: {sentence(error)}", file=sys.stderr)
        return TOLD
    except KeyboardInterrupt:
        return 130
    return 0


async def _drive(rt: Runtime, at: str, concurrency: int, grace: float, alone: bool) -> None:
    import asyncio
    from datetime import timedelta

    from perdure.cli.feed import Feed
    from perdure.types import moment

    since = await asyncio.to_thread(lambda: rt.services.clock.now())
    feed = Feed(rt, moment(since), at)
    with feed.listening():
        showing = asyncio.create_task(feed.run())
        showing.add_done_callback(_tell_end)
        working = asyncio.create_task(
            rt.work(concurrency=concurrency, grace=timedelta(seconds=grace), handle_signals=alone)
        )
        if not alone:  # one signal is the supervisor's; a terminal sends everybody another one
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await working
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            await feed.look()


def _tell_end(showing: asyncio.Task[None]) -> None:
    """A display that broke does not stop the worker, and is not passed over in silence."""
    if not showing.cancelled() and (error := showing.exception()) is not None:
        print(f"perdure dev: nothing more is shown: {error!r}", file=sys.stderr, flush=True)


def _introduce(project: Project, rt: Runtime, at: str, again: bool) -> None:
    """What was found; the second time only that it goes on."""
    from perdure.cli.tell import paint

    graphs = ", ".join(project.graphs)
    if again:
        return _say(f"driving {graphs} (pid {os.getpid()})")
    told = {
        "graphs": graphs,
        "journal": rt.url,
        "worker": f"pid {os.getpid()}, which may be killed",
        "start": f"perdure start {next(iter(project.graphs))} --input JSON{at}",
    }
    _say(str(project.file))
    for name, value in [*told.items(), *(("note", note) for note in project.notes)]:
        print(f"  {paint(f'{name:8}', 'dim')} {value}", flush=True)


def _stop_with(pipe: int) -> None:
    """Stop when whoever has the other end is gone."""

    def wait() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main(file: str, at: str, concurrency: str, grace: str, again: str, alive: str) -> int:
    """The child's process, which leaves an interrupt from the terminal to the supervisor."""
    signal.signal(signal.SIGINT, lambda *_: None)
    _stop_with(int(alive))
    options = {"again": again == "True", "alone": False}
    return child(Path(file), at, int(concurrency), float(grace), **options)
