"""More of `tests.support.stories`: going back, stopping, the functional API, branches."""

import operator
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, StateUpdate, interrupt

from tests.support.polling import until
from tests.support.scripts import Call, Graph, Script, bulk_update, history, invoke, update
from tests.support.stories import State, answer, chain, look, noted, say, story, work

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
    return any(channel == "results" for _, channel, _ in found.pending_writes)


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
