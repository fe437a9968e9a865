"""Runs with a secret of its own in every place a user can put one, driven in a process of a test
that may be killed: it tells what the nodes saw."""

from __future__ import annotations

import contextlib
import logging
import operator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime

import perdure
from perdure.testing import Clock
from perdure.types import Message
from tests.support.fork_server import Tell
from tests.support.runtime_child import BEGIN, killed_at

POLICY = perdure.Redaction(
    keys=["pin", "*_pin"], patterns=[r"PLANTED-[a-z]{1,20}+/ü[0-9a-f]{12}"], replace="[gone]"
)
GONE = POLICY.replace


def by_pattern(place: str) -> str:
    """A secret that a pattern finds. In JSON, in base64 and in a URL it looks different."""
    return f"PLANTED-{place}/ü7f3a9c2e41b6"


def by_key(place: str) -> str:
    """A secret that only its name gives away."""
    return f"hush {place} ü"


@dataclass
class Card:
    holder: str
    card_pin: str


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    seen: Annotated[list[Any], operator.add]
    note: str
    pin: str
    card: Card
    book: dict[str, Any]


class Context(TypedDict):
    hint: str


CALLS: list[list[Any]] = []


@perdure.effect(unknown="retry")
def mail(to: str, pin: str, more: dict[str, Any]) -> Any:
    CALLS.append([to, pin, more["x_pin"], more["plain"]])
    return {"found": f"id {by_pattern('result')}", "pin": by_key("result"), "raw": b"ok"}


@perdure.effect(retry=perdure.Retry(attempts=1))
def refused(to: str, pin: str) -> Any:
    raise RuntimeError(f"{by_pattern('raised')} for {pin!r}, card_pin={by_key('text')!r}")


def first(state: State) -> State:
    perdure.label(about=by_pattern("label"), pin=by_key("label"))
    more = {"x_pin": by_key("nested"), "plain": [by_pattern("nested")]}
    found = mail(by_pattern("argument"), pin=by_key("argument"), more=more)
    seen = [found["found"], found["pin"], state["messages"][0].content]
    return {
        "messages": [AIMessage(f"I know {by_pattern('message')}", id="one")],
        "seen": seen,
        "note": by_pattern("state") + " and more" * 20,
        "pin": by_key("state"),
        "card": Card(by_pattern("object"), by_key("object")),
        "book": {"pin": by_key("book"), by_pattern("key"): "a" * 100},
    }


SETTINGS: list[Any] = []
"""What a node sees besides its state."""


def second(state: State, config: RunnableConfig, runtime: Runtime[Context]) -> State:
    SETTINGS.append([config["configurable"].get("who"), config["metadata"].get("why")])
    SETTINGS[-1].append(runtime.context["hint"])
    with contextlib.suppress(RuntimeError):
        refused(by_pattern("tried"), by_key("tried"))
    perdure.outbox("mail", {"to": by_pattern("outbox"), "pin": by_key("outbox")})
    seen = [state["messages"][1].content, state["note"][:9], state["pin"], state["card"].card_pin]
    return {"seen": [*seen, state["card"].holder, sorted(state["book"]), ""]}


def third(state: State) -> State:
    answer = perdure.ask({"draft": by_pattern("question"), "pin": by_key("question")})
    return {"seen": [answer["text"], answer["pin"], perdure.wait_for("news")]}


def fourth(state: State) -> State:
    raise ValueError(f"{by_pattern('error')} pin: {by_key('error')}" + "." * 5000)


def chain(*nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(State, Context)
    graph.add_sequence(nodes)
    graph.add_edge(START, nodes[0].__name__)
    return graph


def register(rt: perdure.Runtime) -> None:
    rt.register(chain(first, second, third), name="plant")
    rt.register(chain(fourth), name="fails", retry=perdure.Retry(attempts=1))
    rt.register(chain(fourth), name="held", retry=perdure.Retry(1), hold=True)
    rt.deliver("mail", deliver)


def deliver(message: Message) -> None:
    raise OSError(f"not now: {message.payload} {by_pattern('delivery')}")


class Tap:
    """An observer that writes down everything it gets."""

    def on_event(self, *event: Any) -> None:
        logging.getLogger("tap").info("told %s", event)


async def play(rt: perdure.Runtime, clock: Clock, order: dict[str, Any], tell: Tell) -> None:
    thread = order["thread"]
    given: Any = {"metadata": {"why": by_pattern("metadata"), "pin": by_key("metadata")}}
    given["config"] = {"configurable": {"who": by_pattern("config"), "user_id": "u-1"}}
    run = await rt.start(
        "plant",
        {"messages": [HumanMessage(f"I am {by_pattern('input')}")], "pin": by_key("input")},
        thread_id=thread,
        key="the one",
        tags=[by_pattern("tag")],
        context={"hint": by_pattern("context")},
        **given,
    )
    while not (run := await rt.get(run.id)).ended:
        await rt.tick()
        for wait in await rt.waits(thread_id=thread):
            if wait.kind == perdure.Kind.HUMAN:
                text = {"text": by_pattern("answer"), "pin": by_key("answer")}
                await rt.answer(wait.id, text, by="ada")
            else:
                await rt.signal(thread, "news", by_pattern("signal"), key="once")
        clock.advance(timedelta(minutes=1))
    tell("seen", run.output["seen"])
    tell("metadata", run.metadata)
    await rt.score(run.id, "good", 1, comment=by_pattern("comment"), by="ada")
    for graph in ("fails", "held"):
        await rt.start(graph, {"seen": []}, thread_id=f"{thread}-{graph}", key="1")
        await rt.tick()
    [held] = await rt.runs(thread_id=f"{thread}-held")
    await rt.cancel(held.id, reason=by_pattern("reason"))
    given_note = {"note": by_pattern("scheduled")}
    await rt.schedule("yearly", "plant", cron="0 0 1 1 *", input=given_note)
    await rt.tick()
    bound = rt.register(chain(second), name=f"bound-{thread}")
    config: Any = {"configurable": {"thread_id": f"{thread}-bound", "who": by_pattern("inline")}}
    config |= {"metadata": {"why": by_pattern("inline")}, "tags": [by_pattern("inline")]}
    card = Card(by_pattern("bound"), by_key("bound"))
    start = {
        "messages": ["a", by_pattern("bound")],
        "card": card,
        "book": {},
        "note": "",
        "pin": "",
    }
    context: Any = {"hint": by_pattern("inline")}
    given_back = await bound.ainvoke(start, config, context=context)
    tell("bound", given_back["seen"], SETTINGS)
    await bound.aupdate_state(config, {"note": by_pattern("updated")}, as_node="second")
    tell("findings", [str(finding) for finding in (await rt.doctor()).findings])


async def live(order: dict[str, Any], tell: Tell) -> None:
    logging.basicConfig(filename=order["lines"], level=logging.DEBUG, force=True)
    clock = Clock(BEGIN + timedelta(days=1 if order["again"] else 0))
    rt = perdure.Runtime(order["url"], clock=clock, redact=POLICY, observe=Tap())
    register(rt)
    async with rt:
        with killed_at(order["kill"]):
            await play(rt, clock, order, tell)
        tell("calls", CALLS)
