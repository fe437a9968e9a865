"""The outbox: undelivered messages, and those that were given up; deliver one now."""

from __future__ import annotations

from fastapi import Response

from perdure.commands import messages
from perdure.commands.counts import MOST, first_signs
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.ui.change_log import note_change
from perdure.server.ui.lists import PAGE, as_cursor, bounded, from_cursor
from perdure.server.ui.page import UiDep, ui_router
from perdure.times import milliseconds
from perdure.types import Message

router = ui_router()

TABS = ("waiting", "given-up")


@router.get("/outbox")
async def list_messages(ui: UiDep, show: str = "waiting", behind: str = "") -> Response:
    """Messages by their next attempt. Shows payloads, so it requires 'admin', as in the API."""
    ui.require(Scope.ADMIN)
    if show not in TABS:
        raise ApiError(422, f"The outbox has no list {show!r}.")
    journal, given_up = ui.runtime.journal, show == "given-up"
    at = from_cursor(behind, int, str)
    position = None if at is None else (int(at[0]), str(at[1]))
    serializer = ui.runtime.engine.serializer
    page = messages.page(serializer, given_up=given_up, after=position, count=PAGE + 1)
    found: list[Message] = await journal.ado(page)
    signs = await journal.ado(first_signs(milliseconds(ui.now)))
    more = None
    if len(found) > PAGE:
        last = found[PAGE - 1]
        due = messages.NEVER if last.due_at is None else milliseconds(last.due_at)
        more = ui.url("/outbox", show=show, behind=as_cursor((due, last.id)))
    return ui.page(
        "outbox.html",
        title="Outbox",
        section="outbox",
        rows=found[:PAGE],
        given_up=given_up,
        counts={
            "waiting": bounded(signs.messages, MOST),
            "given-up": bounded(signs.given_up, MOST),
        },
        tabs=TABS,
        show=show,
        behind=behind,
        more=more,
    )


@router.post("/outbox/redeliver")
async def redeliver(ui: UiDep) -> Response:
    ui.require(Scope.ADMIN)
    id = ui.posted.get("id")
    await ui.runtime.redeliver(id)
    note_change(ui, f"had a message delivered: {id!r}")
    notice = "The next worker with a handler for its topic delivers it now."
    return ui.redirect("/outbox", show=ui.posted.get("show") or None, notice=notice)
