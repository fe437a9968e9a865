"""Reads what runs stream: from memory if this process drives them, else from the journal.

A reader's only state is the number of the last chunk it returned: it may stop at any time, and
another reader can continue from that number. How fast it reads does not affect the run.

Also what happens now: the events of every run, for observers, and what the open pages of a server
poll for, small reads by index, however large the journal. Each look of a feed reads running runs,
those that were running at the last look, and the newest ones, then the new events of those that
changed. A segment of an older run that starts and ends between two looks is not seen: the history
of a run, which is complete, is in its own events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from perdure.commands import events, runs
from perdure.commands.connection import Connection
from perdure.commands.runs import RunRow
from perdure.errors import BadArgument
from perdure.journal import Op, Plan, Rows, Statement, is_left, read_op, rows_as, with_params
from perdure.journal.changes import stream_of
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds, moment
from perdure.types import ENDED, Chunk, Event, Kind, State

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


class StreamedRun(NamedTuple):
    """A run whose chunks are kept."""

    thread_id: str
    id: str
    state: str
    created_at: int
    updated_at: int


def place(thread_id: str, run_id: str, row: StreamRow) -> Place:
    columns = (thread_id, row.token, row.at, row.replaces)
    return Place(f"chunks {row.n} to {row.last} of run {run_id}", columns)


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
    decode, name, at = serializer.decode, where.name, moment(row.at)
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
        chunks = rows_as(StreamRow)(rows[:1])
        if not rows[1]:
            return StreamPage(chunks, True, True)
        state, rests, _ = rows[1][0]
        return StreamPage(chunks, state in ENDED, bool(rests))

    return Op("stream_after", with_params(params, "stream_after", "stream_state"), result)


def between(thread_id: str, run_id: str, number: int, count: int) -> Op[list[StreamRow]]:
    """Rows with chunks after a number, also those that were replaced."""
    params = {"thread_id": thread_id, "id": run_id, "after": number, "count": count}
    return read_op("stream_after", {**params, "replaced": 1}, rows_as(StreamRow))


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


async def read_stream(
    on: Connection, row: RunRow, after: int, modes: Collection[str], until_waiting: bool
) -> AsyncGenerator[Chunk]:
    """The chunks of a run after a number, until it has ended or, with `until_waiting`, rests."""
    journal = on.journal
    with journal.feed.watch(stream_of(row.id)) as watch:
        while True:
            seen, page = watch.count, None
            rows = watch.items_after(after)
            if not rows:
                await journal.aopen()
                op = chunks_after(row.thread_id, row.id, after, on.clock.now())
                page = await journal.aread_committed(op)
                rows = page.rows
            for stored in rows:
                for chunk in load(on.serializer, row.thread_id, row.id, stored):
                    if chunk.n <= after:
                        continue
                    after = chunk.n
                    if not modes or chunk.mode in modes or chunk.mode == SEGMENT:
                        yield chunk
                await asyncio.sleep(0)  # a row may take long to decode: let others run
            if page is None or len(page.rows) >= PAGE:
                continue
            if page.has_ended or (until_waiting and page.rests):
                return
            await watch.wait(seen)


# -- the events of all runs

NEWEST = 100
"""How many of the newest runs are followed."""

DRIVEN = 1000
"""How many running ones are."""

REMEMBERED = 10_000
"""Number of runs that a feed remembers, so that the events of a run that rested for long are not
repeated."""

GLANCED = 50
"""Number of newest runs and questions read. More than these in one interval appear when a page is
opened next."""


class EventFeed:
    """The events of a journal from a moment on."""

    def __init__(self, serializer: Serializer, since: datetime) -> None:
        self._serializer, self._since = serializer, since
        self._first = milliseconds(since)
        self._seen: dict[str, int] = {}
        """How many events of each run were read; the last seen run is last."""
        self._driven: set[str] = set()

    def look(self) -> Plan[list[tuple[RunRow, Event]]]:
        """What is new, run by run."""
        driven: list[RunRow] = yield runs.page(states=[State.RUNNING.value], count=DRIVEN)
        newest: list[RunRow] = yield runs.page(count=NEWEST)
        found = {row.id: row for row in reversed([*driven, *newest])}
        if rested := self._driven - found.keys():
            others: list[RunRow] = yield runs.find_all(rested)  # what is pruned is not among them
            found |= {row.id: row for row in others}
        self._driven = {row.id for row in driven}
        new = []
        for row in found.values():
            new += yield from self._new(row)
        for id in [*islice(self._seen, max(0, len(self._seen) - REMEMBERED))]:
            del self._seen[id]
        return new

    def _new(self, row: RunRow) -> Plan[list[tuple[RunRow, Event]]]:
        """The events of a run that are new: its row counts them."""
        is_old = row.id not in self._seen and row.updated_at < self._first
        n = row.events if is_old else self._seen.get(row.id, 0)
        new: list[tuple[RunRow, Event]] = []
        while n < row.events:
            page: list[Event] = yield events.events_of(
                self._serializer, row.thread_id, row.id, n, 1000
            )
            new += [(row, event) for event in page if event.at >= self._since]
            if not page:  # pruned in the meantime
                break
            n = page[-1].n
        self._seen.pop(row.id, None)
        self._seen[row.id] = n
        return new


# -- what open pages poll for


class Glance(NamedTuple):
    """What one poll saw."""

    versions: dict[str, Any]
    """A version of each followed run that differs once it has changed."""
    runs: dict[str, int]
    """The newest runs, newest first: the id of each, and when it was started."""
    questions: dict[str, int]
    """The newest open questions to people: the id of each, and when it was asked."""
    asking: dict[str, str]
    """The run of each of these questions."""


def glance(run_ids: Collection[str]) -> Op[Glance]:
    """Look at these runs, and at the newest runs and questions."""
    names = ("newest_runs", "newest_questions")
    statements = [Statement(name, {"count": GLANCED}) for name in names]
    if run_ids:
        names_json = json.dumps(sorted(run_ids))
        statements.append(Statement("versions_of_runs", {"names": names_json}))

    def result(rows: Rows) -> Glance:
        runs, questions, *versions = rows
        found = {str(id): change for row in versions for id, change, _ in row}
        return Glance(
            found,
            {str(id): int(at) for id, at in runs},
            {str(id): int(at) for id, at, _ in questions},
            {str(id): str(run_id) for id, _, run_id in questions},
        )

    return Op("glance", statements, result)


def new_ids(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """What the later of two lists of the newest has and the earlier had not, oldest first. One that
    came into a full list because another left it is older than all that it had, and not new."""
    oldest = min(((at, id) for id, at in before.items()), default=(0, ""))
    is_full = len(before) >= GLANCED
    new = [id for id, at in now.items() if id not in before and not (is_full and (at, id) < oldest)]
    return new[::-1]


def count_questions(most: int) -> Op[int]:
    """The number of open questions to people, up to `most`."""
    params = {"kind": Kind.HUMAN.value, "most": most}
    return read_op("count_open_waits", params, lambda rows: int(rows[0][0][1]))
