"""The agent: one thread per (campaign, contact), up to six touches over about a month.

    check_reply → compose_touch → approval → send_touch → schedule_next → check_reply → …

What each crash leaves behind, and what decides:

    before a draft is stored     nothing but a model's answer, which is recorded
    draft stored, nobody asked   `draft_pending`; approval asks
    asked                        a wait: no clock can send it, only an answer, once
    a mail on its way            an intent: the provider is asked by Message-ID, or a person is
    sent, not noted              the recorded outcome; it is noted, and not sent again
    reply, at any time           `members.status`: a send looks at it when the mail server agreed to
                                 the recipient, and has nothing of the content

Nodes never branch on the wall clock: `perdure.now()` is recorded, and reality is asked again by
`check_reply`, which comes first on every wake.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict

from langchain_core.language_models import BaseChatModel
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.types import Command

import perdure
from perdure.types import EffectRecord

from . import records, writer
from .cadence import Cadence, due
from .database import Database
from .letter import BadLetter, Letter, compose
from .lookup import Lookup
from .mail import Outgoing
from .records import Situation
from .refusals import NoSuchRecipient, Rejected, TemporaryTrouble
from .settings import Settings

DECISION = {
    "type": "object",
    "properties": {
        "action": {"enum": ["approve", "edit", "reject", "skip"]},
        "subject": {"type": "string", "pattern": r"^[^\x00-\x1f\x7f]+(?![\s\S])"},
        "body": {"type": "string", "pattern": r"^[^\x00-\x08\x0b-\x1f\x7f]+(?![\s\S])"},
        "comment": {"type": "string"},
    },
    "required": ["action"],
    "additionalProperties": False,
    "if": {"properties": {"action": {"const": "edit"}}},
    "then": {"required": ["body"]},
}
"""What a person may say of a draft: send it, send this instead, write another, leave it out."""
SEND = "send touch"
"""The effect that sends a touch."""
MANY = 1000
"""More effects than a run has."""
SLOW = 5_000
"""Milliseconds that the last look before a mail goes out may take."""

Next = Literal["compose_touch", "schedule_next", "__end__"]
Approved = Literal["send_touch", "compose_touch", "approval", "schedule_next", "check_reply"]


class State(TypedDict, total=False):
    """What a thread remembers. Reality is in the tables."""

    campaign_id: int
    contact_id: int
    step: int
    """The touch that is next."""
    last_at: datetime
    """When the one before it went out, or the thread began."""
    due_at: datetime
    subject: str
    body: str
    comment: str
    """What a person said of the last draft."""
    problem: str
    """Why the last text cannot be sent as it is."""
    letter: dict[str, Any]
    sequence: str
    """What is to be sent, as it was when it was approved."""
    ended: str


class NotYet(Exception):
    """The provider has not got it, but it may still be on its way."""


class Agent:
    """The nodes, and the effects they have."""

    def __init__(
        self,
        settings: Settings,
        runtime: perdure.Runtime,
        database: Database,
        model: BaseChatModel,
    ) -> None:
        self._settings, self._runtime = settings, runtime
        self._database, self._model = database, model
        self._outgoing = Outgoing(
            settings.smtp_host,
            settings.smtp_port,
            settings.smtp_timeout,
            settings.smtp_starttls,
            settings.smtp_user or None,
            settings.smtp_password or None,
        )
        self._lookup = Lookup(settings.lookup_url) if settings.lookup_url else None
        self.send = perdure.effect(
            name=SEND,
            key=lambda place, letter, sequence, at: [sequence, letter["recipient"], place["step"]],
            verify=self._did_arrive if self._lookup else None,
            unknown="retry" if self._lookup else "hold",
            retry=perdure.Retry(
                attempts=24,  # about a day
                first=timedelta(seconds=1),
                longest=timedelta(hours=2),
                final=(Rejected,),
            ),
        )(self._send)

    def graph(self) -> StateGraph[State]:
        """The graph, for `Runtime.register`."""
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

    # -- nodes

    def check_reply(self, state: State) -> Command[Next]:
        """Ask reality again: is there still somebody to write to, and is it time?"""
        now, step = perdure.now(), state.get("step", 1)
        last = state.get("last_at", now)
        found = self._look(state, step)
        perdure.label(sequence_step=step)
        update = {"step": step, "last_at": last}
        if found.status != "active":
            return self._end(state, found.status)
        gaps, touch = found.cadence.gaps, found.touch
        if step > len(gaps):  # a last reply may take as long as the one before
            at = last + timedelta(days=gaps[-1])
            if now >= at:
                return self._end(state, "finished")
        elif touch is not None and touch["status"] == "draft_pending":
            at = now  # it is written, and waits for a person, whatever the cadence is by now
        else:
            at = due(found.cadence, step, last, found.contact["zone"])
        if now < at:
            return Command(update={**update, "due_at": at}, goto="schedule_next")
        return Command(update=update, goto="compose_touch")

    def compose_touch(self, state: State) -> State:
        """Write a draft, unless there is one that waits for its answer."""
        step, comment = state["step"], state.get("comment", "")
        found = self._look(state, step)
        touch = found.touch
        if found.status != "active":
            return {}
        if touch is not None and touch["status"] in ("draft_pending", "approved") and not comment:
            return {"subject": touch["subject"], "body": touch["body"]}
        prompt = writer.prompt_for(
            step=step,
            steps=len(found.cadence.gaps),
            brief=found.campaign.get("brief", ""),
            name=found.contact["name"],
            company=found.contact["company"],
            comment=comment,
        )
        subject, body = writer.parse(self.write(prompt))
        self.store_draft(
            {
                "campaign_id": state["campaign_id"],
                "contact_id": state["contact_id"],
                "step": step,
                "status": "approved" if found.campaign.get("auto_approve") else "draft_pending",
                "subject": subject,
                "body": body,
                "prompt_version": writer.PROMPT_VERSION,
                "run_id": get_config()["configurable"]["run_id"],
                "message_id": _message_id(found.campaign["sender"]),
                "drafted_at": _milliseconds(perdure.now()),
            }
        )
        return {"subject": subject, "body": body, "comment": "", "problem": ""}

    def approval(self, state: State) -> Command[Approved]:
        """Hold the draft until a person has said what becomes of it, unless it is approved."""
        step = state["step"]
        found = self._look(state, step)
        touch = found.touch
        if touch is None or found.status != "active":
            return Command(goto="check_reply")
        if touch["status"] == "approved":  # its text is what was approved, not what was written
            return self._release(found, touch, touch["subject"], touch["body"])
        shown = {
            "campaign": found.campaign.get("name"),
            "to": found.contact["address"],
            "touch": step,
            "subject": state["subject"],
            "body": state["body"],
            "prompt_version": touch["prompt_version"],
        }
        problem = state.get("problem")
        decision = perdure.ask(
            {**shown, "problem": problem} if problem else shown,
            response_schema=DECISION,
            unless="wake",
            default=None,
        )
        if decision is None:  # something happened: reality is asked again
            return Command(goto="check_reply")
        match decision["action"]:
            case "reject":
                comment = decision.get("comment") or "it was not right"
                return Command(update={"comment": comment}, goto="compose_touch")
            case "skip":
                self.change_touch(_place(state), {"status": "skipped"})
                return Command(
                    update={"step": step + 1, "last_at": perdure.now()}, goto="check_reply"
                )
        subject, body = state["subject"], state["body"]
        if decision["action"] == "edit":
            subject, body = decision.get("subject", subject), decision["body"]
        approved = {"subject": subject, "body": body, "status": "approved"}
        self.change_touch(_place(state), approved)
        return self._release(found, touch, subject, body)

    def _release(
        self, found: Situation, touch: dict[str, Any], subject: str, body: str
    ) -> Command[Approved]:
        """Let an approved text go out, in the contact's hours: whoever approved it keeps others."""
        now = perdure.now()
        opens = due(Cadence((0,), found.cadence.window), 1, now, found.contact["zone"])
        if now < opens:
            return Command(update={"due_at": opens}, goto="schedule_next")
        letter = {
            "sender": found.campaign["sender"],
            "recipient": found.contact["address"],
            "recipient_name": found.contact["name"],
            "subject": subject,
            "body": body,
            "message_id": touch["message_id"],
            "in_reply_to": found.previous,
        }
        try:
            compose(self._letter(letter), now)
        except BadLetter as error:  # a person is asked for another text
            self.change_touch(_place(touch), {"status": "draft_pending"})
            again = {"problem": str(error), "subject": subject, "body": body}
            return Command(update=again, goto="approval")
        update = {"letter": letter, "sequence": found.campaign["sequence"]}
        return Command(update=update, goto="send_touch")

    def _letter(self, fields: dict[str, Any]) -> Letter:
        return Letter(**fields, unsubscribe=self._settings.unsubscribe)

    def send_touch(self, state: State) -> State:
        """Send the letter, once, and note what became of it.

        It looks at nothing that may have changed: a mail that was on its way when a worker died is
        to be settled first, and `send` asks at the last moment whether it may.
        """
        step, place, now = state["step"], _place(state), perdure.now()
        gone_by: State = {"step": step + 1, "last_at": now}
        try:
            result = self._turn(place, state["letter"], state["sequence"], now)
        except NoSuchRecipient as error:
            self.bounce(place, str(error))
            for campaign_id in records.campaigns_of(self._database, state["contact_id"]):
                thread_id = thread_of(campaign_id, state["contact_id"])
                key = f"bounce at {state['campaign_id']} {step}"
                self._runtime.blocking.signal(thread_id, "wake", key=key)
            return gone_by
        except perdure.errors.EffectFailed:  # a person said that it is not to be sent
            self.change_touch(place, {"status": "skipped"})
            return gone_by
        at, status = perdure.now(), str(result.status)
        if not self._is_mine(place, result):
            at, status = result.at or at, "duplicate"
        sent_at = _milliseconds(at) if status == "sent" else None
        self.change_touch(place, {"status": status, "sent_at": sent_at})
        return {"step": step + 1, "last_at": at}

    def _turn(
        self, place: dict[str, int], letter: dict[str, Any], sequence: str, now: datetime
    ) -> Result:
        """Send it if it is this campaign's turn. If another was about to, and did not, it is the
        turn of whoever comes next."""
        result = Result.of(self.send(place, letter, sequence, now))
        if result.status == "sent" or result.campaign_id == place["campaign_id"]:
            return result
        return self._turn(place, letter, f"{sequence} after {result.campaign_id}", now)

    def _is_mine(self, place: dict[str, int], result: Result) -> bool:
        """Whether this campaign sent it. What a person settled does not say: who tried it did."""
        if result.campaign_id is not None:
            return result.campaign_id == place["campaign_id"]
        found = records.look(self._database, **place)
        return found.touch is not None and found.touch["attempt"] is not None

    def schedule_next(self, state: State) -> State:
        """Sleep until the next touch is due, or until something happens."""
        perdure.wait_for("wake", timeout=state["due_at"])
        return {}

    def _look(self, state: State, step: int) -> Situation:
        return records.look(self._database, state["campaign_id"], state["contact_id"], step)

    def _end(self, state: State, status: str) -> Command[Next]:
        """Say how it ended, and what each touch earned, on the effect that sent it."""
        run_id = get_config()["configurable"]["run_id"]
        self.close(state["campaign_id"], state["contact_id"], status)
        ended, touches = records.closed(self._database, state["campaign_id"], state["contact_id"])
        effects = self._runtime.blocking.effects(run_id, limit=MANY) if touches else []
        for touch in touches:
            part = sent_by(effects, touch["step"])
            self._runtime.blocking.score(run_id, "reply", touch["outcome"], **part)
        return Command(update={"ended": ended or status}, goto="__end__")

    # -- effects

    @perdure.effect(retry=perdure.Retry(attempts=5, first=timedelta(seconds=2)))
    def write(self, prompt: str) -> str:
        """The model's answer: asked for once, however often the node runs."""
        return str(self._model.invoke(prompt).text)

    @perdure.effect(transactional=True)
    def store_draft(self, touch: dict[str, Any]) -> None:
        self._database.inside(records.store_draft(touch))

    @perdure.effect(transactional=True)
    def change_touch(self, place: dict[str, int], columns: dict[str, Any]) -> None:
        self._database.inside(records.change_touch(place, **columns))

    @perdure.effect(transactional=True)
    def bounce(self, place: dict[str, int], why: str) -> None:
        """Write to the contact no more."""
        self._database.inside(
            *records.end_contact(place["contact_id"], "bounced"),
            records.change_touch(place, status="refused"),
        )

    @perdure.effect(transactional=True)
    def close(self, campaign_id: int, contact_id: int, status: str) -> None:
        self._database.inside(*records.close(campaign_id, contact_id, status))

    def _did_arrive(
        self, place: dict[str, int], letter: dict[str, Any], sequence: str, at: datetime
    ) -> perdure.Done | None:
        """Ask the provider for a mail that it did not answer."""
        assert self._lookup is not None
        if self._lookup.accepted(letter["message_id"]):
            return perdure.Done({"status": "sent", "campaign_id": place["campaign_id"], "at": at})
        begun = (records.look(self._database, **place).touch or {}).get("attempt_at") or 0
        if _wall_clock() < begun + self._settings.lookup_after * 1000:
            raise NotYet(f"{letter['message_id']} may still be on its way.")
        return None

    def _send(
        self, place: dict[str, int], letter: dict[str, Any], sequence: str, at: datetime
    ) -> dict[str, Any] | None:
        """One conversation with the mail server. Its key is (contact, step) within a sequence: it
        guards across campaigns and imports."""
        stopped = {"status": "stopped", "campaign_id": place["campaign_id"], "at": at}
        allowed, touches = self._database.read(records.may_send(place), records.attempt(place))
        if not allowed or not touches:
            return stopped
        mine, previous = uuid.uuid4().hex, touches[0]["attempt"]
        self._database.write(records.begin(place, mine, previous, _wall_clock()))

        def before_data() -> bool:
            now = _wall_clock()
            _, [last], allowed = self._database.write(
                records.go_on(place, mine, now), records.attempt(place), records.may_send(place)
            )
            if last["attempt"] != mine:
                raise TemporaryTrouble("another attempt at this mail was begun meanwhile")
            if _wall_clock() > now + SLOW:  # the mail would arrive later than `now` tells
                raise TemporaryTrouble("the database took too long")
            return bool(allowed)

        status = self._outgoing.send(self._letter(letter), at, before_data)
        return {**stopped, "status": status}


class Result(NamedTuple):
    """What became of a mail, as whoever sent it says, or the person who found it."""

    status: Literal["sent", "stopped"] = "sent"
    campaign_id: int | None = None
    at: datetime | None = None

    @classmethod
    def of(cls, said: Any) -> Result:
        if isinstance(said, dict) and said.keys() == set(cls._fields):
            return cls(**said)
        return cls()  # settled by hand, in whatever words


def sent_by(effects: Iterable[EffectRecord], step: int) -> dict[str, str]:
    """The part of a run that earned what a touch did: of its effects, the one that sent the touch.
    One that a person settled may be of another run; then it is named in words."""
    keys = [
        one.key
        for one in effects
        if one.name == SEND and one.arguments.get("place", {}).get("step") == step
    ]
    return {"effect": keys[-1]} if keys else {"about": f"touch {step}"}


def thread_of(campaign_id: int, contact_id: int) -> str:
    return f"campaign-{campaign_id}-{contact_id}"


def _message_id(sender: str) -> str:
    """Of a touch: the same for every attempt, and known to nobody but who gets the mail."""
    return f"<{perdure.uuid().hex}@{sender.rpartition('@')[2].rstrip('>')}>"


def _place(state: Any) -> dict[str, int]:
    return {name: state[name] for name in ("campaign_id", "contact_id", "step")}


def _wall_clock() -> int:
    return round(time.time() * 1000)


def _milliseconds(at: datetime) -> int:
    return round(at.astimezone(UTC).timestamp() * 1000)
