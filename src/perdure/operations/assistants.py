"""Operations on assistants: a graph with the config, context and metadata that its runs start with.

An assistant has versions, numbered from 1; its runs use one of them. `insert_assistant_version`
decides which of two concurrent changes becomes the next version. Each graph has a default
assistant, with an id derived from its name. It has rows only once it was changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

from perdure.errors import UNREADABLE
from perdure.journal import Op, Statement, read_op, with_params
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
    """The content of a version of an assistant."""

    graph_id: str
    name: str
    description: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Any = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Assistant(AssistantContent):
    """A version of an assistant: a graph, and what its runs start with."""

    assistant_id: str = ""
    version: int = 1
    created_at: datetime = field(default_factory=lambda: moment(0))
    updated_at: datetime = field(default_factory=lambda: moment(0))
    versions: int = 0
    """The number of its newest version; 0 if it has no row."""
    change: int = 0
    """The random number of the change that made this version; 0 if it has no row."""


class AssistantRow(NamedTuple):
    """A version of an assistant as it is stored, and the row of the assistant."""

    id: str
    used: int
    versions: int
    created_at: int
    updated_at: int
    version: int
    graph: str
    name: str
    made_at: int
    change: int
    body: bytes

    def load(
        self, serializer: Serializer, *, as_version: bool = False, listed: bool = False
    ) -> Assistant:
        """The assistant. With `as_version`, `created_at` is that of the version. One that is
        `listed` beside others may be unreadable: then its description says so."""
        place = places.of_assistant_version(
            self.id, self.version, self.graph, self.name, self.made_at
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
            created_at=moment(self.made_at if as_version else self.created_at),
            updated_at=moment(self.updated_at),
            versions=self.versions,
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


def add_version(
    serializer: Serializer,
    assistant_id: str,
    version: int,
    content: AssistantContent,
    change: int,
    now: int,
    *,
    before: Op[Any] | None = None,
) -> Op[bool]:
    """Store a version of an assistant, which its runs use from then on. Version 1 creates the
    assistant. False if another change made that version. `before` goes into the same batch."""
    stored = {
        "description": serializer.redacted_text(content.description),
        "config": dict(serializer.redacted_entries(content.config)),
        "context": serializer.codec.redacted(content.context, "context"),
        "metadata": dict(serializer.redacted_entries(content.metadata)),
    }
    name = f"version {version} of assistant {assistant_id}"
    place = places.of_assistant_version(assistant_id, version, content.graph_id, content.name, now)
    params = {
        "id": assistant_id,
        "version": version,
        "graph": content.graph_id,
        "name": check_text("name", content.name),
        "now": now,
        "change": change,
        "body": serializer.dumps(stored, place, own=True),
    }
    ours = Statement("find_assistant_version", params)
    statements = [] if before is None else list(before.render())
    if version == 1:
        statements.append(Statement("insert_assistant", params))
    statements += with_params(params, "insert_assistant_version", "use_new_version")
    return Op(name, [*statements, ours], lambda rows: bool(rows[-1]), write=True, key=ours)


def use_version(assistant_id: str, version: int, now: int) -> Op[None]:
    """Set which version an assistant's runs use, if that version exists."""
    params = {"id": assistant_id, "version": version, "now": now}
    return Op("use_version", [Statement("use_version", params)], lambda rows: None, write=True)


def find(assistant_id: str) -> Op[AssistantRow | None]:
    return read_op("assistant", {"id": assistant_id}, partial(stored_rows.first, AssistantRow))


def unchanged(assistant: Assistant) -> Statement:
    """A statement that refuses its batch if the assistant has changed since it was read."""
    return Statement("same_assistant", {"id": assistant.assistant_id, "seen": assistant.change})


def every() -> Op[list[AssistantRow]]:
    """All assistants that have rows, newest first."""
    return read_op("assistants", {}, partial(stored_rows.every, AssistantRow))


def versions(assistant_id: str) -> Op[list[AssistantRow]]:
    """The versions of an assistant, newest first."""
    params = {"id": assistant_id}
    return read_op("assistant_versions", params, partial(stored_rows.every, AssistantRow))


def delete(assistant_id: str) -> Op[None]:
    """Delete an assistant with its versions."""
    params = {"id": assistant_id}
    statements = with_params(params, "delete_assistant", "delete_assistant_versions")
    return Op("delete_assistant", statements, lambda rows: None, write=True)
