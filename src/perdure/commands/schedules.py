"""Plans about schedules: store, list and delete them. `execution/duties.py` fires them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain, islice, takewhile
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from perdure.commands.connection import Connection
from perdure.commands.runs import redacted_setup
from perdure.commands.starting import make_setup
from perdure.errors import UNREADABLE, BadArgument, NotFound
from perdure.journal import Op, Plan, Row, first_as, read_op, rows_as, write_op
from perdure.journal.names import check_text
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import maybe_moment, milliseconds, moment
from perdure.types import Done, Schedule
from perdure.verbs import recorded, verb

CRON = "cron"
"""The part of a schedule's setup that only crons made over HTTP have; the rest is for its runs."""

LATE = 60_000
"""Milliseconds a slot may be late before it counts as missed."""

MAX_CATCH_UP = 1000
"""Maximum number of slots caught up, or counted as missed, at once."""

MOST_OF_PROBLEM = 1000
"""Characters of a problem that are stored."""


class ScheduleRow(NamedTuple):
    """A schedule as it is stored.

    Attributes:
        end_at: The last time at which it starts a run.
        thread_id: The thread of its runs, if they share one.
    """

    name: str
    graph: str = ""
    cron: str = ""
    timezone: str = "UTC"
    catch_up: int | None = None
    next_at: int = 0
    body: bytes = b""
    enabled: int = 1
    end_at: int | None = None
    created_at: int = 0
    updated_at: int = 0
    thread_id: str | None = None
    missed: int = 0
    missed_at: int | None = None
    problem: str | None = None

    @property
    def place(self) -> Place:
        """What its body is bound to."""
        columns = (self.graph, self.cron, self.timezone, self.catch_up)
        return Place(f"schedule {self.name!r}", columns)

    def load(self, serializer: Serializer) -> dict[str, Any]:
        """What its runs are started with."""
        setup: dict[str, Any] = serializer.loads(self.body, self.place, dict)
        return setup

    def to_schedule(self, serializer: Serializer, now: int) -> Schedule:
        """A schedule as its users see it. One that cannot be read has `damaged`."""
        damaged = None
        try:
            self.load(serializer)
        except UNREADABLE as error:
            damaged = str(error)
        next_at = moment(self.next_at)
        return Schedule(
            self.name,
            self.graph,
            self.cron,
            self.timezone,
            next_at,
            damaged,
            bool(self.enabled),
            self.missed,
            maybe_moment(self.missed_at),
            damaged or self.problem or (unstarted(self) if self.is_overdue(now) else None),
        )

    def is_overdue(self, now: int) -> bool:
        """Whether its slot has been due for longer than a worker needs to start it."""
        is_over = self.end_at is not None and self.next_at > self.end_at
        return bool(self.enabled) and not is_over and self.next_at <= now - LATE


class DueSlots(NamedTuple):
    """What to do about a schedule now.

    Attributes:
        due: The slots to start.
        following: The slot after them.
        missed: How many slots are too late to be started, counted up to `MAX_CATCH_UP`.
    """

    due: list[int]
    following: int
    missed: int


def unstarted(row: ScheduleRow) -> str:
    """Why an overdue schedule starts nothing, as far as its row tells."""
    return (
        f"It was due at {key_time(row.next_at)}, and no worker has started it: none is running "
        f"that has registered the graph {row.graph!r}."
    )


def slots(cron: str, timezone: str, after: int) -> Iterator[int]:
    """The slots of a cron line after a time."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadArgument(
            f"{timezone!r} is not a time zone: use a name such as Europe/Rome."
        ) from error
    try:
        line = CronSim(cron, moment(after).astimezone(zone))
    except CronSimError as error:
        raise BadArgument(f"{cron!r} is not a cron line: {error}.") from error
    for slot in line:
        yield milliseconds(slot)


def next_slot(cron: str, timezone: str, after: int) -> int:
    """The first slot after a time."""
    for slot in slots(cron, timezone, after):
        return slot
    raise BadArgument(f"The cron line {cron!r} has no next time.")


def due_slots(row: ScheduleRow, now: int) -> DueSlots:
    """The slots of a schedule to start now, the slot after them, and how many are too late."""
    due, following = [], row.next_at
    late = LATE if row.catch_up is None else row.catch_up
    until = now - late if row.end_at is None else min(now - late, row.end_at + 1)
    missed = 0
    if row.next_at < until:
        passed = takewhile(lambda slot: slot < until, slots(row.cron, row.timezone, row.next_at))
        missed = 1 + sum(1 for _ in islice(passed, MAX_CATCH_UP - 1))
    # Slots too old to be caught up are not all enumerated.
    later = slots(row.cron, row.timezone, max(row.next_at, now - late - 1))
    for slot in chain([row.next_at], (slot for slot in later if slot > row.next_at)):
        if slot > now:
            following = slot
            break
        if slot >= now - late and (row.end_at is None or slot <= row.end_at):
            due.append(slot)
    missed = min(MAX_CATCH_UP, missed + len(due[:-MAX_CATCH_UP]))
    return DueSlots(due[-MAX_CATCH_UP:], following, missed)


def key(name: str, slot: int) -> str:
    """The key of a slot's run."""
    return f"{name}@{key_time(slot)}"


def key_time(slot: int) -> str:
    """The time of a slot in the key of its run."""
    return f"{moment(slot):%Y-%m-%dT%H:%M:%SZ}"


def _lateness(catch_up: bool | timedelta) -> int | None:
    """How late a slot may be, in milliseconds, to be caught up. None: it is not."""
    if isinstance(catch_up, timedelta):
        return max(LATE, round(catch_up.total_seconds() * 1000))
    return 10**15 if catch_up else None


_rows = rows_as(ScheduleRow)


def find(name: str) -> Op[ScheduleRow | None]:
    params = {"name": name, "after": "", "count": 1}
    return read_op("schedules", params, first_as(ScheduleRow))


def page(after: str = "", count: int = 2**31 - 1) -> Op[list[ScheduleRow]]:
    """The schedules behind a name, by name."""
    return read_op("schedules", {"name": None, "after": after, "count": count}, _rows)


def due(now: int) -> Op[list[ScheduleRow]]:
    """The schedules with a slot to start."""
    return read_op("due_schedules", {"now": now}, _rows)


def failing(now: int, count: int) -> Op[list[str]]:
    """The names of schedules that start no runs although they should."""
    params = {"late": now - LATE}
    return read_op("schedule_health", params, lambda rows: failing_of(rows[0])[:count])


def failing_of(rows: Sequence[Row]) -> list[str]:
    """The names of those that fail, of the rows of `schedule_health`."""
    return [str(name) for name, _, _, fails in rows if fails]


def move(
    row: ScheduleRow, following: int, now: int, *, missed: int = 0, problem: str | None = None
) -> Op[None]:
    """Note that the slots before `following` were started or, as many as `missed`, were not, and
    why: `problem`. If `following` is the slot itself, it stays due."""
    params: dict[str, Any] = {"name": row.name, "slot": row.next_at, "next_at": following}
    params |= {"now": now, "missed": missed, "problem": problem and problem[:MOST_OF_PROBLEM]}
    return write_op(params, "move_schedule")


def delete_row(name: str) -> Op[None]:
    return write_op({"name": name}, "delete_schedule")


def store(
    on: Connection,
    graph: tuple[str, str],
    setup: dict[str, Any],
    row: ScheduleRow,
    enabled: bool | None = None,
) -> Plan[ScheduleRow]:
    """Store a schedule of a graph, given as (name, version); its slots and its body are set here.
    One that is not `enabled` starts nothing; None leaves that as it is, so that an application that
    stores its schedules when it starts enables none that a person disabled."""
    now = on.clock.now()
    next_at = next_slot(row.cron, row.timezone, now)
    row = row._replace(graph=graph[0], next_at=next_at, created_at=now, updated_at=now)
    redacted = redacted_setup(on.serializer, {**setup, "version": graph[1]})
    row = row._replace(body=on.serializer.dumps(redacted, row.place, "schedule", own=True))
    yield write_op(
        row._asdict() | {"enabled": None if enabled is None else int(enabled)}, "put_schedule"
    )
    stored: ScheduleRow | None = yield find(row.name)
    return stored or row


@verb()
async def schedule(
    on: Connection,
    name: str,
    graph: str,
    *,
    cron: str,
    timezone: str = "UTC",
    input: Any = None,
    catch_up: bool | timedelta = False,
    metadata: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    context: Any = None,
    config: Mapping[str, Any] | None = None,
) -> Schedule:
    """Start runs of a graph according to a cron expression.

    Calling it again with the same name changes the schedule. Each scheduled time is a slot,
    and starts at most one run, however many workers there are and whenever one of them
    dies. The run has the key `name@time`, and its own thread, `schedule:name@time`. So two runs
    may overlap if the first takes a long time. Any worker or tick on the journal fires
    schedules.

    When daylight saving skips the time of a daily slot, its run starts right after the jump.
    When a time occurs twice, its run starts once, the first time.

        await client.schedule(
            "digest", "digest", cron="0 9 * * 1", timezone="Europe/Rome"
        )

    It is safe to call this every time the application starts: with the same cron expression and
    time zone the next slot is kept, and a disabled schedule stays disabled.

    Args:
        name: The name of the schedule.
        graph: The name of the graph. The version is the newest that this runtime has
            registered.
        cron: Five fields as in `crontab`, or six with seconds first.
        timezone: The time zone of the cron expression, such as `Europe/Rome`.
        input: The input of each run.
        catch_up: What to do about slots that passed while no worker ran. `False` starts slots
            up to a minute late. A timedelta starts slots up to that age. `True` starts all, at
            most the last 1,000.
        metadata: Metadata of each run.
        tags: Tags of each run.
        context: LangGraph's runtime context of each run.
        config: LangGraph's config of each run.

    Returns:
        The schedule, with the time of its next run.

    Raises:
        BadArgument: The cron expression or the time zone is not valid.
        UnknownGraph: This runtime has graphs, but none of this name.
    """
    check_text("name", name)
    setup = make_setup(input=input, metadata=metadata, tags=tags, context=context, config=config)
    resolved = on.resolve_graph(graph, None)
    return Schedule(**await _schedule(on, name, resolved, cron, timezone, setup, catch_up))


@recorded("schedule")
def _schedule(
    on: Connection,
    name: str,
    graph: tuple[str, str],
    cron: str,
    timezone: str,
    setup: dict[str, Any],
    catch_up: bool | timedelta,
) -> Plan[dict[str, Any]]:
    schedule = ScheduleRow(name, cron=cron, timezone=timezone, catch_up=_lateness(catch_up))
    row = yield from store(on, graph, setup, schedule)
    return vars(row.to_schedule(on.serializer, on.clock.now()))


@verb(name="schedules")
def list_schedules(on: Connection) -> Plan[list[Schedule]]:
    """List all schedules, by name."""
    rows: list[ScheduleRow] = yield page()
    return [row.to_schedule(on.serializer, on.clock.now()) for row in rows]


@verb()
async def enable_schedule(on: Connection, name: str, *, enabled: bool = True) -> Schedule:
    """Enable a schedule, starting with its next slot, or disable it.

    Slots that pass while it is disabled are never started. Calling `schedule` again does not
    enable it. Runs that it started are not affected.

        await client.enable_schedule("digest", enabled=False)

    Args:
        name: The name of the schedule.
        enabled: Whether the schedule starts runs.

    Returns:
        The schedule as it is now.

    Raises:
        NotFound: The journal has no schedule of this name.
    """
    return Schedule(**await _enable_schedule(on, check_text("name", name), bool(enabled)))


@recorded("enable_schedule")
def _enable_schedule(on: Connection, name: str, enabled: bool) -> Plan[dict[str, Any]]:
    row: ScheduleRow | None = yield find(name)
    while row is not None:
        now = on.clock.now()
        change: dict[str, Any] = {"name": name, "cron": row.cron, "timezone": row.timezone}
        change |= {"next_at": next_slot(row.cron, row.timezone, now)}
        # Nothing changes if it has another cron line by now.
        yield write_op({**change, "enabled": int(enabled), "now": now}, "enable_schedule")
        before, row = row, (yield find(name))
        if row is None or (row.cron, row.timezone) == (before.cron, before.timezone):
            return vars((row or before).to_schedule(on.serializer, on.clock.now()))
    raise NotFound("schedule", name)


async def _is_unscheduled(on: Connection, name: str) -> Done | None:
    rows = await on.journal.arun(list_schedules.plan(on))
    return None if name in {one.name for one in rows} else Done()


@verb(effect=True, verify=_is_unscheduled)
def unschedule(on: Connection, name: str) -> Plan[None]:
    """Delete a schedule. The runs it started stay.

    Args:
        name: The name of the schedule.

    Raises:
        NotFound: The journal has no schedule of this name.
    """
    check_text("name", name)
    if name not in {one.name for one in (yield from list_schedules.plan(on))}:
        raise NotFound("schedule", name)
    yield delete_row(name)
