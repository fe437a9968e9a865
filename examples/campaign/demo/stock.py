"""The same campaign on stock LangGraph and its SQLite saver, for the demo to compare with.

The same graph, `check_reply → compose_touch → approval → send_touch → schedule_next → …`, written
with care: every step is checkpointed before the next (`durability="sync"`), approval and sleep are
`interrupt()`s, due times are a column of a table that a cron reads, and interrupted work is resumed
with `invoke(None)`. Before it sends, it checks whether the prospect replied and whether its own
table says that the touch was sent. Message-IDs are stable.

One gap is left, between the mail server's acceptance and the first write that records it: a process
that is killed there, or loses the connection, sends again, because the node runs again. Closing the
gap takes an intent stored before the call and a look-up after it; that is what perdure's effects
are. And a reply that arrives during `send_message` is seen too late.

Nothing here uses perdure.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import smtplib
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from typing import Any, Literal, Protocol, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from .. import writer
from ..cadence import Cadence, due
from ..incoming import parse

SENDER = "Ana Ruiz <ana@sender.example>"
ENDED_BY = {"reply": "replied", "bounce": "bounced", "unsubscribe": "unsubscribed"}
AGAIN = 15 * 60 * 1000
"""Milliseconds until a mail that the server did not accept is retried."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS contacts (
  id INTEGER PRIMARY KEY, address TEXT NOT NULL UNIQUE, name TEXT NOT NULL, company TEXT NOT NULL,
  zone TEXT NOT NULL, brief TEXT NOT NULL, reviewed INTEGER NOT NULL,
  status TEXT NOT NULL DEFAULT 'active', due_at INTEGER, done INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS touches (
  contact_id INTEGER NOT NULL, step INTEGER NOT NULL, status TEXT NOT NULL, subject TEXT NOT NULL,
  body TEXT NOT NULL, message_id TEXT NOT NULL, drafted_at INTEGER NOT NULL, sent_at INTEGER,
  decision TEXT, PRIMARY KEY (contact_id, step));
"""


class Clock(Protocol):
    def now(self) -> int:
        """Milliseconds since 1970."""


class State(TypedDict, total=False):
    contact_id: int
    step: int
    last_at: int
    due_at: int
    comment: str
    ended: str


class Tables:
    """The application's tables, in the database of the saver."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")

    def create(self) -> None:
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        self._db.close()

    def run(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.execute(sql, values)]

    def contact(self, id: int) -> dict[str, Any]:
        return self.run("SELECT * FROM contacts WHERE id = ?", id)[0]

    def touch(self, id: int, step: int) -> dict[str, Any] | None:
        found = self.run("SELECT * FROM touches WHERE contact_id = ? AND step = ?", id, step)
        return found[0] if found else None

    def receive(self, content: bytes) -> str:
        """Store a mail; if it ends the thread, nothing more may be sent. Returns its kind."""
        mail = parse(content)
        status = ENDED_BY.get(mail.kind)
        if status is not None:
            self.run(
                """UPDATE contacts SET status = ? WHERE status = 'active' AND (address = ? OR id IN
                   (SELECT contact_id FROM touches WHERE message_id = ?))""",
                status,
                mail.address,
                mail.in_reply_to[0] if mail.in_reply_to else "",
            )
        return mail.kind

    def decide(self, id: int, step: int, decision: dict[str, str]) -> None:
        """Store a person's decision on a held draft."""
        self.run(
            "UPDATE touches SET decision = ? WHERE contact_id = ? AND step = ?",
            json.dumps(decision),
            id,
            step,
        )

    def due(self, now: int) -> list[int]:
        """Contacts whose thread has work: due by the clock, decided by a person, or ended by a
        mail."""
        rows = self.run(
            """SELECT id FROM contacts c WHERE done = 0 AND (due_at <= ? OR status <> 'active'
                 OR EXISTS (SELECT 1 FROM touches t WHERE t.contact_id = c.id
                            AND t.status = 'draft_pending' AND t.decision IS NOT NULL))
               ORDER BY due_at""",
            now,
        )
        return [row["id"] for row in rows]


class Campaign:
    """The graph."""

    def __init__(self, tables: Tables, smtp_port: int, clock: Clock) -> None:
        self._tables, self._smtp_port, self._clock = tables, smtp_port, clock
        self._model, self._cadence = writer.model_for(""), Cadence()

    def graph(self) -> StateGraph[State]:
        builder = StateGraph(State)
        builder.add_node(self.check_reply)
        builder.add_node(self.compose_touch)
        builder.add_node(self.approval)
        builder.add_node(self.send_touch)
        builder.add_node(self.schedule_next)
        builder.add_edge(START, "check_reply")
        builder.add_edge("compose_touch", "approval")
        builder.add_edge("send_touch", "check_reply")
        builder.add_edge("schedule_next", "check_reply")
        return builder

    def check_reply(
        self, state: State
    ) -> Command[Literal["compose_touch", "schedule_next", "__end__"]]:
        now, step = self._clock.now(), state.get("step", 1)
        last = state.get("last_at", now)
        contact = self._tables.contact(state["contact_id"])
        gaps = self._cadence.gaps
        if step > len(gaps):
            at = last + gaps[-1] * 86_400_000
        else:
            at = _ms(due(self._cadence, step, _moment(last), contact["zone"]))
        ended = contact["status"]
        if ended == "active" and step > len(gaps) and now >= at:
            ended = "finished"
        if ended != "active":
            self._tables.run(
                "UPDATE contacts SET status = ?, done = 1 WHERE id = ?", ended, contact["id"]
            )
            return Command(update={"ended": ended}, goto="__end__")
        update = {"step": step, "last_at": last, "due_at": at}
        return Command(update=update, goto="schedule_next" if now < at else "compose_touch")

    def compose_touch(self, state: State) -> State:
        contact, step = self._tables.contact(state["contact_id"]), state["step"]
        comment = state.get("comment", "")
        touch = self._tables.touch(contact["id"], step)
        if touch is not None and touch["status"] != "rejected":
            return {}
        prompt = writer.prompt_for(
            step=step,
            steps=len(self._cadence.gaps),
            brief=contact["brief"],
            name=contact["name"],
            company=contact["company"],
            comment=comment,
        )
        subject, body = writer.parse(str(self._model.invoke(prompt).text))
        what = f"{contact['address']}\n{step}".encode()
        self._tables.run(
            """INSERT OR REPLACE INTO touches (contact_id, step, status, subject, body, message_id,
                 drafted_at) VALUES (?, ?, ?, ?, ?, ?, ?)""",
            contact["id"],
            step,
            "draft_pending" if contact["reviewed"] else "approved",
            subject,
            body,
            f"<{hashlib.sha256(what).hexdigest()[:32]}@sender.example>",
            self._clock.now(),
        )
        return {"comment": ""}

    def approval(
        self, state: State
    ) -> Command[Literal["send_touch", "compose_touch", "check_reply"]]:
        id, step = state["contact_id"], state["step"]
        touch = self._tables.touch(id, step)
        assert touch is not None
        if touch["status"] == "rejected":
            return Command(goto="compose_touch")
        if touch["status"] != "draft_pending":
            return Command(goto="send_touch")
        self._tables.run("UPDATE contacts SET due_at = NULL WHERE id = ?", id)
        decision = interrupt({"subject": touch["subject"], "body": touch["body"], "touch": step})
        self._tables.run("UPDATE contacts SET due_at = ? WHERE id = ?", self._clock.now(), id)
        match decision["action"]:
            case "reject":
                self._change(id, step, status="rejected", decision=None)
                return Command(update={"comment": decision["comment"]}, goto="compose_touch")
            case "skip":
                self._change(id, step, status="skipped", decision=None)
                update = {"step": step + 1, "last_at": self._clock.now()}
                return Command(update=update, goto="check_reply")
            case "approve" | "edit":
                body = decision.get("body") or touch["body"]
                self._change(id, step, status="approved", body=body, decision=None)
                return Command(goto="send_touch")
        return Command(goto="check_reply")

    def send_touch(self, state: State) -> State:
        id, step = state["contact_id"], state["step"]
        contact, touch = self._tables.contact(id), self._tables.touch(id, step)
        assert touch is not None
        if contact["status"] != "active":
            self._change(id, step, status="stopped")
            return {}
        if touch["status"] == "approved":  # and not sent, or skipped, before this node ran again
            self._send(contact, touch)
            self._change(id, step, status="sent", sent_at=self._clock.now())
        return {"step": step + 1, "last_at": self._clock.now()}

    def schedule_next(self, state: State) -> State:
        self._tables.run(
            "UPDATE contacts SET due_at = ? WHERE id = ?", state["due_at"], state["contact_id"]
        )
        interrupt("sleep")
        return {}

    def _send(self, contact: dict[str, Any], touch: dict[str, Any]) -> None:
        message = EmailMessage()
        message["From"], message["To"] = SENDER, contact["address"]
        message["Subject"], message["Message-ID"] = touch["subject"], touch["message_id"]
        message.set_content(touch["body"])
        with smtplib.SMTP("127.0.0.1", self._smtp_port, "localhost", 30) as smtp:
            smtp.send_message(message)

    def _change(self, id: int, step: int, **columns: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in columns)
        self._tables.run(
            f"UPDATE touches SET {names} WHERE contact_id = ? AND step = ?",
            *columns.values(),
            id,
            step,
        )


class Cron:
    """Asks the table which contacts are due, and drives them one by one; there is only one cron."""

    def __init__(self, path: str, smtp_port: int, clock: Clock) -> None:
        self._tables, self._clock = Tables(path), clock
        connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()
        self._graph = Campaign(self._tables, smtp_port, clock).graph().compile(checkpointer=saver)

    def run(self) -> None:
        for row in self._tables.run("SELECT id FROM contacts WHERE done = 0"):
            self.drive(row["id"])  # what another process left in the middle
        while True:
            found = self._tables.due(self._clock.now())
            for id in found:
                self.drive(id)
            if not found:
                time.sleep(0.1)

    def drive(self, id: int) -> None:
        """Go on with a thread from its last checkpoint, if there is something to do."""
        config: Any = {"configurable": {"thread_id": f"campaign-{id}"}}
        found = self._graph.get_state(config)
        resume: Any = None
        if not found.created_at:
            resume = {"contact_id": id}
        elif found.interrupts:
            resume = self._answer(id, found.interrupts[0].value)
            if resume is None:
                return
        with self._later(id):
            self._graph.invoke(resume, config, durability="sync")

    def _answer(self, id: int, asked: Any) -> Command[Any] | None:
        contact = self._tables.contact(id)
        if contact["status"] != "active":
            return Command(resume={"action": "look again"})
        if asked == "sleep":
            is_due = contact["due_at"] is not None and contact["due_at"] <= self._clock.now()
            return Command(resume="awake") if is_due else None
        touch = self._tables.touch(id, asked["touch"])
        assert touch is not None
        if touch["status"] != "draft_pending":  # decided, and killed before the next checkpoint
            return Command(resume={"action": "look again"})
        if touch["decision"] is None:
            return None
        return Command(resume=json.loads(touch["decision"]))

    @contextlib.contextmanager
    def _later(self, id: int) -> Iterator[None]:
        """A later tick retries what the mail server did not accept."""
        try:
            yield
        except (smtplib.SMTPException, OSError):
            at = self._clock.now() + AGAIN
            self._tables.run("UPDATE contacts SET due_at = ? WHERE id = ?", at, id)


def _moment(at: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
