"""The graph of a reflection: `reflect`, then `keep`.

    reflect    waits until no other reflection works in its namespace, then calls the reflector with
               its writes staged: nothing outside changes
    keep       commits the staged writes to the store, once; or goes back to `reflect` if another
               reflection has worked in the namespace since

Between the two is a checkpoint. A reflection that a crash ends before it starts again with nothing
written; one that a crash ends after it does not call the model again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from datetime import timedelta
from typing import Any, Literal, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command
from langmem.utils import NamespaceTemplate

from perdure import sleep
from perdure.commands import reflections, runs
from perdure.commands.reflections import graph_name
from perdure.errors import BadArgument, Error, WrongState
from perdure.langmem import reflector as reflectors
from perdure.langmem.langmem_port import is_memory_manager
from perdure.langmem.reflector import Namespace, ReflectionRequest
from perdure.langmem.staged_writes import StagedWrite, StoreCalls
from perdure.langmem.store_commit import StoreCommitter
from perdure.runtime import Runtime
from perdure.verbs import check_text

log = logging.getLogger("perdure")

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=0.2), timedelta(seconds=5)
"""Pauses between two attempts to get the turn in a namespace; each is twice the one before."""


class ReflectionState(TypedDict, total=False):
    request: dict[str, Any]
    id: str
    writes: list[StagedWrite] | None
    result: Any


class ReflectionOutput(TypedDict, total=False):
    result: Any


class ReflectionGraph:
    """The graph of one executor, and what its nodes need that the journal cannot store: the
    reflector and the store."""

    def __init__(
        self, reflector: Any, namespace: str | Namespace | None, runtime: Runtime, name: str | None
    ) -> None:
        if not isinstance(reflector, str):
            reflectors.as_runnable(reflector)  # raises if it cannot be called
        self._reflector = reflector
        self._template = reflectors.template_of(reflector, namespace)
        self._has_own_namespace = namespace is not None
        self._runtime = runtime
        self.executor = check_text("name", name or reflectors.name_of(reflector, self._template))
        self.name = graph_name(self.executor)
        self.store: BaseStore | None = None
        self.store_calls = StoreCalls()
        self.committer: StoreCommitter | None = None

    def build(self) -> StateGraph[ReflectionState, None, ReflectionState, ReflectionOutput]:
        """Build the graph whose runs are the reflections of the executor."""
        builder = StateGraph(ReflectionState, output_schema=ReflectionOutput)
        builder.add_node("reflect", self._reflect)
        builder.add_node("keep", self._keep)
        builder.add_edge(START, "reflect")
        builder.add_edge("reflect", "keep")
        return builder

    # -- the nodes

    def _reflect(self, state: ReflectionState, config: RunnableConfig) -> ReflectionState:
        request, run_id = ReflectionRequest(**state["request"]), config["configurable"]["run_id"]
        scope, pause = self._scope(request.namespace), FIRST_PAUSE
        # Two reflections of one user that run at once would learn the same thing twice: neither
        # sees the other's memories.
        while scope and not self._runtime.journal.run(reflections.take_turn(scope, run_id)):
            sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        result, writes = reflectors.call_reflector(
            self.reflector(),
            self.required_store(),
            self.store_calls,
            request,
            state["id"],
            config.get("callbacks"),
        )
        try:
            self._runtime.saver.serializer.encode(result, "the result")
        except Error as error:  # the memories are what counts
            log.warning(
                "The result of reflection %s is not stored, its memories are: %s", run_id, error
            )
            result = None
        return {"writes": writes, "result": result}

    def _keep(
        self, state: ReflectionState, config: RunnableConfig
    ) -> ReflectionState | Command[Literal["reflect"]]:
        journal, run_id = self._runtime.journal, config["configurable"]["run_id"]
        # Another process may have cancelled the run; its driver would learn of that later.
        row = journal.do(runs.find(run_id))
        if row is not None and row.control == "cancel":
            self._runtime.stop_here(run_id, "cancel")
            raise WrongState(run_id, row.state, "write memories", "it was cancelled.")
        # A worker may have given this run back between the two nodes. If another reflection had
        # the turn since, this one was made without knowing what that one wrote.
        scope = self._scope(state["request"]["namespace"])
        is_current = not scope or journal.run(reflections.has_turn(scope, run_id))
        if self.committer is None:
            self.committer = StoreCommitter(self.required_store(), self._runtime)
        with self.store_calls:
            if self.committer.commit(state["writes"] or [], is_current=is_current):
                return {}
        return Command(update={"writes": None}, goto="reflect")

    def _scope(self, namespace: Namespace | list[str]) -> str:
        """Where one reflection works at a time. Empty without a namespace: there all may."""
        parts = json.dumps([self.name, *namespace]).encode()
        return hashlib.blake2b(parts, digest_size=16).hexdigest() if namespace else ""

    # -- the reflector

    def reflector(self) -> Any:
        """Return the reflector. One given by name is looked up each time."""
        if not isinstance(self._reflector, str):
            return self._reflector
        graph = self._runtime.compiled(self._reflector)
        return reflectors.import_reflector(self._reflector) if graph is None else graph

    @property
    def template(self) -> NamespaceTemplate:
        """The template of the namespaces the reflector writes to."""
        if self._has_own_namespace or not isinstance(self._reflector, str):
            return self._template
        return reflectors.template_of(self.reflector(), None)

    def check_payload(self, payload: Any) -> None:
        """Refuse a payload with which every attempt would fail."""
        if is_memory_manager(self._reflector) and not (
            isinstance(payload, dict) and "messages" in payload
        ):
            raise BadArgument(
                f"A memory manager takes {{'messages': [...]}}, not {type(payload).__name__}."
            )

    # -- the store

    def store_of_reflector(self) -> BaseStore | None:
        """Return the store the reflector was created with."""
        with contextlib.suppress(Exception):  # not importable here; the reflection will say why
            return reflectors.own_store(self.reflector())
        return None

    def required_store(self) -> BaseStore:
        if self.store is None:
            raise BadArgument(
                f"The executor {self.executor!r} has no store: pass store=..., submit from a graph "
                "that was compiled with one, or call resume_pending_reflections(executor, store)."
            )
        return self.store
