"""Reads one run for its page, and renders the parts of the page.

Each part is HTML of its own, so that a live update sends only those that changed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from perdure.commands import run_reads
from perdure.commands.run_control import Stakes, read_stakes
from perdure.commands.run_report import RunReport, RunReporter
from perdure.commands.runs import RunRow
from perdure.commands.validation import GRACE
from perdure.observe import trace_id
from perdure.server.authorization import Scope
from perdure.server.own_api.access import find_run
from perdure.server.ui import display, run_states
from perdure.server.ui.event_cache import EventCache
from perdure.server.ui.page import Ui
from perdure.types import EffectState, Event, Run, State
from perdure.views import run_facts
from perdure.views.attention import Blocker, blockers
from perdure.views.formatting import duration, graph_title
from perdure.views.graph_layout import GraphShape
from perdure.views.graph_picture import graph_picture, progress
from perdure.views.markup import Html, element
from perdure.views.run_life import Timeline
from perdure.views.run_offers import Offer, offers
from perdure.views.time_spent import time_spent
from perdure.views.timeline import PeriodKind
from perdure.views.timeline_drawing import Links
from perdure.views.timeline_parts import Zoom

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
            "lease" if run.state is State.RUNNING else "due": run_facts.due(
                run, self.ui.now, self.clock
            ),
            "not repeated": run_facts.saved(run).replace("  ", ", "),
            "crashes": run_facts.crashes(self.events),
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
            offers=self.offers if self.ui.may(Scope.ADMIN) else [],
            signal_key=secrets.token_hex(16),
        )

    def timeline(self) -> Html:
        life = self.life if self.asked.zoom is None else self._zoomed()
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

    def _zoomed(self) -> Timeline:
        zoom = self.asked.zoom
        return self.life if zoom is None else self.life.between(zoom.first, zoom.last)

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
    row = await find_run(ui.api, run_id, action)
    runtime = ui.runtime
    run: Run = await runtime.journal.arun(run_reads.show(runtime.engine, row, output=False))
    events = await ui.site.part(EventCache).events(run_id)
    report = await RunReporter(runtime.engine).brief(run, events)
    at_stake = await runtime.journal.arun(read_stakes([run]))
    stakes = at_stake[0][1] if at_stake else Stakes()
    graph = run_states.graph_of(runtime, run.graph, run.version)
    at: tuple[str, ...] = ()
    if graph is not None and run.state in RESTING and not stakes.is_passed:
        at = await run_states.next_nodes(runtime, graph, run.thread_id)
    shape = None if graph is None else ui.site.part(run_states.GraphShapes).of(graph)
    return RunView(ui, asked, run, row, report, stakes, shape, at, graph is not None)
