"""The pages of the section Operate that are short.

health         the verdict and its signs, the size of the journal, and the doctor on demand
code changes   the unfinished runs that the registered graphs would hold when they wake
outbox         undelivered messages, and those that were given up; deliver one now
workers        their state, the runs they drive and when the leases end; drain one
reflections    memory work that is pending, running or held; retry and cancel
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Response

from perdure.commands import messages, reflections, runs
from perdure.commands.health import MOST, first_signs
from perdure.commands.reflections import PREFIX
from perdure.commands.runs import UnfinishedRun
from perdure.commands.streams import count_questions
from perdure.errors import NotFound
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.ui.lists import (
    LOOKED_AT,
    PAGE,
    as_cursor,
    bounded,
    from_cursor,
    require_every_thread,
)
from perdure.server.ui.page import Ui, UiDep, note_change, ui_router
from perdure.times import maybe_moment, milliseconds
from perdure.types import DrivenRun, Kind, Message, State, WorkerInfo, WorkerState
from perdure.views.code_changes import code_changes
from perdure.views.health_report import HealthFacts, WorkerCount, health_report

router = ui_router()


@router.get("/health")
async def show(ui: UiDep) -> Response:
    await require_every_thread(ui)
    return ui.page(
        "health.html",
        title="Health",
        section="health",
        report=health_report(await _facts(ui)),
    )


@router.get("/health/signs")
async def signs(ui: UiDep) -> Response:
    """The part of the page that refreshes itself."""
    await require_every_thread(ui)
    report = health_report(await _facts(ui))
    return ui.html(ui.fragment("parts/health_signs.html", report=report))


async def _facts(ui: Ui) -> HealthFacts:
    rt, journal = ui.runtime, ui.runtime.journal
    oldest = await rt.waits(kind=Kind.HUMAN, limit=1)
    return HealthFacts(
        ui.now,
        await journal.ado(first_signs(milliseconds(ui.now))),
        await journal.ado(count_questions(MOST)),
        oldest[0].created_at if oldest else None,
        await rt.run_counts(MOST),
        _count(await rt.workers()),
        rt.retention,
        rt.engine.failures.failing,
    )


def _count(workers: Sequence[WorkerInfo]) -> WorkerCount:
    states = Counter(one.state for one in workers)
    alive, draining = states[WorkerState.ALIVE], states[WorkerState.DRAINING]
    return WorkerCount(alive, states[WorkerState.SILENT] + states[WorkerState.DEAD], draining)


@router.post("/health/doctor")
async def doctor(ui: UiDep) -> Response:
    """Check the invariants. A form and not a link, because it reads the whole journal."""
    ui.require(Scope.ADMIN)
    found = await ui.runtime.doctor()
    return ui.page("doctor.html", title="Doctor", section="health", found=found)


SHOWN = 20
"""Maximum number of runs listed for each reason."""


@router.get("/code-changes")
async def code_changes_page(ui: UiDep, check: str = "") -> Response:
    """Check at once if there are few unfinished runs; many are checked on request, because each may
    have to be read."""
    await require_every_thread(ui)
    few = await ui.runtime.journal.ado(
        runs.unfinished_of_threads("", "\U0010ffff", None, LOOKED_AT)
    )
    changes = None
    if check or len(few) < LOOKED_AT:
        found = await ui.runtime.check()
        changes = code_changes(found.checked, found.lost, found.missing, ui.runtime.graphs)
    return ui.page(
        "code_changes.html",
        title="Code changes",
        section="code-changes",
        changes=changes,
        graphs=ui.runtime.graphs,
        shown=SHOWN,
    )


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


MOST_WORKERS = 100
"""Maximum number of workers on the page."""
HERE = (WorkerState.ALIVE, WorkerState.DRAINING)


@dataclass(frozen=True)
class Driven:
    """A run that a worker drives, and when its lease ends unless it is renewed."""

    run: DrivenRun
    lease_at: datetime | None


@router.get("/workers")
async def list_workers(ui: UiDep) -> Response:
    await require_every_thread(ui)
    return ui.page("workers.html", title="Workers", section="workers", **await _found(ui))


@router.get("/workers/list")
async def refreshed(ui: UiDep) -> Response:
    """The part of the page that refreshes itself."""
    await require_every_thread(ui)
    return ui.html(ui.fragment("parts/workers.html", **await _found(ui)))


@router.get("/workers/drain")
async def ask_drain(ui: UiDep, id: str) -> Response:
    ui.require(Scope.ADMIN)
    worker = await _find(ui, id)
    title = f"Drain {worker.host}, process {worker.pid}?"
    others = [one for one in await ui.runtime.workers() if one.id != id and one.state in HERE]
    return ui.page("worker_drain.html", title=title, section="workers", one=worker, others=others)


@router.post("/workers/drain")
async def drain(ui: UiDep) -> Response:
    ui.require(Scope.ADMIN)
    await ui.runtime.drain(ui.posted.get("id"), by=ui.actor)
    notice = "Drain requested. The worker claims nothing more and exits after its current steps."
    return ui.redirect("/workers", notice=notice)


async def _find(ui: Ui, id: str) -> WorkerInfo:
    for worker in await ui.runtime.workers():
        if worker.id == id:
            return worker
    raise NotFound("worker", id)


async def _found(ui: Ui) -> dict[str, Any]:
    """The workers, live ones first, each with its first runs."""
    every = await ui.runtime.workers()
    every.sort(key=lambda one: one.state not in HERE)
    shown = every[:MOST_WORKERS]
    ids = [run.run_id for one in shown for run in one.runs[:SHOWN]]
    rows = await ui.runtime.journal.ado(runs.find_all(ids)) if ids else []
    leases = {row.id: maybe_moment(row.due_at) for row in rows}
    return {
        "workers": [
            (one, [Driven(run, leases.get(run.run_id)) for run in one.runs[:SHOWN]])
            for one in shown
        ],
        "left": len(every) - len(shown),
        "alive": sum(one.state in HERE for one in every),
    }


STATES = (State.HELD, State.RUNNING, State.PENDING, State.WAITING)
"""The tabs of the list, by state; those that need a person come first."""
ORDER = {state: n for n, state in enumerate(STATES)}


@router.get("/reflections")
async def list_reflections(
    ui: UiDep, state: str = "", executor: str = "", behind: str = ""
) -> Response:
    """Pages and counts cover a bounded number of rows, held ones first."""
    await require_every_thread(ui)
    if state and state not in STATES:
        raise ApiError(422, f"Unfinished reflections have no state {state!r}.")
    on, journal = ui.runtime.engine, ui.runtime.journal
    at = from_cursor(behind, str, int)
    position = None if at is None else (str(at[0]), int(at[1]))
    read: list[UnfinishedRun] = await journal.arun(reflections.unfinished(on, position, LOOKED_AT))
    mine = [one for one in read if executor in ("", one.graph.removeprefix(PREFIX))]
    fit = [one for one in mine if state in ("", one.state)]
    chosen = sorted(fit, key=lambda one: ORDER.get(State(one.state), len(ORDER)))[:PAGE]
    shown = await journal.arun(reflections.shown(on, [one.id for one in chosen]))
    is_cut = len(read) == LOOKED_AT
    query = {"state": state, "executor": executor}
    last = (read[-1].thread_id, read[-1].n) if is_cut else None
    return ui.page(
        "reflections.html",
        title="Reflections",
        section="reflections",
        rows=sorted(shown, key=lambda one: ORDER.get(one.state, len(ORDER))),
        counts=Counter(one.state for one in mine),
        executors=sorted({one.graph.removeprefix(PREFIX) for one in read}),
        states=STATES,
        query=query,
        behind=behind,
        left=len(fit) - len(chosen),
        is_cut=is_cut,
        more=None if last is None else ui.url("/reflections", **query, behind=as_cursor(last)),
    )


@router.post("/reflections/retry")
async def retry(ui: UiDep) -> Response:
    ui.require(Scope.ADMIN)
    rt, id = ui.runtime, ui.posted.get("id")
    await rt.journal.arun(reflections.retry(rt.engine, id, by=ui.actor))
    rt.engine.wake()
    return ui.redirect("/reflections", notice="Reflection retried.")


@router.post("/reflections/cancel")
async def cancel(ui: UiDep) -> Response:
    ui.require(Scope.ADMIN)
    rt, id = ui.runtime, ui.posted.get("id")
    await rt.journal.arun(reflections.cancel(rt.engine, id, by=ui.actor))
    rt.engine.wake(stopped=True)
    return ui.redirect("/reflections", notice="Reflection cancelled. It writes nothing.")
