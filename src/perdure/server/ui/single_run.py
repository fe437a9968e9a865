"""The page of one run: what it is waiting for, its timeline, its graph, and its details.

    /runs/{id}                  the page; `from` and `to` zoom, `open` shows an event, `tab` a tab
    /runs/{id}/events/{n}       the details of an event, as a part of the page
    /runs/{id}/live             live updates of the page

Its actions are forms that say what they will do (`views/run_offers`); `single_run_fork` has the
forks. The modules are named so that their routes come after those of lists, such as `/runs/live`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from perdure.commands import effects
from perdure.commands.effects import EffectRow
from perdure.errors import UNREADABLE
from perdure.server.authorization import Scope
from perdure.server.perdure_api.requests import find_row
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.server.ui.run_states import StoredState, state_at
from perdure.server.ui.single_run_live import follow
from perdure.server.ui.single_run_view import TABS, TITLES, Asked, RunView, read_run
from perdure.types import EffectRecord, Event, Run, State
from perdure.views.event_details import (
    ChannelChange,
    Context,
    EventDetails,
    event_details,
    state_difference,
)
from perdure.views.formatting import graph_title
from perdure.views.markup import Html
from perdure.views.question_form import Refused, json_in
from perdure.views.timeline_parts import Zoom


async def render_detail(view: RunView, number: int) -> Html:
    """The panel of an event; a note if the run has no event of that number."""
    event = _event(view, number)
    if event is None:
        return view.ui.fragment("parts/run_detail.html", view=view, number=number, found=None)
    found = event_details(event, await _context(view, event))
    changes, state = await _changes(view, found)
    return view.ui.fragment(
        "parts/run_detail.html",
        view=view,
        number=number,
        found=found,
        changes=changes,
        state=state,
        can_fork=_can_fork(view, found),
    )


def _event(view: RunView, number: int) -> Event | None:
    """An event by its number; they count from 1 without gaps."""
    events = view.events
    return events[number - 1] if 0 < number <= len(events) else None


async def _context(view: RunView, event: Event) -> Context:
    wait_id, key = event.data.get("wait"), event.data.get("key")
    wait = next((one for one in view.report.waits if one.id == wait_id), None)
    effect = await _effect(view, str(key)) if key else None
    return Context(effect, wait, view.clock)


async def _effect(view: RunView, key: str) -> EffectRecord | None:
    row: EffectRow | None = await view.ui.runtime.journal.ado(effects.find(key))
    if row is None or row.thread_id != view.run.thread_id:  # another thread may be hidden
        return None
    return effects.to_record(view.ui.runtime.engine.serializer, row)


async def _changes(
    view: RunView, found: EventDetails
) -> tuple[list[ChannelChange], StoredState | None]:
    """The changes of a step to the state."""
    if found.checkpoint is None:
        return [], None
    runtime, thread_id = view.ui.runtime, view.run.thread_id
    ns, checkpoint = found.checkpoint
    after = await state_at(runtime, thread_id, ns, checkpoint)
    if after.checkpoint is None:
        return [], after
    before = StoredState()
    if after.parent is not None:
        before = await state_at(runtime, thread_id, ns, after.parent)
    if before.problem:
        return [], before
    try:
        return state_difference(before.values, after.values), after
    except UNREADABLE as error:
        return [], StoredState(problem=str(error))


def _can_fork(view: RunView, found: EventDetails) -> bool:
    """Whether a run can be forked from a step: one of the graph itself, not of a subgraph."""
    has_place = found.checkpoint is not None and not found.checkpoint[0]
    return has_place and view.has_graph and view.ui.api.may(Scope.ADMIN)


router = ui_router()

Number = Annotated[int | None, Query(ge=0, le=2**53)]
First = Annotated[int | None, Query(alias="from", ge=0, le=2**53)]
Last = Annotated[int | None, Query(alias="to", ge=0, le=2**53)]
Tab = Annotated[str, Query(max_length=20)]
Pages = Annotated[int, Query(ge=0, le=100_000)]


@router.get("/runs/{run_id}")
async def show(
    ui: UiDep,
    run_id: str,
    first: First = None,
    last: Last = None,
    open: Number = None,
    tab: Tab = "history",
    page: Pages = 0,
) -> Response:
    ui.require(Scope.READ)
    view = await read_run(ui, run_id, _asked(first, last, open, tab, page))
    return await _page(ui, view)


@router.get("/runs/{run_id}/events/{number}")
async def show_event(
    ui: UiDep,
    run_id: str,
    number: int,
    first: First = None,
    last: Last = None,
    tab: Tab = "history",
    page: Pages = 0,
) -> Response:
    """The panel of an event, for htmx; else the page with it."""
    ui.require(Scope.READ)
    view = await read_run(ui, run_id, _asked(first, last, number, tab, page))
    headers = ui.request.headers
    if headers.get("hx-request") != "true" or headers.get("hx-history-restore-request") == "true":
        return await _page(ui, view)
    response = ui.html(await render_detail(view, number))
    response.headers["HX-Push-Url"] = view.url()
    return response


@router.get("/runs/{run_id}/live")
async def live(
    ui: UiDep,
    run_id: str,
    first: First = None,
    last: Last = None,
    open: Number = None,
    tab: Tab = "history",
    page: Pages = 0,
    seen: Pages = 0,
) -> Response:
    """Live updates of the page, until the run ends."""
    ui.require(Scope.READ)
    asked = _asked(first, last, open, tab, page)
    view = await read_run(ui, run_id, asked)
    return ui.stream(follow(ui, view, seen))


def _asked(first: int | None, last: int | None, open: int | None, tab: str, page: int) -> Asked:
    zoom = None if first is None or last is None or last < first else Zoom(first, last)
    return Asked(zoom, open, tab if tab in TABS else "history", page)


async def _page(ui: Ui, view: RunView) -> Response:
    run, asked = view.run, view.asked
    detail = Html("") if asked.open is None else await render_detail(view, asked.open)
    return ui.page(
        "run.html",
        title=f"{graph_title(run.graph, run.version)} {run.id[:8]}",
        section="runs",
        view=view,
        run=run,
        header=view.header(),
        now_part=view.now(),
        timeline=view.timeline(),
        graph=view.graph(),
        detail=detail,
        tabs=[(name, TITLES[name], name == asked.tab) for name in TABS],
        tab=await TABS[asked.tab](view),
        live=""
        if run.ended
        else ui.url(f"/runs/{run.id}/live", **asked.query(), seen=len(view.events)),
        streams=bool(view.row.streams),
    )


@router.post("/runs/{run_id}/pause")
async def pause(ui: UiDep, run_id: str) -> Response:
    await _operate(ui, run_id)
    run = await ui.runtime.pause(run_id, by=ui.actor)
    return _back(ui, run, "Paused." if run.state is State.PAUSED else ASKED)


@router.post("/runs/{run_id}/resume")
@router.post("/runs/{run_id}/retry")
@router.post("/runs/{run_id}/wake")
async def let_go_on(ui: UiDep, run_id: str) -> Response:
    """Resume, retry or wake a run, as the address says."""
    await _operate(ui, run_id)
    rt, verb = ui.runtime, ui.request.url.path.rpartition("/")[2]
    control, notice = {
        "resume": (rt.resume, "Resumed."),
        "retry": (rt.retry, "Retried."),
        "wake": (rt.wake, "Woken."),
    }[verb]
    return _back(ui, await control(run_id, by=ui.actor), notice)


@router.post("/runs/{run_id}/cancel")
async def cancel(ui: UiDep, run_id: str) -> Response:
    await _operate(ui, run_id)
    reason = (await ui.form()).get("reason").strip() or None
    run = await ui.runtime.cancel(run_id, reason=reason, by=ui.actor)
    undoing = "Cancelling: its effects are undone first."
    notices = {State.CANCELLED: "Cancelled.", State.RUNNING: ASKED}
    return _back(ui, run, notices.get(run.state, undoing))


@router.post("/runs/{run_id}/signal")
async def send_signal(ui: UiDep, run_id: str) -> Response:
    """Send a signal to the thread of a run. A form that is sent twice stores it once."""
    await _operate(ui, run_id)
    run = await ui.runtime.get(run_id)
    form = await ui.form()
    name, (value, problem) = form.get("name").strip(), _signal_value(form.get("value"))
    if not name:
        problem = "Give the signal a name."
    if problem:
        page = ui.page(
            "signal.html",
            title="Send a signal",
            section="runs",
            run=run,
            name=name,
            value_text=form.get("value"),
            problem=problem,
            signal_key=form.get("key"),
        )
        page.status_code = 422
        return page
    is_new = await ui.runtime.signal(run.thread_id, name, value, key=form.get("key") or None)
    sent = "was sent" if is_new else "had already been sent"
    return _back(ui, run, f"The signal {name} {sent}.")


def _signal_value(text: str) -> tuple[Any, str]:
    """The value of a signal as typed, JSON or else plain text; and why it is refused."""
    if not text.strip():
        return None, ""
    try:
        return json_in(text), ""
    except Refused:
        pass
    if text.lstrip()[:1] in "{[":
        return None, "This looks like JSON but is not valid. Correct it, or write plain text."
    return text.strip(), ""


ASKED = "The run stops after its current step."


async def _operate(ui: Ui, run_id: str) -> None:
    """Raise 403 or 404 unless the viewer may control this run."""
    ui.require(Scope.ADMIN)
    await find_row(ui.api, "run", run_id, "update")


def _back(ui: Ui, run: Run, notice: str) -> Response:
    return ui.redirect(f"/runs/{run.id}", notice=notice)
