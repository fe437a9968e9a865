"""What reflections need and the journal cannot store: the reflector, the store, and the turn."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

from langgraph.store.base import BaseStore
from langmem.utils import NamespaceTemplate

from perdure.errors import BadArgument, WrongState
from perdure.journal.names import check_text
from perdure.langmem.langmem_port import is_memory_manager, store_of_manager
from perdure.langmem.reflection_request import Namespace
from perdure.langmem.reflector import as_runnable, import_reflector, name_of, template_of
from perdure.langmem.staged_writes import StagedWrite
from perdure.langmem.store_access import StoreCalls
from perdure.langmem.store_commit import StoreCommitter
from perdure.operations import runs, turns
from perdure.runtime import Runtime
from perdure.serde.serializer import Serializer
from perdure.service.reflections import graph_name


class ExecutorResources:
    """The resources of one executor in this process."""

    def __init__(
        self, reflector: Any, namespace: str | Namespace | None, runtime: Runtime, name: str | None
    ) -> None:
        self._reflector = reflector if isinstance(reflector, str) else as_runnable(reflector)
        self._template = template_of(reflector, namespace)
        self._has_own_namespace = namespace is not None
        self._runtime = runtime
        self.name = check_text("name", name or name_of(reflector, self._template))
        self.graph = graph_name(self.name)
        self.store: BaseStore | None = None
        self.store_calls = StoreCalls()
        self.committer: StoreCommitter | None = None

    # -- the reflector

    def reflector(self) -> Any:
        """Return the reflector. One given by name is looked up each time."""
        if not isinstance(self._reflector, str):
            return self._reflector
        graph = self._runtime.compiled(self._reflector)
        return import_reflector(self._reflector) if graph is None else graph

    @property
    def template(self) -> NamespaceTemplate:
        """The template of the namespaces the reflector writes to."""
        if self._has_own_namespace or not isinstance(self._reflector, str):
            return self._template
        return template_of(self.reflector(), None)

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
        """Return the store a memory manager was created with."""
        with contextlib.suppress(Exception):  # not importable here; the reflection will say why
            found = self.reflector()
            if is_memory_manager(found):
                return store_of_manager(found)
        return None

    def required_store(self) -> BaseStore:
        if self.store is None:
            raise BadArgument(
                f"The executor {self.name!r} has no store: pass store=..., submit from a graph "
                "that was compiled with one, or call resume_pending_reflections(executor, store)."
            )
        return self.store

    def commit(self, writes: list[StagedWrite], *, is_current: bool) -> bool:
        """Commit staged writes inside a node; see `StoreCommitter.commit`."""
        if self.committer is None:
            self.committer = StoreCommitter(self.required_store(), self._runtime.journal)
        with self.store_calls:
            return self.committer.commit(writes, is_current=is_current)

    @property
    def serializer(self) -> Serializer:
        return self._runtime.saver.serializer

    # -- the turn: one reflection at a time in a namespace

    def take_turn(self, namespace: Namespace, run_id: str) -> bool:
        if not namespace:
            return True
        return self._runtime.journal.run(turns.take_turn(self._scope(namespace), run_id))

    def has_turn(self, namespace: Namespace, run_id: str) -> bool:
        """Whether this run still holds the turn. Raises `WrongState` if it was cancelled."""
        self._stop_if_cancelled(run_id)
        if not namespace:
            return True
        return self._runtime.journal.do(turns.has_turn(self._scope(namespace), run_id))

    def _stop_if_cancelled(self, run_id: str) -> None:
        """Another process may have cancelled the run; its driver would learn of that later."""
        row = self._runtime.journal.do(runs.find(run_id))
        if row is not None and row.control == "cancel":
            self._runtime.stop_here(run_id, "cancel")
            raise WrongState(run_id, row.state, "write memories", "it was cancelled.")

    def _scope(self, namespace: Namespace) -> str:
        digest = hashlib.blake2b(json.dumps([self.graph, *namespace]).encode(), digest_size=16)
        return digest.hexdigest()
