"""The first agent: sets, equal calls side by side, loops, holds, compensation, children, waits.

Every set is walked in another order by each process, since their hash seeds differ. Every effect is
of a kind for which exactly once is promised: keyed, verified, held, transactional, or guarded by a
business key.
"""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

import perdure
from matrix.kills import world

PEOPLE = frozenset({"ann", "bob", "cat", "dan"})
TURNS = 2


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    turn: int
    messages: list[Any]


class Part(TypedDict):
    item: int


class Errand(TypedDict, total=False):
    who: str
    log: Annotated[list[str], operator.add]


# -- effects


def _found(what: str) -> str | None:
    return f"{what}: done" if world.here().knows(perdure.key()) else None


async def _afound(what: str) -> str | None:
    return _found(what)


def _do(kind: str, what: str) -> str:
    world.here().happen(kind, what, perdure.key())
    return f"{what}: done"


@perdure.effect
def note(what: str) -> str:
    """The far side knows the key."""
    return _do("keyed", what)


@perdure.effect
async def anote(what: str) -> str:
    await asyncio.sleep(0)
    return _do("keyed", what)


@perdure.effect(verify=_found)
def order(what: str) -> str:
    """The far side can be asked."""
    return _do("asked", what)


@perdure.effect(verify=_afound)
async def aorder(what: str) -> str:
    await asyncio.sleep(0)
    return _do("asked", what)


@perdure.effect(unknown="hold")
def wire(what: str) -> str:
    """The far side can do neither: a person decides."""
    return _do("held", what)


@perdure.effect(unknown="hold")
async def awire(what: str) -> str:
    await asyncio.sleep(0)
    return _do("held", what)


@perdure.effect(unknown="hold")
def doubtful(what: str, before: bool) -> str:
    """It raises the first time, before or after it did it: only a person can know."""
    tries = Counter(event.what for event in world.here().events() if event.kind == "tried")
    first = not tries[what]
    world.here().happen("tried", what, perdure.key())
    if first and before:
        raise TimeoutError("no reply")
    done = _do("held", what)
    if first:
        raise TimeoutError("no reply")
    return done


@perdure.effect(verify=_found, retry=perdure.Retry(attempts=5, first=timedelta(hours=1)))
def slow(what: str) -> str:
    """It did it, and the reply is lost; or it did not, and is tried again an hour later."""
    world.here().happen("tried", what, perdure.key())
    tries = [event for event in world.here().events() if event.kind == "tried"]
    if sum(event.what == what for event in tries) < 2:
        raise ConnectionError("busy")
    _do("asked", what)
    raise ConnectionError("the reply was lost")


@perdure.effect(name="orders.greet", key=lambda who: who)
def greet(who: str) -> str:
    """Once for each person, from wherever it is called."""
    return _do("keyed", f"greet {who}")


TABLE = "CREATE TABLE bookings (seat TEXT)"


@perdure.effect(transactional=True)
def book(seat: str) -> str:
    connection = perdure.transaction()
    mark = "%s" if hasattr(connection, "pgconn") else "?"
    connection.execute(f"INSERT INTO bookings VALUES ({mark})", (seat,))
    perdure.outbox("booked", {"seat": seat})
    return f"book {seat}: done"


def deliver(message: perdure.Message) -> None:
    """The handler of the outbox: it gives the message's id to the far side."""
    world.here().happen("keyed", f"booked {message.payload['seat']}", message.id)


def refund(result: str, what: str) -> str:
    return _do("keyed", f"refund {what}")


@perdure.effect(name="orders.pay", compensate=refund)
def pay(what: str) -> str:
    return _do("keyed", what)


def unwire(result: str, what: str) -> str:
    return _do("held", f"take back {what}")


@perdure.effect(name="orders.deposit", unknown="hold", compensate=unwire)
def deposit(what: str) -> str:
    return _do("held", what)


# -- the graph


def mail(state: State) -> State:
    """Loops over sets, one call after the other."""
    log = [note(f"note {who}") for who in PEOPLE]
    log += [order(f"order {who}") for who in PEOPLE]
    log += [wire(f"wire {who}") for who in PEOPLE]
    return {"log": log}


async def gather(state: State) -> State:
    """Equal calls side by side, and different ones in any order."""
    calls = [anote("the same note") for _ in range(3)]
    calls += [awire("the same wire") for _ in range(2)]
    calls += [aorder("the same order") for _ in range(2)]
    calls += [aorder(f"gathered {who}") for who in PEOPLE]
    return {"log": list(await asyncio.gather(*calls))}


@tool
def poke(who: str) -> str:
    """Poke somebody."""
    return wire(f"poke {who}")


@tool
def nudge(who: str) -> str:
    """Nudge somebody."""
    return note(f"nudge {who}")


def ask_for_tools(state: State) -> State:
    names = [("poke", "ann"), ("poke", "ann"), ("nudge", "bob"), ("nudge", "bob")]
    calls = [
        {"name": name, "args": {"who": who}, "id": f"call {n}"}
        for n, (name, who) in enumerate(names)
    ]
    return {"messages": [AIMessage("", tool_calls=calls, id="tools")]}


def read_tools(state: State) -> State:
    return {"log": [str(message.content) for message in state["messages"]]}


def part(state: Part) -> State:
    """One of several tasks side by side."""
    return {"log": [order(f"part {state['item']}"), greet("eve")]}


def turn(state: State) -> State:
    """Twice round: an effect, a question, an effect."""
    n = state.get("turn", 0)
    first = note(f"draft {n}")
    said = perdure.ask({"draft": n})
    return {"log": [first, order(f"send {n} {said}")], "turn": n + 1}


def doubt(state: State) -> State:
    return {"log": [doubtful("wire before", True), doubtful("wire after", False), slow("slow")]}


def rest(state: State) -> State:
    """Waits in the middle of effects."""
    log = [wire("before the sleep")]
    perdure.sleep(timedelta(days=3))
    log.append(book("12a"))
    reply = perdure.wait_for("reply")
    log.append(note(f"answer {reply}"))
    return {"log": log}


def delegate_with(rt: perdure.Runtime) -> Any:
    async def delegate(state: State) -> State:
        """Starts a child for each of a set, sends a signal, and waits for all of it."""
        children = {who: await rt.start("errand", {"who": who, "log": []}) for who in PEOPLE}
        await rt.signal("the orders", "nod", "yes")
        outputs = perdure.join([children[who] for who in sorted(PEOPLE)])
        log = [line for output in outputs for line in output["log"]]
        nod = perdure.wait_for("nod")
        again = perdure.wait_for("nod", timeout=timedelta(hours=1), default="none")
        return {"log": [*log, f"nod {nod}, then {again}"]}

    return delegate


def run_errand(state: Errand) -> Errand:
    """A child's only node."""
    log = [order(f"errand {state['who']}")]
    perdure.sleep(timedelta(hours=2))
    return {"log": [*log, wire(f"errand of {state['who']} is done")]}


def errand(rt: perdure.Runtime) -> Any:
    return StateGraph(Errand).add_node(run_errand).add_edge(START, "run_errand")


def orders(rt: perdure.Runtime) -> Any:
    graph = StateGraph(State)
    graph.add_node(mail)
    graph.add_node(gather)
    graph.add_node(ask_for_tools)
    graph.add_node("tools", ToolNode([poke, nudge]))
    graph.add_node(read_tools)
    graph.add_node("part", part)
    graph.add_node(turn)
    graph.add_node(doubt)
    graph.add_node(rest)
    graph.add_node("delegate", delegate_with(rt))
    graph.add_edge(START, "mail")
    graph.add_edge("mail", "gather")
    graph.add_edge("gather", "ask_for_tools")
    graph.add_edge("ask_for_tools", "tools")
    graph.add_edge("tools", "read_tools")
    items = [Send("part", {"item": item}) for item in range(3)]
    graph.add_conditional_edges("read_tools", lambda state: items, ["part"])
    graph.add_edge("part", "turn")
    graph.add_conditional_edges(
        "turn", lambda state: "turn" if state["turn"] < TURNS else "doubt", ["turn", "doubt"]
    )
    graph.add_edge("doubt", "rest")
    graph.add_edge("rest", "delegate")
    graph.add_edge("delegate", END)
    return graph


def trip(rt: perdure.Runtime) -> Any:
    async def hire(state: State) -> State:
        """A child that is cancelled with it, and compensated too."""
        await rt.start("guide", {"log": []})
        return {}

    def buy(state: State) -> State:
        """It is cancelled while it asks."""
        log = [pay("pay"), deposit("deposit")]
        perdure.ask("Send it?")
        return {"log": log}

    return StateGraph(State).add_sequence([hire, buy]).add_edge(START, "hire")


def guide(rt: perdure.Runtime) -> Any:
    def engage(state: State) -> State:
        pay("guide")
        perdure.wait_for("departure")
        return {"log": ["departed"]}

    return StateGraph(State).add_node(engage).add_edge(START, "engage")
