"""LangGraph's `BaseCheckpointSaver` on the journal.

Each method is written once, as a plan that yields operations and gets their results back; the
blocking methods and the coroutines only differ in how they run it. What they wait for is decided
by `perdure.checkpoint.writer`.
"""

from __future__ import annotations

import functools
import os
import secrets
import threading
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from perdure.checkpoint.cache import CheckpointCache
from perdure.checkpoint.pruner import Pruner
from perdure.checkpoint.raised_interrupts import RaisedInterrupts
from perdure.checkpoint.reader import Reader, Search, without_command_answer
from perdure.checkpoint.rows import checkpoint_at, configurable, key_of
from perdure.checkpoint.writer import Put, Writer
from perdure.commands import events
from perdure.context_managed import ContextManaged
from perdure.errors import BadArgument, BadURL, Error, WentBack
from perdure.execution.segment import segment_of
from perdure.journal import Journal, Plan, connect_later
from perdure.journal.clock import JournalClock
from perdure.journal.committer import QueuedOperation
from perdure.langgraph_port import compiled_graphs, configs, task_interrupts
from perdure.serde.redaction import Redaction
from perdure.serde.serializer import Serializer
from perdure.types import Durability


class Saver(ContextManaged, BaseCheckpointSaver[Any]):
    """A LangGraph checkpointer on a journal: ordered, incremental, and safe to load.

    When a checkpoint is on disk, everything that was put before it is on disk too, including the
    writes of the same step. You can use it with LangGraph alone, without a runtime: effects and
    waits still work, and the caller resumes the graph. One saver serves any number of threads and
    event loops; create one per process.

        with Saver("sqlite:///agents.db") as saver:
            graph = builder.compile(checkpointer=saver)

    A killed process leaves the complete state of a step, with the results of every task that had
    finished. The journal is opened on first use, and closed by `close`, by leaving a `with` block,
    or at exit.

    Args:
        url: The journal: `sqlite:///agents.db`, `sqlite:///:memory:`, `postgresql://…` or `d1://…`.
            By default the value of `PERDURE_URL`.
        durability: When checkpoints are on disk. `auto` waits when a run hands control back: at its
            last checkpoint, an interrupt or an error. `sync` waits at each checkpoint, `async`
            never. `exit` waits as `auto` does, and writes about once a second in between.
        allow: Your own types that may be stored and loaded, besides those in the graphs'
            schemas, as classes or as `(module, qualified name)`.
        encryption_keys: Keys by id, each 16, 24 or 32 bytes: the first one encrypts, all of them
            decrypt. By default nothing is encrypted. Needs the extra `encryption`.
        max_bytes: Maximum size in bytes of the state of one checkpoint.
        cache_bytes: How much memory to use for recent states, to save loading them.
        journal: An open journal to use instead of `url`, or a function that opens one. A journal
            that you pass is not closed by the saver.
        redact: Keys and patterns that are never written to the journal.

    Raises:
        BadArgument: An argument is not valid.
        BadURL: Both `url` and `journal` are passed.
    """

    def __init__(
        self,
        url: str | None = None,
        durability: Durability = "auto",
        *,
        allow: Iterable[type | tuple[str, ...]] = (),
        encryption_keys: Mapping[str, bytes] | None = None,
        max_bytes: int = 256 * 1024 * 1024,
        cache_bytes: int = 64 * 1024 * 1024,
        journal: Journal | Callable[[], Journal] | None = None,
        redact: Redaction | None = None,
    ) -> None:
        if durability not in ("auto", "sync", "async", "exit"):
            raise BadArgument(f"durability={durability!r}: use 'auto', 'sync', 'async' or 'exit'.")
        if url is not None and journal is not None:
            raise BadURL("Give the saver a url or a journal, not both.")
        self.durability = durability
        self._connect = journal if callable(journal) else lambda: connect_later(url)
        self._journal: Journal | None = None
        self.serializer = Serializer(allow, redact, encryption_keys, max_bytes)
        self._own_journal = journal is None or callable(journal)
        if journal is not None and not callable(journal):
            self._use(journal)
        self._cache_bytes = cache_bytes
        self.start_afresh()
        _SAVERS.add(self)
        super().__init__(serde=_Serde(self.serializer))

    def start_afresh(self) -> None:
        """Make the state that belongs to this process alone. Internal."""
        self._opening = threading.Lock()
        self.cache = cache = CheckpointCache(1024, self._cache_bytes)
        self.raised = RaisedInterrupts()
        self._writer = Writer(self.durability, self.serializer, cache, self.raised)
        self.reader = Reader(self.serializer, cache)

    @property
    def pruner(self) -> Pruner:
        """Plans that delete and copy checkpoints. Internal."""
        return Pruner(self.serializer, self.cache, self.journal.capabilities)

    # -- opening and closing

    @functools.cached_property
    def journal(self) -> Journal:
        """The journal of this saver. The first use opens it; `setup` opens it now."""
        with self._opening:
            return self._use(self._connect()) if self._journal is None else self._journal

    def _use(self, journal: Journal) -> Journal:
        limits = journal.capabilities
        self.serializer.keep_to(limits.largest_blob, limits.bytes_per_batch)
        self._journal = journal
        journal.acknowledged.listeners.append(self._note_losses)
        return journal

    def _note_losses(self, error: WentBack) -> None:
        """The database went back in time: what this process knew of it is void."""
        self.cache.clear()
        for op in events.store_losses(self.serializer, error, round(time.time() * 1000)):
            self.journal.defer(op)

    @property
    def is_open(self) -> bool:
        """Whether the journal is open. Reading this does not open it."""
        return self._journal is not None and self._journal.is_open

    def flush(self) -> None:
        """Wait until everything that was put so far is on disk.

        Raises:
            Unavailable: The database did not answer in time. What is queued stays queued, and is
                tried again every second.
            WriteLost: The database refused what was queued, for good.
        """
        self.journal.flush()

    async def aflush(self) -> None:
        """`flush`, without blocking the event loop."""
        await self.journal.aflush()

    def close(self) -> None:
        """Commit what is queued and close the journal, unless it was passed to the saver.

        `setup`, or another `with` block, opens it again.
        """
        if self._journal is not None:
            if self._own_journal:
                self._journal.close()
            else:
                self._journal.flush()

    def setup(self) -> None:
        """Open the journal and bring its schema up to date now, instead of on first use.

        After `close` it opens the journal again.

        Raises:
            BadURL: The URL is not valid, or the database cannot be used.
            SchemaTooNew: A newer perdure has upgraded the journal.
            Unavailable: The database does not answer within 30 seconds.
        """
        if self._own_journal:
            self.journal.setup()
        else:
            self.journal.open()

    # -- LangGraph's interface

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint of a config, or the latest of its thread, with its pending writes.

        Args:
            config: LangGraph's config, with `thread_id` and perhaps `checkpoint_id` and
                `checkpoint_ns` in `configurable`.

        Returns:
            The checkpoint, or `None` if it does not exist.

        Raises:
            Damaged: A row of the checkpoint is damaged.
            WrongKey: A row is encrypted with a key that this saver does not have, or is not
                encrypted.
            TypeNotAllowed: The state has a type that is not allowed.
        """
        plan, flush = self._get_tuple(config)
        return self.journal.run(plan, flush=flush)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, without blocking the event loop."""
        plan, flush = self._get_tuple(config)
        return await self.journal.arun(plan, flush=flush)

    def _get_tuple(self, config: RunnableConfig) -> tuple[Plan[CheckpointTuple | None], bool]:
        """The plan of `get_tuple`, and whether it must see what is queued.

        A segment that has written nothing has nothing in the queue: the worker that drove its
        thread before released it, and waited until that was on disk.
        """
        key, segment = key_of(config), segment_of(config["configurable"])
        untouched = blank = False
        if segment is not None:
            untouched = not segment.progress.has_written
            blank = untouched and not (key.id or segment.row.has_checkpoints)
        running = configs.is_graph_run(config["configurable"])
        plan = self.reader.get_tuple(key, running, blank)
        if segment is not None and not segment.keeps_resume:
            plan = without_command_answer(plan)
        return plan, not untouched

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all threads, newest first, page by page.

        Args:
            config: LangGraph's config with the thread. `None` lists all threads.
            filter: Keys and values that the checkpoint's metadata must have. Metadata is compared
                after decoding.
            before: The config of a checkpoint; only older ones are listed.
            limit: Maximum number of checkpoints.
        """
        search: Search | None = Search.of(config, filter, before, limit)
        while search is not None:
            found, search = self.journal.run(self.reader.page(search))
            yield from found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, without blocking the event loop."""
        search: Search | None = Search.of(config, filter, before, limit)
        while search is not None:
            found, search = await self.journal.arun(self.reader.page(search))
            for one in found:
                yield one

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. `durability` decides whether this waits until it is on disk.

        LangGraph calls it.

        Args:
            config: The config of the parent checkpoint.
            checkpoint: The checkpoint.
            metadata: Its metadata.
            new_versions: The channels that changed, with their versions.

        Returns:
            The config of the stored checkpoint.

        Raises:
            Unserializable: A value cannot be stored; the message names the channel and the path
                inside it.
            TypeNotAllowed: A value has a type that is not allowed.
            TooLarge: The state is larger than `max_bytes`, or than the database takes.
        """
        key, segment = key_of(config), segment_of(config["configurable"])
        put = Put(key, segment, config, checkpoint, metadata, new_versions)
        if queued := self._writer.put(self.journal, put, blocking=True):
            self.journal.wait(queued)
        return configurable(*key[:2], checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, without blocking the event loop."""
        key, segment = key_of(config), segment_of(config["configurable"])
        put = Put(key, segment, config, checkpoint, metadata, new_versions)
        if queued := self._writer.put(self.journal, put, blocking=False):
            await self.journal.await_(queued)
        return configurable(*key[:2], checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task returned. Interrupts and errors are on disk when this returns.

        LangGraph calls it.

        Args:
            config: The config of the checkpoint that the task started from.
            writes: The channels and values that the task wrote.
            task_id: The id of the task.
            task_path: The path of the task in its graph.
        """
        if queued := self._writer.put_writes(self.journal, config, writes, task_id, task_path):
            self.journal.wait(queued)

    def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> Coroutine[Any, Any, None]:
        """`put_writes`, without blocking the event loop."""
        # Not a coroutine function: LangGraph calls it when the task ends and runs what it
        # returns later, when the checkpoint may already be there. So it is queued now.
        try:
            queued = self._writer.put_writes(self.journal, config, writes, task_id, task_path)
        except BaseException as error:  # LeaseLost too: raised here, asyncio would print it
            return _raise(error)
        return self._await(queued)

    async def _await(self, queued: QueuedOperation[None] | None) -> None:
        if queued is not None:
            await self.journal.await_(queued)

    def restore(self, found: CheckpointTuple) -> None:
        """Queue a checkpoint of another saver. Internal."""
        thread_id, ns, _ = key_of(found.config)
        parent = (found.parent_config or {"configurable": {}})["configurable"].get("checkpoint_id")
        config = configurable(thread_id, ns, parent or "")
        checkpoint, versions = found.checkpoint, found.checkpoint["channel_versions"]
        put = Put(key_of(config), None, config, checkpoint, found.metadata, versions)
        if queued := self._writer.put(self.journal, put, blocking=False):
            self.journal.wait(queued)

    def delete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints of a thread, with their values, writes and effects.

        A process that dies in the middle leaves the thread intact. On D1 the thread may already be
        gone, with unreferenced rows left behind. Effects with a business key stay. To delete
        everything about a thread, use `Runtime.erase`.

        Args:
            thread_id: The thread.
        """
        self.journal.run(self.pruner.delete_thread(str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, without blocking the event loop."""
        await self.journal.arun(self.pruner.delete_thread(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs made, except data that remaining checkpoints need.

        Args:
            run_ids: The ids of the runs, as LangGraph stores them in the metadata of checkpoints.
        """
        self.journal.run(self.pruner.delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, without blocking the event loop."""
        await self.journal.arun(self.pruner.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the checkpoints of a thread to another thread: all of them, or none.

        Args:
            source_thread_id: The thread to copy.
            target_thread_id: The thread to copy it to.

        Raises:
            Unsupported: The thread has more checkpoints than one transaction of this database can
                hold (on D1). Nothing was written: prune it first.
        """
        self.journal.run(self.pruner.copy_thread(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, without blocking the event loop."""
        await self.journal.arun(self.pruner.copy_thread(source_thread_id, target_thread_id))

    def prune(
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        older_than: timedelta | None = None,
    ) -> None:
        """Delete old checkpoints of threads, but never data that remaining checkpoints need.

            saver.prune(older_than=timedelta(days=30))  # all threads

        A process that dies in the middle leaves fewer checkpoints, all of them readable.

        Args:
            thread_ids: The threads. Without them all threads are pruned, which requires
                `older_than`.
            strategy: `keep_latest` keeps the newest checkpoint of each namespace; `delete` keeps
                none.
            older_than: Delete only checkpoints older than this.

        Raises:
            Error: The strategy is unknown, or neither threads nor an age is given.
        """
        self.journal.run(self.pruner.prune(thread_ids, strategy, older_than))

    async def aprune(
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        older_than: timedelta | None = None,
    ) -> None:
        """`prune`, without blocking the event loop."""
        await self.journal.arun(self.pruner.prune(thread_ids, strategy, older_than))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes that LangGraph rebuilds its `DeltaChannel`s from. LangGraph calls it.

        Args:
            config: The config of a checkpoint.
            channels: The names of the channels.
        """
        return self.journal.run(self.reader.delta_history(key_of(config), channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, without blocking the event loop."""
        return await self.journal.arun(self.reader.delta_history(key_of(config), channels))

    def has(self, thread_id: str, ns: str, checkpoint_id: str) -> Plan[bool]:
        """Whether a checkpoint is stored, or queued before anything queued from now on. Internal.

        Raises `WaitCaught` if it never will be, because a node before it caught its interrupt.
        """
        thread = self.cache.get(thread_id, ns)
        with thread.changed:
            for step in thread.steps.values():
                for error in step.caught.values():
                    raise error
            if thread.latest is not None and thread.latest.id == checkpoint_id:
                return True
        found, _ = yield checkpoint_at(thread_id, ns, checkpoint_id)
        return found is not None

    @functools.cached_property
    def clock(self) -> JournalClock:
        """The journal's clock."""
        return JournalClock(self.journal)

    def with_allowlist(self, extra_allowlist: Iterable[tuple[str, ...]]) -> Saver:
        """Allow more types. LangGraph calls it with the types of a graph's schemas.

        Args:
            extra_allowlist: The types, as `(module, qualified name)`.

        Returns:
            This saver.
        """
        self.serializer.allowlist.add(extra_allowlist)
        return self

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version after `current`, of the same kind: a number or a string.

        LangGraph passes the highest version of a checkpoint, so a thread keeps the kind it began
        with. This saver's versions are integers; threads copied from other savers have strings.

        Args:
            current: The version, or `None` for the first.
            channel: Not used.

        Raises:
            Error: A string does not begin with a number.
        """
        if not isinstance(current, str):
            return (current or 0) + 1
        count, _, _ = current.partition(".")
        if not (count.isascii() and count.isdigit()):
            raise Error(
                f"Channel version {current!r} does not begin with a number, so it has no next one. "
                "Start a new thread with the values of this one."
            )
        # As LangGraph's savers write it: padded to sort as text, and random behind the point, so
        # that two forks of a checkpoint never share a version.
        return f"{int(count) + 1:0{len(count)}}.{secrets.randbits(53) / 2**53:016}"


_SAVERS: WeakSet[Saver] = WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held a lock of a thread.
    for saver in list(_SAVERS):
        saver.start_afresh()


os.register_at_fork(after_in_child=_after_fork)


class _Serde:
    """LangGraph's serializer interface, for code that asks a saver for its `serde`."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "perdure", self._serializer.encode(obj, "value")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if data[0] != "perdure":
            raise Error(f"A value serialized as {data[0]!r} is not perdure's and is not loaded.")
        return self._serializer.decode(data[1], "value")


# Now, and not when a saver is made: a subgraph may be compiled before that.
compiled_graphs.ask_graphs_for_their_types(load=True)


def _note_interrupt(interrupts: Sequence[Any]) -> None:
    config = configs.current_configurable()
    saver = configs.checkpointer_of(config)
    if isinstance(saver, Saver) and configs.is_in_task(config):
        if (segment := segment_of(config)) is not None:
            segment.check_answerable(config)
        saver.raised.note(config, interrupts)


task_interrupts.watch_interrupts(_note_interrupt)


async def _raise(error: BaseException) -> None:
    raise error
