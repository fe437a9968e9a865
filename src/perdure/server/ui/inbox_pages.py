"""Pages of the inbox that the viewer may see."""

from __future__ import annotations

from perdure.commands import inbox
from perdure.commands.inbox import InboxEntry, InboxKind, InboxPage
from perdure.commands.run_search import Position
from perdure.server.own_api.access import ThreadFilter
from perdure.server.ui.inbox_filter import InboxFilter
from perdure.server.ui.lists import from_cursor
from perdure.server.ui.page import Ui

PAGE = 25
"""Items of one page."""


async def read_page(ui: Ui, filters: InboxFilter, after: Position | None, limit: int) -> InboxPage:
    """A page of the items that the viewer may see."""
    seen = await ThreadFilter.of(ui.api)
    visible = None if seen.sees_all else seen.visible
    plan = inbox.page(ui.runtime.engine, filters.query(ui), after, limit, visible)
    found: InboxPage = await ui.runtime.journal.arun(plan)
    return found


async def next_question(ui: Ui, filters: InboxFilter, after: Position | None) -> InboxEntry | None:
    """The next open question after a position, or else the first one."""
    only = InboxFilter(**{**filters.written, "kind": InboxKind.QUESTION})
    for place in (after, None):
        page = await read_page(ui, only, place, 1)
        if page.entries:
            return page.entries[0]
    return None


def read_position(text: str | None) -> Position | None:
    """The position that a parameter names. Raises `ApiError`."""
    found = from_cursor(text or "", int, str)
    return None if found is None else (found[0], found[1])
