"""Schedules: the list, one with its next times in two zones; start now, disable, delete."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import Response

from perdure.commands import runs, schedules
from perdure.commands.runs import RunRow
from perdure.commands.schedules import CRON, ScheduleRow
from perdure.errors import UNREADABLE, NotFound
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.ui.lists import PAGE, require_every_thread
from perdure.server.ui.page import Ui, UiDep, note_change, ui_router
from perdure.times import milliseconds, moment
from perdure.views.formatting import cron_words, upcoming

router = ui_router()

RECENT = 10
"""Runs of a schedule that its page shows."""


@router.get("/schedules")
async def list_schedules(ui: UiDep, after: str = "") -> Response:
    await require_every_thread(ui)
    rows = await ui.runtime.journal.ado(schedules.page(after, PAGE + 1))
    more = rows[PAGE - 1].name if len(rows) > PAGE else None
    shown = [_shown(ui, row, 1) for row in rows[:PAGE]]
    return ui.page(
        "schedules.html", title="Schedules", section="schedules", rows=shown, after=after, more=more
    )


@router.get("/schedules/one")
async def show(ui: UiDep, name: str) -> Response:
    await require_every_thread(ui)
    row = await _find(ui, name)
    recent = await ui.runtime.journal.ado(runs.of_schedule(name, RECENT))
    return ui.page(
        "schedule.html",
        title=name,
        section="schedules",
        one=_shown(ui, row),
        setup=_setup(ui, row),
        recent=[_run(one) for one in recent],
        nonce=f"{ui.now:%Y-%m-%dT%H:%M:%SZ}+{secrets.token_hex(4)}",
    )


@router.get("/schedules/delete")
async def ask_delete(ui: UiDep, name: str) -> Response:
    ui.require(Scope.ADMIN)
    row = await _find(ui, name)
    title = f"Delete the schedule {name}?"
    return ui.page("schedule_delete.html", title=title, section="schedules", one=_shown(ui, row, 1))


@router.post("/schedules/delete")
async def delete(ui: UiDep) -> Response:
    ui.require(Scope.ADMIN)
    name = ui.posted.get("name")
    await ui.runtime.unschedule(name)
    note_change(ui, f"deleted a schedule: {name!r}")
    return ui.redirect("/schedules", notice=f"{name} is deleted. Its runs are kept.")


@router.post("/schedules/enable")
async def enable(ui: UiDep) -> Response:
    ui.require(Scope.ADMIN)
    name, on = ui.posted.get("name"), ui.posted.get("enabled") == "yes"
    await ui.runtime.enable_schedule(name, enabled=on)
    note_change(ui, f"{'enabled' if on else 'disabled'} a schedule: {name!r}")
    said = "is enabled from its next time on" if on else "is disabled and starts no runs"
    return ui.redirect("/schedules/one", name=name, notice=f"{name} {said}.")


@router.post("/schedules/start")
async def start(ui: UiDep) -> Response:
    """Start a run now. The form has a number, so a second click starts nothing."""
    ui.require(Scope.ADMIN)
    name, nonce, rt = ui.posted.get("name"), ui.posted.get("nonce"), ui.runtime
    if not nonce:
        raise ApiError(422, "The form is incomplete. Reload the page.")
    fire = rt.engine.fire_schedule(name, nonce, ui.actor)
    row: RunRow = await rt.journal.arun(fire)
    rt.engine.wake()
    return ui.redirect(f"/runs/{row.id}", notice=f"{name} was started.")


async def _find(ui: Ui, name: str) -> ScheduleRow:
    row = await ui.runtime.journal.ado(schedules.find(name))
    if row is None:
        raise NotFound("schedule", name)
    return row


def _shown(ui: Ui, row: ScheduleRow, count: int = 10) -> dict[str, Any]:
    """The template variables of a schedule."""
    schedule = row.to_schedule(ui.runtime.engine.serializer, milliseconds(ui.now))
    times = upcoming(row, ui.now, ui.zone, count)
    return {
        "name": row.name,
        "graph": row.graph,
        "is_registered": row.graph in ui.runtime.graphs,
        "cron": row.cron,
        "words": cron_words(row.cron),
        "zone": row.timezone,
        "two_clocks": row.timezone != ui.zone.key,
        "enabled": schedule.enabled,
        "ended": not times and not schedule.damaged,
        "end_at": None if row.end_at is None else moment(row.end_at),
        "damaged": schedule.damaged,
        "problem": None if schedule.damaged else schedule.problem,
        "missed": schedule.missed,
        "missed_at": schedule.missed_at,
        "times": times,
    }


def _setup(ui: Ui, row: ScheduleRow) -> dict[str, Any]:
    """What its runs are started with, as far as it can be read."""
    try:
        setup = row.load(ui.runtime.engine.serializer)
    except UNREADABLE:
        return {}
    cron = setup.get(CRON) or {}
    shown = {name: setup.get(name) for name in ("input", "metadata", "tags", "context")}
    shown["thread"] = cron.get("thread_id")
    return {name: one for name, one in shown.items() if one}


def _run(row: RunRow) -> dict[str, Any]:
    return {"id": row.id, "state": row.state, "key": row.key, "at": moment(row.created_at)}
