"""Trouble that affects a whole campaign: it stops, and asks a person once.

The campaign's row decides: the statement that stops it only changes a running campaign, so when
many threads find out at once, one stops it and counts the trouble. Every thread that finds the
campaign in trouble asks, under a key with the trouble's number: there is one question, and it is
asked even if the thread that stopped the campaign has died.

    stopped, not asked        `state = 'trouble'`: the next thread that looks asks
    asked                     a wait; nothing is sent, whatever the clock says
    answered, not resumed     the recorded answer: `resume`, which may be repeated, is called again
    resumed by a command      a signal, `resumed`, withdraws the question
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Literal, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Command

import perdure

from .database import Database, Row, Statement, sql

GRAPH = "campaign trouble"
PATIENCE = {
    "Doubtful": perdure.Retry(4, timedelta(hours=1), 4, longest=timedelta(days=1)),
    "TemporaryTrouble": perdure.Retry(12, timedelta(minutes=5), longest=timedelta(hours=4)),
    "ServerTrouble": perdure.Retry(12, timedelta(minutes=5), longest=timedelta(hours=4)),
}
"""Attempts and pauses for a refused mail before it is hopeless."""
LONGEST = 24 * 3_600_000
"""Milliseconds after the first refusal, of whatever kind, after which it is hopeless anyway: closed
windows make the pauses longer. But not before the third try: a weekend is no refusal."""
MANY = 5
"""Touches that must fail alike, one after the other, to be trouble for the campaign."""
ALIKE = ("TemporaryTrouble", "LetterRefused", "NoSuchRecipient", "Doubtful", "NoAnswer")
"""The kinds that are trouble if there are many; of `TemporaryTrouble` only hopeless touches
count."""
ANSWERS = {
    "resume": "it is fixed, go on and try again",
    "accept": "these addresses really are wrong, go on without them",
    "stop": "end the campaign",
}


_STOP = """UPDATE campaigns SET state = 'trouble', trouble = :what, troubles = troubles + 1
WHERE id = :campaign_id AND state = 'running'"""
_LAST_SUCCESS = """(SELECT COALESCE(MAX(sent_at), 0) FROM touches WHERE campaign_id = :campaign_id
  AND sent_at <= (SELECT attempt_at FROM touches WHERE campaign_id = :campaign_id
    AND contact_id = :contact_id AND step = :step))"""
"""The last before this touch. A later date, of a clock that was set back, does not count."""
_IS_DOWN = f"""{_STOP} AND EXISTS
  (SELECT 1 FROM touches WHERE campaign_id = :campaign_id AND contact_id = :contact_id
   AND step = :step AND problem = 'ServerTrouble' AND hopeless = 1
   AND refused_at > {_LAST_SUCCESS})"""  # noqa: S608 (our own words, here and below)
_ARE_MANY = f"""{_STOP} AND :many <=
  (SELECT count(*) FROM touches WHERE campaign_id = :campaign_id AND problem IN (:kind, :also)
   AND hopeless >= :hopeless AND attempt_at >= {_LAST_SUCCESS})"""  # noqa: S608


def lose_hope(place: dict[str, int], kind: str, now: int) -> Statement:
    """Mark a touch that was refused so often, or for so long, that a person is to be asked."""
    return sql(
        """UPDATE touches SET hopeless = 1 WHERE campaign_id = :campaign_id
           AND contact_id = :contact_id AND step = :step AND problem = :kind
           AND (refused >= :attempts OR (refused_at <= :since AND tries >= 3))""",
        **place,
        kind=kind,
        attempts=PATIENCE[kind].attempts,
        since=now - LONGEST,
    )


def stop(campaign_id: int, kind: str, what: str) -> Statement:
    """Stop a running campaign: no mail of it can go out."""
    return sql(_STOP, campaign_id=campaign_id, what=f"{kind}: {what}")


def consequences(place: dict[str, int], kind: str, what: str) -> list[Statement]:
    """What a refusal that was just noted means for the campaign, which stops:

    - at once, if the sender is refused
    - if the server is in trouble until a touch is hopeless, and has taken no mail since it first
      refused that one; else it is the trouble of one contact, like any other that may pass
    - if many touches failed alike since the last mail that was taken
    """
    if kind == "SenderRefused":
        return [stop(place["campaign_id"], kind, what)]
    if kind == "ServerTrouble":
        down = sql(_IS_DOWN, **place, what=f"{kind}: {what}")
        return [down, *consequences(place, "TemporaryTrouble", what)]
    if kind not in ALIKE:
        return []
    passes = kind == "TemporaryTrouble"
    return [
        sql(
            _ARE_MANY,
            **place,
            what=f"{kind}: {what}",
            many=MANY,
            kind=kind,
            also="ServerTrouble" if passes else kind,
            hopeless=int(passes),
        )
    ]


def ask(runtime: perdure.Runtime, campaign: Row) -> None:
    """Start the thread that asks a person about a campaign's trouble, once per trouble."""
    runtime.blocking.start(
        GRAPH,
        {"campaign_id": campaign["id"], "trouble": campaign["troubles"]},
        thread_id=thread_of(campaign["id"]),
        key=f"trouble {campaign['troubles']}",
        metadata={"campaign_id": campaign["id"]},
        tags=[f"campaign:{campaign['id']}"],
    )


def thread_of(campaign_id: int) -> str:
    return f"campaign-{campaign_id}"


def resumed(trouble: int) -> str:
    """The signal that withdraws the question about this trouble only."""
    return f"resumed {trouble}"


class State(TypedDict, total=False):
    campaign_id: int
    trouble: int
    """Its number."""
    shown: dict[str, str]
    answers: list[str]
    """What a person is asked, and may answer."""
    ended: str


class Question:
    """The graph that asks. `resume`, `accept` and `stop` take a campaign and the number of its
    trouble, and may be repeated."""

    def __init__(
        self,
        database: Database,
        resume: Callable[[int, int], object],
        accept: Callable[[int, int], object],
        stop: Callable[[int, int], object],
    ) -> None:
        self._database = database
        self._do = {"resume": resume, "accept": accept, "stop": stop}

    def graph(self) -> StateGraph[State]:
        builder = StateGraph(State)
        builder.add_node("look", self.look)
        builder.add_node("ask", self.ask)
        builder.add_edge(START, "look")
        return builder

    def look(self, state: State) -> Command[Literal["ask", "__end__"]]:
        """Whether there is still something to ask. A step of its own: what is answered changes the
        campaign, and `ask` must do the same again if a worker dies on the way."""
        campaign = self._database.one(
            "SELECT * FROM campaigns WHERE id = :id", id=state["campaign_id"]
        )
        in_trouble = campaign is not None and campaign["state"] == "trouble"
        if campaign is None or not in_trouble or campaign["troubles"] != state["trouble"]:
            return Command(update={"ended": "over"}, goto="__end__")
        kind, _, said = campaign["trouble"].partition(": ")
        answers = [one for one in ANSWERS if one != "accept" or kind == "NoSuchRecipient"]
        shown = {
            "kind": "trouble",
            "campaign": campaign["name"],
            "what": WORDS[kind],
            "said": said,
            "choices": " ".join(f"{one}: {ANSWERS[one]}." for one in answers),
        }
        return Command(update={"shown": shown, "answers": answers}, goto="ask")

    def ask(self, state: State) -> State:
        decision = perdure.ask(
            state["shown"],
            response_schema={
                "type": "object",
                "properties": {"action": {"enum": state["answers"]}},
                "required": ["action"],
                "additionalProperties": False,
            },
            unless=resumed(state["trouble"]),
            default=None,
        )
        if decision is None:
            return {"ended": "withdrawn"}
        self.act(decision["action"], state["campaign_id"], state["trouble"])
        return {"ended": str(decision["action"])}

    @perdure.effect(unknown="retry")
    def act(self, action: str, campaign_id: int, trouble: int) -> None:
        self._do[action](campaign_id, trouble)


WORDS = {
    "SenderRefused": "The mail server takes no mail from us, or none can be written. No mail is "
    "sent until this is fixed.",
    "ServerTrouble": "The mail server has been in trouble for a day. No mail is sent meanwhile.",
    "TemporaryTrouble": "The mail server has deferred several mails in a row for a day.",
    "LetterRefused": "The mail server refused the text of several mails in a row.",
    "NoSuchRecipient": "The mail server did not know several recipients in a row.",
    "Doubtful": "The mail server refused several mails in a row, for an unclear reason.",
    "NoAnswer": "The mail server did not answer the content of several mails in a row. Each of "
    "them is held: look into the provider's log, and settle it.",
}
