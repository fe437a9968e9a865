"""The tabs of a run's page: its history, effects, waits, children, scores, state and output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from perdure.commands import run_reads, settling
from perdure.commands.run_report import MOST_BELOW, MOST_CHILDREN, MOST_LEVELS, run_tree, tree_lines
from perdure.commands.run_search import RunLine
from perdure.server.ui import run_states
from perdure.server.ui.single_run_view import RunView
from perdure.types import Event, EventKind, State
from perdure.views.event_wording import EventView, view_event
from perdure.views.formatting import call_arguments, graph_title
from perdure.views.markup import Html
from perdure.views.message_parts import message_parts, messages_in
from perdure.views.waiting_for import line_note

PAGE = 50
"""Maximum number of rows in a tab."""
MESSAGES = 200
"""Maximum number of messages of the state."""
LONGEST = 300
"""Maximum length of an effect's arguments in a row."""


@dataclass(frozen=True)
class Line:
    """An event of the history."""

    event: Event
    view: EventView
    day: str = ""
    """The day, for its first event in the list."""


async def render_tab(view: RunView) -> Html:
    """The tab that the address names."""
    render = TABS.get(view.asked.tab, _history)
    return await render(view)


async def _history(view: RunView) -> Html:
    """Events in words, the newest first."""
    end = len(view.events) - view.asked.page * PAGE
    some = view.events[max(0, end - PAGE) : max(0, end)]
    run, lines, last, more = view.run, list[Line](), "", end > PAGE
    for one in reversed(some):
        day = f"{one.at.astimezone(view.ui.zone):%A, %-d %B %Y}"
        shown = view_event(one, run.id, run.thread_id, format_time=view.clock)
        lines.append(Line(one, shown, day if day != last else ""))
        last = day
    return view.ui.fragment(
        "parts/run_history.html",
        view=view,
        lines=lines,
        more=more,
        time=lambda at: f"{at.astimezone(view.ui.zone):%H:%M:%S.%f}"[:-3],
    )


async def _effects(view: RunView) -> Html:
    runtime, first = view.ui.runtime, view.asked.page * PAGE
    of_run: Any = {"run_id": view.run.id, "thread_id": None, "state": None, "after": None}
    plan = settling.read_effects(runtime.engine, **of_run, count=first + PAGE + 1)
    found = (await runtime.journal.arun(plan))[first:]
    numbers: dict[str, int] = {}
    for event in view.events:
        if event.kind == EventKind.EFFECT and not event.damaged:
            numbers[str(event.data.get("key"))] = event.n
    rows = [
        (one, numbers.get(one.key), call_arguments(one.name, one.arguments)[:LONGEST])
        for one in found[:PAGE]
    ]
    more = len(found) > PAGE
    return view.ui.fragment("parts/run_effects.html", view=view, rows=rows, more=more)


async def _waits(view: RunView) -> Html:
    newest = list(reversed(view.report.waits))
    first = view.asked.page * PAGE
    asked = {str(one.data.get("wait")): one.n for one in view.events if one.kind == EventKind.WAIT}
    answers = {
        str(one.data.get("wait")): one
        for one in view.events
        if one.kind in (EventKind.ANSWER, EventKind.SIGNAL, EventKind.WOKE, EventKind.EXPIRED)
    }
    more = len(newest) > first + PAGE
    return view.ui.fragment(
        "parts/run_waits.html",
        view=view,
        waits=newest[first : first + PAGE],
        asked=asked,
        answers={id: view_event(one, format_time=view.clock).text for id, one in answers.items()},
        more=more,
    )


async def _children(view: RunView) -> Html:
    runtime = view.ui.runtime
    limits = (MOST_CHILDREN, MOST_BELOW, MOST_LEVELS)
    plan = run_reads.descendants(runtime.engine, view.run.id, *limits)
    below, is_cut = await runtime.journal.arun(plan)
    lines = tree_lines(view.run.id, run_tree(view.run.id, below))
    return view.ui.fragment(
        "parts/run_children.html",
        view=view,
        lines=lines,
        is_cut=is_cut,
        title=lambda run: graph_title(run.graph, run.version),
        note=lambda run: line_note(RunLine(run), view.ui.now, zone=view.ui.zone),
    )


async def _scores(view: RunView) -> Html:
    scores = await view.ui.runtime.scores(view.run.id)
    return view.ui.fragment("parts/run_scores.html", view=view, scores=scores)


async def _state(view: RunView) -> Html:
    state = await run_states.state_at(view.ui.runtime, view.run.thread_id)
    messages, others = messages_in(state.values)
    return view.ui.fragment(
        "parts/run_state.html",
        view=view,
        state=state,
        messages=[message_parts(one) for one in messages[-MESSAGES:]],
        earlier=max(0, len(messages) - MESSAGES),
        others=others,
    )


async def _output(view: RunView) -> Html:
    run, given = view.run, None
    problem = ""
    if run.state is State.DONE:
        run = await view.ui.runtime.get(run.id)
        problem = run.damaged or ""
    try:
        given = await view.ui.runtime.journal.arun(
            run_reads.input_of(view.ui.runtime.engine, run.id)
        )
    except Exception as error:  # damaged, or of a type that is not allowed here
        problem = problem or str(error)
    return view.ui.fragment(
        "parts/run_output.html", view=view, run=run, input=given, problem=problem
    )


TABS: dict[str, Callable[[RunView], Awaitable[Html]]] = {
    "history": _history,
    "effects": _effects,
    "waits": _waits,
    "children": _children,
    "scores": _scores,
    "state": _state,
    "output": _output,
}
TITLES = {
    "history": "History",
    "effects": "Effects",
    "waits": "Waits",
    "children": "Children",
    "scores": "Scores",
    "state": "State",
    "output": "Input and output",
}
