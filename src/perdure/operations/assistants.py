"""Operations on assistants: a graph with the config, context and metadata that its runs start with.

`put_assistant` decides which of two concurrent changes comes first; `version` counts them. Each
graph has a default assistant, with an id derived from its name. It has a row only once it was
changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

from perdure.errors import UNREADABLE
from perdure.journal import Op, Statement, read_op
from perdure.journal.names import check_text
from perdure.operations import stored_rows
from perdure.serde import places
from perdure.serde.serializer import Serializer
from perdure.times import moment

NAMESPACE = uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The UUID namespace that LangGraph's Agent Server uses for the ids of default assistants."""
SYSTEM = {"created_by": "system"}
"""The metadata of a default assistant."""


@dataclass(frozen=True)
class AssistantContent:
    """What callers set on an assistant."""

    graph_id: str
    name: str
    description: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Any = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Assistant(AssistantContent):
    """An assistant: a graph, and what its runs start with."""

    assistant_id: str = ""
    version: int = 1
    """How often it was stored."""
    created_at: datetime = field(default_factory=lambda: moment(0))
    updated_at: datetime = field(default_factory=lambda: moment(0))
    change: int = 0
    """The random number of its last change; 0 if it has no row."""


class AssistantRow(NamedTuple):
    """An assistant as it is stored."""

    id: str
    version: int
    graph: str
    name: str
    created_at: int
    updated_at: int
    change: int
    body: bytes

    def load(self, serializer: Serializer, *, listed: bool = False) -> Assistant:
        """The assistant. One that is `listed` beside others may be unreadable: then its description
        says so."""
        place = places.of_assistant_version(
            self.id, self.version, self.graph, self.name, self.updated_at
        )
        try:
            content = serializer.loads(self.body, place, dict)
        except UNREADABLE as error:
            if not listed:
                raise
            content = {"description": str(error)}
        return Assistant(
            graph_id=self.graph,
            name=self.name,
            description=content.get("description"),
            config=content.get("config") or {},
            context=content.get("context", {}),
            metadata=content.get("metadata") or {},
            assistant_id=self.id,
            version=self.version,
            created_at=moment(self.created_at),
            updated_at=moment(self.updated_at),
            change=self.change,
        )


@lru_cache(1000)
def default_id(graph: str) -> str:
    """The id of a graph's default assistant."""
    return str(uuid.uuid5(NAMESPACE, graph))


def of_graph(graph: str, at: datetime) -> Assistant:
    """A graph's default assistant, before any change."""
    return Assistant(
        graph, graph, metadata=SYSTEM, assistant_id=default_id(graph), created_at=at, updated_at=at
    )


def put(
    serializer: Serializer,
    assistant_id: str,
    version: int,
    content: AssistantContent,
    change: int,
    now: int,
    *,
    seen: int = 0,
) -> Op[bool]:
    """Store an assistant that the caller read with the change `seen`; 0 creates it. False if
    another change came first."""
    stored = {
        "description": serializer.redacted_text(content.description),
        "config": dict(serializer.redacted_entries(content.config)),
        "context": serializer.codec.redacted(content.context, "context"),
        "metadata": dict(serializer.redacted_entries(content.metadata)),
    }
    place = places.of_assistant_version(assistant_id, version, content.graph_id, content.name, now)
    params = {
        "id": assistant_id,
        "version": version,
        "graph": content.graph_id,
        "name": check_text("name", content.name),
        "now": now,
        "change": change,
        "seen": seen,
        "body": serializer.dumps(stored, place, own=True),
    }
    ours = Statement("find_assistant_change", params)
    statements = [Statement("put_assistant", params), ours]
    name = f"assistant {assistant_id}"
    return Op(name, statements, lambda rows: bool(rows[-1]), write=True, key=ours)


def find(assistant_id: str) -> Op[AssistantRow | None]:
    return read_op("assistant", {"id": assistant_id}, partial(stored_rows.first, AssistantRow))


def unchanged(assistant: Assistant) -> Statement:
    """A statement that refuses its batch if the assistant has changed since it was read."""
    return Statement("same_assistant", {"id": assistant.assistant_id, "seen": assistant.change})


def every() -> Op[list[AssistantRow]]:
    """All assistants that have a row, newest first."""
    return read_op("assistants", {}, partial(stored_rows.every, AssistantRow))


def delete(assistant_id: str) -> Op[None]:
    statement = Statement("delete_assistant", {"id": assistant_id})
    return Op("delete_assistant", [statement], lambda rows: None, write=True)
