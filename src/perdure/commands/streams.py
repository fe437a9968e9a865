"""Reads what runs stream: from memory if this process drives them, else from the journal.

A reader's only state is the number of the last chunk it returned: it may stop at any time, and
another reader can continue from that number. How fast it reads does not affect the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from perdure.commands.runs import RunRow
from perdure.errors import BadArgument
from perdure.journal import Journal, Op, Row, Rows, Statement, is_left, read_op, with_params
from perdure.journal.changes import stream_of
from perdure.journal.clock import Clock
from perdure.serde import places
from perdure.serde.places import Place
from perdure.serde.serializer import Serializer
from perdure.times import moment
from perdure.types import ENDED, Chunk

SEGMENT = "segment"
"""The mode of the chunk with which a segment replaces earlier ones."""

MODES = ("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "events")
"""The modes of a run's output that can be kept."""

PAGE = 100
"""Rows to read at once."""


class StreamRow(NamedTuple):
    """Chunks as they are stored."""

    n: int
    last: int
    token: int
    at: int
    replaces: int | None
    body: bytes
    void_from: int | None = None
    """Its chunks from this number on were replaced."""


class Entry(NamedTuple):
    """One chunk inside a row."""

    mode: str
    namespace: tuple[str, ...]
    data: bytes
    extra: int | None = None
    """Index of this message's metadata in the row's extras; many chunks share it."""
    tasks: str = ""
    """The tasks it comes from, as far as known: `outer:task id|inner:task id`."""


class StreamPage(NamedTuple):
    """What a reader finds in one snapshot."""

    rows: list[StreamRow]
    has_ended: bool
    rests: bool
    """Whether the run waits until a person decides."""
    is_kept: bool

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= PAGE


class StreamedRun(NamedTuple):
    """A run whose chunks are kept."""

    thread_id: str
    id: str
    state: str
    created_at: int
    updated_at: int


def place(thread_id: str, run_id: str, row: StreamRow) -> Place:
    return places.of_stream(thread_id, run_id, row.n, row.last, row.token, row.at, row.replaces)


def dump(
    serializer: Serializer,
    thread_id: str,
    run_id: str,
    row: StreamRow,
    entries: Iterable[Entry],
    extras: Sequence[bytes],
) -> StreamRow:
    """A row with its body."""
    stored = [[[*one] for one in entries], *extras]
    body = serializer.dumps(stored, place(thread_id, run_id, row), "the stream", own=True)
    return row._replace(body=body)


def load(serializer: Serializer, thread_id: str, run_id: str, row: StreamRow) -> list[Chunk]:
    """The chunks of a row that are not void. Raises `Damaged`, `WrongKey` or `TypeNotAllowed`."""
    found = load_with_tasks(serializer, thread_id, run_id, row)
    return [chunk for chunk, _ in found if row.void_from is None or chunk.n < row.void_from]


def load_with_tasks(
    serializer: Serializer, thread_id: str, run_id: str, row: StreamRow
) -> list[tuple[Chunk, str]]:
    """The chunks of a row, each with the tasks it comes from."""
    where = place(thread_id, run_id, row)
    stored = serializer.loads(row.body, where, list)
    decode, name, at = serializer.codec.decode, where.name, moment(row.at)
    extras = [decode(extra, name) for extra in stored[1:]]
    chunks = []
    for n, (mode, namespace, blob, extra, tasks) in enumerate(stored[0], row.n):
        data = decode(blob, name)
        if extra is not None:
            data = (data, dict(extras[extra]))
        replaces = row.replaces if mode == SEGMENT else None
        chunks.append((Chunk(n, mode, tuple(namespace), data, at, replaces), tasks))
    return chunks


def insert(
    thread_id: str,
    run_id: str,
    token: int,
    n: int,
    make: Callable[[], StreamRow],
    stored: Callable[[StreamRow], None],
) -> Op[None]:
    """Store a row. `make` returns it when the transaction is formed, always the same one. `stored`
    is called once it is on disk, and must be quick."""

    def statements() -> list[Statement]:
        row = make()
        params = {"thread_id": thread_id, "id": run_id, "now": row.at, **row._asdict()}
        del params["void_from"]
        return [Statement("insert_stream", params)]

    def result(rows: Rows) -> None:
        if rows[0]:
            stored(make())

    found = {"thread_id": thread_id, "id": run_id, "token": token, "n": n}
    key = Statement("find_stream", found)
    return Op("insert_stream", statements, result, write=True, key=key)


def chunks_after(thread_id: str, run_id: str, number: int, now: int) -> Op[StreamPage]:
    """What a run streamed after a number, and whether more may follow."""
    params = {"thread_id": thread_id, "id": run_id, "after": number, "now": now, "count": PAGE}
    params["replaced"] = 0

    def result(rows: Rows) -> StreamPage:
        found = [_row(row) for row in rows[0]]
        if not rows[1]:
            return StreamPage(found, True, True, False)
        state, rests, kept = rows[1][0]
        return StreamPage(found, state in _ENDED, bool(rests), bool(kept))

    return Op("stream_after", with_params(params, "stream_after", "stream_state"), result)


_ENDED = {state.value for state in ENDED}


def between(thread_id: str, run_id: str, number: int, count: int) -> Op[list[StreamRow]]:
    """Rows with chunks after a number, also those that were replaced."""
    params = {"thread_id": thread_id, "id": run_id, "after": number, "count": count}
    return read_op(
        "stream_after", {**params, "replaced": 1}, lambda rows: [_row(row) for row in rows[0]]
    )


def last(row: RunRow) -> Op[int]:
    """The number of the last chunk that is on disk."""
    params = {"thread_id": row.thread_id, "id": row.id}
    return read_op("last_chunk", params, lambda rows: int(rows[0][0][0]))


def kept(behind: tuple[int, str], count: int) -> Op[list[StreamedRun]]:
    """Runs whose chunks are kept, oldest first, after a position."""
    params = {"after": behind[0], "after_id": behind[1], "count": count}
    return read_op("runs_with_streams", params, lambda rows: [StreamedRun(*r) for r in rows[0]])


def forget(run: StreamedRun, count: int) -> Op[bool]:
    """Delete up to `count` rows of an ended run's chunks. True if some are left."""
    params = {"thread_id": run.thread_id, "id": run.id, "count": count}
    names = ("delete_run_stream", "note_stream_deleted", "is_stream_left")
    return Op("forget_stream", with_params(params, *names), is_left, write=True)


def is_over(run: StreamedRun) -> bool:
    return run.state in _ENDED


def _row(row: Row) -> StreamRow:
    values: list[Any] = list(row)
    values[5] = bytes(values[5]) if isinstance(values[5], memoryview) else values[5]
    return StreamRow(*values)


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

    async def _page(self, after: int) -> StreamPage:
        await self._journal.aopen()
        op = chunks_after(self._thread_id, self._run_id, after, self._clock.now())
        return await self._journal.aread_committed(op)

    def _decoded(self, row: StreamRow, after: int) -> list[Chunk]:
        chunks = load(self._serializer, self._thread_id, self._run_id, row)
        return [chunk for chunk in chunks if chunk.n > after]
