"""The inbox: everything that needs a person, oldest first, live.

New items appear, and decided ones show who decided. The address of the stream names the items on
the page, so none is missed, however long the browser takes to connect. Items that the page lacks
are sent at once, and so are those that an earlier connection sent: the script replaces what it
already shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable
from contextlib import aclosing
from typing import Any, NamedTuple

from fastapi import Response

from perdure.commands import inbox, runs
from perdure.commands.inbox import InboxEntry, InboxKind, InboxPage
from perdure.commands.runs import RunRow
from perdure.errors import Error
from perdure.server.authorization import Scope
from perdure.server.perdure_api.requests import ThreadFilter
from perdure.server.ui.inbox_items import (
    AGES,
    KINDS,
    PAGE,
    InboxFilter,
    dom_id,
    make_item,
    read_page,
    read_position,
    render_item,
)
from perdure.server.ui.lists import as_cursor
from perdure.server.ui.live import Change
from perdure.server.ui.page import Ui, UiDep, sse, ui_router
from perdure.server.ui.question_access import find_question, just_done
from perdure.types import Wait

router = ui_router()


@router.get("/inbox")
async def list_inbox(ui: UiDep, after: str | None = None) -> Response:
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


LOOK = 10.0
"""Seconds between two polls for items that the feed does not announce: held runs, effects. They
appear however busy the journal is."""
MOST_ITEMS = 200
"""Maximum number of items that one page follows."""


class Shown(NamedTuple):
    """An item that the page shows."""

    kind: InboxKind
    run_id: str
    version: str
    """A version that differs once the item must be rendered again."""
    id: str

    @classmethod
    def of(cls, entry: InboxEntry) -> Shown:
        record = entry.record
        run_id = entry.id if entry.run is None else entry.run.id
        seen = record.assignee if isinstance(record, Wait) else record.updated_at
        version = hashlib.blake2b(str(seen).encode(), digest_size=4).hexdigest()
        return cls(entry.kind, run_id, version, entry.id)


def live_address(ui: Ui, filters: InboxFilter, page: InboxPage, after: str | None) -> str:
    """The address of the stream of a page."""
    items = [":".join(Shown.of(entry)) for entry in page.entries]
    is_last = page.after is None and not filters.expires
    return ui.url(
        "/inbox/live",
        **filters.written,
        item=items,
        after=after if is_last else None,
        grows="yes" if is_last else None,
    )


class InboxStream:
    """The stream of one open page."""

    def __init__(self, ui: Ui) -> None:
        query = ui.request.query_params
        self._ui, self._filters = ui, InboxFilter.of(query)
        self._shown = [*_read(query.getlist("item"))]
        self._after, self._grows = read_position(query.get("after")), query.get("grows") == "yes"
        self._look_at = time.monotonic()

    async def events(self) -> AsyncGenerator[bytes]:
        """What changes, as server-sent events."""
        while True:
            followed = {one.run_id for one in self._shown}
            async with (
                self._ui.live.follow(followed) as changes,
                aclosing(self._until_new(changes)) as events,
            ):
                async for event in events:
                    yield event

    async def _until_new(self, changes: AsyncIterator[Change]) -> AsyncGenerator[bytes]:
        """The changes until there are new items to follow."""
        waiting = asyncio.ensure_future(anext(changes))
        try:
            while True:
                left = max(0.0, self._look_at - time.monotonic())
                done, _ = await asyncio.wait({waiting}, timeout=left)
                change = Change()
                if done:
                    change = waiting.result()
                    waiting = asyncio.ensure_future(anext(changes))
                async for event in self._changed(change.changed):
                    yield event
                is_time = time.monotonic() >= self._look_at
                if is_time:
                    self._look_at = time.monotonic() + LOOK
                if self._grows and (change.questions or is_time):
                    followed = {one.run_id for one in self._shown}
                    async for event in self._new(change.asking_runs, look=is_time):
                        yield event
                    if not {one.run_id for one in self._shown} <= followed:
                        return
        finally:
            waiting.cancel()

    async def _changed(self, run_ids: Iterable[str]) -> AsyncIterator[bytes]:
        """The items of these runs, as they are now."""
        mine = [one for one in self._shown if one.run_id in run_ids]
        if not mine:
            return
        await self._ui.renew()
        hidden = await self._hidden({one.run_id for one in mine})
        mine = [one for one in mine if one.run_id not in hidden]
        plan = inbox.of_runs(self._ui.runtime.engine, {one.run_id for one in mine})
        entries: list[InboxEntry] = await self._ui.runtime.journal.arun(plan)
        now = {(entry.kind, entry.id): entry for entry in entries}
        for one in mine:
            entry = now.get((one.kind, one.id))
            if entry is None:
                self._shown.remove(one)
                yield sse(dom_id(one.kind, one.id), await self._gone(one))
            elif (new := Shown.of(entry)) != one:
                self._shown[self._shown.index(one)] = new
                yield sse(dom_id(one.kind, one.id), self._render(entry))

    async def _new(self, run_ids: Collection[str], *, look: bool) -> AsyncIterator[bytes]:
        """New items: of runs that asked; with `look`, all that the page would list, because a run
        held just now may be older than what the page shows."""
        await self._ui.renew()
        on, journal = self._ui.runtime.engine, self._ui.runtime.journal
        entries: list[InboxEntry] = []
        if look:
            entries = (await read_page(self._ui, self._filters, self._after, MOST_ITEMS)).entries
        elif run_ids:
            allowed = {*run_ids} - await self._hidden(run_ids)
            query = self._filters.query(self._ui)
            entries = await journal.arun(inbox.of_runs(on, allowed, query))
        known = {(one.kind, one.id) for one in self._shown}
        for entry in entries:
            if (entry.kind, entry.id) not in known and len(self._shown) < MOST_ITEMS:
                self._shown.append(Shown.of(entry))
                yield sse("new", self._render(entry))

    async def _hidden(self, run_ids: Collection[str]) -> set[str]:
        """The runs among these that the viewer may not see: the address may name any run."""
        seen = await ThreadFilter.of(self._ui.api)
        rows: list[RunRow] = await self._ui.runtime.journal.ado(runs.find_all(run_ids))
        return {row.id for row in rows if not await seen.sees(row.thread_id)}

    def _render(self, entry: InboxEntry) -> str:
        return render_item(self._ui, make_item(entry), query=self._filters.written, after="")

    async def _gone(self, one: Shown) -> str:
        """The outcome of an item that no longer needs a person."""
        context: dict[str, Any] = {"dom_id": dom_id(one.kind, one.id), "found": None, "one": one}
        if one.kind is InboxKind.QUESTION:
            try:
                context["found"] = await find_question(self._ui, one.id)
            except Error:
                context["found"] = None
        return self._ui.fragment("parts/inbox_gone.html", **context)


def _read(items: Iterable[str]) -> Iterable[Shown]:
    for text in [*items][:MOST_ITEMS]:
        kind, run_id, version, *id = text.split(":", 3)[:4] if text.count(":") >= 3 else ("",) * 3
        if kind in [*InboxKind] and run_id and id:
            yield Shown(InboxKind(kind), run_id, version, id[0])
