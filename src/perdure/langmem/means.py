"""What the reflections of an executor need that cannot be stored: a reflector, a store, a turn."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

from langgraph.store.base import BaseStore
from langmem.knowledge.extraction import MemoryStoreManager
from langmem.utils import NamespaceTemplate

from perdure.errors import BadArgument, WrongState
from perdure.journal.names import check_text
from perdure.langmem.draft import Write
from perdure.langmem.memories import Memories
from perdure.langmem.reflection import Namespace, as_runnable, find, name_of, template_of
from perdure.operations import runs, turns
from perdure.runtime import Runtime
from perdure.serde.serializer import Serializer
from perdure.service.reflections import PREFIX
from perdure.types import Control


class Means:
    """Those of one executor, in this process."""

    def __init__(
        self, reflector: Any, namespace: str | Namespace | None, runtime: Runtime, name: str | None
    ) -> None:
        self._reflector = reflector if isinstance(reflector, str) else as_runnable(reflector)
        self._given = template_of(reflector, namespace)
        self._is_given = namespace is not None
        self._runtime = runtime
        self.name = check_text("name", name or name_of(reflector, self._given))
        self.graph = PREFIX + self.name
        self.store: BaseStore | None = None
        self.memories: Memories | None = None

    # -- the reflector

    def reflector(self) -> Any:
        if not isinstance(self._reflector, str):
            return self._reflector
        graph = self._runtime.engine.graphs.newest(self._reflector)
        return find(self._reflector) if graph is None else graph.pregel

    @property
    def template(self) -> NamespaceTemplate:
        """Of the namespaces it writes to."""
        if self._is_given or not isinstance(self._reflector, str):
            return self._given
        return template_of(self.reflector(), None)

    def store_of_reflector(self) -> BaseStore | None:
        with contextlib.suppress(Exception):  # it is not there; who works on a reflection says why
            found = self.reflector()
            if isinstance(found, MemoryStoreManager):
                store: BaseStore | None = found._store
                return store
        return None

    def check_payload(self, payload: Any) -> None:
        """Refuse what every attempt would stumble over."""
        if isinstance(self._reflector, MemoryStoreManager) and not (
            isinstance(payload, dict) and "messages" in payload
        ):
            raise BadArgument(
                f"A memory manager takes {{'messages': [...]}}, not {type(payload).__name__}."
            )

    # -- the store

    def needed_store(self) -> BaseStore:
        if self.store is None:
            raise BadArgument(
                f"The executor {self.name!r} has no store: pass store=..., submit from a graph "
                "that was compiled with one, or call resume_pending_reflections(executor, store)."
            )
        return self.store

    def keep(self, writes: list[Write], is_current: bool) -> bool:
        if self.memories is None:
            self.memories = Memories(self.needed_store(), self._runtime.journal)
        return self.memories.keep(writes, is_current)

    @property
    def serializer(self) -> Serializer:
        return self._runtime.saver.serializer

    # -- whose turn it is

    def take_turn(self, namespace: Namespace, run_id: str) -> bool:
        if not namespace:
            return True
        return self._runtime.journal.run(turns.take_turn(self._scope(namespace), run_id))

    def has_turn(self, namespace: Namespace, run_id: str) -> bool:
        self._stop_if_cancelled(run_id)
        if not namespace:
            return True
        return self._runtime.journal.do(turns.has_turn(self._scope(namespace), run_id))

    def _stop_if_cancelled(self, run_id: str) -> None:
        """Somebody elsewhere may have cancelled it, and its driver hears of that later."""
        row = self._runtime.journal.do(runs.find(run_id))
        if row is not None and row.control == Control.CANCEL:
            self._runtime.engine.keeper.stop(run_id, Control.CANCEL)
            raise WrongState(run_id, row.state, "be kept", "it was cancelled.")

    def _scope(self, namespace: Namespace) -> str:
        told = json.dumps([self.graph, *namespace])
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()
