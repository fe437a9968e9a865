"""One process of a crowd on one journal.

Each of its threads talks on a thread of its own and on some that all processes share, every other
one as coroutines on an event loop of its own. It tells every checkpoint that was acknowledged, as
[thread, namespace, id, digest of its values], for the test to look for.
"""

import asyncio
import hashlib
import itertools
import operator
import os
import sys
import threading
from typing import Annotated, Any, Self, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from perdure import Saver
from tests.support.fork_server import Tell
from tests.support.scripts import Graph, plain

SHARED = 3
_numbers = itertools.count()


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[Any], operator.add]
    notes: dict[str, Any]


def digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(repr(sorted(plain(values)[1])).encode()).hexdigest()


class Telling(Saver):
    """Keeps a note of every checkpoint that was acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.told: list[tuple[str, str, str, str]] = []

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        values = digest(checkpoint["channel_values"])
        return self.note(super().put(config, checkpoint, metadata, new_versions), values)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        values = digest(checkpoint["channel_values"])
        return self.note(await super().aput(config, checkpoint, metadata, new_versions), values)

    def note(self, stored: RunnableConfig, values: str) -> RunnableConfig:
        where = stored["configurable"]
        place = where["thread_id"], where["checkpoint_ns"], where["checkpoint_id"]
        self.told.append((*place, values))
        return stored


def reply(state: State) -> Any:
    n = len(state["messages"])
    return {
        "messages": [AIMessage(f"reply {n} " * 10, id=new_id())],
        "notes": {"n": n, "text": "t" * 90},
    }


def log(state: State) -> Any:
    return {"log": [{"n": len(state["messages"]), "text": "l" * 90}]}


def build(saver: Saver) -> Graph:
    builder = StateGraph(State)
    builder.add_sequence([("reply", reply), ("log", log)])
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def on(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def say(text: str) -> Any:
    return {"messages": [HumanMessage(text, id=new_id())]}


def new_id() -> str:
    """Given at once: LangGraph gives a message its id in place, maybe while it is stored."""
    return f"id {next(_numbers)} {os.getpid()}"


def lines(number: int, thread: int, turns: int) -> list[tuple[str, str]]:
    """What is said where, in order."""
    own = f"own {number} {thread}"
    said = []
    for turn in range(turns):
        said.append((own, f"turn {turn}"))
        said.append((f"shared {(number + thread + turn) % SHARED}", f"{own} turn {turn}"))
    return said


async def atalk(graph: Graph, said: list[tuple[str, str]]) -> None:
    for thread_id, text in said:
        await graph.ainvoke(say(text), on(thread_id))


def talk(graph: Graph, said: list[tuple[str, str]], as_coroutines: bool) -> None:
    if as_coroutines:
        asyncio.run(atalk(graph, said))
        return
    for thread_id, text in said:
        graph.invoke(say(text), on(thread_id))


def crowd(saver: Telling, number: int, threads: int, turns: int) -> list[BaseException]:
    """Talk on all threads at once; what went wrong is given back."""
    graph = build(saver)
    errors: list[BaseException] = []

    def run(thread: int) -> None:
        try:
            talk(graph, lines(number, thread, turns), thread % 2 == 1)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=[thread]) for thread in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    saver.flush()
    return errors


def play(order: dict[str, Any], tell: Tell) -> None:
    """One process of many: tells what was acknowledged."""
    with Telling(order["url"]) as saver:
        errors = crowd(saver, order["number"], order["threads"], order["turns"])
    for line in saver.told:
        tell(*line)
    if errors:
        raise errors[0]


# -- A process that forks after its saver was used: `python -m tests.contract.crowd <url>
# <how>`.


def main(url: str, how: str) -> None:
    saver = Saver(url, "async")
    graph = build(saver)
    for n in range(3):
        graph.invoke(say(f"before {n}"), on("known"))
    child = os.fork()  # some of it may still be queued: that is the parent's to commit
    name = "parent" if child else "child"
    for n in range(3):
        graph.invoke(say(f"{name} {n}"), on(name))
        assert len(graph.get_state(on(name)).values["messages"]) == 2 * (n + 1)
    if child == 0:
        assert len(graph.get_state(on("known")).values["messages"]) <= 6
        saver.flush()
        if how == "_exit":
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    for n in range(3):
        graph.invoke(say(f"after {n}"), on("known"))
    saver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
