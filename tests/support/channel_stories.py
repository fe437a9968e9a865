"""More of `tests.support.stories`: subgraphs, LangGraph's DeltaChannel, states of the user's."""

import enum
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel, EphemeralValue, Topic, UntrackedValue
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, interrupt
from pydantic import BaseModel, Field

from tests.support.scripts import Call, Graph, Script, history, invoke, update
from tests.support.stories import State, answer, look, noted, say, story, work

# -- subgraphs


def ask_inside(state: State) -> Any:
    return {"log": [interrupt({"inside": state.get("count", 0)}), "answered " * 10]}


def build_nested(own: bool | None, by_call: bool = False, parallel: bool = False) -> Any:
    def build(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
        inner = StateGraph(State)
        inner.add_sequence([("work", noted(work, calls)), ("ask", noted(ask_inside, calls))])
        inner.add_edge(START, "work")
        compiled = inner.compile(checkpointer=own)

        def call(state: State) -> Any:
            calls.append("call")
            found = compiled.invoke({"count": state.get("count", 0)})
            return {"items": found["log"]}

        def twin(state: State) -> Any:
            return {"log": [interrupt("twin?")]}

        outer = StateGraph(State)
        outer.add_node("before", noted(answer, calls))
        outer.add_node("nested", call if by_call else compiled)
        outer.add_node("after", noted(look, calls))
        outer.add_edge(START, "before")
        outer.add_edge("before", "nested")
        outer.add_edge("nested", "after")
        if parallel:
            outer.add_node("twin", twin)
            outer.add_edge("before", "twin")
        return outer.compile(checkpointer=saver)

    return build


def talk_to_nested() -> Script:
    for n in range(2):
        yield invoke(say(f"hello {n}", f"h{n}"))
        found = yield Call("get_state", (), {"subgraphs": True}, None, None)
        inside = found.tasks[0].state
        if inside is not None and hasattr(inside, "config"):
            yield history(inside.config)
            yield update({"text": "from outside"}, inside.config)
        yield invoke(Command(resume="yes " * 30))
    past = yield history()
    yield invoke(None, past[3].config)


story("a subgraph", build_nested(None))(talk_to_nested)
story("a subgraph with its own memory", build_nested(True))(talk_to_nested)
story("a subgraph called by a node", build_nested(None, by_call=True))(talk_to_nested)


@story("questions in a subgraph and beside it", build_nested(None, parallel=True))
def _twins() -> Script:
    yield invoke(say("hello", "h0"))
    found = yield Call("get_state", (), {"subgraphs": True}, None, None)
    yield invoke(Command(resume={found.interrupts[1].id: "second"}))
    yield invoke(Command(resume={found.interrupts[0].id: "first"}))


def build_unsaved(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    inner = StateGraph(State)
    inner.add_sequence([("work", noted(work, calls)), ("look", noted(look, calls))])
    inner.add_edge(START, "work")
    outer = StateGraph(State)
    outer.add_node("nested", inner.compile(checkpointer=False))
    outer.add_edge(START, "nested")
    return outer.compile(checkpointer=saver)


@story("a subgraph that saves nothing", build_unsaved)
def _unsaved() -> Script:
    yield invoke(say("hello", "h0"))
    yield invoke(say("again", "h1"))


# -- LangGraph's DeltaChannel


def append(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


def merge(state: dict[str, Any], writes: Sequence[Any]) -> dict[str, Any]:
    for write in writes:
        state = {**state, **write}
    return state


def add_all(state: list[AnyMessage], writes: Sequence[Any]) -> list[AnyMessage]:
    for write in writes:
        state = add_messages(state, write)  # type: ignore[assignment, arg-type]
    return state


class Delta(TypedDict, total=False):
    fast: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=2)]
    slow: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=5)]
    never: Annotated[dict[str, Any], DeltaChannel(merge, snapshot_frequency=1000)]
    messages: Annotated[list[AnyMessage], DeltaChannel(add_all, snapshot_frequency=3)]
    count: int


def grow(state: Delta) -> Any:
    n = state.get("count", 0)
    return {
        "fast": [f"fast {n} " * 20],
        "never": {str(n): {"n": n}},
        "messages": [AIMessage(f"reply {n} " * 20, id=f"a{n}")],
        "count": n + 1,
    }


def grow_slowly(state: Delta) -> Any:
    return {"slow": [state["count"], f"slow {state['count']} " * 20]}


def build_delta(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    builder = StateGraph(Delta)
    builder.add_sequence([("grow", noted(grow, calls)), ("grow_slowly", noted(grow_slowly, calls))])
    builder.add_edge(START, "grow")
    return builder.compile(checkpointer=saver)


def _turn(n: int) -> dict[str, Any]:
    return {"fast": [n], "messages": [HumanMessage(f"turn {n} " * 20, id=f"h{n}")]}


@story("delta channels across their snapshots", build_delta)
def _delta() -> Script:
    for n in range(9):
        yield invoke(_turn(n))


@story("delta channels at exit", build_delta)
def _delta_exit() -> Script:
    for n in range(6):
        yield invoke(_turn(n), durability=("exit", "sync")[n % 3 == 2])


@story("delta channels forked and overwritten", build_delta)
def _delta_fork() -> Script:
    for n in range(5):
        yield invoke(_turn(n))
    past = yield history()
    yield invoke(_turn(10), past[7].config)
    yield update({"slow": ["from outside"], "fast": Overwrite(["afresh"])}, past[9].config, "grow")
    yield invoke(None)
    yield invoke(_turn(11))
    yield invoke(None, past[4].config)


# -- the user's own types


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Address(BaseModel):
    street: str
    tags: list[str] = Field(default_factory=list)


@dataclass
class Order:
    id: UUID
    price: Decimal
    at: datetime
    lines: list[str] = field(default_factory=list)


class Person(BaseModel):
    name: str
    mood: Mood = Mood.GOOD
    level: Level = Level.LOW
    address: Address | None = None
    friends: Annotated[list[Address], operator.add] = Field(default_factory=list)
    orders: list[Order] = Field(default_factory=list)


def move(state: Person) -> Any:
    address = Address(street=f"{len(state.friends)} Long Road " * 5, tags=["new"])
    return {"address": address, "friends": [address], "mood": Mood.BAD}


def buy(state: Person) -> Any:
    order = Order(UUID(int=len(state.orders)), Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC))
    for old in state.orders:
        old.lines.append(f"again {len(old.lines)}")
    return {"orders": [*state.orders, order], "level": Level.HIGH}


def build_person(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    builder = StateGraph(Person)
    builder.add_sequence([("move", move), ("buy", buy)])
    builder.add_edge(START, "move")
    return builder.compile(checkpointer=saver)


@story("a pydantic state of models, dataclasses and enums", build_person)
def _person() -> Script:
    for n in range(4):
        given = Person(name=f"Ana {n}") if n % 2 else {"name": f"Ben {n}"}
        yield invoke(given, durability="sync")


@dataclass
class Desk:
    things: Annotated[list[Any], operator.add] = field(default_factory=list)
    seen: set[Any] = field(default_factory=set)
    order: Order | None = None


def put_things(state: Desk) -> Any:
    n = len(state.things)
    things = [b"\x00\xff" * 50, {1, n}, frozenset([n]), 2**63 - 1, -(2**63), 1.5, True]
    more = [datetime(2026, 1, 2, tzinfo=UTC), timedelta(days=n), Decimal("0.10"), UUID(int=n)]
    order = Order(UUID(int=n), Decimal(n), datetime(2026, 1, 2, tzinfo=UTC), [f"line {n}"])
    return {"things": [*things, *more, "é✓" * 40], "seen": {*state.seen, n, "s"}, "order": order}


def build_desk(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    builder = StateGraph(Desk)
    builder.add_node("put", put_things)
    builder.add_edge(START, "put")
    return builder.compile(checkpointer=saver)


@story("a dataclass state of many plain types", build_desk)
def _desk() -> Script:
    for n in range(3):
        yield invoke(Desk(things=[n]))


class Odd(TypedDict, total=False):
    flash: Annotated[str, EphemeralValue(str)]
    secret: Annotated[Any, UntrackedValue(object)]
    topic: Annotated[Sequence[str], Topic(str)]
    pile: Annotated[Sequence[str], Topic(str, accumulate=True)]


def build_odd(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    def first(state: Odd) -> Any:
        return {"topic": [state.get("flash", "none")], "pile": ["p" * 80], "secret": print}

    def second(state: Odd) -> Any:
        return {"pile": list(state.get("topic", [])), "flash": "f" * 90}

    builder = StateGraph(Odd)
    builder.add_sequence([("first", first), ("second", second), ("third", lambda state: None)])
    builder.add_edge(START, "first")
    return builder.compile(checkpointer=saver)


@story("channels that forget", build_odd)
def _odd() -> Script:
    for n in range(3):
        # LangGraph's Topic hands out its own list, and goes on changing it
        yield invoke({"flash": f"flash {n} " * 20}, durability="sync")
