"""The agent: one thread per (campaign, contact), up to six touches over about a month.

    check_reply → compose_touch → approval → send_touch → schedule_next → check_reply → …

What each crash leaves behind, and what decides:

    before a draft is stored     nothing but a model's answer, which is recorded
    draft stored, not asked      `draft_pending`; approval asks
    asked                        a wait: no timer can send it, only an answer, once
    approved, not sent           `approved`, which the next look finds
    a mail on its way            an intent: the provider is asked by Message-ID, or a person is
    sent, not noted              the recorded outcome; it is noted, and not sent again
    refused, not noted           the recorded refusal; it is noted once, with what it leads to
    reply, at any time           `members.status`: a send checks it when the mail server has
                                 accepted the recipient, and has no content yet

Nodes never branch on the wall clock: `perdure.now()` is recorded, and `check_reply`, which runs
first on every wake, reads the tables again. All waits are the graph's own: no refusal and no closed
window blocks a process.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict
from zoneinfo import ZoneInfo

from langchain_core.language_models import BaseChatModel
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.types import Command

import perdure
from perdure.times import milliseconds, moment

from . import records, writer
from .cadence import due, next_open
from .database import Database
from .mail import footer
from .records import Place, Situation
from .refusals import LetterRefused, NoSuchRecipient, Rejected, SenderRefused
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
PATIENCE = timedelta(days=1)
"""How long a refused mail is tried again, at least three times, before a person is asked."""

Next = Literal["check_reply", "compose_touch", "approval", "refusal", "schedule_next", "__end__"]
Approved = Literal["send_touch", "compose_touch", "schedule_next", "check_reply"]


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
    """When a refused mail is tried again."""
    comment: str
    """A person's comment on the last draft."""
    letter: dict[str, Any]
    """The approved text to send."""
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
        self._sending = Sending(settings, database, now)

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
        gaps, touch = found.cadence.gaps, found.touch
        if found.status != "active":
            return self._end(state, found.status)
        if touch is not None and touch["status"] == "draft_pending":
            return Command(update=update, goto="approval")
        if found.campaign["state"] != "running":
            because = f"the campaign, which is {found.campaign['state']}"
            update |= {"because": because, "due_at": now + LOOK_AGAIN}
            return Command(update=update, goto="schedule_next")
        if step > len(gaps):  # wait for a reply to the last touch, for as long as its gap
            at = last + timedelta(days=gaps[-1])
            if now >= at:
                return self._end(state, "finished")
        else:
            at = due(found.cadence, step, last, found.contact["zone"])
            if touch is not None and touch["problem"]:
                if touch["refusals"] >= 3 and moment(touch["refused_at"]) <= now - PATIENCE:
                    return Command(update=update, goto="refusal")
                at = max(at, state.get("not_before", at))
        if now < at:
            return Command(update={**update, "due_at": at}, goto="schedule_next")
        return Command(update=update, goto="compose_touch")

    def compose_touch(self, state: State) -> State:
        """Write a draft, unless there is one."""
        step, comment = state["step"], state.get("comment", "")
        found = self._look(state, step)
        touch = found.touch
        if touch is not None and touch["status"] in ("draft_pending", "approved") and not comment:
            return {}
        prompt = writer.prompt_for(
            step=step,
            steps=len(found.cadence.gaps),
            brief=found.campaign["brief"],
            name=found.contact["name"],
            company=found.contact["company"],
            comment=comment,
        )
        subject, body = writer.parse(self.write(prompt))
        if found.status != "active":  # not earlier: a call that was cut off is made again
            return {}
        domain = found.campaign["sender"].rpartition("@")[2].rstrip(">")
        draft = {
            **_place(state),
            "status": "approved" if found.campaign["auto_approve"] else "draft_pending",
            "subject": subject,
            "body": body,
            "prompt_version": writer.PROMPT_VERSION,
            "run_id": get_config()["configurable"]["run_id"],
            "message_id": f"<{perdure.uuid().hex}@{domain}>",
            "drafted_at": milliseconds(perdure.now()),
        }
        self.store_draft(draft)
        return {"comment": ""}

    def approval(self, state: State) -> Command[Approved]:
        """Hold the draft until a person answers, unless it is approved already."""
        found = self._look(state, state["step"])
        touch = found.touch
        if touch is None or found.status != "active":
            return Command(goto="check_reply")
        if touch["status"] == "approved":
            return self._release(found, touch, touch["subject"], touch["body"])
        question = {
            "kind": "approval",
            "campaign": found.campaign["name"],
            "to": found.contact["address"],
            "touch": state["step"],
            "subject": touch["subject"],
            "body": touch["body"],
            "footer": footer(self._unsubscribe(found)["unsubscribe_link"]),
        }
        if touch["response"]:
            question["problem"] = touch["response"]
        decision = perdure.ask(question, response_schema=DECISION, unless="wake", default=None)
        if decision is None:  # something happened: look again
            return Command(goto="check_reply")
        match decision["action"]:
            case "reject":
                comment = decision.get("comment") or "it was not right"
                return Command(update={"comment": comment}, goto="compose_touch")
            case "skip":
                return Command(update=self._skip(state), goto="check_reply")
        subject, body = touch["subject"], touch["body"]
        if decision["action"] == "edit":
            subject, body = decision.get("subject", subject), decision["body"]
        self.approve(_place(state), subject, body)
        return self._release(found, touch, subject, body)

    def _release(
        self, found: Situation, touch: dict[str, Any], subject: str, body: str
    ) -> Command[Approved]:
        """Send an approved text, in the contact's hours."""
        if found.campaign["state"] != "running":
            return Command(goto="check_reply")
        now, contact = perdure.now(), found.contact
        at = next_open(found.cadence.window, now, ZoneInfo(contact["zone"]))
        if now < at:
            because = "the contact's hours"
            return Command(update={"due_at": at, "because": because}, goto="schedule_next")
        letter = {
            "sender": found.campaign["sender"],
            "recipient": contact["address"],
            "recipient_name": contact["name"],
            "subject": subject,
            "body": body,
            "message_id": touch["message_id"],
            "in_reply_to": found.previous,
            **self._unsubscribe(found),
        }
        return Command(update={"letter": letter, "tries": touch["tries"]}, goto="send_touch")

    def _unsubscribe(self, found: Situation) -> dict[str, str]:
        token, root = found.contact["token"], self._settings.web_url.rstrip("/")
        return {
            "unsubscribe": self._settings.unsubscribe.replace("@", f"+{token}@"),
            "unsubscribe_link": f"{root}/unsubscribe/{token}" if root else "",
        }

    def send_touch(self, state: State) -> State:
        """Send the letter once, and record the outcome.

        It reads nothing that may have changed: a mail that was on its way when a worker died is
        settled first, and `deliver` checks at the last moment whether it may go out.
        """
        place, now = _place(state), perdure.now()
        try:
            self._sending.deliver(place, state["letter"], state["tries"], now)
        except NotNow:
            self.note_try(place, state["tries"])
            return {}
        except perdure.NotDone as error:
            return self._after_refusal(state, place, error, now)
        except perdure.errors.EffectFailed:  # a person decided not to send it
            return self._skip(state)
        at = perdure.now()
        self.note_sent(place, milliseconds(at))
        return {"step": state["step"] + 1, "last_at": at}

    def _after_refusal(
        self, state: State, place: Place, error: perdure.NotDone, now: datetime
    ) -> State:
        """Record a refusal and its consequences in one batch. `check_reply` then decides what comes
        next, from the touch, the contact and the campaign."""
        self.note_refusal(place, _kind(error), str(error), state["tries"], milliseconds(now))
        found = self._look(state, place["step"])
        assert found.touch is not None
        pause = timedelta(minutes=5) * 2 ** min(found.touch["refusals"] - 1, 6)
        zone = ZoneInfo(found.contact["zone"])
        return {"not_before": next_open(found.cadence.window, now + pause, zone)}

    def refusal(self, state: State) -> State:
        """Ask a person about a mail that the server keeps refusing."""
        found = self._look(state, state["step"])
        if found.touch is None or found.status != "active":
            return {}
        question = {
            "kind": "refusal",
            "campaign": found.campaign["name"],
            "to": found.contact["address"],
            "touch": state["step"],
            "subject": found.touch["subject"],
            "response": found.touch["response"],
        }
        decision = perdure.ask(
            question, response_schema=ABOUT_A_REFUSAL, unless="wake", default={"action": None}
        )
        match decision["action"]:
            case "again":
                self.try_again(_place(state))
            case "skip":
                return self._skip(state)
            case "bounce":
                self.bounce(_place(state))
        return {}

    def schedule_next(self, state: State) -> State:
        """Sleep until the next touch is due, or until something happens."""
        reason = {"kind": "cadence", "touch": state["step"], "because": state["because"]}
        perdure.wait_for("wake", timeout=state["due_at"], value=reason)
        return {}

    def _look(self, state: State, step: int) -> Situation:
        return records.look(self._database, state["campaign_id"], state["contact_id"], step)

    def _skip(self, state: State) -> State:
        self.skip(_place(state))
        return {"step": state["step"] + 1, "last_at": perdure.now()}

    def _end(self, state: State, status: str) -> Command[Next]:
        """Record how the thread ended, and score each touch on the effect that sent it."""
        run_id = get_config()["configurable"]["run_id"]
        self.close(state["campaign_id"], state["contact_id"], status)
        ended, touches = records.closed(self._database, state["campaign_id"], state["contact_id"])
        effects = self._runtime.blocking.effects(run_id, limit=MANY) if touches else []
        for touch in touches:
            part = sent_by(effects, touch["step"])
            self._runtime.blocking.score(run_id, OUTCOME, touch["outcome"], **part)
        return Command(update={"ended": ended}, goto="__end__")

    # -- effects

    @perdure.effect(retry=perdure.Retry(attempts=5, first=timedelta(seconds=2)))
    def write(self, prompt: str) -> str:
        """The model's answer: asked for once, however often the node runs."""
        return str(self._model.invoke(prompt).text)

    @perdure.effect(transactional=True)
    def store_draft(self, touch: dict[str, Any]) -> None:
        self._database.inside(records.store_draft(touch))

    @perdure.effect(transactional=True)
    def approve(self, place: Place, subject: str, body: str) -> None:
        """Record what a person approved."""
        text = {"subject": subject, "body": body, "response": ""}
        self._database.inside(
            records.change_touch(place, status="approved", **text), records.forget_refusals(place)
        )

    @perdure.effect(transactional=True)
    def skip(self, place: Place) -> None:
        self._database.inside(records.change_touch(place, status="skipped"))

    @perdure.effect(transactional=True)
    def note_sent(self, place: Place, sent_at: int) -> None:
        self._database.inside(records.change_touch(place, status="sent", sent_at=sent_at))

    @perdure.effect(transactional=True)
    def note_try(self, place: Place, tries: int) -> None:
        self._database.inside(records.change_touch(place, tries=tries + 1))

    @perdure.effect(transactional=True)
    def note_refusal(self, place: Place, kind: str, response: str, tries: int, now: int) -> None:
        self._database.inside(*records.refused(place, kind, response, tries, now))

    @perdure.effect(transactional=True)
    def try_again(self, place: Place) -> None:
        self._database.inside(records.forget_refusals(place))

    @perdure.effect(transactional=True)
    def bounce(self, place: Place) -> None:
        """Stop writing to the contact."""
        bounced = records.end_contact(place["contact_id"], "bounced")
        self._database.inside(*bounced, records.change_touch(place, status="refused"))

    @perdure.effect(transactional=True)
    def close(self, campaign_id: int, contact_id: int, status: str) -> None:
        self._database.inside(*records.close(campaign_id, contact_id, status))


def thread_of(campaign_id: int, contact_id: int) -> str:
    return f"campaign-{campaign_id}-{contact_id}"


def _place(state: Any) -> Place:
    return {name: state[name] for name in ("campaign_id", "contact_id", "step")}


def _kind(error: perdure.NotDone) -> str:
    """The kind of a refusal."""
    known = (NoSuchRecipient, SenderRefused, LetterRefused, Rejected)
    return next((one.__name__ for one in known if isinstance(error, one)), "TemporaryTrouble")
