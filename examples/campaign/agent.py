"""The agent: one thread per (campaign, contact), up to six touches over about a month.

    check_reply → compose_touch → approval → send_touch → schedule_next → check_reply → …

What each crash leaves behind, and what decides:

    before a draft is stored     nothing but a model's answer, which is recorded
    draft stored, not asked      `draft_pending`; approval asks
    asked                        a wait: no timer can send it, only an answer, once
    approved, not sent           a booking, which is made anew whenever the thread is driven
    a mail on its way            an intent: the provider is asked by Message-ID, or a person is
    no mail can be written       a stopped campaign and an approved text; `check_reply` asks
    sent, not noted              the recorded outcome; it is noted, and not sent again
    refused, not noted           the recorded refusal; it is noted once, with what it leads to
    reply, at any time           `members.status`: a send checks it when the mail server has
                                 accepted the recipient, and has no content yet

Nodes never branch on the wall clock: `perdure.now()` is recorded, and `check_reply`, which runs
first on every wake, reads the tables again. All waits are the graph's own: no refusal, limit or
closed window blocks a process.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import parseaddr
from typing import Any, Literal, TypedDict
from zoneinfo import ZoneInfo

from langchain_core.language_models import BaseChatModel
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.types import Command

import perdure
from perdure.times import milliseconds, moment

from . import records, trouble, turns, writer
from .cadence import due, next_open
from .database import Database
from .letter import BadLetter, Letter, compose, footer, unsubscribe_of
from .records import Situation
from .refusals import (
    LetterRefused,
    NoSuchRecipient,
    SenderRefused,
    ServerTrouble,
    TemporaryTrouble,
)
from .sending import MANY, NotNow, Sending, sent_by
from .settings import Settings

_TEXT_ONLY_IN_AN_EDIT = {
    "if": {"properties": {"action": {"const": "edit"}}},
    "then": {"required": ["body"]},
    "else": {"propertyNames": {"enum": ["action", "comment"]}},
}
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
    **_TEXT_ONLY_IN_AN_EDIT,
}
"""A person's answer to a draft: send it, send this text instead, write another, skip the touch."""
ABOUT_A_REFUSAL = {
    "type": "object",
    "properties": {"action": {"enum": ["again", "skip", "bounce"]}},
    "required": ["action"],
    "additionalProperties": False,
}
"""A person's answer about a mail that the server keeps refusing: try it again, skip the touch, or
treat the contact as bounced."""
OUTCOME = "reply_outcome"
"""The score of a touch: 1.0 if it earned a reply, 0.0 if not."""
LOOK_AGAIN = timedelta(hours=6)
"""How long a thread sleeps before it checks by itself whether its campaign runs again."""

Next = Literal["check_reply", "compose_touch", "refusal", "schedule_next", "__end__"]
Approved = Literal["send_touch", "compose_touch", "approval", "schedule_next", "check_reply"]


class State(TypedDict, total=False):
    """What a thread remembers. The tables have the current state."""

    campaign_id: int
    contact_id: int
    step: int
    """The touch that is next."""
    last_at: datetime
    """When the previous touch went out, or the thread began."""
    due_at: datetime
    because: str
    """Why it sleeps until then."""
    not_before: datetime
    """When a refused mail is retried."""
    subject: str
    body: str
    comment: str
    """A person's comment on the last draft."""
    letter: dict[str, Any]
    """The approved text to send."""
    sequence: str
    tries: int
    """Failed conversations about it so far."""
    ended: str


class Agent:
    """The nodes, and the effects they have."""

    def __init__(
        self,
        settings: Settings,
        runtime: perdure.Runtime,
        database: Database,
        model: BaseChatModel,
        now: Callable[[], int],
    ) -> None:
        """`now` is the journal's time, in milliseconds."""
        self._settings, self._runtime = settings, runtime
        self._database, self._model = database, model
        self._sending = Sending(
            settings, database, now, lambda campaign: trouble.ask(runtime, campaign)
        )

    def graph(self) -> StateGraph[State]:
        """The graph, for `Runtime.register`."""
        builder = StateGraph(State)
        builder.add_node(self.check_reply)
        builder.add_node(self.compose_touch)
        builder.add_node(self.approval)
        builder.add_node(self.send_touch)
        builder.add_node(self.refusal)
        builder.add_node(self.schedule_next)
        builder.add_edge(START, "check_reply")
        builder.add_edge("compose_touch", "approval")
        builder.add_edge("send_touch", "check_reply")
        builder.add_edge("refusal", "check_reply")
        builder.add_edge("schedule_next", "check_reply")
        return builder

    # -- nodes

    def check_reply(self, state: State) -> Command[Next]:
        """Read the tables again: may the contact still be written to, and is it time?"""
        now, step = perdure.now(), state.get("step", 1)
        last = state.get("last_at", now)
        found = self._look(state, step)
        perdure.label(sequence_step=step)
        update: State = {"step": step, "last_at": last, "because": "the next touch"}
        if found.campaign.get("state") == "trouble":  # even if it ended this thread, the last one
            trouble.ask(self._runtime, found.campaign)
        if found.status != "active":
            return self._end(state, found.status)
        if found.sent_elsewhere is not None:
            return self._leave_out(state, step, found)
        gaps, touch = found.cadence.gaps, found.touch
        if touch is not None and touch["status"] == "draft_pending":
            # The draft exists and waits for a person, whatever the cadence is now.
            return Command(update=update, goto="compose_touch")
        if found.campaign["state"] != "running":
            because = f"the campaign, which is {found.campaign['state']}"
            update |= {"because": because, "due_at": now + LOOK_AGAIN}
            return Command(update=update, goto="schedule_next")
        if touch is not None and touch["status"] == "approved" and touch["hopeless"]:
            return Command(update=update, goto="refusal")
        if step > len(gaps):  # wait for a reply to the last touch, for as long as its gap
            at = last + timedelta(days=gaps[-1])
            if now >= at:
                return self._end(state, "finished")
        else:
            at = due(found.cadence, step, last, found.contact["zone"])
            if touch is not None and touch["problem"]:
                at = max(at, state.get("not_before", at))
        if now < at:
            return Command(update={**update, "due_at": at}, goto="schedule_next")
        return Command(update=update, goto="compose_touch")

    def compose_touch(self, state: State) -> State:
        """Write a draft, unless one is waiting for its answer."""
        step, comment = state["step"], state.get("comment", "")
        found = self._look(state, step)
        touch = found.touch
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
        if found.status != "active":  # not earlier: a call that was cut off is made again
            return {}
        status = "approved" if found.campaign.get("auto_approve") else "draft_pending"
        self.store_draft(_draft(_place(state), found, status, subject, body))
        return {"subject": subject, "body": body, "comment": ""}

    def approval(self, state: State) -> Command[Approved]:
        """Hold the draft until a person answers, unless it is approved already."""
        step = state["step"]
        found = self._look(state, step)
        touch = found.touch
        if touch is None or touch["status"] == "stopped" or not found.may_send:
            return Command(goto="check_reply")  # a stopped text is written again
        if touch["status"] == "approved":  # its text is what was approved, not what was written
            return self._release(found, touch, touch["subject"], touch["body"])
        if why := records.suppressed(self._database, found.contact["person"]):
            self.end_contact(state["contact_id"], why)  # an import did not see it
            return Command(goto="check_reply")
        shown = {
            "kind": "approval",
            "campaign": found.campaign.get("name"),
            "to": found.contact["address"],
            "touch": step,
            "subject": state["subject"],
            "body": state["body"],
            "footer": footer(self._unsubscribe(found)["unsubscribe_link"]),
            "prompt_version": touch["prompt_version"],
        }
        decision = perdure.ask(
            {**shown, "problem": touch["said"]} if touch["said"] else shown,
            response_schema=DECISION,
            unless="wake",
            default=None,
        )
        if decision is None:  # something happened: look again
            return Command(goto="check_reply")
        match decision["action"]:
            case "reject":
                comment = decision.get("comment") or "it was not right"
                return Command(update={"comment": comment}, goto="compose_touch")
            case "skip":
                return Command(update=self._skip(state), goto="check_reply")
        subject, body = state["subject"], state["body"]
        if decision["action"] == "edit":
            subject, body = decision.get("subject", subject), decision["body"]
        self.approve(_place(state), subject, body)
        return self._release(found, touch, subject, body)

    def _release(
        self, found: Situation, touch: dict[str, Any], subject: str, body: str
    ) -> Command[Approved]:
        """Send an approved text at its turn: in the contact's hours, and within the limits."""
        if found.campaign["state"] != "running":
            return Command(goto="check_reply")
        now, contact, campaign = perdure.now(), found.contact, found.campaign
        letter = {
            "sender": campaign["sender"],
            "recipient": contact["address"],
            "recipient_name": contact["name"],
            "subject": subject,
            "body": body,
            "message_id": touch["message_id"],
            "in_reply_to": found.previous,
            **self._unsubscribe(found),
        }
        try:
            compose(Letter(**letter), now)
        except BadLetter as error:
            if error.is_ours:  # another text would not help
                self.stop(campaign["id"], str(error))
                return Command(goto="check_reply")
            self.change_touch(_place(touch), {"status": "draft_pending", "said": str(error)})
            return Command(update={"subject": subject, "body": body}, goto="approval")
        domain = contact["address"].rpartition("@")[2]
        turn = turns.book(
            self._database,
            _place(touch),
            person=contact["person"],
            domain=domain,
            sender=parseaddr(campaign["sender"])[1].lower(),
            sequence=campaign["sequence"],
            per_day=campaign["per_day"],
            apart=self._settings.apart,
            domain_pause=self._settings.domain_pause,
            window=found.cadence.window,
            zone=contact["zone"],
            day_zone=self._settings.zone,
            now=milliseconds(now),
        )
        if milliseconds(now) < turn.at:
            waiting = {"due_at": moment(turn.at), "because": turn.because}
            return Command(update=waiting, goto="schedule_next")
        pause = self._settings.domain_pause
        if after := turns.next_in_line(self._database, domain, pause, turn.at):
            key = f"after {thread_of(touch['campaign_id'], touch['contact_id'])} at {turn.at}"
            self._runtime.blocking.signal(thread_of(*after), "wake", key=key)
        update = {"letter": letter, "sequence": campaign["sequence"], "tries": touch["tries"]}
        return Command(update=update, goto="send_touch")

    def _unsubscribe(self, found: Situation) -> dict[str, str]:
        return unsubscribe_of(self._settings, found.contact["token"])

    def _skip(self, state: State) -> State:
        """Skip a touch."""
        self.skip(_place(state))
        return {"step": state["step"] + 1, "last_at": perdure.now()}

    def send_touch(self, state: State) -> State:
        """Send the letter once, and record the outcome.

        It reads nothing that may have changed: a mail that was on its way when a worker died is
        settled first, and `send` checks at the last moment whether it may go out.
        """
        place, now = _place(state), perdure.now()
        try:
            result = self._sending.deliver(
                place, state["letter"], state["sequence"], state["tries"], now
            )
        except perdure.NotDone as error:
            return self._after_refusal(state, place, error, now)
        except perdure.errors.EffectFailed:  # a person decided not to send it
            return self._skip(state)
        at, status = perdure.now(), "sent"
        if not self._sending.is_mine(place, result, state["tries"]):
            at, status = result.at or at, "duplicate"
        sent_at = milliseconds(at) if status == "sent" else None
        self.note_sent(place, status, sent_at)
        if status == "sent":  # nobody is to be asked about a touch that would be left out
            for campaign_id in records.asking_elsewhere(self._database, place):
                thread_id = thread_of(campaign_id, place["contact_id"])
                key = f"sent by {place['campaign_id']} {place['step']}"
                self._runtime.blocking.signal(thread_id, "wake", key=key)
        return {"step": state["step"] + 1, "last_at": at}

    def _after_refusal(
        self, state: State, place: dict[str, int], error: perdure.NotDone, now: datetime
    ) -> State:
        """Record a refusal and its consequences in one batch. `check_reply` then decides what comes
        next, from the touch, the contact and the campaign.

        A refusal that another campaign of the sequence got has no consequence here: that campaign
        may have another sender, and the cause may be fixed by now. The next try is this campaign's.
        """
        kind = _kind(error)
        if not self._sending.was_tried(place, state["tries"]):
            kind = "NotNow"
        self.refused(place, kind, str(error), state["tries"], milliseconds(now))
        if kind == "NoSuchRecipient":
            for campaign_id in records.campaigns_of(self._database, place["contact_id"]):
                thread_id = thread_of(campaign_id, place["contact_id"])
                key = f"bounce at {place['campaign_id']} {place['step']} {state['tries']}"
                self._runtime.blocking.signal(thread_id, "wake", key=key)
        found = records.look(self._database, **place)
        if kind not in trouble.PATIENCE or found.touch is None:
            return {}
        later = now + trouble.PATIENCE[kind].pause(max(1, found.touch["refused"]))
        zone = ZoneInfo(found.contact["zone"])
        return {"not_before": next_open(found.cadence.window, later, zone)}

    def refusal(self, state: State) -> State:
        """Ask a person about a mail that the server keeps refusing."""
        found = self._look(state, state["step"])
        if found.touch is None or not found.may_send:
            return {}
        shown = {
            "kind": "refusal",
            "campaign": found.campaign["name"],
            "to": found.contact["address"],
            "touch": state["step"],
            "subject": found.touch["subject"],
            "said": found.touch["said"],
        }
        decision = perdure.ask(
            shown, response_schema=ABOUT_A_REFUSAL, unless="wake", default={"action": None}
        )
        match decision["action"]:
            case "again":
                self.unrefuse(_place(state))
            case "skip":
                return self._skip(state)
            case "bounce":
                self.bounce(_place(state))
        return {}

    def schedule_next(self, state: State) -> State:
        """Sleep until the next touch is due, or until something happens."""
        shown = {"kind": "cadence", "touch": state["step"], "because": state["because"]}
        perdure.wait_for("wake", timeout=state["due_at"], value=shown)
        return {}

    def _look(self, state: State, step: int) -> Situation:
        return records.look(self._database, state["campaign_id"], state["contact_id"], step)

    def _leave_out(self, state: State, step: int, found: Situation) -> Command[Next]:
        """Note, without a draft or a question, that another campaign of the sequence has sent a
        touch: a mail of this one would not go out."""
        assert found.sent_elsewhere is not None
        text = found.touch or {"subject": "", "body": ""}
        place = _place({**state, "step": step})
        self.leave_out(_draft(place, found, "duplicate", text["subject"], text["body"]))
        update: State = {"step": step + 1, "last_at": moment(found.sent_elsewhere), "comment": ""}
        return Command(update=update, goto="check_reply")

    def _end(self, state: State, status: str) -> Command[Next]:
        """Record how the thread ended, and score each touch on the effect that sent it."""
        run_id = get_config()["configurable"]["run_id"]
        self.close(state["campaign_id"], state["contact_id"], status)
        ended, touches = records.closed(self._database, state["campaign_id"], state["contact_id"])
        if ended == "active":  # a bounce was undone meanwhile
            return Command(goto="check_reply")
        effects = self._runtime.blocking.effects(run_id, limit=MANY) if touches else []
        for touch in touches:
            part = sent_by(effects, touch["step"])
            if "effect" in part or touch["run_id"] == run_id:  # else an earlier run has said so
                self._runtime.blocking.score(run_id, OUTCOME, touch["outcome"], **part)
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
    def leave_out(self, touch: dict[str, Any]) -> None:
        self._database.inside(records.store_draft(touch), turns.release(_place(touch)))

    @perdure.effect(transactional=True)
    def end_contact(self, contact_id: int, status: str) -> None:
        self._database.inside(*records.end_contact(contact_id, status))

    @perdure.effect(transactional=True)
    def change_touch(self, place: dict[str, int], columns: dict[str, Any]) -> None:
        self._database.inside(records.change_touch(place, **columns))

    @perdure.effect(transactional=True)
    def approve(self, place: dict[str, int], subject: str, body: str) -> None:
        """Record what a person approved, unless the contact was changed meanwhile."""
        self._database.inside(records.approve(place, subject, body))

    @perdure.effect(transactional=True)
    def note_sent(self, place: dict[str, int], status: str, sent_at: int | None) -> None:
        sent = records.change_touch(place, status=status, sent_at=sent_at)
        self._database.inside(sent, records.unrefuse(place))

    @perdure.effect(transactional=True)
    def unrefuse(self, place: dict[str, int]) -> None:
        self._database.inside(records.unrefuse(place))

    @perdure.effect(transactional=True)
    def stop(self, campaign_id: int, what: str) -> None:
        """Stop a campaign none of whose mails can be written."""
        self._database.inside(trouble.stop(campaign_id, "SenderRefused", what))

    @perdure.effect(transactional=True)
    def skip(self, place: dict[str, int]) -> None:
        skipped = records.change_touch(place, status="skipped")
        self._database.inside(skipped, turns.release(place))

    @perdure.effect(transactional=True)
    def bounce(self, place: dict[str, int]) -> None:
        """Stop writing to the contact."""
        self._database.inside(*records.bounce(place))

    @perdure.effect(transactional=True)
    def refused(self, place: dict[str, int], kind: str, said: str, tries: int, now: int) -> None:
        """Record a failed conversation, with its consequences. `said` has no address in it
        (refusals.py): the question about trouble outlives the contact."""
        if kind == "NotNow":
            self._database.inside(records.note_try(place, tries))
            return
        statements = [records.note_refusal(place, kind, said, tries, now)]
        if kind in trouble.PATIENCE:
            statements.append(trouble.lose_hope(place, kind, now))
        if kind == "NoSuchRecipient":
            statements += records.bounce(place)
        if kind == "LetterRefused":  # a person is asked for another text
            statements += [
                records.change_touch(place, status="draft_pending"),
                turns.release(place),
            ]
        self._database.inside(*statements, *trouble.consequences(place, kind, said))

    @perdure.effect(transactional=True)
    def close(self, campaign_id: int, contact_id: int, status: str) -> None:
        self._database.inside(*records.close(campaign_id, contact_id, status))


def thread_of(campaign_id: int, contact_id: int) -> str:
    return f"campaign-{campaign_id}-{contact_id}"


def _message_id(sender: str) -> str:
    """The Message-ID of a touch: the same for every attempt, and known only to the recipient."""
    return f"<{perdure.uuid().hex}@{sender.rpartition('@')[2].rstrip('>')}>"


def _draft(
    place: dict[str, int], found: Situation, status: str, subject: str, body: str
) -> dict[str, Any]:
    """A row of `touches`."""
    return {
        **place,
        "status": status,
        "subject": subject,
        "body": body,
        "prompt_version": writer.PROMPT_VERSION,
        "run_id": get_config()["configurable"]["run_id"],
        "message_id": _message_id(found.campaign["sender"]),
        "drafted_at": milliseconds(perdure.now()),
    }


def _place(state: Any) -> dict[str, int]:
    return {name: state[name] for name in ("campaign_id", "contact_id", "step")}


def _kind(error: perdure.NotDone) -> str:
    """The kind of a refusal, or of a mail that may not go out now."""
    if isinstance(error, BadLetter):
        return "LetterRefused"
    known = (NotNow, NoSuchRecipient, SenderRefused, LetterRefused, ServerTrouble, TemporaryTrouble)
    return next((one.__name__ for one in known if isinstance(error, one)), "Doubtful")
