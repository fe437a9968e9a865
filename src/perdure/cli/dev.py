"""`perdure dev`: drive and serve a LangGraph project durably while it is being written.

There are two processes. This one listens, and watches the project's files. Its child (`dev_worker`)
loads the graphs, drives and serves them, and shows what happens. When a file changes, or the child
is killed, a new child starts: runs are in the journal, so they go on with the new code. If the code
cannot be loaded, the error is reported and the next change starts a new child. If this process
dies, even by SIGKILL, the child notices and stops too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from click.exceptions import Exit

from perdure.cli.options import Parameter
from perdure.cli.output import print_status
from perdure.cli.project import URL, absolute_url, find_project
from perdure.cli.serving import (
    PORT,
    AllowHost,
    Concurrency,
    Cors,
    DevOptions,
    Grace,
    Host,
    Insecure,
    LogJson,
    Ui,
    import_server,
)
from perdure.errors import BadArgument, Error

Snapshot = dict[Path, tuple[int, int]]

POLL_INTERVAL = 0.3
"""Seconds between two scans of the files."""
KILL_AFTER = 5.0
"""Seconds beyond its grace that a child has to stop."""
STOPPING = "stopping at the next step; interrupt again to stop at once"
CHILD = "import sys; from perdure.cli.dev_worker import main; sys.exit(main(*sys.argv[1:]))"
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


def dev(
    folder: Annotated[str, Parameter(metavar="FOLDER")] = ".",
    *,
    host: Host = "127.0.0.1",
    port: int = PORT,
    reload: bool = True,
    concurrency: Concurrency = 50,
    grace: Grace = 10.0,
    allow_host: AllowHost = (),
    cors: Cors = (),
    insecure: Insecure = False,
    ui: Ui = True,
    browser: bool = True,
    as_json: LogJson = False,
) -> None:
    """Drive and serve a LangGraph project while you write it.

    Serves LangGraph's Agent Server API, opens the inbox and the dashboard in a browser, and prints
    events as they happen. When a file changes it restarts, and runs continue with the new code.
    Without the packages of the extra `server` it only drives.

    Args:
        folder: The project's folder, one inside it, or its langgraph.json.
        port: Port to listen on. If it is taken, the next free one.
        reload: Restart when a file of the project changes.
        browser: Open the pages in a browser. Without a terminal it never does.
    """
    here, project = find_project(), find_project(folder)
    if project is None:
        raise BadArgument(
            f"There is no langgraph.json in {Path(folder).absolute()} or above it. Run this in "
            "your project, or drive a Runtime: perdure worker module:name."
        )
    if os.environ.get(URL):
        os.environ[URL] = absolute_url(os.environ[URL], Path.cwd())
    listening = _listen(host, port)
    os.chdir(project.folder)
    options = DevOptions(
        file=str(project.file),
        at="" if here is not None and here.file == project.file else folder,
        concurrency=concurrency,
        grace=grace,
        as_json=as_json,
        host=host,
        socket=None if listening is None else listening.fileno(),
        settings={"hosts": allow_host, "cors": cors, "insecure": insecure, "ui": ui},
        browser=ui and browser and sys.stdout.isatty(),
    )
    if reload:
        raise Exit(Supervisor(options).run())
    from perdure.cli.dev_worker import drive_project

    raise Exit(drive_project(options))


def _listen(host: str, port: int) -> socket.socket | None:
    """A socket that all children share: a connection made during a restart waits for the next
    child. None if the packages for serving are missing; the project is still driven."""
    try:
        http_server = import_server()
    except Error as error:
        print_status("dev", f"not served: {error}")
        return None
    listening: socket.socket = http_server.listen(host, port, search=True)
    if port not in (0, found := listening.getsockname()[1]):
        print_status("dev", f"port {port} is taken; using {found}")
    return listening


class Supervisor:
    """Keeps a child running that drives the project, until stopped."""

    def __init__(self, options: DevOptions) -> None:
        self._options = options
        self._file, self._grace = Path(options.file), options.grace
        self._child: subprocess.Popen[bytes] | None = None
        self._terminated: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._children = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while not self._stopping.is_set():
            before = snapshot(self._file)
            read_end, write_end = os.pipe()  # closes when this process dies, and the child sees it
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
        arguments = [json.dumps(asdict(self._options)), str(self._children), str(pipe)]
        inherited = [pipe] if self._options.socket is None else [pipe, self._options.socket]
        return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], pass_fds=inherited)

    def _watch(self, child: subprocess.Popen[bytes], before: Snapshot) -> None:
        """Return when the child must be replaced or stopped."""
        code = None
        while not self._stopping.is_set():
            now = snapshot(self._file)
            if changed := [path for path in {**now, **before} if now.get(path) != before.get(path)]:
                return print_status("dev", f"{os.path.relpath(changed[0])} changed: restarting")
            if code is None and (code := child.poll()) is not None:
                if code < 0:
                    killer = signal.Signals(-code).name
                    return print_status("dev", f"killed by {killer}: restarting")
                print_status("dev", "waiting for a change to the project's files")
            time.sleep(POLL_INTERVAL)

    def _stop(self, child: subprocess.Popen[bytes]) -> None:
        self._terminate(child)
        try:
            child.wait(self._grace + KILL_AFTER)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def snapshot(file: Path) -> Snapshot:
    """The code files of a project, with modification times and sizes."""
    roots = {file.parent}
    with contextlib.suppress(Error):  # the child reports it
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
