"""Reads one run for its page, and renders the parts and tabs of the page.

Each part is HTML of its own, so that a live update sends only those that changed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from perdure.commands import effect_decisions, run_reads
from perdure.commands.run_control import Stakes, read_stakes
from perdure.commands.run_reads import (
    MOST_BELOW,
    MOST_CHILDREN,
    MOST_LEVELS,
    RunReport,
    RunReporter,
    run_tree,
    tree_lines,
)
from perdure.commands.run_search import RunLine
from perdure.commands.runs import RunRow, load_setup
from perdure.observe import trace_id
from perdure.server.authorization import Scope
from perdure.server.perdure_api.requests import find_row
from perdure.server.ui import display, run_states
from perdure.server.ui.page import Ui
from perdure.server.ui.run_states import EventCache
from perdure.types import EffectState, Event, EventKind, Run, State
from perdure.verbs import GRACE
from perdure.views import run_life
from perdure.views.event_wording import EventView, view_event
from perdure.views.formatting import call_arguments, duration, graph_title
from perdure.views.graph_picture import GraphShape, graph_picture, progress
from perdure.views.markup import Html, element
from perdure.views.message_parts import message_parts, messages_in
from perdure.views.run_life import Timeline, time_spent
from perdure.views.run_offers import Offer, offers
from perdure.views.timeline import PeriodKind
from perdure.views.timeline_drawing import Links
from perdure.views.timeline_parts import Zoom
from perdure.views.waiting_for import Blocker, blockers, line_note

RESTING = (State.RUNNING, State.WAITING, State.PAUSED, State.HELD, State.FAILED)
"""States in which a run has a place in its graph."""


@dataclass(frozen=True)
class Asked:
    """The parameters of a page's address: the zoom, the open event, the tab."""

    zoom: Zoom | None = None
    open: int | None = None
    tab: str = "history"
    page: int = 0
    """The page of the tab, from 0."""

    def query(self, **changes: Any) -> dict[str, Any]:
        """The parameters of an address, with some of them changed."""
        given: dict[str, Any] = {
            "from": None if self.zoom is None else self.zoom.first,
            "to": None if self.zoom is None else self.zoom.last,
            "open": self.open,
            "tab": None if self.tab == "history" else self.tab,
            "page": self.page or None,
        }
        return given | changes


@dataclass
class RunView:
    """A run as its page shows it."""

    ui: Ui
    asked: Asked
    run: Run
    row: RunRow
    report: RunReport
    stakes: Stakes
    shape: GraphShape | None
    at: tuple[str, ...]
    """The nodes that the run is at."""
    has_graph: bool

    @property
    def events(self) -> list[Event]:
        return self.report.events

    @cached_property
    def life(self) -> Timeline:
        return Timeline.of(self.run, self.events, self.ui.now, self.report.effects)

    @cached_property
    def blockers(self) -> list[Blocker]:
        report = self.report
        return blockers(
            self.run,
            report.waits,
            report.effects,
            self.ui.now,
            report.unknown_graphs,
            report.answers,
            self.clock,
        )

    @cached_property
    def offers(self) -> list[Offer]:
        can_fork = self.has_graph and bool(self.row.has_checkpoints)
        return offers(
            self.run,
            self.stakes,
            self.report.waits,
            self.ui.now,
            GRACE,
            can_fork=can_fork,
            format_time=self.clock,
        )

    def clock(self, at: datetime) -> str:
        return display.clock(at, self.ui.zone)

    def url(self, **changes: Any) -> str:
        """The address of this page, with some of its parameters changed."""
        return self.ui.url(f"/runs/{self.run.id}", **self.asked.query(**changes))

    # -- the parts of the page

    def header(self) -> Html:
        run = self.run
        facts = {
            "key": run.key or "",
            "tags": ", ".join(run.tags),
            "lease" if run.state is State.RUNNING else "due": run_life.due(
                run, self.ui.now, self.clock
            ),
            "not repeated": run_life.saved(run).replace("  ", ", "),
            "crashes": run_life.crashes(self.events),
        }
        return self.ui.fragment(
            "parts/run_header.html",
            run=run,
            graph=graph_title(run.graph, run.version),
            facts={name: one for name, one in facts.items() if one},
            trace=self._trace(),
            lasted=duration(self.life.now - run.created_at),
        )

    def _trace(self) -> str:
        template = self.ui.api.options.trace_url
        if not template:
            return ""
        ids = {"{trace_id}": f"{trace_id(self.run.id):032x}", "{run_id}": self.run.id}
        return re.sub(r"\{(?:trace_id|run_id)\}", lambda found: ids[found[0]], template)

    def now(self) -> Html:
        last = self.life.periods[-1] if self.life.periods else None
        going = [one for one in self.report.effects if one.state is EffectState.OPEN]
        is_driven = last is not None and last.kind is PeriodKind.DRIVEN
        return self.ui.fragment(
            "parts/run_now.html",
            run=self.run,
            blockers=self.blockers,
            unreadable=self.report.unreadable,
            going=going if self.run.state is State.RUNNING else [],
            driver=last.worker if last is not None and is_driven and not self.run.ended else "",
            offers=self.offers if self.ui.api.may(Scope.ADMIN) else [],
            signal_key=secrets.token_hex(16),
        )

    def timeline(self) -> Html:
        life = replace(self.life, zoom=self.asked.zoom)
        picture = life.picture(links=self.links, selected=self.asked.open, zone=self.ui.zone)
        return self.ui.fragment(
            "parts/run_timeline.html",
            view=self,
            picture=picture,
            zoom=self.asked.zoom,
            wider=self._wider(),
            latest=self._latest(),
            spent=time_spent(self.life),
        )

    def _wider(self) -> Zoom | None:
        """A zoom twice as wide, around the current one."""
        zoom, last = self.asked.zoom, self.events[-1].n if self.events else 0
        if zoom is None:
            return None
        more = max(2, (zoom.last - zoom.first + 1) // 2)
        return Zoom(max(1, zoom.first - more), min(last, zoom.last + more))

    def _latest(self) -> Zoom | None:
        """The last segment, if there are several."""
        driven = [one for one in self.life.periods if one.claim is not None]
        if len(driven) < 2 or driven[-1].claim is None or not self.events:
            return None
        return Zoom(driven[-1].claim.n, self.events[-1].n)

    @property
    def links(self) -> Links:
        """The links of the picture: to details of events, or to a zoom."""
        return Links(self.open_link, lambda zoom: {"href": self.url(**_range(zoom))})

    def open_link(self, number: int) -> Mapping[str, object]:
        """A link that opens the details of an event; without scripts, it loads the whole page."""
        fragment = self.ui.url(
            f"/runs/{self.run.id}/events/{number}", **self.asked.query(open=None)
        )
        return {"href": self.url(open=number) + "#detail", "hx_get": fragment}

    def graph(self) -> Html:
        found = progress(self.events, self.at, is_over=self.run.state is State.DONE)
        picture = graph_picture(self.shape, found, title="The graph", link=self.open_link)
        return element("div", picture, hx_target="#detail", hx_swap="innerHTML show:#detail:top")


def _range(zoom: Zoom) -> dict[str, int]:
    return {"from": zoom.first, "to": zoom.last}


async def read_run(ui: Ui, run_id: str, asked: Asked, action: str = "read") -> RunView:
    """A run that the viewer may see, or `update`, with the data of its page. Raises `NotFound`."""
    row = await find_row(ui.api, "run", run_id, action)
    runtime = ui.runtime
    run: Run = await runtime.journal.arun(run_reads.show(runtime.engine, row, output=False))
    events = await ui.site.part(EventCache).events(run_id)
    report = await RunReporter(runtime.engine).report(run, events)
    at_stake = await runtime.journal.arun(read_stakes([run]))
    stakes = at_stake[0][1] if at_stake else Stakes()
    graph = run_states.graph_of(runtime, run.graph, run.version)
    at: tuple[str, ...] = ()
    if graph is not None and run.state in RESTING and not stakes.is_passed:
        at = await run_states.next_nodes(runtime, graph, run.thread_id)
    shape = None if graph is None else ui.site.part(run_states.GraphShapes).of(graph)
    return RunView(ui, asked, run, row, report, stakes, shape, at, graph is not None)


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
    limit = first + PAGE + 1
    plan = effect_decisions.list_effects.plan(runtime.engine, view.run.id, limit=limit)
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
        given = load_setup(view.ui.runtime.engine.serializer, view.row).get("input")
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
