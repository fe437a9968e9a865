"""Pause, cancel or retry many runs: a preview, a confirmation, and one line for each run.

The preview fixes the set of runs. The confirmed action then covers exactly these, in pieces that
fit a request, and the page shows its progress. Each confirmation has a number: sent twice, or again
after a crash, it acts on each run once.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass, replace

from fastapi import Response

from perdure.commands import Plan, run_control, run_reads, run_search, runs
from perdure.commands.run_control import RunAction, read_stakes
from perdure.commands.runs import RunRow, maybe_control, state_of
from perdure.errors import Error, NotFound
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.perdure_api.requests import find_row
from perdure.server.ui.page import Form, Ui, UiDep, ui_router
from perdure.server.ui.run_rows import Filters, visibility, visible_runs
from perdure.types import Control, EventKind, Run, State
from perdure.verbs import GRACE
from perdure.views.formatting import count
from perdure.views.run_offers import BulkPreview, outcome, preview

router = ui_router()

MOST = 1000
"""Maximum number of runs in one bulk action."""
SEARCHES = 10
"""Maximum number of searches for all runs that match."""
PIECE = 100
"""Maximum number of runs that one request acts on."""
SECONDS = 2.0
"""Seconds after which a request starts no further run."""
NAMED = 10
"""Number of runs of a group that the preview shows unfolded."""
ACTIONS = (RunAction.PAUSE, RunAction.CANCEL, RunAction.RETRY)
CAN_CHANGE = {
    RunAction.PAUSE: (State.PENDING, State.RUNNING, State.WAITING),
    RunAction.CANCEL: (State.PENDING, State.RUNNING, State.WAITING, State.PAUSED, State.HELD),
    RunAction.RETRY: (State.FAILED, State.HELD),
}
"""Default states of "all that match", unless the filter names others."""


@dataclass(frozen=True)
class Result:
    """What was done to one run."""

    run_id: str
    title: str
    done: bool
    text: str


@dataclass(frozen=True)
class Confirmed:
    """A confirmed action and its progress."""

    action: RunAction
    batch: str
    ids: list[str]
    reason: str
    begin: int
    done: int
    refused: int

    @classmethod
    def read(cls, form: Form) -> Confirmed:
        """The confirmation in a form. Raises `ApiError`."""
        ids, batch = form.get("ids").split(), form.get("batch")
        numbers = [form.get(name, "0") for name in ("begin", "done", "refused")]
        fits = re.fullmatch(r"[0-9a-f]{32}", batch) and all(
            re.fullmatch(r"[0-9]{1,5}", one) for one in numbers
        )
        if not fits or not 0 < len(ids) <= MOST or max(map(len, ids)) > 100:
            raise ApiError(422, "This confirmation could not be read. Select the runs again.")
        begin, done, refused = map(int, numbers)
        reason = form.get("reason").strip()[:10_000]
        return cls(_action(form), batch, ids, reason, begin, done, refused)

    def number(self, run_id: str) -> int:
        """The number of the change to a run, the same if the form is sent again."""
        digest = hashlib.blake2b(f"{self.batch} {run_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 2


@router.post("/runs/bulk")
async def preview_runs(ui: UiDep) -> Response:
    """Preview what will happen to the selected runs. Changes nothing."""
    ui.require(Scope.ADMIN)
    form = await ui.form()
    action = _action(form)
    rows, is_cut = await _selected(ui, form, action)
    if not rows:
        return ui.redirect("/runs", notice="No run was selected.", **_filters(ui, form).address())
    shown = await _preview(ui, action, rows)
    return ui.page(
        "bulk_preview.html",
        title=f"{action.value.capitalize()} {count(len(rows), 'run')}?",
        section="runs",
        preview=shown,
        action=action,
        is_cut=is_cut,
        batch=secrets.token_hex(16),
        back=ui.url("/runs", **_filters(ui, form).address()),
        most=MOST,
        named=NAMED,
    )


@router.post("/runs/bulk/do")
async def act_on_runs(ui: UiDep) -> Response:
    """Do the next piece of a confirmed action, and show a line for each run."""
    ui.require(Scope.ADMIN)
    form = await ui.form()
    asked = Confirmed.read(form)
    results: list[Result] = []
    until = time.monotonic() + SECONDS
    for run_id in asked.ids[asked.begin : asked.begin + PIECE]:
        results.append(await _act(ui, asked, run_id))
        if time.monotonic() > until:
            break
    done = asked.done + sum(one.done for one in results)
    refused = asked.refused + sum(not one.done for one in results)
    context = {
        "results": results,
        "action": asked.action,
        "asked": asked,
        "begin": asked.begin + len(results),
        "done": done,
        "refused": refused,
        "total": len(asked.ids),
    }
    if ui.request.headers.get("hx-request") == "true":
        return ui.html(ui.fragment("parts/bulk_piece.html", **context))
    title = f"{asked.action.value.capitalize()} {count(len(asked.ids), 'run')}"
    return ui.page("bulk_result.html", title=title, section="runs", **context)


def _action(form: Form) -> RunAction:
    if form.get("action") not in {*ACTIONS}:
        raise ApiError(422, "Choose what to do: pause, cancel or retry.")
    return RunAction(form.get("action"))


def _filters(ui: Ui, form: Form) -> Filters:
    """The filters of the list from which the runs were selected."""
    prefix = "filter-"
    own = [(name.removeprefix(prefix), one) for name, one in form.pairs if name.startswith(prefix)]
    return Filters.of(ui, own)


async def _selected(ui: Ui, form: Form, action: RunAction) -> tuple[list[RunRow], bool]:
    """The selected runs, or all that match; and whether more may match."""
    if form.get("all") != "yes":
        ids = [*dict.fromkeys(form.all("id"))]
        if len(ids) > MOST:
            raise ApiError(422, f"Select no more than {MOST:,} runs.")
        return await visible_runs(ui, ids), False
    filters = _filters(ui, form)
    query = filters.query
    if not query.states:
        query = replace(query, states=frozenset(CAN_CHANGE[action]))
    visible, _ = await visibility(ui)
    found, place = list[RunRow](), None
    for _ in range(SEARCHES):
        plan = run_search.search(
            ui.runtime.engine, query, MOST - len(found), before=place, visible=visible
        )
        page = await ui.runtime.journal.arun(plan)
        found, place = found + page.rows, page.older
        if place is None or len(found) == MOST:
            break
    return found, place is not None


async def _preview(ui: Ui, action: RunAction, rows: list[RunRow]) -> BulkPreview:
    shown: list[Run] = await ui.runtime.journal.arun(run_reads.show_all(ui.runtime.engine, rows))
    return preview(action, await ui.runtime.journal.arun(read_stakes(shown)), GRACE)


async def _act(ui: Ui, asked: Confirmed, run_id: str) -> Result:
    """Act on one run. A refusal is reported and does not stop the others."""
    try:
        row = await find_row(ui.api, "run", run_id, "update")
    except NotFound:
        return Result(run_id, "", False, "it has been deleted")
    title = f"{row.graph} {row.thread_id}"
    try:
        await ui.runtime.journal.arun(_plan(ui, asked, run_id))
    except Error as error:
        return Result(run_id, title, False, ui.runtime.redact(str(error)))
    found: RunRow | None = await ui.runtime.journal.ado(runs.find(run_id))
    if found is None:
        return Result(run_id, title, True, asked.action.done)
    state, control = state_of(found), maybe_control(found.control)
    if state is State.RUNNING and control is not None:
        ui.runtime.engine.stop(run_id, control)
    ui.runtime.engine.wake(stopped=asked.action is RunAction.CANCEL)
    return Result(run_id, title, True, outcome(asked.action, state, control))


def _plan(ui: Ui, asked: Confirmed, run_id: str) -> Plan[None]:
    on, number, by = ui.runtime.engine, asked.number(run_id), ui.actor
    if asked.action is RunAction.RETRY:
        return run_control.make_due(on, run_id, EventKind.RETRIED, by, number)
    control = Control.CANCEL if asked.action is RunAction.CANCEL else Control.PAUSE
    reason = asked.reason or None
    return run_control.stop_run(on, run_id, control, GRACE, reason=reason, by=by, number=number)
