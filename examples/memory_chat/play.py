"""`python -m examples.memory_chat`: a chat agent is killed with SIGKILL, and remembers.

The same agent with LangMem's own executor runs next to it. The agent and its store are the same;
only the queue of reflections differs: in memory, or in the file. Exit code 0: it remembers.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import langmem
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from langmem import create_memory_store_manager
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from examples.memory_chat.agent import NAMESPACE, build, open_chat, say
from examples.memory_chat.model import ScriptedModel

USER = "ana"
MONDAY = ["Hi, my name is Ana!", "I am allergic to peanuts.", "And last week I moved to Lisbon."]
TUESDAY = "What do you know about me?"
WHO = ("LangMem's executor", "perdure's executor")


@dataclass(frozen=True)
class Setting:
    """The settings of a chat process."""

    path: str
    rest: float
    """Seconds a conversation rests before the agent reflects on it."""
    stock: bool = False
    """Use LangMem's own executor."""

    def open(self) -> AbstractContextManager[tuple[Any, Any]]:
        return (_open_stock if self.stock else open_chat)(self.path, ScriptedModel(), self.rest)


@contextmanager
def _open_stock(path: str, model: Any, rest: float) -> Iterator[tuple[Any, Any]]:
    """Like `agent.open_chat`, with LangMem's executor and LangGraph's saver."""
    with (
        SqliteStore.from_conn_string(path) as store,
        SqliteSaver.from_conn_string(f"{path}.checkpoints") as saver,
    ):
        store.setup()
        manager = create_memory_store_manager(model, namespace=NAMESPACE, store=store)
        executor = CountingExecutor(langmem.ReflectionExecutor(manager, store=store))
        yield build(model, executor, rest).compile(checkpointer=saver, store=store), executor


class CountingExecutor:
    """LangMem's executor with a `pending` method, which it lacks."""

    def __init__(self, executor: Any) -> None:
        self._executor, self.search = executor, executor.search
        self._futures: list[Any] = []

    def submit(self, payload: Any, **options: Any) -> Any:
        self._futures.append(self._executor.submit(payload, **options))
        return self._futures[-1]

    def pending(self) -> list[Any]:
        return [future for future in self._futures if not future.done()]


def _live(setting: Setting, connection: Connection) -> None:
    """The main function of a process: it serves requests until it is killed."""
    with setting.open() as (chat, executor):
        while True:
            match connection.recv():
                case "pending":
                    connection.send(len(executor.pending()))
                case "memories":
                    found = executor.search(namespace=("memories", USER), limit=100)
                    connection.send(sorted(one["value"]["content"]["content"] for one in found))
                case (conversation, text):
                    connection.send(say(chat, USER, conversation, text))


class Process:
    """A chat process."""

    def __init__(self, setting: Setting) -> None:
        self._end, its_end = multiprocessing.Pipe()
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__])  # so a process starts at once
        self._process = processes.Process(target=_live, args=(setting, its_end), daemon=True)
        self._process.start()
        its_end.close()
        self.pending: int = self._ask("pending")
        """Number of reflections it found at start-up."""

    def say(self, conversation: str, text: str) -> str:
        return str(self._ask((conversation, text)))

    def count_pending(self) -> int:
        return int(self._ask("pending"))

    def memories(self) -> list[str]:
        return list(self._ask("memories"))

    def wait_until_rested(self, until: float, deadline: float = 30.0) -> None:
        """Wait until that time, and until no reflection is pending."""
        over = time.monotonic() + deadline
        while time.monotonic() < until or self.count_pending():
            if time.monotonic() > over:
                raise TimeoutError(f"A reflection is still pending after {deadline:g} s.")
            time.sleep(0.05)

    def kill(self) -> int | None:
        """Kill it with SIGKILL and return its exit code."""
        self._process.kill()
        self._process.join()
        return self._process.exitcode

    def _ask(self, what: Any) -> Any:
        self._end.send(what)
        return self._end.recv()


# -- on the screen


def play(console: Console, folder: Path, rest: float) -> int:
    """Play the same conversation with both agents."""
    settings = [
        Setting(f"{folder}/langmem.db", rest, stock=True),
        Setting(f"{folder}/perdure.db", rest),
    ]
    agents = [Process(setting) for setting in settings]
    console.print("  [bold]Monday[/]")
    for text in MONDAY:
        _show_answers(console, agents, "monday", text)
        time.sleep(0.4)
    due = time.monotonic() + rest
    before = [agent.count_pending() for agent in agents]
    for agent in agents:
        agent.kill()
    console.print("  [red]✗ both killed with SIGKILL[/]\n\n  [bold]Tuesday[/]")

    agents = [Process(setting) for setting in settings]
    after = [agent.pending for agent in agents]
    for agent in agents:
        agent.wait_until_rested(due + 0.5)
    memories = [agent.memories() for agent in agents]
    _show_answers(console, agents, "tuesday", TUESDAY)
    for agent in agents:
        agent.kill()

    table = Table.grid(padding=(0, 3))
    for style in ("bold", "", ""):
        table.add_column(style=style, justify="left" if style else "right")
    table.add_row("", *(f"[bold]{who}[/]" for who in WHO))
    table.add_row("Messages", *[str(len(MONDAY))] * 2)
    table.add_row("Reflections pending at the kill", *map(str, before))
    table.add_row("  found by the next process", *map(str, after))
    table.add_row("Memories made of them", *(str(len(found)) for found in memories))
    verdicts = ("remembers" if found else "has forgotten" for found in memories)
    table.add_row("On Tuesday the agent", *verdicts)
    console.print(Padding(table, (1, 2)))
    return 0 if memories[1] else 1


def _show_answers(console: Console, agents: list[Process], conversation: str, text: str) -> None:
    """Send a message to both agents, and show what each answers."""
    console.print(f"  [cyan]Ana: {text}[/]")
    for who, agent in zip(WHO, agents, strict=True):
        console.print(f"    [dim]{who}:[/] {agent.say(conversation, text)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.memory_chat", description=__doc__)
    parser.add_argument("--rest", type=float, default=2.0, help="seconds before it reflects")
    parser.add_argument("--folder", type=Path, help="folder for the database files")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="perdure-memory-"))
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    console.print("\n[bold]A chat agent[/] makes memories of its conversations, in the background,")
    console.print(f"when they have rested for {options.rest:g} s. It is killed before that.\n")
    return play(console, folder, options.rest)
