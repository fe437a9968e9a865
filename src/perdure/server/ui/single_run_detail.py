"""The details of one event of a run, as a panel of its page."""

from __future__ import annotations

from perdure.commands import effects
from perdure.commands.effects import EffectRow
from perdure.errors import UNREADABLE
from perdure.server.authorization import Scope
from perdure.server.ui.run_states import StoredState, state_at
from perdure.server.ui.single_run_view import RunView
from perdure.types import EffectRecord, Event
from perdure.views.event_details import Context, EventDetails, event_details
from perdure.views.markup import Html
from perdure.views.state_difference import ChannelChange, state_difference


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
    return has_place and view.has_graph and view.ui.may(Scope.ADMIN)
