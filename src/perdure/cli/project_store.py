"""The store of a LangGraph project, beside its journal, as `store` of its langgraph.json says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.store.base import BaseStore

from perdure.cli.langgraph_json import Project
from perdure.errors import BadArgument
from perdure.execution.journal_store import JournalStore

ImportPart = Callable[[Project, str, str], Any]


def project_store(project: Project, url: str, import_part: ImportPart) -> BaseStore | None:
    """The store for a project's graphs without their own. None if LangGraph has no store for the
    journal's database."""
    settings = dict(project.store or {})
    if (place := settings.get("path")) is not None:
        return _own_store(project, import_part(project, "store.path", place))
    if url.startswith("d1:"):
        if project.store is not None:
            project.notes.append("not used here: store (LangGraph has no store for D1)")
        return None
    if index := settings.get("index"):
        index = dict(index)
        if ".py:" in str(embed := index.get("embed")):
            index["embed"] = import_part(project, "store.index.embed", str(embed))
    return JournalStore(url, index=index, ttl=settings.get("ttl"))


def _own_store(project: Project, found: Any) -> BaseStore:
    """The store that `store.path` names, or that the function it names returns."""
    made = found() if callable(found) and not isinstance(found, BaseStore) else found
    if not isinstance(made, BaseStore):
        raise BadArgument(
            f'{project.file}: "store.path" is a {type(made).__name__}, not a LangGraph store. '
            "Name a BaseStore, or a function that returns one."
        )
    return made
