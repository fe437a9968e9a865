"""The rows of lists of runs, and the filters of the list.

    ?state=held&state=failed&graph=campaign&label=team=blue&since=7d&text=mailbox

A time is how long ago (`90m`, `24h`, `7d`, `4w`), or a date and time in the viewer's zone. Many
tabs show the same runs. A change is read once for all of them, and a row is rendered once for all
viewers with the same time zone and rights.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from perdure.commands import Plan, run_reads, run_search, runs, workers
from perdure.commands.connection import Connection
from perdure.commands.run_search import RunLine, RunQuery, as_text, labels_in
from perdure.commands.runs import RunRow
from perdure.commands.workers import UnknownGraphName
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.perdure_api.requests import ThreadFilter
from perdure.server.ui.page import Ui
from perdure.server.ui.site import Site
from perdure.types import Run, State
from perdure.views.formatting import count, graph_title
from perdure.views.markup import Html
from perdure.views.waiting_for import WaitingFor, ended_note, waiting_for

AGES = (
    ("1h", "last hour"),
    ("24h", "last 24 hours"),
    ("7d", "last 7 days"),
    ("30d", "last 30 days"),
)
"""Choices for when a run was started."""
NAMES = ("state", "graph", "label", "since", "until", "text", "thread", "parent")
LONGEST = 1000
"""Maximum length of a filter."""
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Filters:
    """The filters of one request: the search, and the text as written."""

    query: RunQuery
    written: Mapping[str, list[str]]

    @staticmethod
    def check_names(ui: Ui, *others: str) -> None:
        """Raise `ApiError` for a parameter that is neither a filter nor one of the others. A
        misspelt filter would list every run, above buttons that act on all of them."""
        for name in ui.request.query_params:
            if name not in (*NAMES, *others):
                raise ApiError(422, f"There is no filter {name!a:.50}. Use {', '.join(NAMES)}.")

    @classmethod
    def of(cls, ui: Ui, pairs: list[tuple[str, str]] | None = None) -> Filters:
        """The filters in the address, or in the fields of a form. Raises `ApiError`."""
        given = ui.request.query_params.multi_items() if pairs is None else pairs
        written: dict[str, list[str]] = {}
        for name, one in given:
            if name in NAMES and (text := one.strip()):
                if len(text) > LONGEST:
                    raise ApiError(422, f"The filter {name} is too long.")
                written.setdefault(name, []).append(text)
        first = {name: some[0] for name, some in written.items()}
        query = RunQuery(
            states=frozenset(_state(one) for one in written.get("state", ())),
            graph=first.get("graph", ""),
            labels=labels_in(written.get("label", ())),
            since=_time(ui, "since", first.get("since")),
            until=_time(ui, "until", first.get("until")),
            text=first.get("text", ""),
            thread_id=first.get("thread", ""),
            parent_id=first.get("parent", ""),
        )
        return cls(query, written)

    def __bool__(self) -> bool:
        return bool(self.query)

    def get(self, name: str) -> str:
        """One filter as it was written."""
        return self.written.get(name, [""])[0]

    def address(self, **changes: Any) -> dict[str, Any]:
        """These filters with changes, as parameters of an address. None leaves one out."""
        every: dict[str, Any] = {**self.written, **changes}
        return {name: one for name, one in every.items() if one}

    def on_thread(self, thread_id: str) -> Filters:
        """The same filters, of one thread instead of a text."""
        written = {name: some for name, some in self.written.items() if name != "text"}
        query = replace(self.query, text="", thread_id=thread_id)
        return Filters(query, {**written, "thread": [thread_id]})

    def toggled(self, state: State) -> dict[str, Any]:
        """The address with a state chosen, or no longer chosen."""
        chosen = self.written.get("state", [])
        now = [one for one in chosen if one != state.value]
        return self.address(state=now if len(now) < len(chosen) else [*chosen, state.value])


def _state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        names = ", ".join(State)
        raise ApiError(422, f"There is no state {text!a:.50}. Use {names}.") from None


def _time(ui: Ui, name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if found := re.fullmatch(r"(\d{1,6})([mhdw])", text):
            return ui.now - timedelta(**{_UNITS[found[2]]: int(found[1])})
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=ui.zone)
        at.timestamp()  # some dates near the years 1 and 9999 do not exist in UTC
        return at
    except (ValueError, OverflowError, OSError):
        problem = f"{name} must be a time span such as 7d, or a date such as 2026-05-01T09:00."
        raise ApiError(422, problem) from None


COUNTED = 1000
"""Maximum number of runs counted in each state."""
KEPT = 5000
"""Maximum number of rows in memory, for all tabs."""
LABELS = 3
"""Maximum number of labels and tags in a row."""


@dataclass(frozen=True)
class Row:
    """One line of a list of runs."""

    line: RunLine
    waiting: WaitingFor | None
    note: str
    """Why it ended."""

    @property
    def run(self) -> Run:
        return self.line.run

    @property
    def title(self) -> str:
        return graph_title(self.run.graph, self.run.version)

    @property
    def labels(self) -> list[tuple[str, str]]:
        """The first labels, as text."""
        return [(name, as_text(one)) for name, one in self.run.metadata.items()][:LABELS]

    @property
    def tags(self) -> list[str]:
        """Tags of the caller, without that of the last worker."""
        given = [one for one in self.run.tags if not one.startswith("runtime:")]
        return given[: max(0, LABELS - len(self.labels))]

    @property
    def more_labels(self) -> int:
        given = [one for one in self.run.tags if not one.startswith("runtime:")]
        return len(self.run.metadata) + len(given) - len(self.labels) - len(self.tags)

    @property
    def survived(self) -> str:
        """The crashes it survived, and the work it did not repeat."""
        said = [count(self.line.recoveries, "crash")] if self.line.recoveries else []
        said = [one.replace("crashs", "crashes") for one in said]
        for name, noun in (
            ("model_calls", "model call"),
            ("effects", "effect"),
            ("steps", "step"),
        ):
            if saved := self.run.saved.get(name):
                said.append(f"{count(saved, noun)} saved")
                break
        return ", ".join(said)


@dataclass
class _Read:
    version: str
    """A version that differs once the run has changed."""
    line: RunLine
    unknown: list[UnknownGraphName]
    at: float
    html: dict[Any, Html] = field(default_factory=dict)


class RowSource:
    """Reads runs for the tabs of one site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._read: dict[str, _Read] = {}
        self._reading = asyncio.Lock()
        self._counts: tuple[float, Mapping[State, int]] = (float("-inf"), {})

    async def lines(self, ids: Iterable[str], since: float) -> dict[str, _Read]:
        """Runs as they are now, or were after `since`, a monotonic time. Deleted ones are left
        out."""
        wanted = [*dict.fromkeys(ids)]
        async with self._reading:  # tabs wake up together: one of them reads
            if missing := [id for id in wanted if not self._is_fresh(id, since)]:
                await self._refresh(missing)
        return {id: self._read[id] for id in wanted if id in self._read}

    async def counts(self, since: float) -> Mapping[State, int]:
        """How many runs are in each state, up to `COUNTED`, now or after `since`."""
        async with self._reading:
            if self._counts[0] < since:
                at = time.monotonic()
                self._counts = at, await self._site.runtime.run_counts(COUNTED)
        return self._counts[1]

    def _is_fresh(self, id: str, since: float) -> bool:
        return id in self._read and self._read[id].at >= since

    async def _refresh(self, ids: list[str]) -> None:
        journal, on = self._site.runtime.journal, self._site.runtime.engine
        at = time.monotonic()
        rows = await journal.ado(runs.find_all(ids))
        lines = await journal.arun(_lines(on, rows))
        unknown = await journal.arun(_unknown(on, [one.run for one in lines]))
        for id in ids:
            self._read.pop(id, None)
        versions = {row.id: version(row) for row in rows}
        for one in lines:
            self._read[one.run.id] = _Read(versions[one.run.id], one, unknown, at)
        for id in list(self._read)[: max(0, len(self._read) - KEPT)]:
            del self._read[id]

    async def rendered(
        self, ui: Ui, ids: Collection[str], since: float
    ) -> dict[str, tuple[str, Html]]:
        """The version and the row of each of these runs, as they were after `since`, rendered once
        for equal viewers."""
        who = (ui.base, ui.zone.key, ui.api.may(Scope.ADMIN))
        found = await self.lines(ids, since)
        for one in found.values():
            if who not in one.html:
                row = make_row(ui, one.line, one.unknown)
                one.html[who] = ui.fragment("parts/run_cells.html", row=row)
        return {id: (one.version, one.html[who]) for id, one in found.items()}


def version(row: RunRow) -> str:
    """A version that differs once a run has changed."""
    return str(row.events)


def _lines(on: Connection, rows: Sequence[RunRow]) -> Plan[list[RunLine]]:
    shown = yield from run_reads.show_all(on, rows)
    return (yield from run_search.lines_of(on, shown))


def _unknown(on: Connection, found: Sequence[Run]) -> Plan[list[UnknownGraphName]]:
    """Graphs without a worker, if one of these runs may be waiting because of that."""
    if not any(run.state is State.PENDING and run.due_at is not None for run in found):
        return []
    return (yield from workers.unknown_graphs(on))


async def read_rows(ui: Ui, rows: Sequence[RunRow]) -> list[Row]:
    """The lines of these runs, in their order."""
    on, journal = ui.runtime.engine, ui.runtime.journal
    lines = await journal.arun(_lines(on, rows))
    unknown = await journal.arun(_unknown(on, [one.run for one in lines]))
    return [make_row(ui, line, unknown) for line in lines]


def make_row(ui: Ui, line: RunLine, unknown: Iterable[UnknownGraphName] = ()) -> Row:
    return Row(line, waiting_for(line, ui.now, unknown, ui.zone), ended_note(line.run))


async def visible_runs(ui: Ui, ids: Collection[str]) -> list[RunRow]:
    """The rows of the runs among these that the viewer may see."""
    rows: list[RunRow] = await ui.runtime.journal.ado(runs.find_all(ids)) if ids else []
    seen = await ThreadFilter.of(ui.api)
    allowed = await ui.runtime.journal.arun(seen.visible({row.thread_id for row in rows}))
    return [row for row in rows if row.thread_id in allowed]


Visible = Callable[[Collection[str]], Plan[Collection[str]]]


async def visibility(ui: Ui) -> tuple[Visible | None, bool]:
    """Which threads the viewer may see, for a search; and whether that is all."""
    seen = await ThreadFilter.of(ui.api)
    return (None if seen.sees_all else seen.visible), seen.sees_all
