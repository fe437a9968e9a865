"""Small graphs and what is done with them: each behaviour of LangGraph that a saver carries.

Messages have ids of their own, so that two plays of a story can be compared.
"""

import enum
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels import DeltaChannel, EphemeralValue, Topic, UntrackedValue
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, Overwrite, Send, StateUpdate, interrupt
from pydantic import BaseModel, Field

from tests.support.polling import until
from tests.support.scripts import Call, Graph, Script, Story, bulk_update, history, invoke, update

STORIES: dict[str, Story] = {}


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[Any], operator.add]
    items: list[Any]
    notes: dict[Any, Any]
    count: int
    text: str


Node = Callable[[Any], Any]


def chain(*nodes: Node, **compiling: Any) -> Callable[[BaseCheckpointSaver[Any], list[Any]], Graph]:
    """Builds a graph of nodes one after the other, each noted in `calls`."""

    def build(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
        builder = StateGraph(State)
        names = [f"{n} {node.__name__}" for n, node in enumerate(nodes)]
        builder.add_sequence(
            [(name, noted(node, calls)) for name, node in zip(names, nodes, strict=True)]
        )
        builder.add_edge(START, names[0])
        return builder.compile(checkpointer=saver, **compiling)

    return build


def noted(node: Node, calls: list[Any]) -> Any:
    def run(state: Any) -> Any:
        calls.append(node.__name__)
        return node(state)

    return run


def story(
    name: str, build: Callable[[BaseCheckpointSaver[Any], list[Any]], Graph]
) -> Callable[[Callable[[], Script]], Callable[[], Script]]:
    def keep(script: Callable[[], Script]) -> Callable[[], Script]:
        STORIES[name] = Story(build, script)
        return script

    return keep


def say(text: str, id: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=id)]}


# -- messages: growing, changed by id, removed, trimmed, redacted in place


def answer(state: State) -> Any:
    heard = state["messages"][-1]
    reply = AIMessage(
        f"You said {heard.content!r}, and I have a lot to say about that. " * 3,
        id=f"ai-{len(state['messages'])}",
        tool_calls=[{"name": "look", "args": {"n": 1}, "id": "call-1"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    )
    return {"messages": [reply], "count": state.get("count", 0) + 1}


def look(state: State) -> Any:
    return {"messages": [ToolMessage("found", tool_call_id="1", id=f"t-{len(state['messages'])}")]}


@story("a chat of several turns", chain(answer, look))
def _chat() -> Script:
    for n in range(4):
        yield invoke(say(f"hello {n} " * 20, f"h{n}"))


def correct(state: State) -> Any:
    return {"messages": [AIMessage("corrected", id=state["messages"][0].id)]}


@story("a message replaced by its id", chain(answer, look, correct))
def _replace() -> Script:
    yield invoke(say("first", "h0"))
    yield invoke(say("second", "h1"))


def trim(state: State) -> Any:
    return {"messages": [RemoveMessage(id=str(m.id)) for m in state["messages"][:-3]]}


@story("messages trimmed to a window", chain(answer, look, trim))
def _trim() -> Script:
    for n in range(5):
        yield invoke(say(f"hello {n} " * 20, f"h{n}"))


def forget_middle(state: State) -> Any:
    return {"messages": [RemoveMessage(id=str(m.id)) for m in state["messages"][1:2]]}


@story("a message removed from the middle", chain(answer, look, forget_middle))
def _remove() -> Script:
    for n in range(4):
        yield invoke(say(f"hello {n} " * 20, f"h{n}"))


def summarize(state: State) -> Any:
    summary = HumanMessage("all of it, in short", id=f"s-{state['count']}")
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), summary]}


@story("all messages replaced by a summary", chain(answer, summarize, look))
def _summary() -> Script:
    for n in range(3):
        yield invoke(say(f"hello {n} " * 20, f"h{n}"))


def redact(state: State) -> Any:
    for message in state["messages"]:
        message.content = "redacted"
        message.additional_kwargs["why"] = ["private"]
    return {"messages": state["messages"]}


@story("messages redacted in place and returned", chain(answer, look, redact))
def _redact() -> Script:
    for n in range(3):
        yield invoke(say(f"secret {n} " * 20, f"h{n}"), durability="sync")


def redact_last_and_remove_another(state: State) -> Any:
    last = state["messages"][-1]
    last.content = "redacted"
    return {"messages": [RemoveMessage(id=str(state["messages"][-2].id)), last]}


@story(
    "one redacted in place while another goes", chain(answer, look, redact_last_and_remove_another)
)
def _redact_and_remove() -> Script:
    for n in range(3):
        yield invoke(say(f"secret {n} " * 20, f"h{n}"), durability="sync")


def overwrite(state: State) -> Any:
    return {"log": Overwrite(["from here on"]), "messages": Overwrite(state["messages"][-1:])}


@story("reducers overwritten", chain(answer, overwrite, look))
def _overwrite() -> Script:
    yield invoke({**say("one", "h0"), "log": ["a" * 100]})
    yield invoke({**say("two", "h1"), "log": ["b" * 100]})


# -- plain lists and dicts: grown, edited in place, cut


def work(state: State) -> Any:
    n = state.get("count", 0)
    return {"count": n + 1, "log": [{"step": n, "text": "x" * 100}, n, None]}


def edit_in_place(state: State) -> Any:
    items = state["items"]
    items[0]["seen"] = items[0].get("seen", 0) + 1
    items.append({"n": len(items), "text": "y" * 50})
    return {"items": items}


@story("a list edited in place and returned", chain(work, edit_in_place))
def _edit() -> Script:
    yield invoke({"items": [{"n": 0, "text": "z" * 100}, {"n": 1}]}, durability="sync")
    yield invoke({"text": "again"}, durability="sync")
    yield invoke({"text": "and again"}, durability="sync")


def cut_middle_and_edit_last(state: State) -> Any:
    items = state["items"]
    items.pop(1)
    items[-1]["seen"] = items[-1].get("seen", 0) + 1
    return {"items": items}


@story(
    "a list cut in the middle, its last element edited in place", chain(cut_middle_and_edit_last)
)
def _cut() -> Script:
    yield invoke({"items": [{"n": n, "text": "z" * 40} for n in range(8)]}, durability="sync")
    yield invoke({"text": "again"}, durability="sync")
    yield invoke({"text": "and again"}, durability="sync")


def slide(state: State) -> Any:
    items = state["items"]
    return {"items": [*items[2:], {"n": state.get("count", 0), "text": "w" * 40}, "end", 7]}


@story("a sliding window", chain(work, slide))
def _slide() -> Script:
    yield invoke({"items": [{"n": n, "text": "z" * 40} for n in range(6)]})
    for _ in range(4):
        yield invoke({"text": "again"})


def reorder(state: State) -> Any:
    items = state["items"]
    return {"items": [*items[-1:], *items[1:-1], *items[:1], *items[:1]]}


@story("a list reordered, with the same element twice", chain(reorder))
def _reorder() -> Script:
    yield invoke({"items": [{"n": n, "text": "z" * 40} for n in range(6)]})
    yield invoke({"text": "again"})
    yield invoke({"items": []})
    yield invoke({"items": ["only"], "text": "again"})


def note(state: State) -> Any:
    notes = state["notes"]
    n = len(notes)
    notes[f"key {n}"] = {"n": n, "text": "v" * 60}
    notes["first"] = [n]
    notes.pop("key 2", None)
    return {"notes": notes}


@story("a dict changed key by key", chain(work, note))
def _dict() -> Script:
    yield invoke(
        {"notes": {"first": "u" * 80, 7: "seven", (1, 2): "pair", None: True}}, durability="sync"
    )
    for _ in range(4):
        yield invoke({"text": "again"}, durability="sync")
    yield invoke({"notes": {}}, durability="sync")


def nothing(state: State) -> Any:
    return None


def unset(state: State) -> Any:
    return {"text": None, "items": None, "count": 0}


@story("values set to None and nodes that return nothing", chain(nothing, unset, nothing))
def _none() -> Script:
    yield invoke({"text": "t" * 100, "items": [1, "a" * 100], "count": 3})
    yield invoke({"text": "t" * 100})


# -- More of `tests.support.stories`: subgraphs, LangGraph's DeltaChannel, states of the user's.

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


# -- More of `tests.support.stories`: going back, stopping, the functional API, branches.

# -- going back


@story("time travel", chain(answer, look))
def _travel() -> Script:
    for n in range(3):
        yield invoke(say(f"hello {n} " * 20, f"h{n}"))
    past = yield history()
    yield invoke(None, past[4].config)  # the step before: its nodes run again
    yield invoke(say("another way " * 20, "h9"), past[5].config)
    yield invoke(None, past[-1].config)
    yield history({"configurable": {}}, limit=2)
    yield history({"configurable": {}}, before=past[3].config, limit=3)
    yield history({"configurable": {}}, filter={"source": "input"})


@story("a fork by update_state", chain(answer, look))
def _fork() -> Script:
    for n in range(3):
        yield invoke(say(f"hello {n} " * 20, f"h{n}"))
    past = yield history()
    yield update({"messages": [AIMessage("better", id="ai-1")]}, past[3].config)
    yield invoke(None)
    yield update({"messages": [HumanMessage("as if asked", id="h8")]}, past[5].config, "__start__")
    yield invoke(None)
    yield update(None, past[5].config, "__copy__")
    yield invoke(None)


@story("the state updated from outside", chain(answer, look, work))
def _update() -> Script:
    yield update(say("before anything", "h0"), None, "__start__")
    yield invoke(None)
    yield update({"count": 40, "log": ["from outside " * 10]}, None, "0 answer")
    yield invoke(None)
    yield update({"text": "last"}, None, "2 work")
    yield update(None, None, END)
    steps = [("first", "0 answer"), ("second", "1 look"), ("third", "2 work")]
    yield bulk_update([[_by(as_node, text)] for text, as_node in steps])


def _by(as_node: str, text: str) -> Any:
    return StateUpdate({"text": text, "log": [text * 30]}, as_node)


# -- stopping


@story(
    "stops before and after nodes",
    chain(answer, look, work, interrupt_before=["1 look"], interrupt_after=["2 work"]),
)
def _stops() -> Script:
    for n in range(2):
        yield invoke(say(f"hello {n}", f"h{n}"))
        yield update({"text": "while it stood"})
        yield invoke(None)
        yield invoke(None)


def ask_twice(state: State) -> Any:
    first = interrupt({"question": "name?", "so far": state.get("log", [])})
    second = interrupt("age?")
    return {"log": [first, second]}


def look_up(state: State) -> Any:
    return {"log": ["looked up " * 10], "items": state["log"][-2:]}


@story("several questions in one node", chain(work, ask_twice, look_up))
def _ask() -> Script:
    yield invoke({"text": "go"})
    yield invoke(Command(resume="Ana " * 30))
    yield invoke(Command(resume={"years": 40}))
    yield invoke(Command(resume=None, update={"text": "new"}))


@story("durability exit", chain(work, answer, look, interrupt_before=["2 look"]))
def _exit() -> Script:
    for n in range(2):
        yield invoke(say(f"hello {n} " * 20, f"h{n}"), durability="exit")
        yield invoke(None, durability="exit")


@story("durability sync and async in turn", chain(work, answer, look))
def _sync() -> Script:
    for n in range(4):
        yield invoke(say(f"hello {n} " * 20, f"h{n}"), durability=("sync", "async")[n % 2])


# -- the functional API


def functional(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    @task
    def double(n: int) -> int:
        calls.append(("double", n))
        return 2 * n

    @entrypoint(checkpointer=saver)
    def total(numbers: list[int], *, previous: Any = None) -> Any:
        calls.append("total")
        doubled = [one.result() for one in [double(n) for n in numbers]]
        agreed = interrupt({"doubled": doubled})
        result = sum(doubled) + (previous or {"sum": 0})["sum"]
        saved = {"sum": result, "agreed": agreed, "text": "k" * 100}
        return entrypoint.final(value=result, save=saved)

    return total


@story("an entrypoint with tasks, a question and its previous result", functional)
def _functional() -> Script:
    yield invoke([1, 2, 3])
    yield invoke(Command(resume="yes"))
    yield invoke([10])
    yield invoke(Command(resume=["yes", "again"]))


# -- branches


class Branches(State, total=False):
    results: Annotated[list[Any], operator.add]


def is_left_stored() -> bool:
    """Whether the writes of a task beside this one are stored."""
    given = get_config()["configurable"]
    place: Any = {"configurable": {"thread_id": given["thread_id"]}}
    found = given["__pregel_checkpointer"].get_tuple(place)
    return found is not None and any(one == "results" for _, one, _ in found.pending_writes)


def build_branches(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    def left(state: Branches) -> Any:
        return {"results": ["left " * 20]}

    def right(state: Branches) -> Any:
        if calls.count("right") % 2 == 1:
            # LangGraph cancels what has not returned by then, and drops what is not stored yet:
            # how much that is depends on timing, with its own savers too.
            until(is_left_stored, "what left returned")
            raise ConnectionError("the far side is away")
        return {"results": ["right " * 20]}

    def last(state: Branches) -> Any:
        return {"text": str(len(state.get("results", [])))}

    builder = StateGraph(Branches)
    for node in (left, right):
        builder.add_node(node.__name__, noted(node, calls))
        builder.add_edge(START, node.__name__)
    builder.add_node("last", noted(last, calls), defer=True)
    builder.add_edge(["left", "right"], "last")
    return builder.compile(checkpointer=saver)


@story("a node that fails beside one that succeeds", build_branches)
def _failing() -> Script:
    for n in range(2):
        yield invoke({"count": n}, failing=ConnectionError)
        yield history(limit=1)
        yield invoke(None)


def build_fan_out(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    def plan(state: Branches) -> Any:
        return Command(
            update={"count": state.get("count", 0) + 1, "log": ["planned " * 20]},
            goto=[Send("part", {"n": n, "text": "p" * 80}) for n in state["items"]],
        )

    def part(given: Any) -> Any:
        calls.append(("part", given["n"]))
        if given["n"] < 0 and interrupt("negative?") == "skip":
            return None
        return {"results": [{"n": given["n"], "text": given["text"]}]}

    builder: Any = StateGraph(Branches)
    builder.add_node("plan", plan)
    builder.add_node("part", part)
    builder.add_edge(START, "plan")
    builder.add_edge("part", END)
    graph: Graph = builder.compile(checkpointer=saver)
    return graph


@story("a fan-out by Send, with questions in parallel", build_fan_out)
def _fan_out() -> Script:
    yield invoke({"items": [3, 1, 2]})
    yield invoke({"items": [5, -1, -2, 6]})
    found = yield Call("get_state", (), {}, None, None)
    yield invoke(Command(resume={found.interrupts[0].id: "skip"}))
    yield invoke(Command(resume={found.interrupts[1].id: "keep"}))


def build_router(saver: BaseCheckpointSaver[Any], calls: list[Any]) -> Graph:
    def route(state: Branches) -> Any:
        n = state.get("count", 0)
        return Command(update={"count": n + 1}, goto="route" if n < 3 else "stop")

    def stop(state: Branches) -> Any:
        return Command(update={"results": ["stopped"], "count": 0}, goto=END)

    builder = StateGraph(Branches)
    builder.add_node("route", noted(route, calls), destinations=("route", "stop"))
    builder.add_node("stop", noted(stop, calls))
    builder.add_edge(START, "route")
    return builder.compile(checkpointer=saver)


@story("a loop by Command", build_router)
def _router() -> Script:
    yield invoke({"text": "go"})
    yield invoke(Command(update={"text": "and go"}, goto="stop"))
    yield invoke({"text": "on"})
