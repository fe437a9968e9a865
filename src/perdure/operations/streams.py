"""Operations on what a run streams while it is driven. Pure, no I/O.

Chunks are numbered per run, from 1, without gaps. A row holds the chunks that one transaction took.
Only the driver that holds the lease stores any (`insert_stream`), so it numbers on from what is on
disk. Chunks that are not on disk when it dies never reached a reader, and their numbers are reused.

If a segment starts with chunks on disk after its checkpoint, it first stores a chunk of mode
`segment`, which says from which number on earlier chunks are void, because their node runs again.
For readers that come later, `stream_after` leaves out void rows, and says which chunks of a partly
void row to drop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from perdure.journal import Op, Row, Statement, is_left, read_op, with_params
from perdure.operations.runs import RunRow
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

    def result(rows: Sequence[Sequence[Row]]) -> None:
        if rows[0]:
            stored(make())

    found = {"thread_id": thread_id, "id": run_id, "token": token, "n": n}
    key = Statement("find_stream", found)
    return Op("insert_stream", statements, result, write=True, key=key)


def after(thread_id: str, run_id: str, number: int, now: int) -> Op[StreamPage]:
    """What a run streamed after a number, and whether more may follow."""
    params = {"thread_id": thread_id, "id": run_id, "after": number, "now": now, "count": PAGE}

    def result(rows: Sequence[Sequence[Row]]) -> StreamPage:
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
    return read_op("stream_between", params, lambda rows: [_row(row) for row in rows[0]])


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
