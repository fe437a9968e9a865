"""Reads what runs stream: from memory if this process drives them, else from the journal.

A reader's only state is the number of the last chunk it returned: it may stop at any time, and
another reader can continue from that number. How fast it reads does not affect the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import Any

from perdure.errors import BadArgument
from perdure.journal import Journal
from perdure.journal.changes import stream_of
from perdure.journal.clock import Clock
from perdure.operations import streams
from perdure.operations.runs import RunRow
from perdure.operations.streams import MODES, SEGMENT, StreamRow
from perdure.serde.serializer import Serializer
from perdure.types import Chunk


def check_modes(modes: Iterable[str] | str | None) -> list[str]:
    """The modes of a stream. Raises `BadArgument` for an unknown one."""
    wanted = [modes] if isinstance(modes, str) else list(modes or ())
    if unknown := [mode for mode in wanted if mode not in MODES]:
        raise BadArgument(f"stream mode {unknown[0]!r}: use one of {', '.join(MODES)}.")
    return sorted(dict.fromkeys(wanted), key=MODES.index)


def kept_modes(modes: Iterable[str] | str | None, subgraphs: bool) -> dict[str, Any] | None:
    """The part of a run's setup that says which output to keep."""
    wanted = check_modes(modes)
    return {"modes": wanted, "subgraphs": subgraphs} if wanted else None


class StreamReader:
    """Reads the chunks of one run."""

    def __init__(self, journal: Journal, serializer: Serializer, clock: Clock, row: RunRow) -> None:
        self._journal, self._serializer, self._clock = journal, serializer, clock
        self._thread_id, self._run_id = row.thread_id, row.id

    async def read(
        self, after: int, modes: Collection[str], until_waiting: bool
    ) -> AsyncGenerator[Chunk]:
        """Chunks after a number, until the run has ended or, with `until_waiting`, rests."""
        with self._journal.feed.watch(stream_of(self._run_id)) as watch:
            while True:
                seen, page = watch.count, None
                rows = watch.items_after(after)
                if not rows:
                    page = await self._page(after)
                    rows = page.rows
                for row in rows:
                    for chunk in self._decoded(row, after):
                        after = chunk.n
                        if not modes or chunk.mode in modes or chunk.mode == SEGMENT:
                            yield chunk
                    await asyncio.sleep(0)  # a row may take long to decode: let others run
                if page is None or page.is_full:
                    continue
                if page.has_ended or (until_waiting and page.rests):
                    return
                await watch.wait(seen)

    async def _page(self, after: int) -> streams.StreamPage:
        await self._journal.aopen()
        op = streams.after(self._thread_id, self._run_id, after, self._clock.now())
        return await self._journal.aread_committed(op)

    def _decoded(self, row: StreamRow, after: int) -> list[Chunk]:
        chunks = streams.load(self._serializer, self._thread_id, self._run_id, row)
        return [chunk for chunk in chunks if chunk.n > after]
