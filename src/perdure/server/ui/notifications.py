"""New questions for browser notifications: a stream that one tab of a browser listens to.

A hidden tab closes its other live connections, but notifications are for people who look elsewhere,
so they have their own stream. The script makes one tab listen, and remembers the ids it has shown,
to show each question once. After a pause it sends the time of the last question, and gets those
asked since that are still open.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from fastapi import Response

from perdure.commands import waits
from perdure.commands.waits import WaitRow
from perdure.server.agent_api.sse import encode
from perdure.server.authorization import Scope
from perdure.server.perdure_api.requests import ThreadFilter
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.times import milliseconds
from perdure.types import Kind, WaitState
from perdure.views.question import headline, question_of

router = ui_router()

MOST = 50
"""Maximum number of questions sent to a tab after a pause."""
OVERLAP = 10_000
"""Questions up to this many milliseconds older than the last one are sent again: they may have been
stored later."""
LONGEST_PAUSE = 12 * 3600 * 1000
"""After a longer pause, in milliseconds, only new questions are sent; the inbox has the others."""
LONGEST_TIME = 19
"""Maximum number of digits of a time in milliseconds."""


@router.get("/notifications/live")
async def live(ui: UiDep, since: str = "") -> Response:
    """Events `asked`, each with a question, after one `ready`. `since` is the id of the last event
    that was seen: the time of a question, in milliseconds."""
    ui.require(Scope.READ)
    seen = ui.request.headers.get("last-event-id") or since
    is_time = seen.isascii() and seen.isdigit() and len(seen) <= LONGEST_TIME
    return ui.stream(_events(ui, int(seen) if is_time else None))


async def _events(ui: Ui, since: int | None) -> AsyncGenerator[bytes]:
    allowed = await ThreadFilter.of(ui.api)
    async with ui.live.follow() as changes:
        now = milliseconds(await ui.runtime.now())
        yield encode("ready", None, str(now if since is None else since))
        missed = [] if since is None else await _asked_since(ui, since, now)
        for event in await _encoded(ui, allowed, missed):
            yield event
        async for change in changes:
            asked = [await _find(ui, id) for id in change.new_questions]
            rows = [one for one in asked if one is not None and one.state == WaitState.OPEN]
            for event in await _encoded(ui, allowed, rows):
                yield event


async def _asked_since(ui: Ui, since: int, now: int) -> list[WaitRow]:
    """Questions that were asked during a pause and are still open."""
    if not now - LONGEST_PAUSE < since <= now:
        return []
    after = since - OVERLAP, ""
    page = waits.page(kind=Kind.HUMAN.value, thread_id=None, after=after, count=MOST)
    found: list[WaitRow] = await ui.runtime.journal.ado(page)
    return found


async def _find(ui: Ui, wait_id: str) -> WaitRow | None:
    found: WaitRow | None = await ui.runtime.journal.ado(waits.find(wait_id))
    return found


async def _encoded(ui: Ui, allowed: ThreadFilter, rows: Iterable[WaitRow]) -> list[bytes]:
    """The events of the questions that the viewer may see."""
    seen = [row for row in rows if await allowed.sees(row.thread_id)]
    return [encode("asked", _said(ui, row), str(row.created_at)) for row in seen]


def _said(ui: Ui, row: WaitRow) -> dict[str, str]:
    wait = waits.to_wait(ui.runtime.engine.serializer, row)
    title = headline(question_of(wait))
    return {
        "id": row.id,
        "graph": wait.graph,
        "title": title,
        "url": ui.url(f"/questions/{row.id}"),
    }
