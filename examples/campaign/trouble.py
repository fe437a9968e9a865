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
from typing import Literal, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Command

import perdure

from .database import Database, Row, Statement, sql

GRAPH = "campaign trouble"
LIMITS = {
    "SenderRefused": (1, 1),
    "ServerTrouble": (1, 12),
    "TemporaryTrouble": (5, 12),
    "LetterRefused": (5, 1),
    "NoSuchRecipient": (5, 1),
    "Doubtful": (5, 1),
}
"""By kind: how many touches must fail in a row, and how often each. A refusal of the sender stops
the campaign at once, a server that is down or defers every mail after about a day, the others when
many fail alike."""
ANSWERS = {
    "resume": "it is fixed, go on and try again",
    "accept": "these addresses really are wrong, go on without them",
    "stop": "end the campaign",
}


def stop(place: dict[str, int], kind: str, what: str) -> Statement:
    """Stop a running campaign if enough of its touches failed alike since its last success before
    this touch. A success that is dated later, by a clock that was set back, does not count."""
    many, refused = LIMITS[kind]
    return sql(
        """UPDATE campaigns SET state = 'trouble', trouble = :what, troubles = troubles + 1
           WHERE id = :campaign_id AND state = 'running' AND :many <=
             (SELECT count(*) FROM touches WHERE campaign_id = :campaign_id AND problem = :kind
              AND refused >= :refused AND attempt_at >=
                (SELECT COALESCE(MAX(sent_at), 0) FROM touches WHERE campaign_id = :campaign_id
                 AND sent_at <=
                   (SELECT attempt_at FROM touches WHERE campaign_id = :campaign_id
                    AND contact_id = :contact_id AND step = :step)))""",
        **place,
        kind=kind,
        what=f"{kind}: {what}",
        many=many,
        refused=refused,
    )


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
    "SenderRefused": "The mail server takes no mail from us. No mail is sent until this is fixed.",
    "ServerTrouble": "The mail server has been in trouble for a day. No mail is sent meanwhile.",
    "TemporaryTrouble": "The mail server has deferred several mails in a row for a day.",
    "LetterRefused": "The mail server refused the text of several mails in a row.",
    "NoSuchRecipient": "The mail server did not know several recipients in a row.",
    "Doubtful": "The mail server refused several mails in a row, for an unclear reason.",
}
