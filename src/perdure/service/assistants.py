"""Plans about assistants: create, find, change, list and delete them.

A graph's default assistant is made on the fly until it is changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from perdure.errors import AlreadyExists, NotFound, UnknownGraph
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.journal.names import random_number
from perdure.operations import assistants
from perdure.operations.assistants import Assistant, AssistantContent, AssistantRow
from perdure.serde.serializer import Serializer
from perdure.times import moment

SEEN = 1000
"""Maximum number of assistants that a process remembers, by name."""


class AssistantService:
    """Plans about the assistants of a journal. `graphs` names the graphs of this process."""

    def __init__(
        self, serializer: Serializer, clock: Clock, graphs: Callable[[], Iterable[str]]
    ) -> None:
        self._serializer, self._clock, self._graphs = serializer, clock, graphs
        self._began: int | None = None
        self._seen: dict[str, Assistant] = {}

    def _own(self, graph: str) -> Assistant:
        """A graph's default assistant, as if it were created when first requested."""
        if self._began is None:
            self._began = self._clock.now()
        return assistants.of_graph(graph, moment(self._began))

    def by_default_id(self) -> dict[str, str]:
        """The graphs of this process by the ids of their default assistants."""
        return {assistants.default_id(graph): graph for graph in self._graphs()}

    def find(self, name: str) -> Plan[Assistant]:
        """The assistant with an id, or the default one of the graph with that name. Raises
        `NotFound`, or `UnknownGraph` if it is not an id."""
        id = _canonical(name)
        if name in self._graphs():
            id = assistants.default_id(name)
        elif id is None:
            raise UnknownGraph(name, sorted(self._graphs()))
        row: AssistantRow | None = yield assistants.find(id)
        graph = self.by_default_id().get(id)
        if row is not None:
            found = row.load(self._serializer)
        elif graph is not None:
            found = self._own(graph)
        else:
            raise NotFound("assistant", name)
        if len(self._seen) >= SEEN:
            self._seen.clear()
        self._seen[name] = found
        return found

    def seen(self, name: str) -> Assistant | None:
        """The assistant that `find` last returned for this name, without reading. It may have
        changed, so the batch that uses it must check (`unchanged`)."""
        return self._seen.get(name)

    def every(self) -> Plan[list[Assistant]]:
        """All assistants, newest first: the default ones of this process's graphs, and those that
        have a row."""
        rows: list[AssistantRow] = yield assistants.every()
        known = {row.id for row in rows}
        own = [self._own(graph) for id, graph in self.by_default_id().items() if id not in known]
        return own + [row.load(self._serializer, listed=True) for row in rows]

    def create(
        self, assistant_id: str, content: AssistantContent, *, accept_existing: bool = False
    ) -> Plan[Assistant]:
        """Store a new assistant. If it exists, raises `AlreadyExists` or returns it."""
        made = False
        if assistant_id not in self.by_default_id():
            made = yield assistants.put(
                self._serializer, assistant_id, 1, content, random_number(), self._clock.now()
            )
        if not made and not accept_existing:
            raise AlreadyExists("assistant", assistant_id)
        return (yield from self.find(assistant_id))

    def change(self, assistant_id: str, changes: Mapping[str, Any]) -> Plan[Assistant]:
        """Change these parts of an assistant; metadata is merged.

        If another change came first, this one is applied on top of it.
        """
        while True:
            found = yield from self.find(assistant_id)
            content = AssistantContent(
                **{one.name: getattr(found, one.name) for one in fields(AssistantContent)}
            )
            merged = {**content.metadata, **(changes.get("metadata") or {})}
            content = replace(content, **{**changes, "metadata": merged})
            made = yield assistants.put(
                self._serializer,
                found.assistant_id,
                found.version + 1,
                content,
                random_number(),
                self._clock.now(),
                seen=found.change,
            )
            if made:
                return (yield from self.find(found.assistant_id))

    def delete(self, assistant_id: str) -> Plan[None]:
        """Delete an assistant. A default assistant only loses its changes."""
        found = yield from self.find(assistant_id)
        yield assistants.delete(found.assistant_id)


def _canonical(id: str) -> str | None:
    """A UUID as text, or None for anything else."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        return None
