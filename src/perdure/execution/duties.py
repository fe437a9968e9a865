"""What workers do besides driving runs: they deliver the messages of the outbox, fire schedules and
delete what is old. Each is done beside the runs, and what one of them raises does not block the
others.

Each topic of the outbox has a number of slots: the maximum number of its messages delivered at
once. Messages of a topic without a free slot are not taken, so a slow receiver holds back only its
own messages.

A schedule starts a run for each cron slot that is due; the key of a slot makes it one run. One that
was made over HTTP has more to say about its runs, in the part `cron` of its setup:

    thread_id          the thread of its runs; without, each has one of its own
    strategy           what happens if a run of that thread is under way
    assistant_id       whose runs they are
    keep               whether the threads of their own are kept

A sweep deletes old runs, chunks of ended runs or expired threads, in pieces that are each small
enough that the worker can stop after it. It walks over rows, oldest first: a bounded page per read,
a bounded number of deletions per piece. At the end it rests, then starts over. Its position is in
memory only: after a crash the sweep starts over and finishes what it finds half done. If two
processes sweep at once, each row is deleted once between them. A worker that stops when idle does
one piece of each sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import time
import uuid
from collections import ChainMap, Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from perdure.commands import deleting, messages, schedules, starting, streams, threads
from perdure.commands.claims import Oldest, WorkFound
from perdure.commands.connection import Connection
from perdure.commands.messages import QUESTION, MessageRow
from perdure.commands.runs import RunRow
from perdure.commands.schedules import CRON, ScheduleRow
from perdure.commands.starting import Beside
from perdure.commands.threads import ThreadContent
from perdure.commands.webhooks import Endpoint, RunWebhooks
from perdure.errors import (
    BadArgument,
    Closed,
    Error,
    NotFound,
    ThreadBusy,
    Unavailable,
    WriteLost,
    WrongState,
)
from perdure.journal import Journal, Plan, in_pieces
from perdure.journal.names import random_number
from perdure.serde.redaction import redact
from perdure.times import FIRST_MS
from perdure.types import ENDED, Message, Retention

log = logging.getLogger("perdure")

DELIVERING = "Delivering messages"
REST = 1.0
"""Seconds until messages are taken again, if all that are due raise."""
HANDLER_TIME = 60_000
"""Milliseconds a handler may take before another worker may deliver the same message."""


class Undelivered(Exception):
    """A delivery that failed. The reason contains nothing of the message, so it can be shown.

    `final`: it is not tried again.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True)
class Receiver:
    """Takes the messages of a topic."""

    handler: Callable[[Message], Any]
    slots: int = 20
    """How many messages of the topic a worker delivers at once."""
    pause: Callable[[int], timedelta | None] = messages.REDELIVERY.pause
    """How long to wait after this many failed deliveries. None: the message is given up."""


class Outbox:
    """Who takes the messages of this process, and who is told of what."""

    def __init__(self) -> None:
        self.receivers: dict[str, Receiver] = {}
        """By topic, those of the application."""
        self.own_receivers: dict[str, Receiver] = {}
        """By topic, those of perdure itself: webhooks and mail."""
        self.run_webhooks = RunWebhooks()
        """How webhooks of individual runs are signed, and which addresses they may have."""
        self.endpoints: list[Endpoint] = []
        """Who is told of new questions, and of the states of runs."""

    def receive(self, topic: str, handler: Callable[[Message], Any]) -> None:
        """Pass the messages of a topic to a handler of the application."""
        if topic == QUESTION and topic not in self.receivers:
            self.endpoints.insert(0, Endpoint(QUESTION, "", (), questions=True))
        self.receivers[topic] = Receiver(handler)

    @property
    def is_used(self) -> bool:
        return bool(self.receivers or self.endpoints)


class Duties:
    """The deliveries and sweeps of one worker. Created in its event loop. `done` is called after
    each piece of work, with the field of `Counts` that counts it, and by how many."""

    def __init__(
        self,
        on: Connection,
        outbox: Outbox,
        sweeps: Iterable[Sweep] | None,
        done: Callable[[str, int], None],
        *,
        once: bool,
    ) -> None:
        """Without `sweeps` it has nothing to do. `once`: one piece of each sweep."""
        self._on, self._failures, self._done = on, on.failures, done
        self._journal, self._serializer, self._clock = on.journal, on.serializer, on.clock
        receivers = ChainMap(outbox.receivers, outbox.own_receivers)
        self._receivers: Mapping[str, Receiver] = {} if sweeps is None else receivers
        self._sweeps, self._once = list(sweeps or ()), once
        self._busy: Counter[str] = Counter()
        self._rests_until = float("-inf")
        self._taking: asyncio.Task[int] | None = None
        self.tasks: dict[asyncio.Task[int], Sweep | None] = {}
        """What is under way: pieces of sweeps, deliveries, and the task that takes messages."""

    @property
    def free(self) -> dict[str, int]:
        """Topics with free slots, and how many."""
        known = self._receivers.items()
        free = {topic: one.slots - self._busy[topic] for topic, one in known}
        return {topic: slots for topic, slots in free.items() if slots > 0}

    @property
    def due_sweeps(self) -> list[Sweep]:
        """The sweeps that could do a piece now."""
        now = time.monotonic()
        return [
            sweep
            for sweep in self._sweeps
            if sweep not in self.tasks.values()
            and (
                self._once
                or (sweep.next_at <= now and not self._failures.is_resting(SWEEPING, sweep.what))
            )
        ]

    def begin(self, found: WorkFound, sweeps: Iterable[Sweep]) -> None:
        """Take due messages, and begin a piece of each of these sweeps that is needed."""
        now = self._clock.now()
        is_due = found.message_at is not None and found.message_at <= now
        is_resting = self._failures.is_resting(DELIVERING) or time.monotonic() < self._rests_until
        if is_due and self._taking is None and not is_resting:
            self._taking = self._start("delivered", self._take_all())
        for sweep in sweeps:
            if self._once:
                self._sweeps.remove(sweep)
            if sweep.is_needed(found.oldest, now):
                work = sweep.tick if self._once else sweep.piece
                self._start("pruned", self._guarded(sweep, work(self._on, now)), sweep)
            elif not self._once:
                sweep.next_at = time.monotonic() + AGAIN

    def _start(
        self, count: str, work: Coroutine[Any, Any, int], sweep: Sweep | None = None
    ) -> asyncio.Task[int]:
        task = asyncio.create_task(work)
        self.tasks[task] = sweep
        task.add_done_callback(functools.partial(self._ended, count))
        return task

    def _ended(self, count: str, task: asyncio.Task[int]) -> None:
        del self.tasks[task]
        if task is self._taking:
            self._taking = None
        self._done(count, 0 if task.cancelled() or task.exception() else task.result())

    async def _guarded(self, sweep: Sweep, work: Coroutine[Any, Any, int]) -> int:
        """Do a piece. One that fails keeps no other sweep back."""
        try:
            deleted = await work
        except Exception as error:
            self._failures.note(error, SWEEPING, sweep.what)
            return 0
        self._failures.clear(SWEEPING, sweep.what)
        return deleted

    async def _take_all(self) -> int:
        with self._failures.guard(DELIVERING):
            await self._take()
        return 0

    async def _take(self) -> None:
        while free := self.free:
            # At most as many as the fewest free slots, so that no topic can get too many.
            count, now = min(free.values()), self._clock.now()
            try:
                taken = await self._take_and_start(free, now, count)
            except (Unavailable, WriteLost, Closed):
                raise
            except Exception:
                taken = await self._take_each(free, now, count)
            if taken < count:
                return

    async def _take_and_start(
        self, topics: Iterable[str], now: int, count: int, only: str | None = None
    ) -> int:
        change, op = messages.take(topics, now, now + HANDLER_TIME, count, only)
        taken = await self._journal.ado(op)
        for row in taken:
            self._busy[row.topic] += 1
            self._start("delivered", self._one(change, row))
        return len(taken)

    async def _take_each(self, topics: Iterable[str], now: int, count: int) -> int:
        """Take messages one by one: what one of them raises, it raises alone."""
        journal, taken = self._journal, 0
        for thread_id, id in await journal.ado(messages.due(topics, now, count)):
            if not self._failures.is_resting(DELIVERING, id):
                try:
                    taken += await self._take_and_start(topics, now, 1, id)
                except (Unavailable, WriteLost, Closed):
                    raise
                except Exception as error:
                    until = now + round(1000 * self._failures.note(error, DELIVERING, id))
                    said = type(error).__name__
                    with contextlib.suppress(Exception):  # then it is due at once
                        await journal.ado(messages.postpone(thread_id, id, until, said))
        if not taken:  # what is due cannot even be postponed
            self._rests_until = time.monotonic() + REST
        return taken

    async def _one(self, change: int, row: MessageRow) -> bool:
        try:
            return await self._deliver(change, row, self._receivers[row.topic])
        except Exception as error:  # it is delivered again when its reservation is over
            self._failures.note(error, DELIVERING, row.id)
            return False
        finally:
            self._busy[row.topic] -= 1

    async def _deliver(self, change: int, row: MessageRow, to: Receiver) -> bool:
        try:
            await _hand_over(to.handler, messages.to_message(self._serializer, row))
        except Exception as error:
            kind = type(error).__name__  # its message may contain the payload
            known = isinstance(error, Undelivered)
            text = redact(self._serializer.redacted_text(f"{kind}: {error}"))
            extra = {"without_content": f"message {row.id} was not delivered: {kind}"}
            said = "message %s of topic %r was not delivered: %s"
            log.warning(said, row.id, row.topic, str(error) if known else text, extra=extra)
            stored = str(error) if known else kind
            final = isinstance(error, Undelivered) and error.final
            pause = None if final else to.pause(row.attempts)
            if pause is None:
                log.error("giving up on message %s of topic %r", row.id, row.topic)
                until = messages.NEVER
            else:
                until = self._clock.now() + round(pause.total_seconds() * 1000)
            await self._journal.ado(messages.delay(row, change, until, stored))
            return False
        await self._journal.ado(messages.delete(row))
        return True


async def _hand_over(handler: Callable[[Message], Any], message: Message) -> None:
    if inspect.iscoroutinefunction(handler):
        await handler(message)
    else:
        returned = await asyncio.to_thread(handler, message)
        if inspect.isawaitable(returned):  # an object, or a lambda around a coroutine
            await returned


FIRING = "Firing schedules"
PIECE = 1.0
"""Seconds for which a worker fires schedules before it goes on with its other duties."""
KEPT_FOR = 1.0
"""Minutes from its start after which the thread of a cron's run is erased, once it has ended."""


class ThreadGone(NotFound):
    """The thread of a cron was erased."""


def fire_schedules(on: Connection, found: Sequence[ScheduleRow]) -> Plan[int]:
    """Start a run for each due slot of these schedules, if this process has their graphs. Returns
    how many were started. What one of them raises does not block the others: it is stored in its
    row, and its slot stays due."""
    now, started, until = on.clock.now(), 0, time.monotonic() + PIECE
    on.failures.keep_only(FIRING, {row.name for row in found})
    for row in found:
        if row.graph not in on.graph_names:  # another application's, with other types and keys
            if row.is_overdue(now) and on.failures.is_news(f"schedule {row.name}"):
                log.warning("schedule %r started no run: %s", row.name, schedules.unstarted(row))
        elif time.monotonic() > until:
            break  # they are still due, and first in the next look: claims go on meanwhile
        elif not on.failures.is_resting(FIRING, row.name):
            with on.failures.guard(FIRING, row.name):
                started += yield from _fire_or_explain(on, row)
    return started


def _fire_or_explain(on: Connection, row: ScheduleRow) -> Plan[int]:
    """Fire a schedule. What it raises is stored in its row first."""
    try:
        return (yield from _fire(on, row))
    except (Closed, Unavailable, WriteLost):
        raise
    except Exception as error:
        said = str(error) if isinstance(error, Error) else type(error).__qualname__
        problem = on.serializer.redacted_text(said)
        if problem != row.problem:
            yield schedules.move(row, row.next_at, on.clock.now(), problem=problem)
        raise


def _fire(on: Connection, row: ScheduleRow) -> Plan[int]:
    """Start a run for each due slot of one schedule."""
    setup, started, problem, now = row.load(on.serializer), 0, None, on.clock.now()
    due, following, missed = schedules.due_slots(row, now)
    if missed:
        problem = (
            f"{missed} slots from {schedules.key_time(row.next_at)} on were skipped, because they "
            "were too late: no worker with its graph was running, or catch_up= is too short."
        )
        log.warning("the schedule %r: %s", row.name, problem)
    for slot in due:
        try:
            yield from _start(on, row, setup, schedules.key(row.name, slot))
            started, problem = started + 1, None
        except ThreadGone as error:  # erased while this cron was made, or by an older version
            log.warning("the cron %r is deleted: %s", row.name, error)
            yield schedules.delete_row(row.name)
            return started
        except (BadArgument, NotFound, ThreadBusy) as error:
            log.warning("schedule %r started no run: %s", row.name, error)
            missed, problem = missed + 1, on.serializer.redacted_text(str(error))
    yield schedules.move(row, following, now, missed=missed, problem=problem)
    return started


def fire_now(on: Connection, name: str, nonce: str, by: str | None) -> Plan[RunRow]:
    """Start an extra run of a schedule, as a slot would. The same `nonce` finds the run it started.
    `by` is in the run's metadata. Raises `NotFound`."""
    row: ScheduleRow | None = yield schedules.find(name)
    if row is None:
        raise NotFound("schedule", name)
    setup = row.load(on.serializer)
    started = {"schedule": name, "started_by": str(by)} if by else {"schedule": name}
    setup = {**setup, "metadata": {**(setup.get("metadata") or {}), **started}}
    return (yield from _start(on, row, setup, f"{name}@{nonce}"))


def _start(
    on: Connection,
    row: ScheduleRow,
    setup: Mapping[str, Any],
    key: str,
) -> Plan[RunRow]:
    """Start the run of a key, or find it."""
    graph = (row.graph, str(setup.get("version", "")))
    own = {name: value for name, value in setup.items() if name not in ("version", CRON)}
    cron: Mapping[str, Any] | None = setup.get(CRON)
    if cron is None:
        return (yield from starting.accept(on, graph, f"schedule:{key}", own, "enqueue", key=key))
    now, thread_id = on.clock.now(), cron["thread_id"]
    owner: Any = {"graph": row.graph, "assistant": cron["assistant_id"]}
    if thread_id is None:
        thread_id = str(uuid.uuid5(uuid.NAMESPACE_OID, key))
        content = ThreadContent(cron.get("metadata") or {}, ttl=None if cron["keep"] else KEPT_FOR)
        record = threads.ensure(on.serializer, thread_id, content, now, **owner)
    else:
        record = threads.require(thread_id, now, **owner)

    def refuse() -> NoReturn:
        raise ThreadGone("thread", thread_id)

    strategy = cron["strategy"]
    return (
        yield from starting.accept(
            on,
            graph,
            thread_id,
            own,
            strategy,
            key=key,
            only="asking" if strategy in ("enqueue", "reject") else None,
            beside=Beside(record, refuse),
        )
    )


SWEEPING = "Housekeeping"
AGAIN = 10.0
"""Seconds until a worker asks again whether there is something to delete."""
ROWS = 200
"""Rows that are read at once."""
DELETIONS = 20
"""Transactions of one piece."""
CHUNK_ROWS = 500
"""Rows of chunks that one transaction deletes."""
PAUSE = 0.2
"""Seconds between two pieces of one sweep."""
PAGES_OF_TICK = 5
"""Pages that one call of `tick` reads in search of old runs."""
START = (FIRST_MS, "")


class Sweep:
    """The sweeps of one process over one kind of row."""

    what: str
    """What it does, for a log line: `Deleting old runs`."""
    rest: float
    """Seconds between two sweeps."""
    deletes_runs = False
    next_at = float("-inf")
    """When it has rested long enough, by the monotonic clock."""
    _after: tuple[int, str] = START

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        """Whether there may be something to delete."""
        return True

    async def tick(self, on: Connection, now: int) -> int:
        """Do the one piece of a worker that stops when idle: the oldest rows."""
        self._after = START
        return await self.piece(on, now)

    async def piece(self, on: Connection, now: int) -> int:
        """Read a page, and delete what is too old. Returns the number of deleted runs."""
        page, deletions = await self._page(on.journal, now), 0
        for row in page:
            with on.failures.guard(self.what, row.id):
                while self._is_too_old(row, now):
                    if deletions == DELETIONS:
                        self._rest(PAUSE)
                        return deletions if self.deletes_runs else 0
                    is_more = await self._delete(on.journal, row)
                    deletions += 1
                    if not is_more:
                        break
            self._after = (row.created_at, row.id)
        if len(page) < ROWS:
            self._after = START
        self._rest(PAUSE if len(page) == ROWS else self.rest)
        return deletions if self.deletes_runs else 0

    async def _page(self, journal: Journal, now: int) -> list[Any]:
        """The next rows after the position, at most `ROWS`."""
        raise NotImplementedError

    def _is_too_old(self, row: Any, now: int) -> bool:
        raise NotImplementedError

    async def _delete(self, journal: Journal, row: Any) -> bool:
        """Delete a row in one transaction. Returns whether there may be more of it."""
        raise NotImplementedError

    def _rest(self, seconds: float) -> None:
        self.next_at = time.monotonic() + seconds


class RetentionSweep(Sweep):
    """Deletes ended runs that are older than `Retention` keeps them. A partly deleted run is
    finished by the next sweep that finds it."""

    what, rest, deletes_runs = "Deleting old runs", 600.0, True

    def __init__(self, retention: Retention) -> None:
        self._ages = {
            state.value: round(age.total_seconds() * 1000) for state, age in retention.ages.items()
        }

    async def tick(self, on: Connection, now: int) -> int:
        """The oldest runs, then, if there are many, those behind a random place. A process that
        lives for one tick cannot remember where the last one was."""
        deleted = await super().tick(on, now)
        for _ in range(PAGES_OF_TICK - 1):
            if self._after == START or deleted >= DELETIONS:
                break
            ahead = max(1, now - self._after[0])
            self._after = (self._after[0] + random_number() % ahead, "")
            deleted += await self.piece(on, now)
        return deleted

    async def _page(self, journal: Journal, now: int) -> list[deleting.OldRun]:
        return await journal.ado(deleting.oldest(self._after, now - min(self._ages.values()), ROWS))

    def _is_too_old(self, row: deleting.OldRun, now: int) -> bool:
        if row.is_deleted_in_part:
            return True
        age = self._ages.get(row.state)
        return age is not None and not row.has_live_parent and row.updated_at <= now - age

    async def _delete(self, journal: Journal, row: deleting.OldRun) -> bool:
        rows = journal.capabilities.delete_count
        await journal.arun(in_pieces(deleting.delete(row.thread_id, row.id, rows)))
        return False


class StreamSweep(Sweep):
    """Deletes the chunks of runs that ended longer ago than the stream's time to live."""

    what, rest = "Deleting stream chunks of ended runs", 60.0

    def __init__(self, ttl: timedelta) -> None:
        self._ttl = round(ttl.total_seconds() * 1000)

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        return oldest.streamed_at is not None and oldest.streamed_at <= now - self._ttl

    async def _page(self, journal: Journal, now: int) -> list[streams.StreamedRun]:
        return await journal.ado(streams.kept(self._after, ROWS))

    def _is_too_old(self, row: streams.StreamedRun, now: int) -> bool:
        return row.state in ENDED and row.updated_at <= now - self._ttl

    async def _delete(self, journal: Journal, row: streams.StreamedRun) -> bool:
        count = min(CHUNK_ROWS, journal.capabilities.delete_count)
        is_more: bool = await journal.ado(streams.forget(row, count))
        return is_more


class ThreadExpiry(Sweep):
    """Erases threads whose time to live is over. A thread with a run under way is erased once the
    run has ended."""

    what, rest = "Erasing expired threads", 30.0

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        return oldest.expires_at is not None and oldest.expires_at <= now

    async def piece(self, on: Connection, now: int) -> int:
        """Erase some expired threads."""
        # Those that fail come first: go on behind them.
        count = threads.EXPIRED + on.failures.failing.get(self.what, 0)
        expired = await on.journal.ado(threads.expired(now, count))
        for thread_id in expired:
            if not on.failures.is_resting(self.what, thread_id):
                with (
                    on.failures.guard(self.what, thread_id),
                    contextlib.suppress(WrongState),  # a run has just been started
                ):
                    await on.journal.arun(deleting.erase.plan(on, thread_id))
        self._rest(PAUSE if len(expired) == count else self.rest)
        return 0
