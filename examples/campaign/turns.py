"""When an approved touch may go out: bookings, which enforce the limits that campaigns share.

A touch has one booking. It is an appointment at a later time (at the latest `ends`), or a turn: the
mail may begin from `at` until just before `until`. A thread books again each time it is driven, so
its mail goes out as early as the limits then allow. In a turn the contact's send window is open,
and:

- No mail of another sequence reaches the same person within `apart` days, before or after.
- The sender's address has fewer than `per_day` bookings that day, over all campaigns. A campaign
  without a daily limit is not held back, but its mails count.
- `domain_pause` seconds have passed since the last conversation about a mail to the domain, and no
  other touch has a turn. Touches that wait for this keep the order of their first booking
  (`place`). Their appointments are a minute apart, the pace of a cron; each turn also wakes the
  `next_in_line`, so that a worker sends as soon as the pause is over. A touch that is five minutes
  late no longer delays the others, and goes first when it comes.

`hindrance` states the first two rules, as arithmetic; the third is the SQL of `_QUEUE`. `book`
reads the facts for the arithmetic and writes the result. One statement, `_BOOK`, decides: it joins
the domain's queue, and checks the other limits again. Bookings are serialised: SQLite and D1 run
one batch at a time, and PostgreSQL takes a lock first.

A crash leaves a booking or none. An unused turn expires, and the touch is booked again. If D1 loses
an answer, the batch runs again and changes nothing: it replaces a booking only if that is as it was
read. If it runs again after `release`, it leaves a booking that no touch uses: a turn is lost, but
no extra mail goes out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import time
from email.utils import parseaddr
from typing import Any
from zoneinfo import ZoneInfo

from perdure.times import milliseconds, moment

from .cadence import MIDNIGHT, Window, hours, next_open, open_until, weekdays
from .database import Database, Row, Statement, sql

DAY = 86_400_000
"""Milliseconds of 24 hours, the days of `apart`."""
TURN = 10_000
"""Milliseconds within which a mail must begin while others wait for its domain."""
PACE = 60_000
"""Minimum milliseconds between two appointments at one domain."""
PATIENCE = 5 * 60_000
"""Milliseconds for which a missed appointment delays those behind it."""
CONVERSATION = 3_600_000
"""Milliseconds; longer than any conversation with a mail server."""
LAST = 2**62
"""More than any place or number of mails."""
TRIES = 50

_WHOLE_DAY = Window(time(0), MIDNIGHT, frozenset(range(7)))
_HERE = "campaign_id = :campaign_id AND contact_id = :contact_id AND step = :step"
_WAITING = """domain = :queue AND until IS NULL
  AND campaign_id NOT IN (SELECT id FROM campaigns WHERE state <> 'running')"""
_TOUCH = """touches t
  ON t.campaign_id = b.campaign_id AND t.contact_id = b.contact_id AND t.step = b.step"""

_OWN = f"SELECT * FROM bookings WHERE {_HERE}"  # noqa: S608 - our own text, here and below
_OTHERS = f"""SELECT COALESCE(t.sent_at, b.at) AS first,
  COALESCE(t.sent_at, b.until, b.ends) AS last
FROM bookings b LEFT JOIN {_TOUCH}
WHERE b.person = :person AND b.sequence <> :sequence AND b.at > :since"""  # noqa: S608
_FULL = f"""SELECT day FROM bookings WHERE sender = :sender AND day >= :day AND NOT ({_HERE})
GROUP BY day HAVING count(*) >= :per_day"""  # noqa: S608
_QUEUE = f"""free AS (
  SELECT max(at) AS at FROM (
    SELECT CAST(:start AS BIGINT) AS at UNION ALL
    SELECT :pause + CASE WHEN b.until IS NULL OR t.attempt_at >= b.at
      OR (b.campaign_id = :campaign_id AND b.contact_id = :contact_id AND b.step = :step)
      THEN t.attempt_at WHEN b.at + :pause > :start THEN b.at ELSE b.until END
    FROM bookings b LEFT JOIN {_TOUCH}
    WHERE b.domain = :queue AND b.at > :lately) known
), ahead AS (
  SELECT at, row_number() OVER (ORDER BY at) - 1 AS before FROM bookings
  WHERE {_WAITING} AND place < :place AND at > :start - :patience
), next AS (
  SELECT free.at + :pace * COALESCE(
    (SELECT min(before) FROM ahead WHERE ahead.at >= free.at + (before + 1) * :pace),
    (SELECT count(*) FROM ahead)) AS at
  FROM free
)"""  # noqa: S608
"""`next` is the first moment from `start` on that the domain has for a touch: when it is `free` and
all `ahead` have gone, or where their appointments leave a gap. Another touch's turn in which no
mail has begun counts as if its mail began at once; once that moment has passed, it blocks the
domain until it ends."""

_FIRST = f"""SELECT campaign_id, contact_id, at FROM bookings
WHERE {_WAITING} AND at > :now - :patience ORDER BY at LIMIT 1"""  # noqa: S608
_LOCK = "SELECT pg_advisory_xact_lock(7266)"
_NEXT = f"WITH {_QUEUE} SELECT at FROM next"  # noqa: S608
_BOOK = f"""WITH {_QUEUE}, found AS (
  SELECT at, CASE WHEN at = :now THEN CAST(:until AS BIGINT) END AS until FROM next WHERE at < :ends
)
INSERT INTO bookings (campaign_id, contact_id, step, person, sequence, domain, sender, day, place,
  at, ends, until)
SELECT CAST(:campaign_id AS BIGINT), CAST(:contact_id AS BIGINT), CAST(:step AS INTEGER),
  CAST(:person AS TEXT), CAST(:sequence AS TEXT), CAST(:domain AS TEXT), CAST(:sender AS TEXT),
  CAST(:day AS TEXT), (SELECT COALESCE(max(place), 0) + 1 FROM bookings WHERE domain = :domain),
  at, CAST(:ends AS BIGINT), until
FROM found
WHERE :per_day > (SELECT count(*) FROM bookings
    WHERE sender = :sender AND day = :day AND NOT ({_HERE}))
  AND (:apart = 0 OR NOT EXISTS (
    SELECT 1 FROM ({_OTHERS}) o
    WHERE found.at < o.last + :apart AND o.first - :apart < COALESCE(found.until, :ends)))
ON CONFLICT (campaign_id, contact_id, step) DO UPDATE
SET person = excluded.person, sequence = excluded.sequence, domain = excluded.domain,
  sender = excluded.sender, day = excluded.day, at = excluded.at, ends = excluded.ends,
  until = excluded.until
WHERE bookings.at = :was_at AND COALESCE(bookings.until, 0) = :was_until
RETURNING at, until"""  # noqa: S608
_RELEASE = """DELETE FROM bookings WHERE {} AND NOT EXISTS
  (SELECT 1 FROM touches t WHERE t.campaign_id = bookings.campaign_id
   AND t.contact_id = bookings.contact_id AND t.step = bookings.step
   AND (t.sent_at IS NOT NULL OR t.attempt LIKE t.tries || '-%'))"""


@dataclass(frozen=True)
class Booking:
    """An appointment at a moment, or a turn from `at` until just before `until`, in milliseconds
    since 1970."""

    at: int
    until: int | None
    because: str = field(default="", compare=False)
    """Why it is not now, in words for a person; empty if it is."""


class NoTurn(RuntimeError):
    """Other bookings were faster, again and again."""


@dataclass(frozen=True)
class Limits:
    """What a touch has to keep to. Times and durations are milliseconds; 0 is no limit."""

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

    def day(self, at: int) -> str:
        return moment(at).astimezone(self.day_zone).date().isoformat()


@dataclass(frozen=True)
class Known:
    """What the bookings of other touches say."""

    others: tuple[tuple[int, int], ...] = ()
    """Mails of other sequences to the person: when each goes out at the earliest and the latest."""
    full: frozenset[str] = frozenset()
    """Days on which the sender has sent enough."""


def book(
    database: Database,
    touch: dict[str, int],
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
    """Book a touch: a turn if it may go out `now`, else an appointment for the next try.

    It replaces the booking that the touch has, and keeps its place in the queue of the domain.
    Raises `NoTurn` if other processes were faster 50 times.
    """
    limits = Limits(
        window=window,
        zone=ZoneInfo(zone),
        person=person,
        sequence=sequence,
        apart=apart * DAY,
        domain=domain,
        pause=round(domain_pause * 1000),
        sender=(parseaddr(sender)[1] or sender).lower(),
        per_day=per_day,
        day_zone=ZoneInfo(day_zone),
    )
    for _ in range(TRIES):
        own, known = _look(database, touch, limits, now)
        queue = _queue(touch, limits, now, own)
        start, ends, reasons = _search(database, limits, known, now, queue)
        statements = [_book(limits, now, start, ends, queue, own)]
        if database.is_postgres:
            statements.insert(0, sql(_LOCK))
        for made in database.write(*statements)[-1]:
            if made["at"] > start:
                reasons.append(_pause(limits))
            because = "; ".join(itertools.islice(dict.fromkeys(reasons), 4))
            return Booking(made["at"], made["until"], because)
    raise NoTurn(
        f"Touch {touch['step']} of campaign {touch['campaign_id']} to contact "
        f"{touch['contact_id']} has no turn: {TRIES} times other mails were booked first. "
        "Try again."
    )


def next_in_line(
    database: Database, domain: str, domain_pause: float, now: int
) -> tuple[int, int] | None:
    """Campaign and contact of the first who waits for a domain, if they would come later than the
    pause after a mail that begins `now` is over."""
    if not domain_pause:
        return None
    first = database.one(_FIRST, queue=domain, now=now, patience=PATIENCE)
    if first is None or first["at"] <= now + domain_pause * 1000:
        return None
    return first["campaign_id"], first["contact_id"]


def release(of: dict[str, int]) -> Statement:
    """Delete the bookings of touches that will not use them: of a touch, a member or a contact, by
    `campaign_id`, `contact_id` and `step`. That of a mail that was sent, or is on its way, stays:
    other mails keep their distance from it."""
    return sql(_RELEASE.format(" AND ".join(f"{name} = :{name}" for name in of)), **of)


# -- arithmetic


def hindrance(limits: Limits, known: Known, at: int) -> tuple[int, str] | None:
    """What forbids a mail at this moment, the domain's queue aside: when that is over, and what it
    is in words."""
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
                f"different campaigns are {days} {'day' if days == 1 else 'days'} apart"
            )
    if limits.day(at) in known.full:
        return _end_of_day(limits, at), (
            f"{limits.sender} has used up its {limits.per_day} mails of {limits.day(at)}"
        )
    return None


def until(limits: Limits, known: Known, at: int) -> int:
    """When a moment at which nothing forbids a mail is over."""
    ends = [milliseconds(open_until(limits.window, moment(at), limits.zone))]
    ends.append(_end_of_day(limits, at))
    if limits.apart:
        ends += [first - limits.apart for first, _ in known.others if first - limits.apart > at]
    return min(ends)


def _end_of_day(limits: Limits, at: int) -> int:
    return milliseconds(open_until(_WHOLE_DAY, moment(at), limits.day_zone))


def _pause(limits: Limits) -> str:
    return f"{limits.domain} gets one mail every {limits.pause / 1000:g} seconds"


# -- the database


def _look(
    database: Database, touch: dict[str, int], limits: Limits, now: int
) -> tuple[Row | None, Known]:
    """The booking of a touch, and what those of others say."""
    today = {"sender": limits.sender, "day": limits.day(now), "per_day": limits.per_day or LAST}
    own, others, full = database.read(
        sql(_OWN, **touch),
        sql(_OTHERS, **_of_person(limits, now)),
        sql(_FULL, **today, **touch),
    )
    return next(iter(own), None), Known(
        others=tuple(sorted((one["first"], one["last"]) for one in others)),
        full=frozenset(one["day"] for one in full),
    )


def _search(
    database: Database, limits: Limits, known: Known, now: int, queue: dict[str, Any]
) -> tuple[int, int, list[str]]:
    """The first time in which no limit forbids a mail and the domain has a moment for it: from when
    until when, and what forbids it before."""
    start, reasons = now, []
    while True:
        if hindered := hindrance(limits, known, start):
            start, why = hindered
            reasons.append(why)
            continue
        ends, at = until(limits, known, start), start
        if limits.pause:
            [row] = database.rows(_NEXT, start=start, **queue)
            at = row["at"]
        if at < ends:
            return start, ends, reasons
        start = at
        reasons.append(_pause(limits))


def _queue(touch: dict[str, int], limits: Limits, now: int, own: Row | None) -> dict[str, Any]:
    """What `_QUEUE` has to know, but for `start`. Without a pause the queue is empty."""
    return {
        **touch,
        "queue": limits.domain if limits.pause else "",
        "pause": limits.pause,
        "pace": max(limits.pause, PACE),
        "place": own["place"] if own else LAST,
        "patience": PATIENCE,
        "lately": now - limits.pause - CONVERSATION,
    }


def _of_person(limits: Limits, now: int) -> dict[str, Any]:
    # A turn is at most a day and the hours of a changed clock, so none from before counts.
    since = now - limits.apart - 2 * DAY
    return {"person": limits.person, "sequence": limits.sequence, "since": since}


def _book(
    limits: Limits, now: int, start: int, ends: int, queue: dict[str, Any], own: Row | None
) -> Statement:
    return sql(
        _BOOK,
        **queue,
        **_of_person(limits, now),
        now=now,
        start=start,
        ends=ends,
        until=min(ends, now + TURN) if limits.pause else ends,
        domain=limits.domain,
        sender=limits.sender,
        day=limits.day(start),
        per_day=limits.per_day or LAST,
        apart=limits.apart,
        was_at=own["at"] if own else 0,
        was_until=(own["until"] or 0) if own else 0,
    )
