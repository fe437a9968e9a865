"""Outward actions: which of Python's audit events they are, and whose code makes them.

An action belongs to the nearest line of the agent's own code on the stack. What Python, LangGraph
and perdure do for themselves has no such line, and is left out.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import perdure
from perdure.effects import context
from perdure.langgraph_port import configs
from perdure.testing import crashes

_OWN = (__file__, str(Path(__file__).with_name("observer.py")), crashes.__file__)
_HOME = str(Path(perdure.__file__).parent) + os.sep
_EFFECTS = os.path.join(_HOME, "effects", "")
_DRIVERS = tuple(os.path.join(_HOME, name, "") for name in ("execution", "testing"))
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_paths()[name]) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class Where(NamedTuple):
    """Where in the agent something happens: `file:line`, or the node; and in which effect."""

    place: str
    effect: str | None


def calling_place(package: str) -> Where | None:
    """Where the calling code acts, for an agent whose code is in this file or folder. None for what
    perdure, Python's imports and the loop do for themselves."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _OWN:
        frame = frame.f_back
    line = ""
    while frame is not None:
        kind = _owner(frame.f_code.co_filename, package)
        if kind == "agent" and not line:
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        elif kind in ("perdure", "import") and not line:
            return None
        elif kind == "effects":
            return Where(line, current_effect() or "effect") if line else None
        elif kind == "driver" and not line:
            break
        frame = frame.f_back
    place = line or node_words()
    return Where(place, current_effect()) if place else None


@cache
def _owner(
    file: str, agent: str
) -> Literal["agent", "library", "import", "perdure", "effects", "driver"]:
    """Whose code a file is. `agent` is where the agent's own code is, which may be installed."""
    if file.startswith("<frozen importlib") or file.endswith(f"{os.sep}tempfile.py"):
        return "import"
    if file.startswith("<"):
        return "library"
    file = os.path.realpath(file)
    if file.startswith(_HOME):
        if file.startswith(_DRIVERS):
            return "driver"
        return "effects" if file.startswith(_EFFECTS) else "perdure"
    return "library" if file.startswith(_LIBRARIES) and not file.startswith(agent) else "agent"


def current_effect() -> str | None:
    """The key of the effect whose function, or whose question to the far side, is being called."""
    around = context.current()
    return None if around is None else around.key


def node_words() -> str:
    """The node in whose context this is, for what its libraries do in tasks of their own."""
    node = configs.current_node()
    return f"node {node!r}" if node else ""


def _open(path: Any, mode: Any, flags: Any) -> str | None:
    writes = any(one in mode for one in "wax+") if isinstance(mode, str) else flags & _WRITES
    if not writes or isinstance(path, int):
        return None
    path = os.fsdecode(path)
    return None if path.startswith("/dev/") else f"writes {os.path.basename(path)}"


def _address(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def _file(verb: str) -> Callable[..., str]:
    return lambda path, *rest: f"{verb} {os.path.basename(os.fsdecode(path))}"


ACTIONS: dict[str, Callable[..., str | None]] = {
    "open": _open,
    "socket.connect": lambda _, address: f"connects to {_address(address)}",
    "socket.sendto": lambda _, address: f"sends to {_address(address)}",
    "socket.sendmsg": lambda _, address: f"sends to {_address(address)}",
    "smtplib.connect": lambda _, host, port: f"connects to {host}:{port}",
    "smtplib.send": lambda *_: "sends over SMTP",
    "http.client.connect": lambda _, host, port: f"connects to {host}:{port}",
    "http.client.send": lambda *_: "sends over HTTP",
    "urllib.Request": lambda url, *rest: f"asks for {url}",
    "ftplib.sendcmd": lambda *_: "sends over FTP",
    "imaplib.send": lambda *_: "sends over IMAP",
    "poplib.putline": lambda *_: "sends over POP",
    "telnetlib.Telnet.write": lambda *_: "sends over Telnet",
    "subprocess.Popen": lambda program, *rest: f"starts {program}",
    "os.system": lambda command: f"starts {command!r}",
    "os.posix_spawn": _file("starts"),
    "os.spawn": lambda mode, path, *rest: f"starts {path}",
    "os.exec": _file("becomes"),
    "os.remove": _file("removes"),
    "os.rename": _file("renames"),
    "os.mkdir": _file("makes the folder"),
    "os.rmdir": _file("removes the folder"),
    "os.link": _file("links"),
    "os.symlink": _file("links"),
    "os.truncate": lambda path, *rest: "truncates a file",
    "sqlite3.connect": lambda database: f"opens the database {os.path.basename(str(database))}",
}
