"""`perdure` on a command line: in this process, in one of its own, or in one with a terminal."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
_MODULE, _, _NAME = _PROJECT["project"]["scripts"]["perdure"].partition(":")


def main(arguments: list[str]) -> int:
    """The command `perdure` in this process, as an installation of this tree would find it."""
    code: int = getattr(importlib.import_module(_MODULE), _NAME)(arguments)
    return code


class Told(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[dict[str, Any]]:
        """Its output as lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def done(self) -> Told:
        """The same, if all went well."""
        assert (self.code, self.err) == (0, ""), self
        return self

    @property
    def refused(self) -> str:
        """The sentence with which it refused, and nothing else."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("perdure: ")
        assert self.err.count("\n") == 1
        return self.err


Command = Callable[..., Told]


def every_command() -> dict[str, Any]:
    """Every command by its name; those of a group as `d1 init`."""
    from perdure.cli import app

    found: dict[str, Any] = {}
    for name, one in app.commands.items():
        group = getattr(one, "commands", None)
        found |= {name: one} if group is None else {f"{name} {sub}": group[sub] for sub in group}
    return found


def commands_at(capsys: pytest.CaptureFixture[str], url: str) -> Command:
    """Commands in this process, on one journal."""

    def run(*arguments: str) -> Told:
        capsys.readouterr()
        code = main([*arguments, "--at", url])
        out, err = capsys.readouterr()
        return Told(code, out, err)

    return run


def spawn(*arguments: str, stdin: str | None = None, cwd: Any = None, **environment: str) -> Told:
    """A command in a process of its own, without the PERDURE_URL of this one."""
    kept = {name: value for name, value in os.environ.items() if name != "PERDURE_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "perdure", *arguments],
        input=stdin,
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Told(done.returncode, done.stdout, done.stderr)


def in_terminal(*arguments: str, columns: int = 80, **environment: str) -> Told:
    """A command in a terminal of so many columns; what it shows there, also on stderr."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PERDURE_URL", "NO_COLOR", "COLUMNS", "TERM")
    }
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "perdure", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm"} | environment,
    )
    os.close(theirs)
    shown = b""
    try:
        while read := os.read(ours, 65536):
            shown += read
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
    return Told(child.wait(60), shown.decode().replace("\r\n", "\n"), "")


def python_path(folder: str) -> str:
    """For a child process: a folder, and before it what this process was given."""
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))
