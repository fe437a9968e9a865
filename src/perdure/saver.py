"""LangGraph's `BaseCheckpointSaver` on the journal.

Each method is written once, as a plan that yields operations and gets their results back; the
blocking methods and the coroutines only differ in who drives it. What is waited for until it is
on disk is decided by `durability`:

    sync    every checkpoint
    auto    the checkpoint after which the run hands control back (nothing more is triggered),
            an interrupt and an error; the others ride along, and at most 20 ms later they are
            committed anyway. Anything that leaves the process waits for all before it.
    async   nothing; committed within 20 ms
    exit    like auto, and between two such points it is committed about once a second

A caller that passes LangGraph's own `durability="sync"` gets `sync` for that call.
"""

from __future__ import annotations

import functools
import os
import threading
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
from typing import Any, TypeVar
from weakref import WeakSet

import langgraph._internal._serde  # noqa: F401 (the switch for ask_graphs_for_their_types)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from perdure.checkpoint.cache import Lanes
from perdure.checkpoint.config import (
    config_of,
    hands_back,
    is_blank,
    is_running,
    is_untouched,
    place_of,
    segment_of,
    texts,
)
from perdure.checkpoint.operations import checkpoint_at
from perdure.checkpoint.pruner import Pruner
from perdure.checkpoint.reader import Reader, Search
from perdure.checkpoint.row_format import Rows
from perdure.checkpoint.writer import Writer
from perdure.context_managed import ContextManaged
from perdure.errors import BadArgument, BadURL, Error
from perdure.journal import Journal, Plan, connect
from perdure.journal.clock import JournalClock
from perdure.journal.committer import Ticket
from perdure.journal.names import check_renamed, check_text
from perdure.segments.segment import Segment
from perdure.serde.allowlist import ask_graphs_for_their_types
from perdure.serde.codec import Codec
from perdure.serde.encryption import ChecksumEnvelope, EncryptedEnvelope
from perdure.serde.serializer import Serializer, scrub
from perdure.types import Durability

T = TypeVar("T")

ERROR_SOURCE = "__error_source_node__"
"""LangGraph's note of the node whose error a handler is to see."""


class Saver(ContextManaged, BaseCheckpointSaver[int]):
    """Checkpoints in a journal: smaller, faster, ordered, safe to load.

    `url` is `sqlite:///path`, `sqlite:///:memory:` or `postgresql://…`; `PERDURE_URL` by
    default. It opens on first use, and closes as a context manager, by `close()` or at exit.
    Use one saver from any number of threads and event loops, and one per process.

    `allow` adds types to those that the graph's schemas allow to be stored and loaded.
    `encryption_keys` turns on encryption: {id: 16, 24 or 32 bytes}; the first is used for writing,
    all for reading. `max_bytes` bounds the state of one checkpoint, `cache_bytes` the memory used
    to spare the next load. `journal` is an open journal to use instead of `url`, or a function that
    opens one.

        with Saver("sqlite:///agents.db") as saver:
            graph = builder.compile(checkpointer=saver)
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
        keys: None = None,
    ) -> None:
        check_renamed("keys", "encryption_keys", keys)
        if durability not in ("auto", "sync", "async", "exit"):
            raise BadArgument(f"durability={durability!r}: use 'auto', 'sync', 'async' or 'exit'.")
        if url is not None and journal is not None:
            raise BadURL("Give the saver a url or a journal, not both.")
        self.durability = durability
        self._connect = journal if callable(journal) else lambda: connect(url)
        self._journal = None if callable(journal) else journal
        self._own_journal = self._journal is None
        self._codec = Codec(allow)
        self._rows = Rows(
            self._codec,
            ChecksumEnvelope() if encryption_keys is None else EncryptedEnvelope(encryption_keys),
        )
        self._limits = max_bytes, cache_bytes
        self._start_afresh()
        _SAVERS.add(self)
        super().__init__(serde=_Serde(self._codec))

    def _start_afresh(self) -> None:
        """State that belongs to this process alone."""
        max_bytes, cache_bytes = self._limits
        self._opening = threading.Lock()
        self._lanes = lanes = Lanes(1024, cache_bytes)
        self._writer = Writer(self._rows, lanes, max_bytes)
        self.reader = Reader(self._rows, lanes)
        self.pruner = Pruner(self._rows, lanes)

    # -- opening and closing

    @property
    def journal(self) -> Journal:
        """The journal under this saver, opened now if it was not yet."""
        if self._journal is None:
            with self._opening:
                if self._journal is None:
                    self._journal = self._connect()
        return self._journal

    @property
    def is_open(self) -> bool:
        """Whether the journal has been opened."""
        return self._journal is not None

    def flush(self) -> None:
        """Wait until everything put so far is durable."""
        self.journal.flush()

    async def aflush(self) -> None:
        """`flush` without blocking the event loop."""
        await self.journal.aflush()

    def close(self) -> None:
        """Commit what is queued and close the journal, unless it was given from outside."""
        if self._journal is not None:
            if self._own_journal:
                self._journal.close()
            else:
                self._journal.flush()

    def setup(self) -> None:
        """Open the database and bring its schema up to date now instead of on first use."""
        _ = self.journal

    # -- LangGraph's interface: who drives

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A checkpoint by its config, the latest of the thread by default."""
        if is_blank(config):
            return None
        plan = self.reader.get_tuple(place_of(config), is_running(config))
        return self.journal.run(plan, peek=is_untouched(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` without blocking the event loop."""
        if is_blank(config):
            return None
        plan = self.reader.get_tuple(place_of(config), is_running(config))
        return await self.journal.arun(plan, peek=is_untouched(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first."""
        search: Search | None = Search.of(config, filter, before, limit)
        while search is not None:
            found, search = self._run(self.reader.page(search))
            yield from found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list` without blocking the event loop."""
        search: Search | None = Search.of(config, filter, before, limit)
        while search is not None:
            found, search = await self._arun(self.reader.page(search))
            for one in found:
                yield one

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. It returns before the commit, unless `durability` says otherwise."""
        if ticket := self._put(config, checkpoint, metadata, new_versions, blocking=True):
            self.journal.wait(ticket)
        return config_of(config, checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put` without blocking the event loop."""
        if ticket := self._put(config, checkpoint, metadata, new_versions, blocking=False):
            await self.journal.await_(ticket)
        return config_of(config, checkpoint["id"])

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        *,
        blocking: bool,
    ) -> Ticket[None] | None:
        """Queue a checkpoint. Gives the ticket if its durability is to be waited for."""
        place = place_of(config)
        journal = self.journal
        asked = config["configurable"].get("__pregel_durability")
        mode: Durability = "sync" if asked == "sync" else self.durability
        if (segment := segment_of(config)) is not None:
            segment.check()
            mode = "sync" if segment.is_overdue else segment.durability
        ticket, left = self._writer.put(
            journal,
            place,
            config,
            checkpoint,
            metadata,
            new_versions,
            # Coroutines come in order, and a run that is put at its exit writes nothing before.
            arriving=blocking and asked != "exit",
            hold=mode == "exit",
            segment=segment,
        )
        if mode == "sync" or journal.full:
            return ticket
        ends = segment is None and (left or (place.ns == "" and hands_back(checkpoint)))
        return ticket if ends and mode != "async" else None

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task."""
        if ticket := self._put_writes(config, writes, task_id, task_path):
            self.journal.wait(ticket)

    def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> Coroutine[Any, Any, None]:
        """`put_writes` without blocking the event loop."""
        # Not a coroutine function: LangGraph calls it when the task ends and runs what it
        # returns later, when the checkpoint may already be there. So it is queued now.
        try:
            ticket = self._put_writes(config, writes, task_id, task_path)
        except Exception as error:
            return _raise(error)
        return self._await(ticket)

    async def _await(self, ticket: Ticket[None] | None) -> None:
        if ticket is not None:
            await self.journal.await_(ticket)

    def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Ticket[None] | None:
        """Queue the writes of a task. Gives the ticket if they are to be waited for."""
        place = place_of(config)
        if place.id is None:
            raise Error(f"put_writes for thread {place.thread_id!r} names no checkpoint_id.")
        check_text("task_id", task_id)
        check_text("task_path", task_path)
        journal = self.journal
        leaves = any(channel in (INTERRUPT, ERROR) for channel, _ in writes)
        if any(channel == ERROR and isinstance(value, BaseException) for channel, value in writes):
            # LangGraph adds what a task wrote before it failed or was cancelled, and would take
            # that for all it had to write: where to go next could be missing.
            writes = [one for one in writes if one[0] in (*WRITES_IDX_MAP, ERROR_SOURCE)]
        mode = self.durability
        if (segment := segment_of(config)) is not None:
            segment.check()
            mode = segment.durability
            if segment.secrets:
                writes = [(channel, _without(value, segment)) for channel, value in writes]
        ticket = self._writer.put_writes(
            journal,
            place,
            writes,
            task_id,
            task_path,
            leaves=leaves,
            hold=mode == "exit",
            segment=segment,
        )
        # Whoever drives a run waits for all of it before letting it go.
        wait = (leaves and mode != "async" and segment is None) or journal.full
        return ticket if wait else None

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread."""
        self._run(self.pruner.delete_thread(check_text("thread_id", str(thread_id))))

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread` without blocking the event loop."""
        await self._arun(self.pruner.delete_thread(check_text("thread_id", str(thread_id))))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs."""
        self._run(self.pruner.delete_for_runs(texts("run_id", run_ids)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs` without blocking the event loop."""
        await self._arun(self.pruner.delete_for_runs(texts("run_id", run_ids)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the checkpoints of a thread to a new thread."""
        self._run(self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread` without blocking the event loop."""
        await self._arun(self._copy(source_thread_id, target_thread_id))

    def _copy(self, source: str, target: str) -> Plan[None]:
        return self.pruner.copy_thread(
            check_text("thread_id", source), check_text("thread_id", target)
        )

    def prune(
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        older_than: timedelta | None = None,
    ) -> None:
        """Delete checkpoints of these threads.

        `keep_latest` keeps the newest checkpoint of each namespace and whatever it is rebuilt
        from; with `older_than` also everything younger than that. `delete` keeps nothing. All
        threads are meant when none are named; that is only allowed with `older_than`.
        """
        self._run(
            self.pruner.prune(
                None if thread_ids is None else texts("thread_id", thread_ids),
                strategy,
                older_than,
            )
        )

    async def aprune(
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        older_than: timedelta | None = None,
    ) -> None:
        """`prune` without blocking the event loop."""
        await self._arun(
            self.pruner.prune(
                None if thread_ids is None else texts("thread_id", thread_ids),
                strategy,
                older_than,
            )
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The stored changes of delta channels up to a checkpoint."""
        return self._run(self.reader.delta_history(place_of(config), channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history` without blocking the event loop."""
        return await self._arun(self.reader.delta_history(place_of(config), channels))

    def has(self, thread_id: str, ns: str, checkpoint_id: str) -> bool:
        """Whether a checkpoint is stored, or queued before whatever is queued from now on."""
        lane = self._lanes.get(thread_id, ns)
        with lane.changed:
            if lane.tip is not None and lane.tip.id == checkpoint_id:
                return True
        found, _ = self.journal.peek(checkpoint_at(thread_id, ns, checkpoint_id))
        return found is not None

    @functools.cached_property
    def clock(self) -> JournalClock:
        """The journal's clock."""
        return JournalClock(self.journal)

    def saw(self, stamp: int) -> None:
        """Another process gave this number to writes; ours from now on come after them."""
        self._lanes.saw_stamp(stamp)

    @property
    def serializer(self) -> Serializer:
        """Serialises everything that is stored besides checkpoints."""
        return Serializer(self._rows.codec, self._rows.envelope, self._limits[0])

    def with_allowlist(self, extra_allowlist: Iterable[tuple[str, ...]]) -> Saver:
        """Called by LangGraph with the types of a graph's schemas."""
        self._codec.allow(extra_allowlist)
        return self

    def get_next_version(self, current: int | None, channel: None) -> int:
        """The version of a channel after `current`."""
        return (current or 0) + 1

    def _run(self, plan: Plan[T]) -> T:
        return self.journal.run(plan)

    async def _arun(self, plan: Plan[T]) -> T:
        return await self.journal.arun(plan)


_SAVERS: WeakSet[Saver] = WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held a lock of a lane.
    for saver in list(_SAVERS):
        saver._start_afresh()


os.register_at_fork(after_in_child=_after_fork)


def _without(value: Any, segment: Segment) -> Any:
    """An exception in words, without what must not be stored; anything else as it is."""
    return scrub(repr(value), segment.secrets) if isinstance(value, BaseException) else value


class _Serde:
    """LangGraph's serializer interface, for code that asks a saver for its `serde`."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "perdure", self._codec.encode(obj, "value")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if data[0] != "perdure":
            raise Error(f"A value serialized as {data[0]!r} is not perdure's and is not loaded.")
        return self._codec.decode(data[1], "value")


# Now, and not when a saver is made: a subgraph may be compiled before that.
ask_graphs_for_their_types()


async def _raise(error: Exception) -> None:
    raise error
