"""The chat in its own process, which is killed with SIGKILL, with either executor.

The agent and its store are the same. Only the queue of reflections differs: in memory, or in the
file.
"""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import langmem
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from langmem import create_memory_store_manager

from examples.memory_chat.agent import NAMESPACE, build, open_chat, say
from examples.memory_chat.model import model_named

USER = "ana"


@dataclass(frozen=True)
class Setting:
    """The settings of a chat process."""

    path: str
    rest: float
    """Seconds a conversation rests before the agent reflects on it."""
    model: str = "scripted"
    stock: bool = False
    """Use LangMem's own executor."""

    def open(self) -> AbstractContextManager[tuple[Any, Any]]:
        model = model_named(self.model)
        return (_open_stock if self.stock else open_chat)(self.path, model, self.rest)


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
        self._process = processes().Process(target=_live, args=(setting, its_end), daemon=True)
        self._process.start()
        its_end.close()
        self.pending: int = self._ask("pending")
        """Number of reflections it found at start-up."""

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def say(self, conversation: str, text: str) -> str:
        return str(self._ask((conversation, text)))

    def count_pending(self) -> int:
        return int(self._ask("pending"))

    def memories(self) -> list[str]:
        found: list[str] = self._ask("memories")
        return found

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


def processes() -> ForkServerContext:
    """Return a context whose processes have imported everything, so they start at once."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["__main__", "examples.memory_chat.play"])
    return made
