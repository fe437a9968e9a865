"""Every address of the pages with something to show, for tests that visit them all.

`addresses(rt)` has them by the path of their route. A route that is not listed here fails
`tests/server/ui/test_hostile_text.py`, so that a new page cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import perdure
from perdure.commands import inbox, question_links
from perdure.commands.inbox import InboxKind, InboxQuery
from perdure.types import EffectRecord, EffectState, Kind, State

DAY = timedelta(days=1)
NO_PAGE = ("/ui", "/ui/", "/ui/static/{name}", "/ui/{path:path}", "/ui/notifications/live")
"""Routes without HTML of the journal: the redirect home, files, the page for unknown paths, and
JSON for the system's notifications."""

FRAGMENTS = frozenset({"/ui/health/signs", "/ui/workers/list"})
"""Routes with only a part of a page, which a script puts into one."""

Find = Callable[[perdure.Runtime], Awaitable[Iterable[str]]]


def fixed(*paths: str) -> Find:
    async def find(rt: perdure.Runtime) -> Iterable[str]:
        return paths

    return find


async def questions(rt: perdure.Runtime) -> Iterable[str]:
    """Pages of open and closed questions."""
    runs = await rt.runs(limit=1000, output=False)
    records = [one for run in runs for one in await rt.wait_history(run.id)]
    return [f"/ui/questions/{one.id}" for one in records if one.kind is Kind.HUMAN]


async def inboxes(rt: perdure.Runtime) -> Iterable[str]:
    runs = await rt.runs(limit=1000, output=False)
    found = {asked("/ui/inbox", kind=kind) for kind in InboxKind}
    found |= {asked("/ui/inbox", graph=run.graph) for run in runs}
    found |= {
        asked("/ui/inbox", label=f"{name}={value}")
        for run in runs
        for name, value in run.metadata.items()
        if isinstance(value, str)
    }
    return ["/ui/inbox", asked("/ui/inbox", expires="soon", assignee="<b>me", age="1d"), *found]


async def live_inbox(rt: perdure.Runtime) -> Iterable[str]:
    """Every item as an older version of it, so that it is rendered."""
    page = await rt.journal.arun(inbox.page(rt.engine, InboxQuery(), None, 50))
    shown = [("item", f"{one.kind}:{one.run.id}:old:{one.id}") for one in page.entries if one.run]
    return [f"/ui/inbox/live?{urlencode([*shown, ('grows', 'yes')])}"]


async def links(rt: perdure.Runtime) -> Iterable[str]:
    """Links to open questions. An invalid link is a page, too, but not listed here."""
    waits = await rt.waits(kind="human", limit=1000)
    make = partial(question_links.make_link, rt.engine)
    made = [await rt.journal.arun(make(one.id, f"<b>{n}", DAY)) for n, one in enumerate(waits)]
    return [asked("/ui/link", t=token) for _, token in made]


async def effects(rt: perdure.Runtime) -> Iterable[str]:
    return [asked("/ui/effects/one", key=one.key) for one in await _effects(rt)]


async def effect_lists(rt: perdure.Runtime) -> Iterable[str]:
    found = await _effects(rt)
    states = [asked("/ui/effects", state=state) for state in EffectState]
    names = [asked("/ui/effects", name=one.name) for one in found]
    return [
        "/ui/effects",
        *states,
        *names,
        *(asked("/ui/effects", run=one.run_id) for one in found),
    ]


async def _effects(rt: perdure.Runtime) -> list[EffectRecord]:
    runs = await rt.runs(limit=1000, output=False)
    return [one for run in runs for one in await rt.effects(run.id)]


def schedules(path: str) -> Find:
    async def find(rt: perdure.Runtime) -> Iterable[str]:
        return [asked(path, name=one.name) for one in await rt.schedules()]

    return find


async def workers(rt: perdure.Runtime) -> Iterable[str]:
    return [asked("/ui/workers/drain", id=one.id) for one in await rt.workers()]


async def run_lists(rt: perdure.Runtime) -> Iterable[str]:
    runs = await rt.runs(limit=1000, output=False)
    found = {asked("/ui/runs", state=state) for state in State}
    for run in runs:
        found |= {asked("/ui/runs", graph=run.graph), asked("/ui/runs", thread=run.thread_id)}
        found |= {asked("/ui/runs", text=one) for one in (run.thread_id, *run.tags)}
        found |= {
            asked("/ui/runs", label=f"{name}={value}")
            for name, value in run.metadata.items()
            if isinstance(value, str)
        }
    return ["/ui/runs", *found]


TABS = ("history", "effects", "waits", "children", "scores", "state", "output")


async def single_runs(rt: perdure.Runtime) -> Iterable[str]:
    """Each run with every tab, one open event, and a zoom."""
    found: list[str] = []
    for run in await rt.runs(limit=1000, output=False):
        path, events = f"/ui/runs/{part(run.id)}", await rt.events(run.id)
        found += [asked(path, tab=tab, open=str(n)) for n, tab in enumerate(TABS, 1)]
        found += [asked(path, open=str(one.n)) for one in events]
        found.append(asked(path, **{"from": "1", "to": str(len(events))}))
    return found


async def run_events(rt: perdure.Runtime) -> Iterable[str]:
    runs = await rt.runs(limit=1000, output=False)
    return [
        f"/ui/runs/{part(run.id)}/events/{one.n}" for run in runs for one in await rt.events(run.id)
    ]


async def forks(rt: perdure.Runtime) -> Iterable[str]:
    """Forks of runs that have a state."""
    runs = await rt.runs(limit=1000, output=False)
    has_state = [
        run
        for run in runs
        if await rt.saver.aget_tuple({"configurable": {"thread_id": run.thread_id}})
    ]
    return [f"/ui/runs/{part(run.id)}/fork" for run in has_state]


async def live_run(rt: perdure.Runtime) -> Iterable[str]:
    runs = await rt.runs(state=State.WAITING, limit=50, output=False)
    return [f"/ui/runs/{part(run.id)}/live" for run in runs]


async def live_runs(rt: perdure.Runtime) -> Iterable[str]:
    runs = await rt.runs(limit=50, output=False)
    shown = [*(("id", f"{run.id}.0") for run in runs), ("top", '[0,""]')]
    return [f"/ui/run-list/live?{urlencode(shown)}"]


async def thread_lists(rt: perdure.Runtime) -> Iterable[str]:
    runs = await rt.runs(limit=1000, output=False)
    found = {asked("/ui/threads", status=one) for one in ("idle", "busy", "interrupted", "error")}
    found |= {asked("/ui/threads", graph=run.graph, text=run.thread_id[:20]) for run in runs}
    return ["/ui/threads", *found]


FOUND: dict[str, Find] = {
    "/ui/code-changes": fixed("/ui/code-changes", "/ui/code-changes?check=yes"),
    "/ui/effects": effect_lists,
    "/ui/effects/one": effects,
    "/ui/health": fixed("/ui/health"),
    "/ui/health/signs": fixed("/ui/health/signs"),
    "/ui/inbox": inboxes,
    "/ui/link": links,
    "/ui/outbox": fixed("/ui/outbox", "/ui/outbox?show=given-up"),
    "/ui/questions/{wait_id}": questions,
    "/ui/reflections": fixed("/ui/reflections"),
    "/ui/runs": run_lists,
    "/ui/runs/{run_id}": single_runs,
    "/ui/runs/{run_id}/events/{number}": run_events,
    "/ui/runs/{run_id}/fork": forks,
    "/ui/schedules": fixed("/ui/schedules"),
    "/ui/schedules/delete": schedules("/ui/schedules/delete"),
    "/ui/schedules/one": schedules("/ui/schedules/one"),
    "/ui/sign-in": fixed("/ui/sign-in", "/ui/sign-in?next=/inbox"),
    "/ui/workers": fixed("/ui/workers"),
    "/ui/workers/drain": workers,
    "/ui/workers/list": fixed("/ui/workers/list"),
    "/ui/threads": thread_lists,
}


STREAMS: dict[str, Find] = {
    "/ui/inbox/live": live_inbox,
    "/ui/run-list/live": live_runs,
    "/ui/runs/{run_id}/live": live_run,
}
"""Routes that send changes for as long as the page is open."""


async def addresses(rt: perdure.Runtime) -> dict[str, list[str]]:
    """The addresses of each route, for the contents of the journal."""
    return {path: sorted(await find(rt)) for path, find in FOUND.items()}


def asked(path: str, **query: str) -> str:
    return f"{path}?{urlencode(query)}"


def part(text: Any) -> str:
    """A text as a part of a path."""
    return quote(str(text), safe="")
