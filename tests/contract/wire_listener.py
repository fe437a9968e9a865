"""A client that puts the stream of a run together, and readers that come back after every cut.

The rule for a client: `metadata` with `replaces_from: N` voids the events with ids from N on that
it has. What is left is what a run without a crash would have sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple

import httpx

SILENCE = 15.0
"""Seconds without a byte after which a connection is given up; comments come every 5."""
AGAIN = 0.02
"""Seconds until a reader that was cut off comes back."""


class WireEvent(NamedTuple):
    """One event, as it is on the wire."""

    name: str
    data: Any
    id: str | None


class Heard(NamedTuple):
    """An event of a run that a client has."""

    n: int
    name: str
    data: Any

    @property
    def mode(self) -> str:
        return self.name.partition("|")[0]


class WireListener:
    """What a client has of a run. Each event must be the next one, or replace what came before."""

    def __init__(self) -> None:
        self.events: list[Heard] = []
        self.count = 0
        """Events that came, also those that are void."""
        self.seen: int | None = None
        self.segments = 0
        self.is_over = False

    @property
    def last_event_id(self) -> str:
        return "-1" if self.seen is None else str(self.seen)

    def hear(self, name: str, data: Any, id: str | None) -> None:
        assert not self.is_over, f"{name} came after the end"
        assert name != "error", data
        if name == "end":
            self.is_over = True
            return
        assert id is not None, f"{name} has no id"
        n, seen, self.seen = int(id), self.seen, int(id)
        if seen is None:
            assert (name, n) == ("metadata", 0), f"{name} {n} began the stream"
            return
        self.count += 1
        assert n > seen, f"twice: {n} came after {seen}"
        replaces = data.get("replaces_from") if name == "metadata" else None
        if replaces is None:
            assert n == seen + 1, f"lost: {n} came after {seen}"
            self.events.append(Heard(n, name, data))
        else:
            assert replaces <= seen + 1, f"lost: {n} replaces from {replaces} on, after {seen}"
            self.segments += 1
            self.events = [one for one in self.events if one.n < replaces]

    def words(self) -> list[str]:
        """The text so far."""
        found = []
        for one in self.events:
            if one.mode == "custom":
                found.append(one.data["word"])
            elif one.mode == "messages":
                found += str(one.data[0]["content"]).split()
        return found

    def said(self) -> dict[str, list[str]]:
        """The text by speaker: words of parallel nodes are in any order."""
        found: dict[str, list[str]] = {}
        for word in self.words():
            found.setdefault(word.rstrip("0123456789"), []).append(word)
        return found

    def states(self) -> list[tuple[str, list[str]]]:
        """The states that were sent: of which graph, and the texts of their messages."""
        return [
            (one.name.partition(":")[0], [said["content"] for said in one.data["messages"]])
            for one in self.events
            if one.mode == "values"
        ]


class MessageListener(WireListener):
    """The same for a stream of mode `messages`, which sends each message as far as it has come. A
    chunk has several events, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.at = (-1, 0)

    @property
    def last_event_id(self) -> str:
        return f"{self.at[0]}-{self.at[1]}" if self.at[1] else str(self.at[0])

    def hear(self, name: str, data: Any, id: str | None) -> None:
        assert not self.is_over, f"{name} came after the end"
        assert name != "error", data
        if name == "end":
            self.is_over = True
            return
        n, _, k = str(id).partition("-")
        before, self.at = self.at, (int(n), int(k or 0))
        assert self.at > before, f"twice: {self.at} came after {before}"
        self.count += 1
        if name == "metadata":
            replaces = data.get("replaces_from", self.at[0])
            self.events = [one for one in self.events if one.n < replaces]
        else:
            self.events.append(Heard(self.at[0], name, data))

    def words(self) -> list[str]:
        texts = {
            one.data[0]["id"]: one.data[0]["content"]
            for one in self.events
            if one.name in ("messages/partial", "messages/complete")
        }
        return [word for text in texts.values() for word in str(text).split()]


async def events_of(response: httpx.Response) -> AsyncIterator[WireEvent]:
    """The whole events of a response; the last one may be cut off."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield WireEvent(fields["event"], json.loads(fields["data"]), fields.get("id"))
            fields = {}
        else:
            fields = {}  # a comment


async def come_back(
    http: httpx.AsyncClient, path: str, heard: WireListener, *, leave_after: int = 0
) -> AsyncGenerator[WireEvent]:
    """Read the stream at a path to its end, over however many connections that takes. With
    `leave_after` the reader itself leaves a connection after so many events."""
    while not heard.is_over:
        count = 0
        headers = {"Last-Event-ID": heard.last_event_id}
        try:
            async with http.stream("GET", path, headers=headers, timeout=SILENCE) as response:
                if response.status_code >= 500:  # the server starts, or stops
                    raise httpx.RemoteProtocolError(f"status {response.status_code}")
                response.raise_for_status()
                async for event in events_of(response):
                    heard.hear(*event)
                    yield event
                    count += 1
                    if count == leave_after:
                        break
        except httpx.TransportError:
            pass
        if not heard.is_over:
            await asyncio.sleep(AGAIN)


async def read_all(
    http: httpx.AsyncClient, path: str, *, leave_after: int = 0, pause: float = 0.0
) -> WireListener:
    """All of a stream. With `pause`, by a reader that takes so many seconds for each event."""
    heard = WireListener()
    async for _ in come_back(http, path, heard, leave_after=leave_after):
        if pause:
            await asyncio.sleep(pause)
    return heard
