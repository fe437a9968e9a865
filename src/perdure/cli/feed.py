"""What happens, as it happens: a line per event worth a look, read from the journal.

A run is looked at while it is driven, and once more when a segment of it has ended, which the
worker logs. Nothing is missed by that, however short a segment is, and a thousand runs that sleep
cost nothing. Of runs from before, what happens from now on is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from perdure.cli.tell import columns_of, fit, paint, printable, shown, span
from perdure.client import Client
from perdure.errors import Error, NotFound
from perdure.operations.error_text import is_user_code
from perdure.types import Event, Kind, Run, State

EVERY = 0.25
"""Seconds between two looks."""
COLOURS = {
    "asks": "yellow",
    "asleep": "blue",
    "cancelled": "dim",
    "done": "green",
    "expired": "red",
    "failed": "red",
    "held": "red",
    "listens": "blue",
    "recovered": "magenta",
    "unknown": "red",
}
MARGIN = " " * 10
WIDEST = 28
"""Columns for the graph and its thread."""
LINES = 3
"""Of an error's message."""


class Feed:
    """The runs of a journal from a moment on. `at` is the option by which commands find it."""

    def __init__(self, client: Client, since: datetime, at: str = "") -> None:
        self._client, self._since, self._at = client, since, at
        self._seen: dict[str, int] = {}
        self._told: set[str] = set()
        self._ended: list[str] = []
        self._columns = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what the worker of this process logs: what to look at, and what to warn of."""
        log, handler = logging.getLogger("perdure"), _Ear(self._ended)
        before = log.level, log.propagate
        log.setLevel(logging.INFO)
        log.propagate = False
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(before[0])
            log.propagate = before[1]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Tell what is new."""
        ended = list(self._ended)
        del self._ended[: len(ended)]
        driven: list[Run] = []
        with contextlib.suppress(Error):  # the worker warns of a journal in trouble
            driven = await self._client.runs(state=State.RUNNING)
        for run_id in dict.fromkeys([*ended, *(run.id for run in reversed(driven))]):
            try:
                await self._tell(run_id)
            except NotFound:  # it was pruned
                continue
            except Error:
                self._ended.append(run_id)

    async def _tell(self, run_id: str) -> None:
        run = await self._client.get(run_id)
        for event in await self._client.events(run_id, after=self._seen.get(run_id, 0)):
            self._seen[run_id] = event.n
            if event.at < self._since:
                continue
            if run_id not in self._told and event.kind != "started":
                self._print(run, event, "goes on", f"run {run.id}")
            self._told.add(run_id)
            word, what, more = await self._said(run, event)
            if word:
                self._print(run, event, word, what, more)

    def _print(
        self, run: Run, event: Event, word: str, what: str, more: Sequence[str] = ()
    ) -> None:
        """What happened, in columns, and below it what to do."""
        clock = event.at.astimezone().strftime("%H:%M:%S")
        who = fit(f"{printable(run.graph)} {printable(run.thread_id)}", WIDEST)
        self._columns = max(self._columns, columns_of(who))
        who += " " * (self._columns - columns_of(who))
        said = paint(f"{word:9}", COLOURS.get(word))
        print(f"{paint(clock, 'dim')}  {who}  {said} {what}".rstrip())
        for line in more:
            print(f"{MARGIN}{line}")
        sys.stdout.flush()

    async def _said(self, run: Run, event: Event) -> tuple[str, str, list[str]]:
        if event.kind == "wait":
            return await self._wait(run, event.data)
        return _said(run, event, self._at)

    async def _wait(self, run: Run, data: Mapping[str, Any]) -> tuple[str, str, list[str]]:
        if data["kind"] == Kind.CLOCK:
            return "asleep", f"until {_until(data['wake_at'])}", []
        limit = f"  (until {_until(data['expires_at'])})" if data.get("expires_at") else ""
        if data["kind"] == Kind.SIGNAL:
            thread = shlex.quote(run.thread_id)
            send = f"perdure signal {thread} {shlex.quote(data['name'])} JSON{self._at}"
            return "listens", f"for a signal {shown(data['name'])}{limit}", [send]
        asked = [
            wait for wait in await self._client.waits(run_id=run.id) if wait.id == data["wait"]
        ]
        value = shown(asked[0].value, 300) if asked else "(answered since)"
        go_on = [f"perdure answer {data['wait']} JSON{self._at}"] if asked else []
        return "asks", f"{value}{limit}", go_on


def _said(run: Run, event: Event, at: str) -> tuple[str, str, list[str]]:
    """A word, what to say, and what below it; no word: it is not worth a line."""
    data = event.data
    if event.kind == "started":
        return "started", f"run {run.id}", []
    if event.kind == "step":
        nodes = ", ".join(map(printable, data.get("nodes", ())))
        where = f"{printable(data['ns'].partition(':')[0])}/" if data.get("ns") else ""
        return ("step" if nodes else ""), f"{where}{nodes}", []
    if event.kind == "recovered":
        return "recovered", "its worker was gone: it goes on where it was", []
    if event.kind == "effect":
        state = data.get("state", "")
        told = f"{data['name']}  {state}"
        later = f", again at {_until(data['retry_at'])}" if data.get("retry_at") else ""
        error = f": {shown(str(data['error']), 120)}" if data.get("error") else ""
        return ("unknown" if state == "unknown" else "effect"), f"{told}{later}{error}", []
    if event.kind == "failed":
        if data.get("retry_at"):
            return "failed", f"tried again at {_until(data['retry_at'])}", _error(data)
        return "failed", "for good", [*_error(data), f"perdure retry {run.id}{at}"]
    if event.kind == "held":
        return "held", printable(str(data.get("reason", ""))), [f"perdure retry {run.id}{at}"]
    if event.kind == "done":
        lasted = span(event.at - run.created_at)
        return "done", f"after {lasted}  {'' if run.output is None else shown(run.output)}", []
    if event.kind in ("answer", "cancelled", "paused"):
        by = f"by {printable(str(data['by']))}" if data.get("by") else ""
        return event.kind, f"{by}  {printable(str(data.get('reason') or ''))}", []
    if event.kind in ("woke", "expired", "signal", "resumed", "retried", "differs", "settled"):
        return event.kind, printable(str(data.get("name") or "")), []
    return "", "", []


def _error(data: Mapping[str, Any]) -> list[str]:
    """The first lines of an error, and the last place of the user's own code on the way to it."""
    message = [line for line in str(data["message"]).splitlines() if line.strip()]
    cut = [*message[:LINES], *(["…"] if len(message) > LINES else [])]
    lines = [f"{data['kind']}: {cut[0] if cut else ''}", *cut[1:]]
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', data.get("traceback") or "")
    own = [frame for frame in frames if is_user_code(frame[0])]
    for file, line, name in own[-1:]:
        lines.append(f"in {name}, {file}:{line}")
    return [paint(printable(line), "red") for line in lines]


def _until(at: datetime) -> str:
    """A time of this day, or of another one, where this computer is."""
    here = at.astimezone()
    same = here.date() == datetime.now().astimezone().date()
    return here.strftime("%H:%M:%S" if same else "%a %d %b %Y, %H:%M")


class _Ear(logging.Handler):
    """Takes the ids of runs of which a segment ended, and prints what a person is warned of."""

    def __init__(self, ended: list[str]) -> None:
        super().__init__(logging.INFO)
        self._ended = ended
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if run_id := getattr(record, "run_id", None):
            self._ended.append(run_id)
        elif record.levelno >= logging.WARNING and record.module != "driver":  # whose runs we show
            print(paint(f"{MARGIN}{self.format(record)}", "red"), flush=True)
