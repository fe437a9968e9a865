"""`perdure dev`: drive a LangGraph project durably while it is being written.

Two processes. This one watches the project's files; its child (`dev_worker`) loads the graphs,
drives them, and shows what happens. When a file changes, or the child is killed, a new child
starts: runs are in the journal, so they go on, with the new code. Code that cannot be loaded is
reported, and the next change is waited for. If this process dies, even by SIGKILL, the child
notices and stops too.
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
from typing import Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import Concurrency, LogJson
from perdure.cli.output import print_status
from perdure.cli.target import one_place
from perdure.errors import BadArgument, Error

Snapshot = dict[Path, tuple[int, int]]

POLL_INTERVAL = 0.3
"""Seconds between two looks at the files."""
KILL_AFTER = 5.0
"""Seconds beyond its grace that a child has to stop."""
STOPPING = "stopping at the next step; interrupt again to stop at once"
CHILD = "import sys; from perdure.cli.dev_worker import main; sys.exit(main(*sys.argv[1:]))"
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


def dev(
    place: Annotated[
        str | None, Argument(metavar="FOLDER", help="With a langgraph.json, or below one.")
    ] = None,
    at: Annotated[
        str | None, Option("--at", "-a", metavar="FOLDER", help="The same; default: here.")
    ] = None,
    reload: Annotated[bool, Option(help="Restart when a file changes.")] = True,
    concurrency: Concurrency = 50,
    grace: Annotated[
        float, Option(metavar="SECONDS", help="For steps to end before a restart.")
    ] = 10,
    as_json: LogJson = False,
) -> None:
    """Drive a LangGraph project durably, and show what happens."""
    from perdure.cli.dev_worker import drive_project
    from perdure.cli.langgraph_json import URL, absolute_url, find_project

    folder, here = Path(one_place(place, at) or "."), find_project()
    project = find_project(folder)
    if project is None:
        raise BadArgument(
            f"There is no langgraph.json in {folder.absolute()}, nor above it. Start where your "
            "project is, or drive a Runtime: perdure worker module:name."
        )
    if os.environ.get(URL):
        os.environ[URL] = absolute_url(os.environ[URL], Path.cwd())
    at = "" if here is not None and here.file == project.file else str(folder)
    os.chdir(project.folder)
    if reload:
        arguments = [at, str(concurrency), str(grace), "json" if as_json else ""]
        code = Supervisor(project.file, arguments, grace).run()
    else:
        code = drive_project(project.file, at, concurrency, grace, as_json=as_json)
    raise Exit(code)


class Supervisor:
    """Keeps a child running that drives the project, until it is told to stop."""

    def __init__(self, file: Path, arguments: list[str], grace: float) -> None:
        self._file, self._arguments, self._grace = file, arguments, grace
        self._child: subprocess.Popen[bytes] | None = None
        self._terminated: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._children = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while not self._stopping.is_set():
            before = snapshot(self._file)
            read_end, write_end = os.pipe()  # the child sees it close when this process dies
            try:
                child = self._child = self._spawn(read_end)
                os.close(read_end)
                self._watch(child, before)
                if self._stopping.is_set() and child.poll() is None:
                    print_status("dev", STOPPING)
                self._stop(child)
            finally:
                os.close(write_end)
        print_status("dev", "stopped; unfinished runs go on when you start it again")
        return 0

    def _on_signal(self, number: int, frame: object) -> None:
        """The first signal drains the child, the second kills it."""
        if self._child is not None and self._stopping.is_set():
            self._child.kill()
        elif self._child is not None:
            self._terminate(self._child)
        self._stopping.set()

    def _terminate(self, child: subprocess.Popen[bytes]) -> None:
        """Send SIGTERM once: a second one would cut the drain short."""
        if child is not self._terminated:
            self._terminated = child
            child.terminate()

    def _spawn(self, pipe: int) -> subprocess.Popen[bytes]:
        self._children += 1
        arguments = [str(self._file), *self._arguments, str(self._children), str(pipe)]
        return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], pass_fds=(pipe,))

    def _watch(self, child: subprocess.Popen[bytes], before: Snapshot) -> None:
        """Return when the child is to be replaced, or to stop."""
        code = None
        while not self._stopping.is_set():
            now = snapshot(self._file)
            if changed := [path for path in {**now, **before} if now.get(path) != before.get(path)]:
                return print_status("dev", f"{os.path.relpath(changed[0])} changed: restarting")
            if code is None and (code := child.poll()) is not None:
                if code < 0:
                    killer = signal.Signals(-code).name
                    return print_status("dev", f"killed by {killer}: restarting")
                print_status("dev", "waiting for a change of the project's files")
            time.sleep(POLL_INTERVAL)

    def _stop(self, child: subprocess.Popen[bytes]) -> None:
        self._terminate(child)
        try:
            child.wait(self._grace + KILL_AFTER)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def snapshot(file: Path) -> Snapshot:
    """The code files of a project, with their times and sizes."""
    from perdure.cli.langgraph_json import find_project

    roots = {file.parent}
    with contextlib.suppress(Error):  # which the child reports
        roots |= {*getattr(find_project(file), "paths", ())}
    found = {}
    for path in {path for root in roots for path in _code_files(root)} | {file}:
        with contextlib.suppress(OSError):  # deleted since
            stat = path.stat()
            found[path] = stat.st_mtime_ns, stat.st_size
    return found


def _code_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED_FOLDERS
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        ]
        yield from (Path(place, name) for name in files if name.endswith((".py", ".env")))
