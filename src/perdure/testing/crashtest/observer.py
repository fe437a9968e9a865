"""Observes a process of a crash test from inside: the points it reaches, and its outward actions.

The process kills itself with SIGKILL, so that it dies exactly at its point. Effect calls, model
calls and outward actions are reported to the judge before they happen. An outward action is a
Python audit event. It belongs to the nearest line of the agent's own code on the stack; what
Python, LangGraph and perdure do for themselves has no such line and is left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import perdure
from perdure.effects import context
from perdure.journal import failpoints
from perdure.langgraph_port import task_config
from perdure.testing.crashtest import witness
from perdure.testing.crashtest.messages import JudgeConnection
from perdure.testing.crashtest.model import KEEPER, Point, follows_action
from perdure.testing.crashtest.phases import Phases

_OWN = (__file__, witness.__file__)
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


class ProcessObserver:
    """The observer of one process."""

    def __init__(self, connection: JudgeConnection, kill: Point | None, package: str) -> None:
        self._connection, self._kill, self._package = connection, kill, package
        self._busy = threading.local()
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._armed = False
        self._phases = Phases()
        self._actions = 0
        self._acted = self._returned = False
        """Whether something left the process, or an effect returned, since the last point; and
        since the last commit."""
        self._entries: Counter[str] = Counter()
        """How often each task's node was entered, by its namespace."""
        self._first: dict[tuple[str, ...], int] = {}
        """At which entry each outward action of a task was first seen."""
        self.points: list[tuple[str, str, int]] = []
        """Name, phase and nearness of each point that was reached, in order."""

    def install(self) -> None:
        """Observe from now until the process ends."""
        failpoints.hook = self.at
        failpoints.called = partial(self._connection.send, "effect")
        failpoints.asked = partial(self._connection.send, "asked")
        witness.report = partial(self._report, "outside")
        sys.addaudithook(self._audit)
        _follow_callbacks(self)

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

    def call_model(self, name: str) -> None:
        self._report("model", name)

    def at(self, name: str) -> None:
        """The process reached a point: count it, and die if it is the one."""
        if not self._armed:
            return
        thread = threading.current_thread().name
        if thread == "perdure-keeper":
            name = KEEPER + name
        node = task_config.current_node()
        with self._counting:
            self._counts[name] += 1
            kept = name.startswith(KEEPER)
            phase = "while its lease was renewed" if kept else self._phases.at(name, node)
            # A read may be a look of the worker, beside the run: it follows nothing that left.
            is_beside = kept or thread == "perdure-read"
            near = 0 if is_beside else self._nearness(name)
            self.points.append((name, phase, near))
            is_after = follows_action(name, near)
            self._actions += is_after
            here = self._kill == Point(name, self._counts[name])
            if self._kill is not None and self._kill.action:
                here = is_after and self._actions == self._kill.action
        if here:
            self._connection.send("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    def _nearness(self, name: str) -> int:
        """How near a point is to something that left the process just now."""
        if name.startswith("effect "):
            self._acted = self._returned = name.endswith(".after")
            return 2 if self._acted else 1
        if self._acted:
            self._acted = False
            return 1 if self._returned else 2
        if self._returned and name == "commit.after":
            self._returned = False
            return 1
        return 0

    def _report(self, kind: str, what: str) -> None:
        where = self._where(sys._getframe(1)) or Where("", _effect())
        self._connection.send(kind, what, *where)
        self._act(kind, what, what, where)

    def _act(self, kind: str, event: str, what: str, where: Where) -> None:
        """Something leaves the process outside of effects: is it the same task once more?"""
        if where.effect is not None:
            return
        namespace = task_config.current_namespace()
        with self._counting:
            self._acted = True
            entry = self._entries[namespace]
            first = self._first.setdefault((kind, event, where.place, namespace), entry)
        if namespace and entry > first:
            self._connection.send("repeated", kind, what, where.place, _node())

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
            if what is not None and (where := self._where(sys._getframe(1))) is not None:
                self._connection.send("action", event, what, *where)
                self._act("action", event, what, where)
        finally:
            self._busy.now = False

    def _where(self, frame: FrameType | None) -> Where | None:
        """None for what perdure, Python's imports and the loop do for themselves."""
        line = ""
        while frame is not None and frame.f_code.co_filename in _OWN:
            frame = frame.f_back
        while frame is not None:
            kind = _owner(frame.f_code.co_filename, self._package)
            if kind == "agent" and not line:
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            elif kind in ("perdure", "import") and not line:
                return None
            elif kind == "effects":
                return Where(line, _effect() or "effect") if line else None
            elif kind == "driver" and not line:
                break
            frame = frame.f_back
        place = line or _node()
        return Where(place, _effect()) if place else None


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


def _effect() -> str | None:
    """The key of the effect whose function, or whose question to the far side, is being called."""
    around = context.current()
    return None if around is None else around.key


def _node() -> str:
    """The node in whose context this is, for what its libraries do in tasks of their own."""
    node = task_config.current_node()
    return f"node {node!r}" if node else ""


def _follow_callbacks(observer: ProcessObserver) -> None:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.tracers.context import register_configure_hook
    from langgraph.errors import GraphBubbleUp

    class Callbacks(BaseCallbackHandler):
        run_inline = True

        def on_chat_model_start(self, serialized: Any, messages: Any, **more: Any) -> None:
            observer.call_model(_model_name(serialized, more))

        def on_llm_start(self, serialized: Any, prompts: Any, **more: Any) -> None:
            observer.call_model(_model_name(serialized, more))

        def on_chain_start(self, serialized: Any, inputs: Any, **more: Any) -> None:
            metadata = more.get("metadata") or {}
            if node := task_config.node_of_callback(more.get("tags"), metadata):
                observer.enter(more["run_id"], node, metadata.get("langgraph_checkpoint_ns", ""))

        def on_chain_end(self, outputs: Any, **more: Any) -> None:
            observer.leave(more["run_id"], "ended")

        def on_chain_error(self, error: BaseException, **more: Any) -> None:
            waits = isinstance(error, GraphBubbleUp)
            observer.leave(more["run_id"], "began to wait" if waits else "raised")

    handler: BaseCallbackHandler | None = Callbacks()
    # By its default it is there in every thread and task.
    register_configure_hook(ContextVar("callbacks of a crash test", default=handler), True)


def _model_name(serialized: Any, more: dict[str, Any]) -> str:
    name = (more.get("metadata") or {}).get("ls_model_name") or more.get("name")
    return str(name or (serialized or {}).get("name") or "model")


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
