"""Effects, the calls that leave the process: the list by state and name; one effect, and the form
that settles it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Response

from perdure.commands import effects
from perdure.commands.effects import EffectHead, EffectPosition, EffectRow
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.perdure_api.requests import ThreadFilter, find_row
from perdure.server.ui.lists import EVALUATED, LOOKED_AT, PAGE, Looked, as_cursor, from_cursor, look
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.types import EffectRecord, EffectState
from perdure.views.formatting import call_arguments
from perdure.views.question_form import Refused, json_in

router = ui_router()

TABS = ("", "unknown", "open", "again", "failed", "done")
"""The tabs of the list, by state; the first one is all states."""
SETTLED = {
    "done": "Settled as done.",
    "retry": "Settled: the run calls it again.",
    "fail": "Settled as failed.",
}


@router.get("/effects")
async def list_effects(
    ui: UiDep, state: str = "", name: str = "", behind: str = "", run: str = ""
) -> Response:
    ui.require(Scope.READ)
    if state not in TABS:
        raise ApiError(422, f"Effects have no state {state!r}.")
    seen = await ThreadFilter.of(ui.api)
    if run:
        found = await _of_run(ui, seen, run, state, name)
    elif state == EffectState.UNKNOWN:
        found = await _unknown(ui, seen, name, behind)
    else:
        found = await _newest(ui, seen, state, name, behind)
    rows, more, is_cut = found
    query = {"state": state, "name": name, "run": run}
    return ui.page(
        "effects.html",
        title="Effects",
        section="effects",
        rows=[(one, call_arguments(one.name, one.arguments)) for one in rows],
        tabs=TABS,
        query=query,
        behind=behind,
        more=None if more is None else ui.url("/effects", **query, behind=as_cursor(more)),
        is_cut=is_cut,
    )


Found = tuple[list[EffectRecord], Sequence[int | str] | None, bool]


async def _newest(ui: Ui, seen: ThreadFilter, state: str, name: str, behind: str) -> Found:
    """Effects, newest runs first, filtered among a bounded number of rows."""
    at = from_cursor(behind, int, str, int, str)
    position = EffectPosition() if at is None else EffectPosition(*at)
    heads = await ui.runtime.journal.ado(effects.newest(position, LOOKED_AT))

    async def wanted(head: EffectHead) -> bool:
        fits = head.key is not None and state in ("", head.state) and name in ("", head.name)
        # Evaluations have many; the pages of their runs show them.
        fits = fits and not head.graph.startswith(EVALUATED)
        return fits and await seen.sees(head.run_thread)

    found: Looked[EffectHead] = await look(heads, wanted)
    keys = [str(one.key) for one in found.rows]
    rows = await ui.runtime.journal.ado(effects.find_all(keys))
    by_key = {row.key: row for row in rows}
    shown = [_record(ui, by_key[key]) for key in keys if key in by_key]
    last = None if found.last is None else found.last.position
    return shown, last, found.is_cut


async def _unknown(ui: Ui, seen: ThreadFilter, name: str, behind: str) -> Found:
    """Effects that a person has to settle, oldest first: they have an index."""
    at = from_cursor(behind, int, str)
    position = None if at is None else (int(at[0]), str(at[1]))
    page = effects.page(thread_id=None, state="unknown", after=position, count=LOOKED_AT)
    read: list[EffectRow] = await ui.runtime.journal.ado(page)

    async def wanted(row: EffectRow) -> bool:
        return name in ("", row.name) and await seen.sees(row.thread_id)

    found = await look(read, wanted)
    last = None if found.last is None else (found.last.created_at, found.last.key)
    return [_record(ui, row) for row in found.rows], last, found.is_cut


async def _of_run(ui: Ui, seen: ThreadFilter, run: str, state: str, name: str) -> Found:
    read: list[EffectRow] = await ui.runtime.journal.ado(effects.of_run(run))
    fit = [row for row in read if state in ("", row.state) and name in ("", row.name)]
    shown = [row for row in fit[:LOOKED_AT] if await seen.sees(row.thread_id)]
    return [_record(ui, row) for row in shown[: 4 * PAGE]], None, False


@router.get("/effects/one")
async def show(ui: UiDep, key: str) -> Response:
    ui.require(Scope.READ)
    row = await find_row(ui.api, "effect", key)
    return ui.page(
        "effect.html", title=row.name, section="effects", one=_record(ui, row), task=row.task
    )


@router.post("/effects/settle")
async def settle(ui: UiDep) -> Response:
    """Store a person's decision. Raises `NotSettled` if someone settled it first."""
    ui.require(Scope.ADMIN)
    form = ui.posted
    key, how = form.get("key"), form.get("how")
    await find_row(ui.api, "effect", key, "update")
    result = _result(form.get("result")) if how == "done" else None
    reason = form.get("reason").strip() or None
    if how not in SETTLED:
        raise ApiError(422, "Choose what happened to the call.")
    await ui.runtime.settle(key, how, result, by=ui.actor, reason=reason)  # type: ignore[arg-type]
    return ui.redirect("/effects/one", key=key, notice=SETTLED[how])


def _result(text: str) -> Any:
    """What the call returned: JSON, or else the text itself."""
    text = text.strip()
    if not text:
        return None
    try:
        return json_in(text)
    except Refused:
        if text[0] in '{["' or text.endswith(('"', "}", "]")):
            raise ApiError(422, "The result is not valid JSON.") from None
        return text


def _record(ui: Ui, row: EffectRow) -> EffectRecord:
    return effects.to_record(ui.runtime.engine.serializer, row)
