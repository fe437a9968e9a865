"""When an approved touch may go out: bookings, which keep to the limits of several campaigns.

A booking is the turn of one touch: its mail goes out from `at` until just before `until`, or waits
for another turn. In that time the contact's send window is open, and:

- No mail of another sequence reaches the same person within `apart` days, before or after.
- No other mail goes to the domain in the same slot, of `domain_pause` seconds each. Slots of
  different lengths are not compared: after a change of the pause, touches are booked again.
- The sender's address has a number left that day: at most `per_day` mails have one. Mails of a
  campaign without a daily limit have no number, and are not counted.

`hindrance` states these rules, as arithmetic. `book` reads the inputs of the arithmetic, and writes
its result. One statement, `_INSERT`, decides: it takes the first of several turns whose slot is
still free, and checks the other limits again. Bookings are made one after the other: SQLite and D1
run one batch at a time, and on PostgreSQL a lock comes first. The unique keys of the table hold
whatever happens.

A crash leaves a booking or none, never half of one. The next `book` for the same touch gives the
booking back. If D1 loses an answer, the batch runs again, finds the booking of its first run and
changes nothing. Should it run again after `release`, it leaves a booking that no touch will use: a
turn is lost, but no extra mail goes out.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import time, timedelta
from email.utils import parseaddr
from typing import Any
from zoneinfo import ZoneInfo

from perdure.times import milliseconds, moment

from .cadence import MIDNIGHT, Window, hours, next_open, open_until, weekdays
from .database import Conflict, Database, Row, Statement, sql

DAY = 86_400_000
"""Milliseconds of 24 hours, the days of `apart`."""
SHORTEST = 1000
"""Minimum milliseconds of a slot: a shorter turn would be over before its mail has begun."""
RUNS = 1000
"""Maximum number of runs of taken slots read at once."""
SPREAD = 20
"""Number of turns offered to the statement that takes one, in case others are faster."""
TRIES = 50

_WHOLE_DAY = Window(time(0), MIDNIGHT, frozenset(range(7)))
_HERE = "campaign_id = :campaign_id AND contact_id = :contact_id AND step = :step"

_OWN = f"SELECT * FROM bookings WHERE {_HERE}"  # noqa: S608 - our own text, here and below
_OTHERS = """SELECT COALESCE(t.sent_at, b.at) AS first, COALESCE(t.sent_at, b.until) AS last
FROM bookings b LEFT JOIN touches t
  ON t.campaign_id = b.campaign_id AND t.contact_id = b.contact_id AND t.step = b.step
WHERE b.person = :person AND b.sequence <> :sequence AND b.at > :since"""
_FULL = """SELECT day, count(*) AS used FROM bookings
WHERE sender = :sender AND day >= :day AND number <= :per_day
GROUP BY day HAVING count(*) >= :per_day"""
_TAKEN = """SELECT min(slot) AS first, max(slot) AS last
FROM (SELECT slot, slot - row_number() OVER (ORDER BY slot) AS run FROM bookings
      WHERE domain = :domain AND slot >= :slot) numbered
GROUP BY run ORDER BY 1 LIMIT :runs"""

_LOCK = "SELECT pg_advisory_xact_lock(7266)"
_DELETE = f"""DELETE FROM bookings WHERE {_HERE}
AND at = :at AND until = :until AND person = :person AND sequence = :sequence
AND COALESCE(domain, '') = :domain AND COALESCE(slot, 0) = :slot
AND COALESCE(sender, '') = :sender AND COALESCE(day, '') = :day
AND COALESCE(number, 0) = :number"""  # noqa: S608
_INSERT = f"""WITH offered AS (
  SELECT CAST(value->>'at' AS BIGINT) AS at, CAST(value->>'until' AS BIGINT) AS until,
    CAST(value->>'slot' AS BIGINT) AS slot, value->>'day' AS day
  FROM json_each(:turns)
), picked AS (
  SELECT * FROM offered o WHERE NOT EXISTS (
    SELECT 1 FROM bookings b WHERE b.domain = :domain AND b.slot = o.slot)
  ORDER BY at LIMIT 1
), numbered AS (
  SELECT p.*, (
    SELECT min(n) FROM (
      SELECT 1 AS n UNION ALL
      SELECT number + 1 FROM bookings
      WHERE sender = :sender AND day = p.day AND number < :per_day) next
    WHERE p.day IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM bookings b WHERE b.sender = :sender AND b.day = p.day AND b.number = next.n)
  ) AS number
  FROM picked p
)
INSERT INTO bookings (campaign_id, contact_id, step, person, sequence, at, until,
  domain, slot, sender, day, number)
SELECT CAST(:campaign_id AS BIGINT), CAST(:contact_id AS BIGINT), CAST(:step AS INTEGER),
  CAST(:person AS TEXT), CAST(:sequence AS TEXT), at, until,
  CAST(:domain AS TEXT), slot, CAST(:sender AS TEXT), day, number
FROM numbered n
WHERE (day IS NULL OR number IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM bookings WHERE {_HERE})
  AND (:apart = 0 OR NOT EXISTS (
    SELECT 1 FROM ({_OTHERS}) o
    WHERE n.at < o.last + :apart AND o.first - :apart < n.until))
RETURNING at, until"""  # noqa: S608
_RELEASE = """DELETE FROM bookings WHERE {} AND NOT EXISTS
  (SELECT 1 FROM touches t WHERE t.campaign_id = bookings.campaign_id
   AND t.contact_id = bookings.contact_id AND t.step = bookings.step AND t.sent_at IS NOT NULL)"""


@dataclass(frozen=True)
class Booking:
    """A turn: from `at` until just before `until`, in milliseconds since 1970."""

    at: int
    until: int
    because: str = field(default="", compare=False)
    """Why the turn is not now, in words for a person; empty if it is."""


class NoTurn(RuntimeError):
    """Other bookings were faster, again and again."""


@dataclass(frozen=True)
class Limits:
    """The limits of a touch. Times and durations are milliseconds; 0 is no limit."""

    window: Window
    zone: ZoneInfo
    person: str
    sequence: str
    apart: int
    domain: str
    pause: int
    sender: str
    per_day: int
    day_zone: ZoneInfo

    def slot(self, at: int) -> int | None:
        return at // self.pause if self.pause else None

    def day(self, at: int) -> str | None:
        return moment(at).astimezone(self.day_zone).date().isoformat() if self.per_day else None


@dataclass(frozen=True)
class Known:
    """What the bookings of other touches say."""

    others: tuple[tuple[int, int], ...] = ()
    """Mails of other sequences to the person: when each goes out at the earliest and the latest."""
    full: frozenset[str] = frozenset()
    """Days on which the sender has no number left."""
    taken: tuple[tuple[int, int], ...] = ()
    """Runs of slots of the domain that are taken, in order: the first and the last of each."""
    horizon: int | None = None
    """The last slot that is known about, if not all are."""


def book(
    database: Database,
    place: dict[str, int],
    *,
    person: str,
    domain: str,
    sender: str,
    sequence: str,
    per_day: int,
    apart: int,
    domain_pause: float,
    window: Window,
    zone: str,
    day_zone: str,
    now: int,
) -> Booking:
    """The turn of a touch: the one it has, or the first from `now` on, which is reserved for it.

    A turn that is over, or that breaks a limit which has changed since, is replaced. Called again,
    it gives the same answer until the turn is over. Raises `NoTurn` if other processes were faster
    50 times.
    """
    limits = Limits(
        window=window,
        zone=ZoneInfo(zone),
        person=person,
        sequence=sequence,
        apart=apart * DAY,
        domain=domain,
        pause=max(round(domain_pause * 1000), SHORTEST) if domain_pause > 0 else 0,
        sender=(parseaddr(sender)[1] or sender).lower(),
        per_day=per_day,
        day_zone=ZoneInfo(day_zone),
    )
    for _ in range(TRIES):
        own, known = _look(database, place, limits, now)
        if own is not None and now < own["until"] and _fits(limits, known, own):
            because = describe(limits, known, now, own["at"])
            return Booking(own["at"], own["until"], because)
        statements = [_insert(place, limits, now, _turns(database, place, limits, known, now))]
        if own is not None:
            statements.insert(0, _delete(own))
        if database.is_postgres:
            statements.insert(0, sql(_LOCK))
        try:
            made = database.write(*statements)[-1]
        except Conflict:
            continue
        if made:
            because = describe(limits, known, now, made[0]["at"])
            return Booking(made[0]["at"], made[0]["until"], because)
    raise NoTurn(
        f"Touch {place['step']} of campaign {place['campaign_id']} to contact "
        f"{place['contact_id']} has no turn: {TRIES} times other mails were booked first. "
        "Try again."
    )


def release(of: dict[str, int]) -> Statement:
    """Free the turns of touches that will not use them: of a touch, a member or a contact, by
    `campaign_id`, `contact_id` and `step`. The turn of a touch that was sent stays."""
    return sql(_RELEASE.format(" AND ".join(f"{name} = :{name}" for name in of)), **of)


# -- arithmetic


def fitting(limits: Limits, known: Known, start: int) -> Iterator[Booking]:
    """All turns from a moment on, in order, as far as is known."""
    at = start
    while known.horizon is None or at // limits.pause <= known.horizon:
        hindered = hindrance(limits, known, at)
        if hindered is None:
            until = _until(limits, known, at)
            yield Booking(at, until)
            at = until
        else:
            at = hindered[0]


def hindrance(limits: Limits, known: Known, at: int) -> tuple[int, str] | None:
    """What forbids a mail at this moment: when that is over, and the reason in words."""
    opens = milliseconds(next_open(limits.window, moment(at), limits.zone))
    if opens > at:
        window = f"{weekdays(limits.window.days)} {hours(limits.window)}, {limits.zone.key}"
        return opens, f"the send window ({window}) is closed"
    for first, last in known.others:
        if limits.apart and first - limits.apart <= at < last + limits.apart:
            day = moment(first).astimezone(limits.zone).date()
            days = limits.apart // DAY
            return last + limits.apart, (
                f"another campaign's mail to {limits.person} is dated {day}, and mails of "
                f"different campaigns are at least {days} {'day' if days == 1 else 'days'} apart"
            )
    day_of = limits.day(at)
    if day_of is not None and day_of in known.full:
        return _end_of_day(limits, at), (
            f"{limits.sender} has used up its {limits.per_day} mails for {day_of}"
        )
    slot = limits.slot(at)
    run = None if slot is None else _run_with(known.taken, slot)
    if run is not None:
        return (run + 1) * limits.pause, (
            f"{limits.domain} gets one mail every {limits.pause / 1000:g} seconds"
        )
    return None


def describe(limits: Limits, known: Known, now: int, at: int) -> str:
    """Why a touch waits from `now` until `at`, in words for a person; empty if it does not."""
    reasons: dict[str, None] = {}
    looked_at = now
    while looked_at < at:
        hindered = hindrance(limits, known, looked_at)
        if hindered is None:
            reasons["earlier turns were taken when this one was booked"] = None
            break
        looked_at = hindered[0]
        reasons[hindered[1]] = None
    return "; ".join(itertools.islice(reasons, 4))


def _until(limits: Limits, known: Known, at: int) -> int:
    ends = [milliseconds(open_until(limits.window, moment(at), limits.zone))]
    if limits.pause:
        ends.append((at // limits.pause + 1) * limits.pause)
    if limits.per_day:
        ends.append(_end_of_day(limits, at))
    if limits.apart:
        ends += [first - limits.apart for first, _ in known.others if first - limits.apart > at]
    return min(ends)


def _fits(limits: Limits, known: Known, own: Row) -> bool:
    at = own["at"]
    asked = {
        "person": limits.person,
        "sequence": limits.sequence,
        "domain": limits.domain if limits.pause else None,
        "slot": limits.slot(at),
        "sender": limits.sender if limits.per_day else None,
        "day": limits.day(at),
    }
    return (
        all(own[name] == value for name, value in asked.items())
        and (own["number"] or 0) <= limits.per_day
        and hindrance(limits, known, at) is None
        and own["until"] <= _until(limits, known, at)
    )


def _end_of_day(limits: Limits, at: int) -> int:
    return milliseconds(open_until(_WHOLE_DAY, moment(at), limits.day_zone))


def _run_with(runs: tuple[tuple[int, int], ...], slot: int) -> int | None:
    """The last slot of the run that a slot is in."""
    place = bisect.bisect(runs, slot, key=lambda run: run[0]) - 1
    return runs[place][1] if place >= 0 and slot <= runs[place][1] else None


# -- the database


def _look(
    database: Database, place: dict[str, int], limits: Limits, start: int
) -> tuple[Row | None, Known]:
    """The booking of a touch, and what those of others say from a moment on."""
    yesterday = (moment(start).astimezone(limits.day_zone) - timedelta(days=1)).date().isoformat()
    own, others, full, taken = database.read(
        sql(_OWN, **place),
        sql(_OTHERS, **_of_person(limits, start)),
        sql(_FULL, sender=limits.sender, day=yesterday, per_day=limits.per_day or -1),
        sql(_TAKEN, domain=limits.domain, slot=limits.slot(start) or 0, runs=_runs(limits)),
    )
    mine = own[0] if own else None
    runs = [(run["first"], run["last"]) for run in taken]
    horizon = runs[-1][1] if limits.pause and len(runs) == RUNS else None
    return mine, Known(
        others=tuple(sorted((one["first"], one["last"]) for one in others)),
        full=frozenset(
            one["day"] for one in full if one["used"] - _counts(mine, one, limits) >= limits.per_day
        ),
        taken=tuple(
            _without(runs, mine["slot"]) if mine and mine["domain"] == limits.domain else runs
        ),
        horizon=horizon,
    )


def _runs(limits: Limits) -> int:
    return RUNS if limits.pause else 0


def _counts(mine: Row | None, full: Row, limits: Limits) -> bool:
    """Whether a touch's own number is among those used on a day."""
    return (
        mine is not None
        and (mine["sender"], mine["day"]) == (limits.sender, full["day"])
        and mine["number"] <= limits.per_day
    )


def _without(runs: list[tuple[int, int]], slot: int) -> Iterator[tuple[int, int]]:
    for first, last in runs:
        if first <= slot <= last:
            yield from (run for run in ((first, slot - 1), (slot + 1, last)) if run[0] <= run[1])
        else:
            yield first, last


def _turns(
    database: Database, place: dict[str, int], limits: Limits, known: Known, now: int
) -> list[Booking]:
    """The first turns that fit. A busy domain is read one page at a time."""
    count = SPREAD if limits.pause else 1
    while not (turns := list(itertools.islice(fitting(limits, known, now), count))):
        assert known.horizon is not None
        now = max(now, (known.horizon + 1) * limits.pause)
        _, known = _look(database, place, limits, now)
    return turns


def _of_person(limits: Limits, start: int) -> dict[str, Any]:
    # A turn is at most a day and the hours of a changed clock, so none from before counts.
    since = start - limits.apart - 2 * DAY
    return {"person": limits.person, "sequence": limits.sequence, "since": since}


def _insert(place: dict[str, int], limits: Limits, now: int, turns: list[Booking]) -> Statement:
    offered = [
        {"at": one.at, "until": one.until, "slot": limits.slot(one.at), "day": limits.day(one.at)}
        for one in turns
    ]
    return sql(
        _INSERT,
        **place,
        **_of_person(limits, now),
        turns=json.dumps(offered),
        domain=limits.domain if limits.pause else None,
        sender=limits.sender if limits.per_day else None,
        per_day=limits.per_day,
        apart=limits.apart,
    )


def _delete(own: Row) -> Statement:
    """Delete a booking if it is still as it was read."""
    empty = {"domain": "", "slot": 0, "sender": "", "day": "", "number": 0}
    return sql(_DELETE, **{**own, **{key: own[key] or empty[key] for key in empty}})
