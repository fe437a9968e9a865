"""Reflections: memory work that is pending, running or held; retry and cancel."""

from __future__ import annotations

from collections import Counter

from fastapi import Response

from perdure.commands import reflections
from perdure.commands.reflections import PREFIX
from perdure.commands.runs import UnfinishedRun
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.ui.lists import LOOKED_AT, PAGE, as_cursor, from_cursor, require_every_thread
from perdure.server.ui.page import UiDep, ui_router
from perdure.types import State

router = ui_router()

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
