"""Small graphs and what is done with them: each behaviour of LangGraph that a saver carries.

Messages have ids of their own, so that two plays of a story can be compared.
"""

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Overwrite

from tests.support.scripts import Graph, Script, Story, invoke

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
