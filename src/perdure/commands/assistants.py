"""Plans about assistants: create, find, change, list and delete them.

A graph's default assistant is made on the fly until it is changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from perdure.commands.connection import Connection
from perdure.errors import UNREADABLE, AlreadyExists, NotFound, UnknownGraph
from perdure.journal import Op, Plan, Statement, first_as, read_op, rows_as, write_op
from perdure.journal.names import check_text, random_number
from perdure.serde.encryption import Place
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
    """An assistant: a graph, and what its runs start with.

    Attributes:
        version: How often it was stored.
        change: The random number of its last change; 0 if it has no row.
    """

    assistant_id: str = ""
    version: int = 1
    created_at: datetime = field(default_factory=lambda: moment(0))
    updated_at: datetime = field(default_factory=lambda: moment(0))
    change: int = 0


def _place(assistant_id: str, version: int, columns: tuple[str, str, int]) -> Place:
    return Place(f"version {version} of assistant {assistant_id}", columns)


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
        place = _place(self.id, self.version, (self.graph, self.name, self.updated_at))
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


def put(
    serializer: Serializer,
    assistant_id: str,
    version: int,
    content: AssistantContent,
    now: int,
    *,
    seen: int = 0,
) -> Op[bool]:
    """Store an assistant that the caller read with the change `seen`; 0 creates it. False if
    another change came first."""
    stored = {
        "description": serializer.redacted_text(content.description),
        "config": dict(serializer.redacted_entries(content.config)),
        "context": serializer.redacted(content.context, "context"),
        "metadata": dict(serializer.redacted_entries(content.metadata)),
    }
    place = _place(assistant_id, version, (content.graph_id, content.name, now))
    params = {
        "id": assistant_id,
        "version": version,
        "graph": content.graph_id,
        "name": check_text("name", content.name),
        "now": now,
        "change": random_number(),
        "seen": seen,
        "body": serializer.dumps(stored, place, own=True),
    }
    ours = Statement("find_assistant_change", params)
    statements = [Statement("put_assistant", params), ours]
    name = f"assistant {assistant_id}"
    return Op(name, statements, lambda rows: bool(rows[-1]), write=True, key=ours)


def find_row(assistant_id: str) -> Op[AssistantRow | None]:
    return read_op("assistant", {"id": assistant_id}, first_as(AssistantRow))


def _own(on: Connection, graph: str) -> Assistant:
    """A graph's default assistant, as if it were created when first requested."""
    if on.assistants_since is None:
        on.assistants_since = on.clock.now()
    at, id = moment(on.assistants_since), default_id(graph)
    return Assistant(graph, graph, metadata=SYSTEM, assistant_id=id, created_at=at, updated_at=at)


def by_default_id(on: Connection) -> dict[str, str]:
    """The graphs of this process by the ids of their default assistants."""
    return {default_id(graph): graph for graph in on.graph_names}


def find(on: Connection, name: str) -> Plan[Assistant]:
    """The assistant with an id, or the default one of the graph with that name. Raises
    `NotFound`, or `UnknownGraph` if it is not an id."""
    if name in on.graph_names:
        id = default_id(name)
    else:
        try:
            id = str(uuid.UUID(name))
        except ValueError:
            raise UnknownGraph(name, sorted(on.graph_names)) from None
    row: AssistantRow | None = yield find_row(id)
    graph = by_default_id(on).get(id)
    if row is not None:
        return row.load(on.serializer)
    if graph is None:
        raise NotFound("assistant", name)
    return _own(on, graph)


def every(on: Connection) -> Plan[list[Assistant]]:
    """All assistants, newest first: the default ones of this process's graphs, and those that
    have a row."""
    rows: list[AssistantRow] = yield read_op("assistants", {}, rows_as(AssistantRow))
    known = {row.id for row in rows}
    own = [_own(on, graph) for id, graph in by_default_id(on).items() if id not in known]
    return own + [row.load(on.serializer, listed=True) for row in rows]


def create(
    on: Connection, assistant_id: str, content: AssistantContent, *, accept_existing: bool = False
) -> Plan[Assistant]:
    """Store a new assistant. If it exists, raises `AlreadyExists` or returns it."""
    is_stored = False
    if assistant_id not in by_default_id(on):
        is_stored = yield put(on.serializer, assistant_id, 1, content, on.clock.now())
    if not is_stored and not accept_existing:
        raise AlreadyExists("assistant", assistant_id)
    return (yield from find(on, assistant_id))


def change(on: Connection, assistant_id: str, changes: Mapping[str, Any]) -> Plan[Assistant]:
    """Change these parts of an assistant; metadata is merged.

    If another change came first, this one is applied on top of it.
    """
    while True:
        assistant = yield from find(on, assistant_id)
        content = AssistantContent(
            **{one.name: getattr(assistant, one.name) for one in fields(AssistantContent)}
        )
        merged = {**content.metadata, **(changes.get("metadata") or {})}
        content = replace(content, **{**changes, "metadata": merged})
        is_stored = yield put(
            on.serializer,
            assistant.assistant_id,
            assistant.version + 1,
            content,
            on.clock.now(),
            seen=assistant.change,
        )
        if is_stored:
            return (yield from find(on, assistant.assistant_id))


def delete(on: Connection, assistant_id: str) -> Plan[None]:
    """Delete an assistant. A default assistant only loses its changes."""
    assistant = yield from find(on, assistant_id)
    yield write_op({"id": assistant.assistant_id}, "delete_assistant")
