"""`/ui/threads/one`: one thread as a chat, with its runs, its state, and a form for a signal.

While a run is driven, its messages are appended: only new and changed ones are sent.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from perdure.errors import UNREADABLE, NotFound
from perdure.operations import runs
from perdure.operations.run_payload import load_setup
from perdure.operations.runs import RunRow
from perdure.server.agent_api.thread_views import readable_snapshot
from perdure.server.caller import Scope
from perdure.server.own_api.access import allow_thread, find_run
from perdure.server.ui.lists import from_cursor
from perdure.server.ui.page import Ui, UiDep, sse, ui_router
from perdure.server.ui.run_rows import Row, read_rows
from perdure.service.run_search import as_text
from perdure.service.thread_search import OWN
from perdure.service.threads import Thread
from perdure.types import State
from perdure.views.conversation import Bubble, Conversation, Turn, conversation
from perdure.views.markup import Html, element, join
from perdure.views.typed_values import Refused, json_in

router = ui_router()

RUNS = 50
"""Maximum number of runs read, newest first."""


@dataclass(frozen=True)
class Talk:
    """A thread with its runs and its conversation."""

    thread: Thread
    rows: list[Row]
    """Its newest runs, newest first."""
    talk: Conversation
    is_readable: bool
    """Whether its state could be read."""

    @property
    def labels(self) -> list[tuple[str, str]]:
        every = self.thread.metadata.items()
        return [(name, as_text(one)) for name, one in every if name not in OWN]

    @property
    def run_ids(self) -> set[str]:
        return {row.run.id for row in self.rows}

    @property
    def is_busy(self) -> bool:
        """Whether a run is driven, or due."""
        return any(
            row.run.state is State.RUNNING or (row.waiting and row.waiting.kind == "worker")
            for row in self.rows
        )

    @property
    def awaited(self) -> list[Row]:
        """Its runs that are waiting for a person or a signal."""
        found = [row for row in self.rows if row.waiting and row.waiting.wait_id]
        return [row for row in found if row.waiting and row.waiting.kind in ("person", "signal")]


@router.get("/threads/one")
async def show_thread(ui: UiDep, id: str, until: str = "") -> Response:
    ui.require(Scope.READ)
    first = from_cursor(until, int)
    shown = await read_talk(ui, id, None if first is None else first[0])
    earlier = shown.talk.bubbles[0].number if shown.talk.earlier else None
    return ui.page(
        "thread.html",
        title=id,
        section="threads",
        view=shown,
        runs_at=ui.url("/runs", thread=id),
        earlier=None if earlier is None else _address(ui, id, until=f"[{earlier}]"),
        latest=_address(ui, id) if until else None,
        live=None if until else _live_address(ui, shown),
        signal_key=secrets.token_hex(16),
        has_more_runs=len(shown.rows) == RUNS,
    )


def _address(ui: Ui, thread_id: str, **query: str) -> str:
    return ui.url("/threads/one", id=thread_id, **query)


async def read_talk(ui: Ui, thread_id: str, until: int | None = None) -> Talk:
    """A thread with its newest runs and its messages. Raises `NotFound`."""
    await allow_thread(ui.api, thread_id, "read")
    journal, services = ui.runtime.journal, ui.runtime.services
    thread = await journal.arun(services.threads.get(thread_id))
    rows: list[RunRow] = await journal.ado(runs.page(thread_id=thread_id, count=RUNS))
    snapshot = await journal.in_thread(lambda: readable_snapshot(ui.api, thread))
    state = {} if snapshot is None else snapshot.values
    turns = [_turn(ui, row) for row in reversed(rows)]
    talk = conversation(state, turns, until=until)
    return Talk(thread, await read_rows(ui, rows), talk, snapshot is not None)


def _turn(ui: Ui, row: RunRow) -> Turn:
    try:
        given: Any = load_setup(ui.runtime.engine.serializer, row).get("input")
    except UNREADABLE:
        given = None
    return Turn(row.id, given, has_begun=row.begun == 1 or row.state not in ("pending",))


# -- live


@router.get("/conversation/live")
async def follow_thread(ui: UiDep, id: str, seen: str = "") -> Response:
    """New and changed messages, each as an event, and the runs of the thread. `seen` is the version
    that the page has."""
    ui.require(Scope.READ)
    shown = await read_talk(ui, id)
    return ui.stream(_changes(ui, shown, seen))


def _live_address(ui: Ui, shown: Talk) -> str:
    seen = Sent(ui, shown).version
    return ui.url("/conversation/live", id=shown.thread.thread_id, seen=seen)


async def _changes(ui: Ui, shown: Talk, seen: str) -> AsyncGenerator[bytes]:
    sent = Sent(ui, shown)
    if sent.version != seen:
        yield sent.chat()
        for name, html in sent.rest.items():
            yield sse(name, html)
    try:
        async with aclosing(_talks(ui, shown)) as talks:
            async for now in talks:
                for event in sent.changes(ui, now):
                    yield event
    except NotFound:  # the thread was erased: nothing of it is shown any longer
        yield sse("now", element("p", "This thread was deleted.", class_="notice"))
        for name in ("chat", "thread-runs", "thread-values", "end"):
            yield sse(name, "")


async def _talks(ui: Ui, shown: Talk) -> AsyncGenerator[Talk]:
    """A thread, each time something happens on it. New runs of it are followed, too."""
    thread_id = shown.thread.thread_id
    while True:
        known = shown.run_ids
        async with ui.live.follow(known) as changes:
            if not known:
                yield (shown := await read_talk(ui, thread_id))
            while shown.run_ids == known:
                change = await anext(changes)
                new = {*change.new_runs} - known
                if change.changed or await _on_thread(ui, thread_id, new):
                    await ui.renew()
                    yield (shown := await read_talk(ui, thread_id))


async def _on_thread(ui: Ui, thread_id: str, ids: set[str]) -> bool:
    """Whether one of these runs is on a thread."""
    rows: list[RunRow] = await ui.runtime.journal.ado(runs.find_all(ids)) if ids else []
    return any(row.thread_id == thread_id for row in rows)


class Sent:
    """What an open page shows of a thread."""

    def __init__(self, ui: Ui, shown: Talk) -> None:
        self._bubbles = _rendered(ui, shown.talk.bubbles)
        self.rest = _rest(ui, shown)

    @property
    def version(self) -> str:
        """Differs if the messages differ."""
        whole = "".join(self._bubbles.values()).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(whole, digest_size=8).hexdigest()

    def chat(self) -> bytes:
        """The event that replaces the whole chat."""
        return sse("chat", join(*self._bubbles.values()))

    def changes(self, ui: Ui, shown: Talk) -> list[bytes]:
        """The events that bring the page up to date."""
        before, self._bubbles = self._bubbles, _rendered(ui, shown.talk.bubbles)
        now, events = self._bubbles, []
        if before.keys() - now.keys():  # messages were removed, or it became long
            events.append(self.chat())
        else:
            changed = [one for one in before if before[one] != now[one]]
            events += [sse(f"bubble-{one}", now[one]) for one in changed]
            if new := [now[one] for one in now if one not in before]:
                events.append(sse("more", join(*new)))
        for name, html in _rest(ui, shown).items():
            if self.rest.get(name) != html:
                self.rest[name] = html
                events.append(sse(name, html))
        return events


def _rendered(ui: Ui, bubbles: tuple[Bubble, ...]) -> dict[int, Html]:
    return {one.number: ui.fragment("parts/bubble.html", bubble=one) for one in bubbles}


def _rest(ui: Ui, shown: Talk) -> dict[str, Html]:
    return {
        "now": ui.fragment("parts/thread_now.html", view=shown),
        "thread-runs": ui.fragment("parts/thread_runs.html", view=shown),
        "thread-values": ui.fragment("parts/thread_values.html", view=shown),
    }


# -- a signal


@router.post("/signals")
async def send_signal(ui: UiDep) -> Response:
    """Send a signal to a thread. A form that is sent twice stores it once."""
    ui.require(Scope.ADMIN)
    form = await ui.form()
    thread_id, name = form.get("thread"), form.get("name").strip()
    if not thread_id:
        raise NotFound("thread", "")
    await allow_thread(ui.api, thread_id, "update")
    await ui.runtime.journal.arun(ui.runtime.services.threads.get(thread_id))
    value, problem = typed(form.get("value"))
    if not name:
        problem = "Give the signal a name."
    if problem:
        page = ui.page(
            "signal.html",
            title="Send a signal",
            section="threads",
            thread_id=thread_id,
            name=name,
            value_text=form.get("value"),
            problem=problem,
            signal_key=form.get("key"),
            run_id=form.get("run"),
        )
        page.status_code = 422
        return page
    is_new = await ui.runtime.signal(thread_id, name, value, key=form.get("key") or None)
    said = f"The signal {name} was sent." if is_new else f"The signal {name} had already been sent."
    if run_id := form.get("run"):  # it was sent from the page of a run
        run = await find_run(ui.api, run_id)
        return ui.redirect(f"/runs/{run.id}", notice=said)
    return ui.redirect("/threads/one", id=thread_id, notice=said)


def typed(text: str) -> tuple[Any, str]:
    """The value of a signal as typed: JSON, or else plain text."""
    if not text.strip():
        return None, ""
    try:
        return json_in(text), ""
    except Refused:
        pass
    if text.lstrip()[:1] in "{[":
        return None, "This looks like JSON but is not valid. Correct it, or write plain text."
    return text.strip(), ""
