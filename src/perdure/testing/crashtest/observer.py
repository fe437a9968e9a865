"""Observes a process of a crash test from inside: the points it reaches, and its outward actions.

The process kills itself with SIGKILL, so that it dies exactly at its point. Effect calls, model
calls and outward actions are reported to the judge before they happen.

Outward actions are some of Python's audit events. An action belongs to the nearest line of the
agent's own code on the stack. What Python, LangGraph and perdure do for themselves has no such
line, and is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp

import perdure
from perdure import failpoints, testing
from perdure.testing.crashtest.report import KEEPER, Point

GONE = 4  # exit status of a process whose judge is gone
_HOME = str(Path(perdure.__file__).parent) + os.sep
_EFFECTS = os.path.join(_HOME, "effects", "")
_DRIVERS = tuple(os.path.join(_HOME, name, "") for name in ("execution", "testing"))
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_paths()[name]) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class JudgeConnection:
    """Sends the judge what happens. A message that was acknowledged survives the death of its
    sender.

    Plain reads and writes only: they are not audited.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._pid = connection, os.getpid()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def send(self, kind: str, *facts: Any) -> None:
        """Return when the judge has it."""
        if os.getpid() != self._pid:
            return  # a process that the agent forked
        if getattr(self._thread, "sending", False):
            return  # the collector cleans up something, in the middle of a message
        self._thread.sending = True
        try:
            with self._lock:
                self._connection.send_bytes(json.dumps([kind, *facts], default=str).encode())
                self._connection.recv_bytes()
        except (OSError, EOFError):
            os._exit(GONE)
        finally:
            self._thread.sending = False


class Phases:
    """Where the run is, in the words of its own graph: nodes and effects.

        right before effect send in node mail
        in node mail, after effect send
        after node mail ended

    A point is a statement of the journal, which says little to the author of an agent.
    """

    def __init__(self) -> None:
        self.during = ""  # what the driver of the test does just now, if it does not drive
        self._running: dict[Any, str] = {}  # the nodes that run now
        self._ended = ""  # the node that ended last, and how
        self._effect = ""  # the effect that was called last, since a node began or ended

    def enter(self, run: Any, node: str) -> None:
        """A node begins."""
        self._running[run] = node
        self._effect = ""

    def leave(self, run: Any, how: str) -> None:
        """A node ended, began to wait, or raised."""
        if (node := self._running.pop(run, None)) is not None:
            self._ended, self._effect = f"after node {node} {how}", ""

    def at(self, name: str, node: str) -> str:
        """The phase of a point, which the process reaches in this node, if it is known."""
        place, _, side = name.rpartition(".")
        if place.startswith("effect "):
            if side == "before":
                return f"right before {place}" + (f" in node {node}" if node else "")
            self._effect = place
        if self.during:
            return self.during
        if self._running:
            nodes = " and ".join(dict.fromkeys(self._running.values()))
            return f"in node {nodes}" + (f", after {self._effect}" if self._effect else "")
        return self._ended or "before its first node"


class ProcessObserver:
    """The observer of one process."""

    def __init__(self, connection: JudgeConnection, kill: Point | None, package: str) -> None:
        self._connection, self._kill, self._package = connection, kill, package
        self._busy = threading.local()
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._armed = False
        self._phases = Phases()
        # How many outward actions outside of effects there were; and before the last point.
        self._actions = self._actions_before = 0
        # How often each task's node was entered, by its namespace; and at which entry each outward
        # action of a task was first seen.
        self._entries: Counter[str] = Counter()
        self._first: dict[tuple[str, ...], int] = {}
        # Name and phase of each point that was reached, and how many outward actions there were
        # before it.
        self.points: list[tuple[str, str, int]] = []

    def install(self) -> None:
        """Observe from now until the process ends."""
        failpoints.hook = self.at
        failpoints.called = partial(self._connection.send, "effect")
        failpoints.asked = partial(self._connection.send, "asked")
        testing.report = partial(self._report, "outside")
        sys.addaudithook(self._audit)
        handler: BaseCallbackHandler | None = _Callbacks(self)
        # By its default it is there in every thread and task.
        register_configure_hook(ContextVar("callbacks of a crash test", default=handler), True)

    @contextlib.contextmanager
    def armed(self, during: str = "") -> Iterator[None]:
        """Inside, points count. `during` says what the driver does, if it does not drive."""
        self._armed, self._phases.during = True, during
        try:
            yield
        finally:
            self._armed = False

    def enter(self, run: Any, node: str, namespace: str) -> None:
        """A node begins."""
        with self._counting:
            self._entries[namespace] += 1
            self._phases.enter(run, node)

    def leave(self, run: Any, how: str) -> None:
        """A node ended, began to wait, or raised."""
        with self._counting:
            self._phases.leave(run, how)

    def call_model(self, serialized: Any, more: dict[str, Any]) -> None:
        name = (more.get("metadata") or {}).get("ls_model_name") or more.get("name")
        self._report("model", str(name or (serialized or {}).get("name") or "model"))

    def at(self, name: str) -> None:
        """The process reached a point: count it, and die if it is the one."""
        if not self._armed:
            return
        kept = threading.current_thread().name == "perdure-keeper"
        name, node = (KEEPER if kept else "") + name, _task()[0]
        with self._counting:
            self._counts[name] += 1
            phase = "while its lease was renewed" if kept else self._phases.at(name, node)
            self.points.append((name, phase, self._actions))
            here = self._kill == Point(name, self._counts[name])
            if self._kill is not None and self._kill.action:
                here = self._actions_before < self._kill.action <= self._actions
            self._actions_before = self._actions
        if here:
            self._connection.send("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    def _report(self, kind: str, what: str) -> None:
        where = _calling_place(self._package) or _Where("", failpoints.current_effect())
        self._connection.send(kind, what, *where)
        self._act(kind, what, what, where)

    def _act(self, kind: str, event: str, what: str, where: _Where) -> None:
        """Something leaves the process outside of effects: is it the same task once more?"""
        if where.effect is not None:
            return
        namespace = _task()[1]
        with self._counting:
            self._actions += 1
            entry = self._entries[namespace]
            first = self._first.setdefault((kind, event, where.place, namespace), entry)
        if namespace and entry > first:
            self._connection.send("repeated", kind, what, where.place, _node_words())

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        describe = ACTIONS.get(event)
        if describe is None or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            try:
                what = describe(*args)
            except Exception:  # whatever it was called with: the call itself will say so
                what = event
            if what is not None and (where := _calling_place(self._package)) is not None:
                self._connection.send("action", event, what, *where)
                self._act("action", event, what, where)
        finally:
            self._busy.now = False


class _Callbacks(BaseCallbackHandler):
    run_inline = True

    def __init__(self, observer: ProcessObserver) -> None:
        self._observer = observer

    def on_chat_model_start(self, serialized: Any, messages: Any, **more: Any) -> None:
        self._observer.call_model(serialized, more)

    def on_llm_start(self, serialized: Any, prompts: Any, **more: Any) -> None:
        self._observer.call_model(serialized, more)

    def on_chain_start(self, serialized: Any, inputs: Any, **more: Any) -> None:
        metadata = more.get("metadata") or {}
        # Only the callbacks of a node as a whole, not of what it calls, have this tag.
        if any(tag.startswith("graph:step:") for tag in more.get("tags") or ()):
            self._observer.enter(more["run_id"], *_place_of(metadata))

    def on_chain_end(self, outputs: Any, **more: Any) -> None:
        self._observer.leave(more["run_id"], "ended")

    def on_chain_error(self, error: BaseException, **more: Any) -> None:
        waits = isinstance(error, GraphBubbleUp)
        self._observer.leave(more["run_id"], "began to wait" if waits else "raised")


# -- where the agent acts


class _Where(NamedTuple):
    """Where in the agent something happens: `file:line`, or the node; and in which effect."""

    place: str
    effect: str | None


def _place_of(metadata: dict[str, Any]) -> tuple[str, str]:
    """A node, and the namespace of its task, which is the same when the node runs again."""
    return metadata.get("langgraph_node", ""), metadata.get("langgraph_checkpoint_ns", "")


def _task() -> tuple[str, str]:
    """The node in whose context this is, and its namespace; empty outside of nodes."""
    try:
        return _place_of(get_config().get("metadata") or {})
    except RuntimeError:
        return "", ""


def _node_words() -> str:
    """The node in whose context this is, for what its libraries do in tasks of their own."""
    node = _task()[0]
    return f"node {node!r}" if node else ""


def _calling_place(package: str) -> _Where | None:
    """Where the calling code acts, for an agent whose code is in this file or folder. None for what
    perdure, Python's imports and the loop do for themselves."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, testing.__file__):
        frame = frame.f_back
    line = ""
    while frame is not None:
        kind = _owner(frame.f_code.co_filename, package)
        if kind == "agent" and not line:
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        elif kind in ("perdure", "import") and not line:
            return None
        elif kind == "effects":
            return _Where(line, failpoints.current_effect() or "effect") if line else None
        elif kind == "driver" and not line:
            break
        frame = frame.f_back
    place = line or _node_words()
    return _Where(place, failpoints.current_effect()) if place else None


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


# -- what leaves a process


def _open(path: Any, mode: Any, flags: Any) -> str | None:
    writes = any(one in mode for one in "wax+") if isinstance(mode, str) else flags & _WRITES
    if not writes or isinstance(path, int):
        return None
    path = os.fsdecode(path)
    return None if path.startswith("/dev/") else f"writes {os.path.basename(path)}"


def _address(verb: str) -> Callable[..., str]:
    def describe(_: Any, address: Any) -> str:
        is_ip = isinstance(address, tuple)
        return f"{verb} {address[0]}:{address[1]}" if is_ip else f"{verb} {address}"

    return describe


def _file(verb: str) -> Callable[..., str]:
    return lambda path, *rest: f"{verb} {os.path.basename(os.fsdecode(path))}"


ACTIONS: dict[str, Callable[..., str | None]] = {
    "open": _open,
    "socket.connect": _address("connects to"),
    "socket.sendto": _address("sends to"),
    "socket.sendmsg": _address("sends to"),
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
