"""Live updates of a run's page: the parts that changed, and the output as it is produced."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import NotFound
from perdure.server.agent_api.run_streams import COMPLETE, PARTIAL, MessageEvents
from perdure.server.ui.page import Ui, sse
from perdure.server.ui.single_run_view import TABS, RunView, read_run
from perdure.types import Chunk, State
from perdure.views.markup import Html, element
from perdure.views.message_parts import message_parts

AGAIN = 2.0
"""Seconds between two drawings of the timeline while a run is driven."""
SPOKEN = 0.25
"""Seconds between two updates of the output."""
MOST_MESSAGES = 8
"""Maximum number of messages shown while a run is driven."""
VOLATILE = re.compile(r'<time\b.*?</time>|name="key" value="[^"]*"', re.S)
"""What differs in each rendering of a part: ages, and the keys of forms."""


async def follow(ui: Ui, view: RunView, seen: int) -> AsyncGenerator[bytes]:
    """The changed parts of a page, until its run has ended or was deleted. `seen` is the last event
    that the page shows."""
    try:
        async with aclosing(_follow(ui, view, seen)) as parts:
            async for part in parts:
                yield part
    except NotFound:
        yield sse("header", element("p", "This run was deleted.", class_="notice"))
        for name in ("now", "output", "graph", "timeline", "tab"):
            yield sse(name, "")  # what was erased is not shown any longer
        yield sse("end", "")


async def _follow(ui: Ui, view: RunView, seen: int) -> AsyncGenerator[bytes]:
    sent, parts = Sent(), await _parts(view)
    if seen != len(view.events):
        for name, html in parts.items():
            yield sse(name, html)
    sent.note(parts)
    output = Output() if view.row.streams else None
    async with _Both(ui, view, output is not None) as both:
        while True:
            changed = await both.next(AGAIN)
            if output is not None and changed.chunks:
                for chunk in changed.chunks:
                    output.add(chunk)
                yield sse("output", output.html(ui))
            if changed.chunks and not changed.run:
                continue
            before = _stamp(view)
            await ui.renew()
            view = await read_run(ui, view.run.id, view.asked)
            if _stamp(view) != before or view.run.state is State.RUNNING:
                for name, html in sent.new(await _parts(view)):
                    yield sse(name, html)
            if view.run.ended:
                yield sse("end", "")
                return


def _stamp(view: RunView) -> tuple[Any, ...]:
    """What is different after a change. The events may be newer than the run, which is read
    first."""
    return view.run.state, view.run.updated_at, len(view.events)


async def _parts(view: RunView) -> dict[str, Html]:
    parts = {
        "header": view.header(),
        "now": view.now(),
        "timeline": view.timeline(),
        "graph": view.graph(),
    }
    if not view.asked.page:
        parts["tab"] = await TABS[view.asked.tab](view)
    return parts


@dataclass
class Sent:
    """The parts of a page as the browser has them. Passing time does not count as a change."""

    known: dict[str, str] = field(default_factory=dict)

    def note(self, parts: dict[str, Html]) -> None:
        self.known = {name: VOLATILE.sub("", html) for name, html in parts.items()}

    def new(self, parts: dict[str, Html]) -> list[tuple[str, Html]]:
        """Those that changed."""
        found = [
            (name, html)
            for name, html in parts.items()
            if VOLATILE.sub("", html) != self.known.get(name)
        ]
        self.note(parts)
        return found


@dataclass
class Output:
    """The live output of a run: its last messages, and what nodes wrote, as they grow."""

    events: MessageEvents = field(default_factory=MessageEvents)
    messages: dict[str, Any] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    """The chunk that began each message."""

    def add(self, chunk: Chunk) -> None:
        if chunk.mode == "segment":
            self._forget_from(chunk.replaces_from)
        if chunk.mode == "custom":
            self._put(f"custom {chunk.n}", chunk.n, {"role": "chat", "content": str(chunk.data)})
        if chunk.mode != "messages" or not isinstance(chunk.data, list | tuple):
            return
        for name, data in self.events.feed(chunk.n, *chunk.data[:2]):
            if name in (PARTIAL, COMPLETE):
                [message] = data
                self._put(message.id or f"chunk {chunk.n}", chunk.n, message)

    def _put(self, id: str, number: int, message: Any) -> None:
        self.first.setdefault(id, number)
        self.messages[id] = message
        while len(self.messages) > MOST_MESSAGES:
            oldest = next(iter(self.messages))
            del self.messages[oldest], self.first[oldest]

    def _forget_from(self, number: int | None) -> None:
        """A process died: its output from that chunk on is replaced."""
        if number is None:
            return
        self.events.forget_from(number)
        for id in [id for id, first in self.first.items() if first >= number]:
            del self.messages[id], self.first[id]

    def html(self, ui: Ui) -> Html:
        shown = [message_parts(one) for one in self.messages.values()]
        return ui.fragment("parts/run_said.html", messages=shown)


@dataclass(frozen=True)
class News:
    """What happened since the last update."""

    run: bool = False
    chunks: tuple[Chunk, ...] = ()


class _Both:
    """Waits for changes of a run or for output, whichever comes first."""

    def __init__(self, ui: Ui, view: RunView, streams: bool) -> None:
        self._changes = ui.live.follow([view.run.id])
        self._chunks: AsyncIterator[Chunk] | None = None
        if streams:
            self._chunks = ui.runtime.stream(view.run.id, modes=["messages", "custom"])
        self._waiting: dict[str, asyncio.Task[Any]] = {}
        self._iterators: dict[str, AsyncIterator[Any]] = {}

    async def __aenter__(self) -> _Both:
        self._iterators["run"] = await self._changes.__aenter__()
        if self._chunks is not None:
            self._iterators["chunk"] = self._chunks
        return self

    async def __aexit__(self, *error: Any) -> None:
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)
        for one in self._iterators.values():
            with contextlib.suppress(RuntimeError):  # it is being closed already
                await one.aclose()  # type: ignore[attr-defined]
        await self._changes.__aexit__(*error)

    async def next(self, timeout: float) -> News:
        """The next change, or None after some seconds."""
        for name, iterator in self._iterators.items():
            if name not in self._waiting:
                self._waiting[name] = asyncio.ensure_future(_next(iterator))
        await asyncio.wait(
            self._waiting.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        chunks = await self._said()
        return News(self._take("run") is not None, tuple(chunks))

    async def _said(self) -> list[Chunk]:
        """The chunks that came, and those that follow at once: text comes in many small pieces."""
        found: list[Chunk] = []
        end = asyncio.get_running_loop().time() + SPOKEN
        while (chunk := self._take("chunk")) is not None:
            found.append(chunk)
            left = end - asyncio.get_running_loop().time()
            if left <= 0 or "chunk" not in self._iterators:
                break
            self._waiting["chunk"] = asyncio.ensure_future(_next(self._iterators["chunk"]))
            await asyncio.wait([self._waiting["chunk"]], timeout=left)
        return found

    def _take(self, name: str) -> Any:
        """What an iterator gave, if it gave something."""
        task = self._waiting.get(name)
        if task is None or not task.done():
            return None
        del self._waiting[name]
        found = task.result()
        if found is None:
            del self._iterators[name]
        return found


async def _next(iterator: AsyncIterator[Any]) -> Any:
    return await anext(iterator, None)
