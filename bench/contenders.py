"""Who is measured: a name, how a saver is opened and waited for, and the durability.

A contender never knows what it is measured at, a measurement never knows whom it measures.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import perdure as ours
from bench.agents import Saver, on
from bench.databases import Kind, sqlite_path

Opened: TypeAlias = AbstractContextManager[Saver | None]
AsyncOpened: TypeAlias = AbstractAsyncContextManager[Saver | None]
Durability: TypeAlias = Literal["sync", "async"]


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    maker: Literal["none", "stock", "perdure"]
    open: Callable[[str], Opened]
    """A saver on the database of that URL, ready to use; nothing of it is cached from before."""
    aopen: Callable[[str], AsyncOpened]
    database: Kind | None = None
    durability: Durability | None = None
    """LangGraph's argument; None leaves its default, which is `async`."""

    @property
    def told(self) -> dict[str, Any]:
        """The keyword arguments of every invoke."""
        return {"durability": self.durability} if self.durability else {}


def no_checkpointer() -> Contender:
    return Contender(
        "no checkpointer", "none", lambda url: nullcontext(None), lambda url: nullcontext(None)
    )


class _StoresNothing(BaseCheckpointSaver[int]):
    def get_tuple(self, config: RunnableConfig) -> None:
        return None

    def put(self, config: RunnableConfig, *_: Any) -> RunnableConfig:
        return config

    def put_writes(self, *_: Any, **__: Any) -> None:
        pass

    async def aget_tuple(self, config: RunnableConfig) -> None:
        return None

    async def aput(self, config: RunnableConfig, *_: Any) -> RunnableConfig:
        return config

    async def aput_writes(self, *_: Any, **__: Any) -> None:
        pass


def stores_nothing() -> Contender:
    """What LangGraph's own work for any checkpointer costs: the floor for every other saver."""

    def fresh(url: str) -> nullcontext[Saver | None]:
        return nullcontext(_StoresNothing())

    return Contender("stores nothing", "none", fresh, fresh)


class _OnlySyncs(_StoresNothing):
    """The least a durable saver can do for a checkpoint: write a page to a file and fsync it."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file

    def put(self, config: RunnableConfig, *_: Any) -> RunnableConfig:
        os.pwrite(self._file, b"x" * 4096, 0)
        os.fsync(self._file)
        return config

    async def aput(self, config: RunnableConfig, *_: Any) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config)


def only_syncs() -> Contender:
    """With `sync`: what nobody who waits for the disk at every step can go below."""

    @contextmanager
    def opened(url: str) -> Iterator[Saver | None]:
        with tempfile.NamedTemporaryFile() as file:
            yield _OnlySyncs(file.fileno())

    @asynccontextmanager
    async def aopened(url: str) -> AsyncIterator[Saver | None]:
        with opened(url) as saver:
            yield saver

    return Contender("one fsync sync", "none", opened, aopened, durability="sync")


def stock_sqlite(durability: Durability) -> Contender:
    return Contender(
        f"stock SQLite {durability}",
        "stock",
        lambda url: SqliteSaver.from_conn_string(sqlite_path(url)),
        lambda url: AsyncSqliteSaver.from_conn_string(sqlite_path(url)),
        "sqlite",
        durability,
    )


def stock_postgres(durability: Durability) -> Contender:
    name = f"stock PostgreSQL {durability}"
    return Contender(name, "stock", _postgres_saver, _async_postgres_saver, "postgres", durability)


def perdure(database: Kind, durability: Literal["auto", "sync", "exit"]) -> Contender:
    def opened(url: str) -> Any:
        return ours.Saver(url, durability=durability)

    label = {"sqlite": "SQLite", "postgres": "PostgreSQL"}[database]
    told: Durability | None = "sync" if durability == "sync" else None
    return Contender(f"perdure {label} {durability}", "perdure", opened, opened, database, told)


@contextmanager
def _postgres_saver(url: str) -> Iterator[Saver]:
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def _async_postgres_saver(url: str) -> AsyncIterator[Saver]:
    async with AsyncPostgresSaver.from_conn_string(url) as saver:
        await saver.setup()
        yield saver


def ready(saver: Saver | None) -> None:
    """Connections, tables and migrations are there afterwards, nothing of a real thread."""
    if saver is not None:
        saver.get_tuple(on("nobody"))


async def aready(saver: Saver | None) -> None:
    if saver is not None:
        await saver.aget_tuple(on("nobody"))


def settle(saver: Saver | None) -> None:
    """Wait until everything put so far is durable. The stock savers are at that point already."""
    if isinstance(saver, ours.Saver):
        saver.flush()


async def asettle(saver: Saver | None) -> None:
    if isinstance(saver, ours.Saver):
        await saver.aflush()


def stored_values(who: Contender, url: str, thread: str) -> dict[str, Any]:
    """What a fresh saver finds in the database: whoever lost something must not win."""
    with who.open(url) as saver:
        found = saver.get_tuple(on(thread)) if saver is not None else None
    assert found is not None, f"{who.name} does not find its thread {thread} again"
    return found.checkpoint["channel_values"]
