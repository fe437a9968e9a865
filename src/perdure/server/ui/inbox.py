"""The inbox: everything that needs a person, oldest first, live."""

from __future__ import annotations

from fastapi import Response

from perdure.server.authorization import Scope
from perdure.server.ui.answered import just_done
from perdure.server.ui.inbox_filter import AGES, KINDS, InboxFilter
from perdure.server.ui.inbox_items import make_item
from perdure.server.ui.inbox_live import InboxStream, live_address
from perdure.server.ui.inbox_pages import PAGE, read_page, read_position
from perdure.server.ui.lists import as_cursor
from perdure.server.ui.page import UiDep, ui_router

router = ui_router()


@router.get("/inbox")
async def inbox(ui: UiDep, after: str | None = None) -> Response:
    """One page of the inbox."""
    ui.require(Scope.READ)
    filters = InboxFilter.of(ui.request.query_params)
    page = await read_page(ui, filters, read_position(after), PAGE)
    place = "" if page.after is None else as_cursor(page.after)
    return ui.page(
        "inbox.html",
        title="Inbox",
        section="inbox",
        items=[make_item(entry) for entry in page.entries],
        filters=filters,
        query=filters.written,
        kinds=KINDS,
        ages=AGES,
        graphs=sorted(ui.runtime.graphs),
        after=after or "",
        next=place and ui.url("/inbox", **filters.written, after=place),
        is_cut=page.is_cut,
        live=live_address(ui, filters, page, after),
        done=await just_done(ui),
    )


@router.get("/inbox/live")
async def live(ui: UiDep) -> Response:
    """The live updates of a page of the inbox."""
    ui.require(Scope.READ)
    return ui.stream(InboxStream(ui).events())
