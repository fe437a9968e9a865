"""`perdure` on a command line of its own: what it says, and how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.fork_server import Child, ForkServer
from tests.support.polling import until


class CliProcess:
    """A command. A new interpreter takes seconds until LangGraph is imported; a fork server has
    imported it. The process leads a session of its own."""

    def __init__(
        self,
        server: ForkServer | None,
        folder: Path,
        *arguments: str,
        apart: bool = False,
        **environment: str | None,
    ) -> None:
        """In a new interpreter without a `server`. `apart` keeps what goes to stderr in `err`. A
        variable that is None is not set."""
        given = {**os.environ, "PERDURE_URL": None, **environment}
        kept = {name: value for name, value in given.items() if value is not None}
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        with tempfile.TemporaryDirectory() as pipes:
            out, err = f"{pipes}/out", f"{pipes}/err" if apart else None
            self._readers = [self._reader(name) for name in (out, err) if name is not None]
            self._process: Child | subprocess.Popen[bytes]
            if server is None:
                self._process = _start_interpreter(folder, arguments, kept, out, err)
            else:
                self._process = server.start(
                    "cli_child:run",
                    exits=True,
                    limit=600,
                    folder=str(folder),
                    arguments=arguments,
                    environment=kept,
                    out=out,
                    err=err,
                )
            for opened, _ in self._readers:
                assert opened.wait(60)

    def _reader(self, path: str) -> tuple[threading.Event, threading.Thread]:
        os.mkfifo(path)
        opened = threading.Event()

        def read() -> None:
            with open(path) as lines:  # once the process has it open, too
                opened.set()
                self._lines[Path(path).name].extend(lines)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return opened, thread

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        """What it said until now."""
        return "".join(self._lines["out"])

    @property
    def err(self) -> str:
        return "".join(self._lines["err"])

    def is_over(self) -> bool:
        """Whether it, and every process that it started, closed its output."""
        return not any(thread.is_alive() for _, thread in self._readers)

    def says(self, pattern: str) -> str:
        """What it said last that matches, or the group of it."""
        found: list[str] = []

        def look() -> bool:
            is_over = self.is_over()
            found[:] = re.findall(pattern, self.text + self.err)
            return bool(found) or is_over

        until(look, f"{pattern} in\n{self.text}{self.err}")
        assert found, f"{pattern} in\n{self.text}{self.err}"
        return found[-1]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return self.ends()

    def ends(self) -> int:
        """Its exit code, after its output is closed."""
        code = self._process.wait(60)
        for _, thread in self._readers:
            thread.join(60)
        assert self.is_over(), f"another process is still there:\n{self.text}{self.err}"
        return code

    def close(self) -> None:
        """Kill it if it is still there."""
        self._process.kill()
        self.ends()


def _start_interpreter(
    folder: Path, arguments: tuple[str, ...], environment: dict[str, str], out: str, err: str | None
) -> subprocess.Popen[bytes]:
    with open(out, "wb") as stdout, open(err or os.devnull, "wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "perdure", *arguments],
            cwd=folder,
            env=environment,
            stdout=stdout,
            stderr=stderr if err else subprocess.STDOUT,
            start_new_session=True,
        )


@contextlib.contextmanager
def cli_process(
    server: ForkServer | None, folder: Path, *arguments: str, **environment: str
) -> Iterator[CliProcess]:
    """One that is killed at the end of the block, if it is still there."""
    running = CliProcess(server, folder, *arguments, apart=False, **environment)
    try:
        yield running
    finally:
        running.close()


# -- Programs in a fresh interpreter.


def run_python(program: str, *arguments: str) -> None:
    """Run a program, which must end well."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def loaded_after(code: str) -> set[str]:
    """The top-level modules in a fresh interpreter that ran some code."""
    code += "; import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())
