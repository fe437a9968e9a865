"""`/ui/threads`: the list of threads, newest activity first, with each one's last run."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Response

from perdure.commands import runs, threads
from perdure.commands.run_search import Page, as_text
from perdure.commands.runs import RunRow
from perdure.commands.threads import OWN, Thread, ThreadQuery, search_threads
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.perdure_api.requests import ThreadFilter
from perdure.server.ui.lists import as_cursor, from_cursor
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.server.ui.run_rows import Row, read_rows

router = ui_router()

PAGE = 50
"""Threads on one page."""
STATUSES = ("idle", "busy", "interrupted", "error")
LONGEST = 1000
"""Maximum length of a filter."""
LABELS = 3


@dataclass(frozen=True)
class Line:
    """One thread of the list."""

    thread: Thread
    row: Row | None
    """Its last run, with what it is waiting for."""

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Its first labels, or those of its last run, as text."""
        every = self.thread.metadata.items()
        own = [(name, as_text(one)) for name, one in every if name not in OWN][:LABELS]
        return own or (self.row.labels if self.row else [])


@router.get("/threads")
async def list_threads(
    ui: UiDep, text: str = "", graph: str = "", status: str = "", before: str = ""
) -> Response:
    ui.require(Scope.READ)
    query = _query(text, graph, status)
    place = from_cursor(before, int, str)
    seen = await ThreadFilter.of(ui.api)
    if query.text and place is None and await _is_thread(ui, seen, query):
        return ui.redirect("/runs", thread=query.text)
    journal = ui.runtime.journal
    plan = search_threads(
        ui.runtime.engine,
        query,
        PAGE,
        before=None if place is None else (place[0], place[1]),
        allowed=None if seen.sees_all else seen.allows,
    )
    found = await journal.arun(plan)
    lines = await _lines(ui, found.rows)
    return ui.page(
        "threads.html",
        title="Threads",
        section="threads",
        query=query,
        lines=lines,
        found=found,
        statuses=STATUSES,
        graphs=sorted({*ui.runtime.graphs, *filter(None, (one.graph for one in found.rows))}),
        older=_older(ui, query, found),
        newest=ui.url("/threads", **_address(query)) if before else None,
    )


def _query(text: str, graph: str, status: str) -> ThreadQuery:
    text, graph = text.strip(), graph.strip()
    if status not in ("", *STATUSES):
        raise ApiError(422, f"There is no status {status!a:.50}. Use {', '.join(STATUSES)}.")
    if max(map(len, (text, graph))) > LONGEST:
        raise ApiError(422, "A filter is too long.")
    return ThreadQuery(graph, status, text)


async def _is_thread(ui: Ui, seen: ThreadFilter, query: ThreadQuery) -> bool:
    """Whether the search is for the id of a thread and nothing else."""
    if query != ThreadQuery(text=query.text) or len(query.text) > 512:
        return False
    plan = threads.find(ui.runtime.engine, query.text)
    found: Thread | None = await ui.runtime.journal.arun(plan)
    return found is not None and seen.allows(found.metadata)


async def _lines(ui: Ui, found: list[Thread]) -> list[Line]:
    ids = [one.run_id for one in found if one.run_id is not None]
    rows: list[RunRow] = await ui.runtime.journal.ado(runs.find_all(ids)) if ids else []
    shown = {row.run.id: row for row in await read_rows(ui, rows)}
    return [Line(one, shown.get(one.run_id or "")) for one in found]


def _address(query: ThreadQuery) -> dict[str, str]:
    return {name: one for name, one in vars(query).items() if one}


def _older(ui: Ui, query: ThreadQuery, found: Page[Thread]) -> str | None:
    if found.older is None:
        return None
    return ui.url("/threads", **_address(query), before=as_cursor(found.older))
