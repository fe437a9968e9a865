"""Observes a process of a crash test from inside: the points it reaches, and its outward actions.

The process kills itself with SIGKILL, so that it dies exactly at its point. Effect calls, model
calls and outward actions are reported to the judge before they happen.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

from perdure import failpoints
from perdure.langgraph_port import configs
from perdure.testing import crashes
from perdure.testing.crashtest.findings import KEEPER, Point
from perdure.testing.crashtest.outward_actions import (
    ACTIONS,
    Where,
    calling_place,
    current_effect,
    node_words,
)

GONE = 4
"""Exit status of a process whose judge is gone."""


class JudgeConnection:
    """Sends the judge what happens. A message that was acknowledged survives the death of its
    sender.

    Plain reads and writes only: they are not audited.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._pid = fd, os.getpid()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def send(self, kind: str, *facts: Any) -> None:
        """Return when the judge has it."""
        if os.getpid() != self._pid:
            return  # a process that the agent forked
        if getattr(self._thread, "sending", False):
            return  # the collector cleans up something, in the middle of a line
        self._thread.sending = True
        try:
            line = json.dumps([kind, *facts], default=str).encode() + b"\n"
            with self._lock:
                self._send(memoryview(line))
        finally:
            self._thread.sending = False

    def _send(self, line: memoryview) -> None:
        try:
            while line:
                line = line[os.write(self._fd, line) :]
            acknowledged = os.read(self._fd, 1)
        except OSError:
            acknowledged = b""
        if not acknowledged:
            os._exit(GONE)


class Phases:
    """Where the run is, in the words of its own graph: nodes and effects.

        right before effect send in node mail
        in node mail, after effect send
        after node mail ended

    A point is a statement of the journal, which says little to the author of an agent.
    """

    def __init__(self) -> None:
        self.during = ""
        """What the driver of the test does just now, if it does not drive."""
        self._running: dict[Any, str] = {}
        """Nodes that run now."""
        self._ended = ""
        """The node that ended last, and how."""
        self._effect = ""
        """The effect that was called last, since a node began or ended."""

    def enter(self, run: Any, node: str) -> None:
        """A node begins."""
        self._running[run] = node
        self._effect = ""

    def leave(self, run: Any, how: str) -> None:
        """A node ended, began to wait, or raised."""
        if (node := self._running.pop(run, None)) is not None:
            self._ended, self._effect = f"after node {node} {how}", ""

    def at(self, name: str, node: str | None) -> str:
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
        self._actions = self._actions_before = 0
        """How many outward actions outside of effects there were; and before the last point."""
        self._entries: Counter[str] = Counter()
        """How often each task's node was entered, by its namespace."""
        self._first: dict[tuple[str, ...], int] = {}
        """At which entry each outward action of a task was first seen."""
        self.points: list[tuple[str, str, int]] = []
        """Name and phase of each point that was reached, and how many outward actions there were
        before it."""

    def install(self) -> None:
        """Observe from now until the process ends."""
        failpoints.hook = self.at
        failpoints.called = partial(self._connection.send, "effect")
        failpoints.asked = partial(self._connection.send, "asked")
        crashes.report = partial(self._report, "outside")
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
        node = configs.current_node()
        with self._counting:
            self._counts[name] += 1
            kept = name.startswith(KEEPER)
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
        where = calling_place(self._package) or Where("", current_effect())
        self._connection.send(kind, what, *where)
        self._act(kind, what, what, where)

    def _act(self, kind: str, event: str, what: str, where: Where) -> None:
        """Something leaves the process outside of effects: is it the same task once more?"""
        if where.effect is not None:
            return
        namespace = configs.current_namespace()
        with self._counting:
            self._actions += 1
            entry = self._entries[namespace]
            first = self._first.setdefault((kind, event, where.place, namespace), entry)
        if namespace and entry > first:
            self._connection.send("repeated", kind, what, where.place, node_words())

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
            if what is not None and (where := calling_place(self._package)) is not None:
                self._connection.send("action", event, what, *where)
                self._act("action", event, what, where)
        finally:
            self._busy.now = False


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
            if node := configs.node_of_callback(more.get("tags"), metadata):
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
