"""What an edit of a running campaign would change, and for whom.

It reads the tables and the due times of threads, a page at a time, and writes nothing. Times are
the earliest that the cadence allows: limits per day, per domain and per person may make them later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, time, timedelta
from email.utils import parseaddr
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from perdure.times import moment
from perdure.types import Run, State

from .agent import thread_of
from .cadence import Cadence, Window, due, hours, weekdays
from .database import Row
from .letter import Letter, compose
from .sheet import normalise

if TYPE_CHECKING:
    from .app import App

NEAREST = 5
"""Number of threads shown with their times."""
PAGE = 500
_COUNTS = """SELECT count(*) AS active, COALESCE(sum(CASE WHEN EXISTS (SELECT 1 FROM touches t
    WHERE t.campaign_id = m.campaign_id AND t.contact_id = m.contact_id
    AND t.sent_at IS NOT NULL) THEN 1 ELSE 0 END), 0) AS begun,
  (SELECT count(*) FROM touches WHERE campaign_id = :id AND status = 'approved') AS approved,
  (SELECT count(*) FROM touches WHERE campaign_id = :id AND status = 'draft_pending') AS drafts
FROM members m JOIN contacts c ON c.id = m.contact_id
WHERE m.campaign_id = :id AND m.status = 'active' AND c.status = 'active'"""
_MEMBERS = f"""SELECT m.contact_id, c.address, c.zone, t.step, t.status, t.sent_at, t.drafted_at
FROM members m JOIN contacts c ON c.id = m.contact_id
LEFT JOIN touches t ON t.campaign_id = m.campaign_id AND t.contact_id = m.contact_id
  AND t.step = (SELECT max(step) FROM touches
    WHERE campaign_id = m.campaign_id AND contact_id = m.contact_id)
WHERE m.campaign_id = :id AND m.contact_id > :last AND m.status = 'active'
  AND c.status = 'active'
ORDER BY m.contact_id LIMIT {PAGE}"""  # noqa: S608 (our own number)


def check_sender(sender: str) -> str:
    """A sender with its address as it is written in mails. Raises `ValueError` unless it is one
    address, with or without a name, that a mail can be from."""
    _, address = parseaddr(sender)
    if "@" not in address or not sender.strip().endswith((f"<{address}>", address)):
        raise ValueError(f"{sender!r} is not a sender such as 'Ana Ruiz <ana@example.com>'.")
    name, _, end = sender.strip().rpartition(address)
    address = normalise(address)
    checked = f"{name}{address}{end}"
    message_id = f"<{'0' * 32}@{address.partition('@')[2]}>"
    probe = Letter(checked, address, "", "", "", message_id, address)
    compose(probe, datetime(2030, 1, 1, tzinfo=UTC))
    return checked


@dataclass(frozen=True)
class Changes:
    """What is to change; None leaves a value as it is."""

    sender: str | None = None
    brief: str | None = None
    gaps: tuple[int, ...] | None = None
    window: tuple[time, time] | None = None
    days: frozenset[int] | None = None
    auto_approve: bool | None = None
    per_day: int | None = None

    def __post_init__(self) -> None:
        if self.sender is not None:
            object.__setattr__(self, "sender", check_sender(self.sender))
        if self.per_day is not None and self.per_day < 0:
            raise ValueError(f"per_day must be 0 (no limit) or more, not {self.per_day}.")

    @property
    def moves(self) -> bool:
        """Whether sleeping threads may be due at another time."""
        own = (self.gaps, self.window, self.days, self.sender, self.per_day)
        return any(one is not None for one in own)

    def cadence(self, row: Row) -> Cadence:
        """The campaign's cadence after the change."""
        base = Cadence.of(row)
        opens, closes = self.window or (base.window.opens, base.window.closes)
        on = base.window.days if self.days is None else self.days
        return Cadence(base.gaps if self.gaps is None else self.gaps, Window(opens, closes, on))

    def columns(self, row: Row) -> Row:
        """The columns of the campaign's row, changed."""
        if all(getattr(self, one.name) is None for one in fields(self)):
            raise ValueError("Nothing to change: pass at least one option.")
        columns: Row = {
            "sender": self.sender,
            "brief": self.brief,
            "auto_approve": None if self.auto_approve is None else int(self.auto_approve),
            "per_day": self.per_day,
        }
        return {
            **{name: value for name, value in columns.items() if value is not None},
            **self.cadence(row).to_columns(),
        }


@dataclass(frozen=True)
class Move:
    """A thread whose next touch moves, is added or is dropped."""

    address: str
    zone: str
    step: int
    before: datetime | None
    after: datetime | None

    @property
    def first(self) -> datetime:
        """The nearer of the two times."""
        return min(one for one in (self.before, self.after) if one is not None)


@dataclass(frozen=True)
class Moves:
    """How many threads a new cadence moves. Those with a draft wait for a person, whatever the
    cadence is; those without a thread are not launched yet."""

    nearest: list[Move]
    earlier: int
    later: int
    same: int
    falls_away: int
    added: int
    drafts: int
    without_thread: int


@dataclass(frozen=True)
class Preview:
    """What would change, for a campaign at this version."""

    campaign: str
    version: int
    state: str
    changes: dict[str, tuple[Any, Any]]
    """By name: the value before and after."""
    active: int
    """Active members."""
    begun: int
    """Members who have had a mail."""
    approved: int
    """Approved touches that are not sent."""
    drafts: int
    """Drafts that wait for a person."""
    moves: Moves | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self, *, redraft: bool = False) -> Iterator[str]:
        """The preview as text, for a person."""
        if not self.changes:
            yield f"Campaign {self.campaign!r} already has these values."
        for name, (before, after) in self.changes.items():
            yield f"{name}: {before} -> {after}"
            yield from (f"  {line}" for line in self._concerns(name, after, redraft))
        if self.moves is not None:
            yield "times:"
            yield from (f"  {line}" for line in _describe(self.moves))
        if self.state != "running":
            yield f"The campaign is {self.state}: nothing is sent until it is resumed."

    def _concerns(self, name: str, after: Any, redraft: bool) -> Iterator[str]:
        match name:
            case "sender":
                yield f"{_count(self.active, 'active member')} will get the next mail from it"
                yield f"{self.begun} of them already had mail, and will see a new sender"
                yield f"{_count(self.approved, 'unsent approved touch', 'es')} will go out from it"
            case "brief":
                yield "drafts written from now on are about it"
                if self.drafts:
                    keep = "will not change; --redraft has them rewritten"
                    fate = "will be withdrawn and rewritten" if redraft else keep
                    yield f"{_count(self.drafts, 'waiting draft')} {fate}"
            case "approval" if after == "auto":
                yield "drafts written from now on go out without a person"
                yield f"{_count(self.drafts, 'waiting draft')} will still wait for a person"
            case "approval":
                yield "drafts written from now on wait for a person"
                yield f"{_count(self.approved, 'unsent approved touch', 'es')} will still go out"
            case "per day":
                yield "the campaign stops for the day once its sender's address has sent this many"
                yield "mails, over all campaigns; 0 is no limit"


def preview(app: App, campaign_id: int, changes: Changes) -> Preview:
    """What `edit` would change. Nothing is written."""
    row = app.row(campaign_id)
    after = {**row, **changes.columns(row)}
    [counts] = app.database.rows(_COUNTS, id=campaign_id)
    old, new = Cadence.of(row), Cadence.of(after)
    shown = zip(_described(row).items(), _described(after).values(), strict=True)
    return Preview(
        row["name"],
        row["version"],
        row["state"],
        {name: (was, will) for (name, was), will in shown if was != will},
        **counts,
        moves=None if old == new else _moves(app, row, old, new),
    )


def _described(row: Row) -> dict[str, Any]:
    cadence = Cadence.of(row)
    return {
        "sender": row["sender"],
        "brief": row["brief"],
        "gaps": ",".join(map(str, cadence.gaps)),
        "window": hours(cadence.window),
        "days": weekdays(cadence.window.days),
        "approval": "auto" if row["auto_approve"] else "person",
        "per day": row["per_day"],
    }


def _moves(app: App, row: Row, old: Cadence, new: Cadence) -> Moves:
    now = moment(app.clock.now())
    threads = _threads(app, row["id"])
    counts = dict.fromkeys((one.name for one in fields(Moves) if one.name != "nearest"), 0)
    nearest: list[Move] = []
    for member in _members(app, row["id"]):
        run = threads.get(thread_of(row["id"], member["contact_id"]))
        if run is None or member["status"] == "draft_pending":
            counts["without_thread" if run is None else "drafts"] += 1
            continue
        step, before, after = _times(
            member, run, old, new, now, is_running=row["state"] == "running"
        )
        counts[_kind(before, after)] += 1
        if before != after:
            nearest.append(Move(member["address"], member["zone"], step, before, after))
            nearest = heapq.nsmallest(NEAREST, nearest, key=lambda move: move.first)
    return Moves(nearest, **counts)


def _kind(before: datetime | None, after: datetime | None) -> str:
    if before == after:
        return "same"
    if before is None or after is None:
        return "added" if before is None else "falls_away"
    return "earlier" if after < before else "later"


def _times(
    member: Row, run: Run, old: Cadence, new: Cadence, now: datetime, *, is_running: bool
) -> tuple[int, datetime | None, datetime | None]:
    """The next touch of a thread, and when it is due before and after the change. None: no touch is
    left."""
    zone = member["zone"]
    if member["status"] == "approved":  # the gap is over: only the window counts
        windows = (Cadence((0,), one.window) for one in (old, new))
        before, after = (due(one, 1, now, zone) for one in windows)
        return member["step"], before, after
    step = (member["step"] or 0) + 1
    last = run.created_at
    if member["sent_at"] is not None:
        last = moment(member["sent_at"])
    elif step > 1 and step <= len(old.gaps) and is_running and run.due_at is not None:
        last = run.due_at - timedelta(days=old.gaps[step - 1])  # a touch was left out before that
    elif step > 1:
        last = moment(member["drafted_at"])

    def at(cadence: Cadence) -> datetime | None:
        return max(now, due(cadence, step, last, zone)) if step <= len(cadence.gaps) else None

    return step, at(old), at(new)


def _threads(app: App, campaign_id: int) -> dict[str, Run]:
    """The waiting threads of a campaign."""
    waiting = app.threads(State.WAITING)
    return {run.thread_id: run for run in waiting if run.metadata.get("campaign_id") == campaign_id}


def _members(app: App, campaign_id: int) -> Iterator[Row]:
    last = 0
    while True:
        page = app.database.rows(_MEMBERS, id=campaign_id, last=last)
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1]["contact_id"]


def _describe(moves: Moves) -> Iterator[str]:
    for words, count in (
        ("due earlier", moves.earlier),
        ("due later", moves.later),
        ("with one more touch", moves.added),
        ("whose next touch is dropped", moves.falls_away),
        ("due as before", moves.same),
        ("with a waiting draft, as before", moves.drafts),
    ):
        if count:
            yield f"{_count(count, 'thread')} {words}"
    if moves.without_thread:
        yield f"{_count(moves.without_thread, 'member')} without a waiting thread"
    if moves.nearest:
        yield "the next of them:"
    for move in moves.nearest:
        there = ZoneInfo(move.zone)
        before, after = (
            "none" if one is None else f"{one.astimezone(there):%a %Y-%m-%d %H:%M}"
            for one in (move.before, move.after)
        )
        yield f"  {move.address}, touch {move.step}: {before} -> {after} ({move.zone})"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{plural if number != 1 else ''}"
