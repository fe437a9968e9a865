"""`make demo`: an agent is killed with SIGKILL in the middle of its work and goes on.

1. A process answers a long question in ten steps. It is killed with SIGKILL, twice, at a random
   moment. Each time a new process continues the thread: no step that was stored runs again.
2. The same chat is stored by LangGraph's own SQLite saver and by perdure, side by side.

Everything is local: SQLite in a temporary folder, a scripted model.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

import perdure

STEPS = 10
THREAD: RunnableConfig = {"configurable": {"thread_id": "demo"}, "recursion_limit": 100}


def chat(saver: Any, pause: float = 0.0) -> Any:
    """A chat-like graph: a bot that works through its question one message at a time."""

    def bot(state: MessagesState) -> dict[str, Any]:
        number = len(state["messages"])
        time.sleep(pause)
        if pause:
            print(f"    step {number:2d} computed in process {os.getpid()}", flush=True)
        return {"messages": [AIMessage(f"Step {number}: {random_text(1000)}")]}

    def more(state: MessagesState) -> str:
        return "bot" if len(state["messages"]) <= STEPS else END

    builder = StateGraph(MessagesState).add_node("bot", bot)
    builder.add_edge(START, "bot").add_conditional_edges("bot", more)
    return builder.compile(checkpointer=saver)


def random_text(size: int) -> str:
    return os.urandom(size // 2).hex()


def worker(url: str) -> None:
    """One process: starts the thread, or goes on where the last one stopped."""
    with perdure.Saver(url) as saver:
        graph = chat(saver, pause=0.15)
        begun = graph.get_state(THREAD).values
        question = None if begun else {"messages": [("user", "Plan my year.")]}
        if begun:
            print(f"    found {len(begun['messages']) - 1} steps in the journal, going on")
        graph.invoke(question, THREAD)


def survive(url: str) -> None:
    print("1. One question, ten steps, three processes\n")
    for life in (1, 2, 3):
        print(f"  process {life} starts")
        child = subprocess.Popen([sys.executable, __file__, "worker", url])
        if life < 3:
            wait_for_steps(url, at_least=3 * life)
            time.sleep(int.from_bytes(os.urandom(1)) / 1000)  # anywhere within a step
            child.send_signal(signal.SIGKILL)
            child.wait()
            print("    ... killed with SIGKILL\n")
        elif child.wait() != 0:
            raise SystemExit("the last process failed")
    with perdure.Saver(url) as saver:
        messages = chat(saver).get_state(THREAD).values["messages"]
    steps = [message.content.split(":")[0] for message in messages[1:]]
    whole = steps == [f"Step {n}" for n in range(1, STEPS + 1)]
    print(f"\n  stored: {len(steps)} steps, in order, none twice: {whole}")
    print("  (a step that was computed but not stored when its process died was computed again)\n")
    if not whole:
        raise SystemExit(1)


def wait_for_steps(url: str, at_least: int) -> None:
    with perdure.Saver(url) as saver:
        graph = chat(saver)
        deadline = time.monotonic() + 60
        while len(graph.get_state(THREAD).values.get("messages", ())) <= at_least:
            if time.monotonic() > deadline:
                raise SystemExit("the worker makes no progress")
            time.sleep(0.02)


def compare(folder: Path, turns: int = 100) -> None:
    def bot(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(random_text(1000))]}

    builder = StateGraph(MessagesState).add_node("bot", bot).add_edge(START, "bot")
    print(f"2. A chat of {turns} turns, messages of 1 KB ({turns * 2} KB of text)\n")
    stock, ours = folder / "stock.db", folder / "perdure.db"
    savers: dict[str, tuple[Path, AbstractContextManager[Any]]] = {
        "LangGraph's SqliteSaver": (stock, SqliteSaver.from_conn_string(str(stock))),
        "perdure.Saver": (ours, perdure.Saver(f"sqlite:///{ours}")),
    }
    for name, (path, opened) in savers.items():
        begun = time.perf_counter()
        with opened as saver:
            graph = builder.compile(checkpointer=saver)
            for turn in range(turns):
                graph.invoke({"messages": [HumanMessage(random_text(1000))]}, THREAD)
                if sys.stdout.isatty():
                    print(f"\r  {name:24} turn {turn + 1}", end="", flush=True)
        seconds = time.perf_counter() - begun
        stored = sum(p.stat().st_size for p in path.parent.glob(f"{path.name}*"))
        print(
            "\r" * sys.stdout.isatty()
            + f"  {name:24} {stored / 1e6:8.2f} MB on disk, {seconds:6.2f} s"
        )
    print()


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        return worker(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        survive(f"sqlite:///{folder}/demo.db")
        compare(Path(folder))
    return None


if __name__ == "__main__":
    main()
