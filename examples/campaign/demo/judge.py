"""The result of a month, by the mail server's own log, and a comparison of two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

from ..postoffice import PostOffice
from .conductor import Conductor
from .engine import Month
from .plan import Contact, Plan


@dataclass
class Result:
    """How a month went."""

    plan: Plan
    sent: int = 0
    """Touches that should have been sent, and were."""
    duplicates: int = 0
    after_reply: int = 0
    endings: int = 0
    """Replies, bounces, unsubscribes; and those after which nothing was sent."""
    honoured: int = 0
    held: int = 0
    """Drafts that still wait for a person."""
    decided: int = 0
    right: int = 0
    """Threads in the right final state."""
    unsound: int = 0
    """Complaints of the doctor."""
    killed: int = 0
    by_plan: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """What went wrong, in sentences."""

    @property
    def touches(self) -> int:
        return sum(len(one.manner.touches) for one in self.plan.contacts)

    @property
    def should_be_held(self) -> int:
        return sum(one.manner.held is not None for one in self.plan.contacts)


@dataclass
class Judge:
    """Compares what happened with what the plan says."""

    plan: Plan
    month: Month
    office: PostOffice
    conductor: Conductor

    def judge(self, seconds: float) -> Result:
        self.conductor.look()
        found = Result(
            self.plan,
            decided=self.conductor.decided.total(),
            killed=self.month.crew.killed,
            by_plan=self.conductor.by_plan,
            seconds=seconds,
        )
        for contact in self.plan.contacts:
            self._mails(contact, found)
            self._end(contact, found)
        problems = self.month.problems()
        found.unsound, found.wrong = len(problems), [*found.wrong, *problems]
        return found

    def _mails(self, contact: Contact, found: Result) -> None:
        log = Counter(
            mail.message_id for mail in self.office.log if mail.recipient == contact.address
        )
        wanted = {self.month.message_id(contact, step) for step in contact.manner.touches}
        sent, twice = len(log.keys() & wanted), log.total() - len(log)
        others = len(log.keys() - wanted)
        found.sent += sent
        found.duplicates += twice
        if sent != len(wanted) or others:
            of = f"{sent} of {len(wanted)} touches were sent, and {others} others"
            found.wrong.append(f"{contact.name}: {of}.")
        if twice:
            found.wrong.append(f"{contact.name}: {twice} mails too many.")

    def _end(self, contact: Contact, found: Result) -> None:
        manner, seen = contact.manner, self.conductor.seen[contact.id]
        since = self.conductor.ended_at.get(contact.id, float("inf"))
        late = sum(
            mail.accepted is not None and mail.accepted > since
            for mail in self.office.log
            if mail.recipient == contact.address
        )
        held = seen.held if not seen.over else None
        right = seen.status == manner.ends and held == manner.held and (seen.over or held)
        found.after_reply += late
        found.held += held is not None
        found.right += bool(right)
        if manner.ends in ("replied", "bounced", "unsubscribed"):
            found.endings += 1
            found.honoured += bool(right and not late)
        if late:
            found.wrong.append(f"{contact.name}: {late} mails were sent after the reply.")
        if not right:
            how = f"{seen.status} {seen.trouble}".strip()
            found.wrong.append(f"{contact.name}: the status is {how!r}, not {manner.ends!r}.")


def summary(on: Console, plan: Plan, ours: Result, stock: Result) -> None:
    """The figures, side by side."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2))
    table.add_column(f"one month, {len(plan.contacts)} contacts, seed {plan.seed}")
    table.add_column("perdure", justify="right", style="bold")
    table.add_column("stock LangGraph", justify="right")

    def bad(count: int) -> str:
        return f"[red]{count}[/red]" if count else f"[green]{count}[/green]"

    rows: list[tuple[str, Callable[[Result], str]]] = [
        ("touches sent", lambda one: f"{one.sent} of {one.touches}"),
        ("duplicates", lambda one: bad(one.duplicates)),
        ("sends after a reply", lambda one: bad(one.after_reply)),
        ("replies, bounces, unsubscribes honoured", lambda one: f"{one.honoured} of {one.endings}"),
        ("drafts decided by a person", lambda one: str(one.decided)),
        ("drafts still held at the end", lambda one: f"{one.held} of {one.should_be_held}"),
        ("threads in the right final state", lambda one: f"{one.right} of {len(plan.contacts)}"),
        ("processes killed", lambda one: str(one.killed)),
        ("  of those in the middle of a send", lambda one: str(one.by_plan)),
        ("seconds", lambda one: f"{one.seconds:.0f}"),
    ]
    for name, value in rows:
        table.add_row(name, value(ours), value(stock))
    on.print(table)
    on.print(
        "Counted by the mail server's own log. Stock LangGraph runs the same graph with its "
        "SQLite saver and durability='sync', is resumed where it left off, and is killed at "
        "the same points of its sends. It checks for a reply, and its own table, before each "
        "send. If it is killed or cut off between the acceptance of a mail and its next write, "
        "it sends again. It sees a reply that arrives during a send too late.\n",
        style="dim",
    )
