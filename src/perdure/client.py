"""`Client`: start runs, look at them, answer, signal, cancel, schedule.

A client drives nothing and does not load LangGraph, unless it is asked for an output that is
stored in a checkpoint. So it starts at once, in a web handler or on the command line. `Runtime` is
a client that has graphs too. Every method is one or a few operations, and the decisions are in the
statements they name: a crash loses no change whose method has returned.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from perdure.blocking import LoopThread, blocking_iterator, blocking_method
from perdure.commands import claims, counts, messages
from perdure.commands.health import Diagnosis, diagnose, redact
from perdure.commands.local_engine import LocalEngine
from perdure.commands.question_links import LASTS, MISSING, check_public_url
from perdure.commands.reflections import ReflectionService
from perdure.commands.run_service import GRACE, PAGE, make_setup, select_runs
from perdure.commands.runs import RunRow
from perdure.commands.scores import check_score
from perdure.commands.services import Services
from perdure.commands.streams import StreamReader, check_modes, kept_modes
from perdure.commands.validation import check_duration, check_limit, check_member, check_name
from perdure.context_managed import ContextManaged
from perdure.errors import BadArgument, NotFound
from perdure.journal import Journal, Plan, scrub, version
from perdure.journal.clock import Clock, JournalClock
from perdure.journal.migrate import migrations
from perdure.journal.names import check_id, check_text, maybe_id
from perdure.observe.observers import Observers
from perdure.recorded_calls import (
    call_key,
    call_number,
    parent_of_call,
    recorded,
    refuse_in_evaluation,
)
from perdure.serde.codec import Codec
from perdure.serde.encryption import ChecksumEnvelope, EncryptedEnvelope
from perdure.serde.redaction import Redaction, hide_in_url
from perdure.serde.serializer import Serializer
from perdure.times import deadline, moment, position_before
from perdure.types import (
    ENDED,
    Chunk,
    Control,
    Done,
    Durability,
    EffectRecord,
    EffectState,
    Event,
    EventKind,
    Kind,
    Message,
    Record,
    Run,
    Schedule,
    Score,
    State,
    Strategy,
    Wait,
    WaitRecord,
    WorkerInfo,
)

if TYPE_CHECKING:  # imported on first use
    from perdure.views.attention import InboxItem

STRATEGIES = ("enqueue", "reject", "interrupt", "rollback")
_NAMESPACE = uuid.UUID("9a4b4f0e-5d1c-5b6e-8a51-7d7065726475")

B = TypeVar("B", bound=LoopThread)


class ClientEngine(LocalEngine):
    """The engine of a plain client, which drives nothing."""

    def refuse_in_evaluation(self, name: str) -> None:
        refuse_in_evaluation(name)

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        from perdure.checkpoint.cache import CheckpointCache  # LangGraph takes seconds to import
        from perdure.checkpoint.reader import Reader
        from perdure.checkpoint.row_format import RowFormat

        reader = Reader(RowFormat(self.serializer), CheckpointCache(1, 0))
        return (yield from reader.state_at(thread_id, checkpoint_id))


class Client(ContextManaged):
    """Starts, reads and controls the runs of a journal. It drives nothing.

    A client has no graphs and does not import LangGraph, except to read an output that is stored in
    a checkpoint. So it starts in about a tenth of a second and suits a web handler or a script;
    workers elsewhere drive the runs. It accepts any graph name: it cannot check that a worker has
    registered that graph.

    Every method that takes time is a coroutine; `blocking` has the same methods for callers without
    an event loop. When a method that changes something returns, the change is committed. If the
    process dies before it returns, the journal has either the whole change or none of it.

    In a node, each method that changes something is an effect and needs no decorator: when the
    node runs again, the recorded outcome is returned and the change is not repeated.

        async with Client("postgresql://localhost/agents") as client:
            run = await client.start("campaign", {"to": "ada@example.com"})
            await client.join(run.id)

    Args:
        url: The journal: `sqlite:///agents.db`, `postgresql://…` or `d1://…`. By default the value
            of `PERDURE_URL`. It is opened on first use.
        allow: Your own types that may be stored and loaded, as classes or as `(module, qualified
            name)`. A client knows no graph schemas, so types in inputs, answers and outputs must be
            listed here.
        encryption_keys: Keys by id, each 16, 24 or 32 bytes: the first one encrypts, all of them
            decrypt. Every process of a journal needs the same keys. By default nothing is
            encrypted. Needs the extra `encryption`.
        clock: The clock, for tests: a `perdure.testing.Clock`. By default the journal's.
        observe: An observer, or a list of them, called for each event that this process stores: an
            object with the method of `Observer`, or one of `perdure.observe`. `True` uses those
            that the environment configures.
        redact: Keys and patterns that are never written to the journal.
        public_url: The address where people reach the pages, for `link`. By default the value of
            `PERDURE_PUBLIC_URL`.

    Raises:
        BadArgument: An argument is not valid.
    """

    engine: LocalEngine  # internal: it may change in any release

    def __init__(
        self,
        url: str | None = None,
        *,
        allow: Iterable[type | tuple[str, ...]] = (),
        encryption_keys: Mapping[str, bytes] | None = None,
        clock: Clock | None = None,
        observe: Any = None,
        redact: Redaction | None = None,
        public_url: str | None = None,
    ) -> None:
        envelope = (
            ChecksumEnvelope() if encryption_keys is None else EncryptedEnvelope(encryption_keys)
        )
        serializer = Serializer(Codec(allow, redact), envelope)
        engine = ClientEngine(url, serializer, Observers(observe), lambda: self.services.clock)
        self._compose(url, engine, clock, public_url)

    def _compose(
        self, url: str | None, engine: LocalEngine, clock: Clock | None, public_url: str | None
    ) -> None:
        self._url, self._given_clock = url, clock
        self.engine = engine
        engine.given_url = None if public_url is None else check_public_url(public_url)
        engine.failures.redact = self.redact
        engine.observers.attach(engine)
        self._opening = threading.RLock()
        self._services: Services | None = None
        self._blocking: LoopThread | None = None

    # -- opening and closing

    @functools.cached_property
    def journal(self) -> Journal:
        """The journal. The first use opens it; `setup` opens it now."""
        return self.engine.journal

    @property
    def is_open(self) -> bool:
        """Whether the journal is open. Reading this does not open it."""
        return self.engine.is_open

    @property
    def reflections(self) -> ReflectionService:
        """Plans about the LangMem reflections of this journal. For extensions."""
        return self.services.reflections

    @property
    def url(self) -> str:
        """The URL of the journal, without its password."""
        url = self._url or os.environ.get("PERDURE_URL", "")
        return hide_in_url(url)

    def __repr__(self) -> str:
        return f"<perdure.Client {self.url}>"

    @property
    def services(self) -> Services:
        # The plans behind the methods. Without a docstring, so that the reference leaves it out.
        with self._opening:
            if self._services is None:
                clock = self._given_clock or JournalClock(self.journal)
                self._services = Services(self.engine, clock)
            return self._services

    @property
    def blocking(self) -> BlockingClient:
        """The same methods for callers without an event loop: `client.blocking.get(run_id)`.

        Each call runs on an event loop in another thread, and blocks until it has returned.
        `blocking.stream` is a plain iterator; `blocking.run(coroutine)` runs any coroutine that
        uses this client, such as `evals.evaluate(…)`. Do not use it in a coroutine: it would block
        the event loop. `close` ends the thread.
        """
        return self._on_loop_thread(BlockingClient)

    def _on_loop_thread(self, kind: type[B]) -> B:
        with self._opening:
            found = self._blocking
            if not isinstance(found, kind) or found.pid != os.getpid():
                found = self._blocking = kind(self)
            return found

    def setup(self) -> None:
        """Open the journal and bring its schema up to date now, instead of on first use.

        After `close` it opens the journal again. Entering a `with` or `async with` block does the
        same.

        Raises:
            BadURL: The URL is not valid, or the database cannot be used: a missing folder, a file
                that is not writable, a network file system, a wrong password.
            SchemaTooNew: A newer perdure has upgraded the journal.
            Unavailable: The database does not answer within 30 seconds, or is a standby.
        """
        self.engine.setup()

    def close(self) -> None:
        """Drain what this process drives, commit what is queued, and close the journal.

        Runs that `work` or `tick` drives here stop at their next step, or are given back after the
        grace period. Other runs are not touched. Leaving a `with` or `async with` block does the
        same, and `setup` opens the journal again. A process that exits without calling it loses
        no change whose method has returned.
        """
        if self._blocking is not None:  # first: what it drives needs its lease to stop well
            self._blocking.close()
            self._blocking = None
        self.engine.close()

    # -- runs

    async def start(
        self,
        graph: str,
        input: Any = None,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        context: Any = None,
        config: Mapping[str, Any] | None = None,
        after: timedelta | datetime | None = None,
        durability: Durability | None = None,
        multitask_strategy: Strategy = "enqueue",
        version: str | None = None,
        on_parent_cancel: Literal["cancel", "leave"] = "cancel",
        detached: bool = False,
        webhook: str | None = None,
        stream: Iterable[str] | str = (),
        stream_subgraphs: bool = True,
    ) -> Run:
        """Accept a run. When this returns, the run is on disk, and workers will finish it.

        Input, context, config, metadata and tags are stored, and given to the graph again in each
        segment. If the call was interrupted, call it again with the same `key`: it returns the run
        that was accepted, or accepts it now.

            run = await client.start("campaign", {"to": "ada"}, key="ada-2026-05")

        In a node, this is an effect, and the run is a child of the node's run. A tree of runs may
        be 50 deep.

        Args:
            graph: The name of the graph, as it was registered.
            input: The graph's input. Without it the run continues from the last checkpoint of
                the thread, and fails if the thread has no checkpoint.
            thread_id: The thread, up to 1,024 bytes of text. By default a new thread; with a `key`,
                the thread of this graph and key.
            key: Idempotency key, up to 256 bytes. A key that was used on the thread returns the run
                it started, whatever else is passed, even a run of another graph. The same key
                starts another run on another thread, or, without a `thread_id`, for another graph.
            metadata: Data about the run, kept in `Run.metadata` and passed to the graph in its
                config. `runs` can search it.
            tags: Tags of the run, kept in `Run.tags` and passed to the graph in its config.
            context: LangGraph's runtime context.
            config: LangGraph's config, such as `{"recursion_limit": 50, "configurable": {…}}`. It
                must not have `callbacks`, which cannot be stored: give those to the graph.
                `thread_id`, `run_id` and `checkpoint_id` in `configurable` are set by the runtime.
            after: When to begin, as a delay or a time with a time zone. By default as soon as a
                worker is free.
            durability: When checkpoints are on disk: `auto`, `sync`, `async` or `exit`. By default
                that of the runtime that drives the run.
            multitask_strategy: What to do if the thread has a run that has not ended. `enqueue`
                waits for its end. `reject` raises `ThreadBusy`. `interrupt` cancels that run and
                keeps its checkpoints; if a worker drives it, it stops after its step, or after 10
                seconds. `rollback` does the same and deletes its checkpoints before the new run
                begins.
            version: The version of the graph. By default the version that this runtime registered
                last; in a process without graphs, the unversioned graph.
            on_parent_cancel: In a node: whether the run is cancelled with its parent (`cancel`), or
                continues (`leave`).
            detached: In a node: start a run without a parent.
            webhook: A URL to notify when the run ends, is held, or waits for a person. Only `https`
                URLs with public addresses, unless the runtime's `RunWebhooks` allow others.
            stream: LangGraph stream modes to keep for `stream()`: `values`, `updates`, `messages`,
                `custom`, `tasks`, `checkpoints`, `debug`, `events`. By default no output is kept.
            stream_subgraphs: Whether the output of subgraphs is kept too.

        Returns:
            The new run, in state `pending`, or the run that the key started before, in its current
                state.

        Raises:
            ThreadBusy: The thread has a run that has not ended, and `multitask_strategy` is
                `reject`. Nothing was stored.
            UnknownGraph: This runtime has graphs, but none of this name and version. A client never
                raises it.
            BadArgument: An argument is not valid, or the tree of runs is too deep.
            Unserializable: A value cannot be stored; the message says where it is. Nothing was
                stored.
            TypeNotAllowed: A value has a type that is not allowed: see `allow`. Nothing was stored.
            TooLarge: The input is larger than `max_bytes`, or than the database takes. Nothing was
                stored.
            Unavailable: The database did not answer in time. Nothing was stored.
        """
        name, version = self.engine.resolve_graph(graph, version)
        if multitask_strategy not in STRATEGIES:
            raise BadArgument(
                f"multitask_strategy={multitask_strategy!r}: use one of {', '.join(STRATEGIES)}."
            )
        if durability is not None and durability not in ("auto", "sync", "async", "exit"):
            raise BadArgument(f"durability={durability!r}: use auto, sync, async or exit.")
        if on_parent_cancel not in ("cancel", "leave"):
            raise BadArgument(f"on_parent_cancel={on_parent_cancel!r}: use 'cancel' or 'leave'.")
        if key is not None:
            check_name("key", key)
        if thread_id is not None:
            thread_id = check_name("thread_id", check_id("thread", thread_id))
        setup = make_setup(
            input=input, metadata=metadata, tags=tags, context=context, config=config
        )
        if durability is not None:
            setup["durability"] = durability
        if webhook is not None:
            setup["webhook"] = webhook
            self.engine.webhook_topic(webhook)  # raises now, not in an effect
        if kept := kept_modes(stream, stream_subgraphs):
            setup["stream"] = kept
        deadline("after", after, lambda: moment(0))
        row = await self._accept(
            name,
            version,
            thread_id,
            setup,
            key=key,
            after=after,
            multitask_strategy=multitask_strategy,
            on_parent_cancel=on_parent_cancel,
            detached=detached,
        )
        self.engine.wake(stopped=multitask_strategy in ("interrupt", "rollback"))
        if isinstance(row, str):  # its id, from the record of the effect
            return await self.get(row)
        return await self.journal.arun(self.services.runs.show(row))

    # Journals hold the names of these effects and of their arguments: they must stay.
    @recorded("start", record=Record(result=lambda row: row.id))
    async def _accept(
        self,
        graph: str,
        version: str,
        thread_id: str | None,
        setup: dict[str, Any],
        *,
        key: str | None,
        after: timedelta | datetime | None,
        multitask_strategy: str,
        on_parent_cancel: str,
        detached: bool,
    ) -> RunRow | str:
        key, parent = key or call_key(), None
        if thread_id is None:
            thread_id = str(
                uuid.uuid4() if key is None else uuid.uuid5(_NAMESPACE, json.dumps([graph, key]))
            )
        if not detached:
            parent = await parent_of_call(
                self.journal, ignores_parent_cancel=on_parent_cancel == "leave"
            )
        accept, graph_key = self.services.runs.accept, (graph, version)
        options: Any = {"key": key, "after": after, "parent": parent}
        return await self.journal.arun(
            accept(graph_key, thread_id, setup, multitask_strategy, **options)
        )

    async def get(self, run_id: str, *, output: bool = True) -> Run:
        """Read a run as it is now.

        Args:
            run_id: The id of the run.
            output: Whether to read what the run returned. Without it `Run.output` is `None`, and
                less is read.

        Returns:
            The run. If its row cannot be read, `Run.damaged` says why.

        Raises:
            NotFound: The journal has no run with this id.
        """
        return await self.journal.arun(self.services.runs.get(run_id, output=output))

    async def find(self, prefix: str) -> Run:
        """Find a run by its id, or by the beginning of its id, without its output.

        Args:
            prefix: The id, or at least 4 characters of its beginning.

        Raises:
            NotFound: No run has an id that begins with this prefix.
            BadArgument: The prefix is too short, or several runs match; the message lists them.
        """
        return await self.journal.arun(self.services.runs.by_prefix(prefix))

    async def join(self, run_id: str, *, timeout: timedelta | None = None) -> Run:
        """Wait until a run has ended, in any process, and return it.

        The wait ends when the database notifies this process, or at its next look at the run:
        within a second, on D1 within 1.5 seconds. A run that is `held` or `paused` has not ended.
        In a node use `perdure.join`, which frees the worker; this method keeps it busy.

            run = await client.join(run.id, timeout=timedelta(minutes=5))

        Args:
            run_id: The id of the run.
            timeout: How long to wait. By default as long as it takes.

        Returns:
            The run, `done`, `failed` or `cancelled`.

        Raises:
            TimeoutError: The run did not end in time. It continues.
            NotFound: The journal has no run with this id.
        """
        if timeout is not None:
            check_duration("timeout", timeout)
        await self.journal.aopen()
        async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
            with self.journal.feed.watch(check_id("run", run_id)) as watch:
                seen = watch.count
                while not (run := await self.get(run_id)).ended:
                    await watch.wait(seen)
                    seen = watch.count
        return run

    async def stream(
        self,
        run_id: str,
        *,
        after: int = 0,
        modes: Iterable[str] | str | None = None,
        until_waiting: bool = False,
    ) -> AsyncIterator[Chunk]:
        """Yield what a run produces, while it is produced and afterwards, in any process.

        The run must have been started with `stream=…`, or by `astream(…, stream_mode=…)` of a bound
        graph; otherwise this yields nothing. The iterator ends when the run has ended. A slow
        reader does not slow the run.

        Chunks are numbered from 1 without gaps. A chunk of mode `segment` says that chunks from its
        `replaces_from` onwards are void, because a process died or a node ran again. Discard them;
        the chunks that follow replace them. A reader that connects later does not get void chunks.

            async for chunk in client.stream(run.id, modes="messages"):
                print(chunk.n, chunk.data)

        Chunks are kept for a day after the run has ended: see `Runtime(stream_ttl=…)`.

        Args:
            run_id: The id of the run.
            after: The number of the last chunk that the reader saw. The stream continues after it,
                even if the server was restarted in between. By default it starts at the beginning.
            modes: The stream modes to yield, one or several. By default all that are kept.
                `segment` chunks are always yielded.
            until_waiting: Also end when the run waits for a person, is paused or is held.

        Raises:
            NotFound: The journal has no run with this id.
            BadArgument: A mode is not one of LangGraph's.
        """
        wanted = frozenset(check_modes(modes))
        row = await self.journal.arun(self.services.runs.find(run_id))
        reader = StreamReader(self.journal, self.engine.serializer, self.services.clock, row)
        async with aclosing(reader.read(after, wanted, until_waiting)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def runs(
        self,
        *,
        thread_id: str | None = None,
        parent_id: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        graph: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: Run | None = None,
        limit: int = PAGE,
        output: bool = True,
    ) -> list[Run]:
        """List runs, newest first.

        All filters must match.

            page = await client.runs(state="held")
            next_page = await client.runs(state="held", after=page[-1])

        A run whose row cannot be read is listed with the reason in `Run.damaged`.

        Args:
            thread_id: Runs of this thread.
            parent_id: Children of this run. Not together with `thread_id`.
            state: Runs in this state, or in one of several.
            graph: Runs of this graph, in any version.
            metadata: Keys and values that the run's metadata must contain. Metadata is stored in a
                blob that SQL cannot search, so runs are read until enough match.
            since: Runs accepted at this time or later, with a time zone.
            until: Runs accepted before this time, with a time zone.
            after: The last run of the previous page.
            limit: Maximum number of runs to return, 100 by default.
            output: Whether to read what each run returned.

        Raises:
            BadArgument: A state is unknown, a time has no time zone, or `limit` is less than 1.
        """
        which = select_runs(
            thread_id=thread_id,
            parent_id=parent_id,
            state=state,
            graph=graph,
            metadata=metadata,
            since=since,
            until=until,
        )
        position = which.before
        if after is not None:
            last = (position_before(after.created_at), after.id)
            position = last if position is None else min(position, last)
        plan = self.services.runs.page(
            which.page, position, check_limit(limit), which.metadata, output=output
        )
        return await self.journal.arun(plan)

    async def score(
        self,
        run_id: str,
        name: str,
        value: float | str | None = None,
        *,
        about: str = "",
        step: str | None = None,
        effect: str | None = None,
        comment: str | None = None,
        by: str | None = None,
    ) -> None:
        """Record how well a run did: a number, a category, or only a comment.

        A run can be scored at any time, even weeks after its end or from another process. The score
        and its event `scored` are one commit; nothing else about the run changes, not even
        `updated_at`, so `prune` is not delayed. A later score with the same name, for the
        same part, replaces the earlier one; giving the same score again changes nothing. Scores are
        deleted with their run.

            await client.score(run.id, "replied", True, about="touch-2")
            await client.score(run.id, "tone", "too formal", effect=sent.key, by="ana")

        A score is about the whole run, unless one of `about`, `step` and `effect` is passed.

        Args:
            run_id: The id of the run.
            name: The name of the score, up to 256 bytes.
            value: A number or a `bool`, or text that names a category. Without a value the comment
                is the score.
            about: A part of the run, by a name of your choice.
            step: The step with this checkpoint id: `checkpoint` in the data of its event.
            effect: The effect with this key.
            comment: Why, up to 64 KiB of text. It is not in the event.
            by: Who gave the score.

        Raises:
            NotFound: The journal has no such run, or the run has no such step or effect.
            BadArgument: The score has neither a value nor a comment, or is about more than one
                part.
        """
        targets = {"about": about, "step": step, "effect": effect}
        stored, part = check_score(name, value, targets, comment, by)
        await self._score(run_id, name, stored, part, comment, by)

    @recorded("score")
    async def _score(
        self,
        run_id: str,
        name: str,
        value: float | str | None,
        about: str | dict[str, str],
        comment: str | None,
        by: str | None,
    ) -> None:
        plan = self.services.scores.score(run_id, name, value, about, comment, by)
        await self.journal.arun(plan)

    async def scores(self, run_id: str) -> list[Score]:
        """List the scores of a run, oldest first.

        Args:
            run_id: The id of the run.

        Raises:
            NotFound: The journal has no run with this id.
        """
        return await self.journal.arun(self.services.scores.scores(run_id))

    async def events(
        self,
        run_id: str,
        *,
        after: int | Event = 0,
        limit: int | None = None,
        kinds: Iterable[EventKind | str] | None = None,
    ) -> list[Event]:
        """Read the history of a run, oldest event first. The run may still be in progress.

            for event in await client.events(run.id):
                print(event.at, event.kind, event.data)

        An event and the change that it reports are one commit. Events are numbered from 1 without
        gaps and never change.

        Args:
            run_id: The id of the run.
            after: The last event of the previous page, or its number.
            limit: Maximum number of events to return. By default all of them.
            kinds: Only events of these kinds.

        Raises:
            NotFound: The journal has no run with this id.
            BadArgument: A kind is unknown, or `limit` is less than 1.
        """
        if limit is not None:
            check_limit(limit)
        number = after.n if isinstance(after, Event) else after
        wanted = None
        if kinds is not None:
            wanted = [check_member(EventKind, "a kind of event", one) for one in kinds]
        return await self.journal.arun(self.services.runs.events(run_id, number, limit, wanted))

    @recorded("comment")
    async def comment(
        self, run_id: str, text: str, *, wait_id: str | None = None, by: str | None = None
    ) -> None:
        """Add a comment to the history of a run, even after its end.

        It is stored as a `comment` event, and changes nothing else.

            await client.comment(run.id, "Asked finance.", wait_id=wait.id, by="ana")

        Comments appear in the history of the run, and on the pages of the server.

        Args:
            run_id: The id of the run.
            text: The comment, up to 64 KiB.
            wait_id: A question of the run that the comment is about.
            by: Who comments.

        Raises:
            NotFound: The journal has no such run, or the run has no such wait.
            BadArgument: The text is empty.
        """
        run_id, wait_id = check_id("run", run_id), maybe_id("wait", wait_id)
        plan = self.services.runs.comment(run_id, text, wait_id, by, number=call_number())
        await self.journal.arun(plan)

    # -- waits

    async def waits(
        self,
        *,
        thread_id: str | None = None,
        run_id: str | None = None,
        kind: Kind | str | None = None,
        graph: str | None = None,
        assignee: str | None = None,
        after: Wait | None = None,
        limit: int = PAGE,
    ) -> list[Wait]:
        """List open waits, oldest first.

            inbox = await client.waits(kind="human")
            mine = await client.waits(assignee="ana")

        A wait whose row cannot be read is listed with the reason in `Wait.damaged`.

        Args:
            thread_id: Waits of this thread.
            run_id: Waits of this run.
            kind: What the wait is for: `clock`, `human`, `signal` or `run`.
            graph: Questions to people from runs of this graph.
            assignee: Questions assigned to this person; `""` selects unassigned questions.
            after: The last wait of the previous page.
            limit: Maximum number of waits to return, 100 by default.

        Raises:
            BadArgument: The kind is unknown, or `graph` or `assignee` is passed with a kind other
                than `human`.
        """
        plan = self.services.waits.waits(
            thread_id=maybe_id("thread", thread_id),
            run_id=maybe_id("run", run_id),
            kind=None if kind is None else check_member(Kind, "a kind of wait", kind),
            after=after,
            count=check_limit(limit),
            graph=None if graph is None else check_text("graph", graph),
            assignee=None if assignee is None else check_text("assignee", assignee),
        )
        return await self.journal.arun(plan)

    async def wait_history(self, run_id: str) -> list[WaitRecord]:
        """List every wait that a run has or had, oldest first, each with its answer.

        Args:
            run_id: The id of the run. An unknown run has no waits.
        """
        return await self.journal.arun(self.services.waits.history(check_id("run", run_id)))

    async def inbox(self, *, thread_id: str | None = None, limit: int = PAGE) -> list[InboxItem]:
        """List what needs a person: open questions, effects with an unknown outcome, held runs.

        Oldest questions come first. A held run with unknown effects is listed by its effects only:
        it continues when they are settled.

            for item in await client.inbox():
                print(item.title, item.shown)

        Answer a question with `answer`, settle an effect with `settle`, and continue a held run
        with `retry`.

        Args:
            thread_id: Only this thread. By default all threads.
            limit: Maximum number of items of each kind, 100 by default.
        """
        from perdure.views import attention

        return attention.inbox(
            await self.waits(kind=Kind.HUMAN, thread_id=thread_id, limit=limit),
            await self.effects(state=EffectState.UNKNOWN, thread_id=thread_id, limit=limit),
            await self.runs(state=State.HELD, thread_id=thread_id, limit=limit, output=False),
            await self.now(),
        )

    @recorded("answer")
    async def answer(self, wait_id: str, value: Any, *, by: str | None = None) -> None:
        """Answer a question that was asked of a person, and make its run due.

        An answer is accepted once: if two people answer at the same time, the second call raises.
        It is checked against the question's `response_schema`, or against what the asking
        middleware accepts, before it is stored. This process needs no graph and no worker.

            await client.answer(wait.id, {"approved": True}, by="ada")

        perdure does not check whether the person may answer: do that in your application.

        Args:
            wait_id: The id of the wait.
            value: The answer, as `ask` returns it in the node. With a `response_schema`, data that
                fits it.
            by: Who answers, stored with the time. An `Actor` also records how and from which
                address.

        Raises:
            AlreadyAnswered: The question was answered before; the message says by whom and when.
            WaitExpired: The question has expired.
            WaitClosed: The run has ended, asks something else now, or a signal withdrew the
                question.
            WrongWait: The wait is for the clock, a signal or another run.
            BadAnswer: The answer does not fit the question; the message says what is wrong.
            NotFound: The journal has no wait with this id.
        """
        wait_id = check_id("wait", wait_id)
        plan = self.services.waits.answer(wait_id, value, by, number=call_number())
        await self.journal.arun(plan)
        self.engine.wake()

    @recorded("assign")
    async def assign(
        self,
        wait_id: str,
        to: str | None,
        *,
        by: str | None = None,
        expected: str | None = None,
    ) -> None:
        """Assign an open question to a person, or unassign it. Anyone may still answer it.

            await client.assign(wait.id, "ana", by="ana")
            await client.assign(wait.id, "bo", by="bo", expected="ana")

        The change is recorded as an `assigned` event of the run.

        Args:
            wait_id: The id of the wait.
            to: Who is responsible for the question. `None` unassigns it.
            by: Who assigns it.
            expected: Who the caller believes is assigned now. Pass it to take over someone else's
                question.

        Raises:
            AlreadyAssigned: The question is assigned to someone other than `by` and `expected`.
                Nothing was changed.
            AnswerRefused: The question was answered, expired or closed, or is not for a person.
            NotFound: The journal has no wait with this id.
        """
        wait_id = check_id("wait", wait_id)
        plan = self.services.waits.assign(wait_id, to, by, expected, number=call_number())
        await self.journal.arun(plan)

    @recorded("withdraw")
    async def withdraw(
        self, wait_id: str, *, by: str | None = None, reason: str | None = None
    ) -> None:
        """Take back an answer that made its run fail, and open the question again.

        A failed or held run continues from its last step, and asks again. Effects that are
        done stay done: an effect that the node called with the old answer returns its recorded
        outcome. An `update` or `goto` that came with the
        answer is not taken back if the run has begun to apply it.

            await client.withdraw(wait.id, by="ada", reason="a slip")

        It is one commit, with a `withdrawn` event.

        Args:
            wait_id: The id of the wait.
            by: Who withdraws the answer.
            reason: Why.

        Raises:
            NotWithdrawn: A worker is driving the run, or the run has already used the answer; then
                the message names the checkpoint to fork from. Nothing was changed.
            NotFound: The journal has no wait with this id.
        """
        plan = self.services.waits.withdraw(wait_id, by, reason, number=call_number())
        await self.journal.arun(plan)
        self.engine.wake()

    async def link(self, wait_id: str, *, to: str, expires: timedelta = LASTS) -> str:
        """Return the URL of a page where one person can answer one question, without signing in.

        Send it by mail or chat. Opening it decides nothing. It works once, until it expires, for
        anyone who has it, and the answer is recorded under the name `to`, so send each person their
        own link. It is spent once the question has been answered in any way, even if that answer is
        withdrawn later.

            url = await client.link(wait.id, to="ana@example.com")

        A server with the pages (`asgi(ui=True)`, or `perdure serve`) must run at `public_url`.
        Links are signed with a secret in the journal, so every server on that journal accepts them.
        Needs the extra `server`.

        Args:
            wait_id: The id of an open question.
            to: The person the link is for.
            expires: How long the link works, 7 days by default and at least a second. It ends with
                the question if that expires earlier.

        Raises:
            BadArgument: `public_url` is not set.
            AnswerRefused: The question can no longer be answered.
            NotFound: The journal has no wait with this id.
        """
        if (public := self.engine.public_url) is None:
            raise BadArgument(MISSING)
        _, token = await self.journal.arun(self.services.links.make(wait_id, to, expires))
        return public.link(token)

    @recorded("signal")
    async def signal(
        self, thread_id: str, name: str, value: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a named message to a thread. It is on disk when this returns, and delivered once.

        One wait of that name on the thread gets it, the oldest signal first. If no run waits for it
        yet, it is kept for this run or a later one; the thread need not have a run. In a node this
        is an effect: the signal is sent once.

            await client.signal("order-1", "paid", {"amount": 12}, key="webhook-981")

        `perdure.wait_for` receives it; it also withdraws a question of `perdure.ask(…,
        unless=name)`.

        Args:
            thread_id: The thread.
            name: The name of the signal, up to 256 bytes.
            value: The value that `wait_for` returns.
            key: Idempotency key. A second signal with the same thread, name and key is not stored.

        Returns:
            `True` if the signal was stored, `False` if one with this key was sent before.

        Raises:
            BadArgument: The name, the key or the thread is empty.
            Unserializable: The value cannot be stored. Nothing was stored.
        """
        plan = self.services.waits.signal(thread_id, name, value, key, id=call_key())
        stored = await self.journal.arun(plan)
        self.engine.wake()
        return stored

    # -- effects

    async def effects(
        self,
        run_id: str | None = None,
        *,
        thread_id: str | None = None,
        state: EffectState | str | None = None,
        after: EffectRecord | None = None,
        limit: int = PAGE,
    ) -> list[EffectRecord]:
        """List effects: of a run, of a thread, or in a state; oldest first.

        An effect is a call that left the process, or was about to. Effects of graphs that only have
        a `Saver` are listed too, with an empty `run_id`. An effect whose row cannot be read is
        listed with the reason in `EffectRecord.damaged`.

            unknown = await client.effects(state="unknown")

        Effects with the state `unknown` wait for `settle`.

        Args:
            run_id: Effects of this run.
            thread_id: Effects of this thread.
            state: Effects in this state: `open`, `done`, `failed`, `unknown` or `again`.
            after: The last effect of the previous page.
            limit: Maximum number of effects to return, 100 by default.

        Raises:
            BadArgument: The state is unknown.
        """
        plan = self.services.effects.effects(
            run_id=maybe_id("run", run_id),
            thread_id=maybe_id("thread", thread_id),
            state=None if state is None else check_member(EffectState, "an effect's state", state),
            after=after,
            count=check_limit(limit),
        )
        return await self.journal.arun(plan)

    @recorded("settle")
    async def settle(
        self,
        key: str,
        how: Literal["done", "retry", "fail"],
        result: Any = None,
        *,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Settle an effect with an unknown outcome, once a person has found out what happened.

        The run continues once none of its effects is unknown. An effect that is `open` or `failed`
        can be settled too, if its run is not being driven; a run that failed also needs `retry`.
        The `settled` event records `by` and `reason`.

            await client.settle(effect.key, "done", {"payment": "p-17"}, by="ana")

        If the process dies before this returns, the effect may or may not be settled; if it is,
        calling again raises `NotSettled`.

        Args:
            key: The key of the effect.
            how: `done`: it happened. `retry`: it did not happen, and is called again. `fail`: it
                did not happen, and is not called again; the node gets `EffectFailed`.
            result: With `done`, what the call would have returned.
            by: Who decides.
            reason: Why. With `fail`, the message of the error.

        Raises:
            NotSettled: The effect has an outcome, or its run is being driven. Nothing was changed.
            NotFound: The journal has no effect with this key.
            BadArgument: `how` is unknown, or `result` is passed with `retry` or `fail`.
        """
        key = check_id("effect", key)
        await self.journal.arun(self.services.effects.settle(key, how, result, by, reason))
        self.engine.wake()

    async def messages(self, *, after: Message | None = None, limit: int = PAGE) -> list[Message]:
        """List the undelivered outbox messages, oldest first.

        If a message has no `due_at`, perdure has given up on it: `redeliver` sends it again.
        `error` says why its last delivery failed.

        Args:
            after: The last message of the previous page.
            limit: Maximum number of messages to return, 100 by default.
        """
        return await self.journal.arun(self.services.effects.messages(after, check_limit(limit)))

    async def redeliver(self, message_id: str) -> None:
        """Deliver an outbox message now: after perdure gave up on it, or before its next retry.

        A worker delivers it, with the same id as before.

        Args:
            message_id: The id of the message.

        Raises:
            NotFound: The outbox has no message with this id.
        """
        op = messages.redeliver(check_text("message_id", message_id), self.services.clock.now())
        if not await self.journal.ado(op):
            raise NotFound("message", message_id)
        self.engine.wake()

    # -- control

    async def pause(self, run_id: str, *, grace: timedelta = GRACE, by: str | None = None) -> Run:
        """Pause a run until `resume`.

        A run that is not driven is paused at once. If a worker drives it, it stops after its
        current step, or in the middle of the step once `grace` has passed; that step then runs
        again on `resume`. Pausing a paused run changes nothing.

        Args:
            run_id: The id of the run.
            grace: How long the current step may continue, 10 seconds by default.
            by: Who pauses it; it is in the event.

        Returns:
            The run as it is now: `paused`, or still `running` until its step has ended.

        Raises:
            WrongState: The run has ended, is held, or is being cancelled. Nothing was changed.
            NotFound: The journal has no run with this id.
        """
        return await self._stop(run_id, Control.PAUSE, grace, None, by)

    async def cancel(
        self,
        run_id: str,
        *,
        grace: timedelta = GRACE,
        reason: str | None = None,
        by: str | None = None,
    ) -> Run:
        """End a run for good, with the runs that it started.

        A run that is not driven ends at once. If a worker drives it, it ends after its current
        step, or in the middle of the step once `grace` has passed: a coroutine is cancelled, and a
        thread that is blocked is abandoned, since Python cannot kill it; its writes are refused.
        Effects with a compensation are undone before the run ends, in reverse order; until a worker
        has done so the run is `pending`. Children, and theirs, are cancelled in the same commit,
        except those started with `on_parent_cancel="leave"`.

            await client.cancel(run.id, reason="the customer left", by="ana")

        If a process dies while effects are being undone, the next worker finishes the
        cancellation.

        Args:
            run_id: The id of the run.
            grace: How long the current step may continue, 10 seconds by default.
            reason: Why; it is in `Run.reason` and in the event.
            by: Who cancels it; it is in the event.

        Returns:
            The run as it is now: `cancelled`, or not yet.

        Raises:
            WrongState: The run is `done` or `failed`. Nothing was changed.
            NotFound: The journal has no run with this id.
        """
        return await self._stop(run_id, Control.CANCEL, grace, reason, by)

    async def _stop(
        self, run_id: str, control: Control, grace: timedelta, reason: str | None, by: str | None
    ) -> Run:
        record = self._pause if control is Control.PAUSE else self._cancel
        await record(check_id("run", run_id), grace, reason, by)
        stopped = await self.get(run_id)
        if stopped.state is State.RUNNING:
            self.engine.stop(run_id, control)
        self.engine.wake(stopped=control is Control.CANCEL)  # its children may be driven here
        return stopped

    @recorded("cancel")
    async def _cancel(
        self, run_id: str, grace: timedelta, reason: str | None, by: str | None
    ) -> None:
        await self._request(run_id, Control.CANCEL, grace, reason, by)

    @recorded("pause")
    async def _pause(
        self, run_id: str, grace: timedelta, reason: str | None, by: str | None
    ) -> None:
        await self._request(run_id, Control.PAUSE, grace, reason, by)

    async def _request(
        self, run_id: str, control: Control, grace: timedelta, reason: str | None, by: str | None
    ) -> None:
        stop, number = self.services.runs.stop, call_number()
        await self.journal.arun(stop(run_id, control, grace, reason=reason, by=by, number=number))

    @recorded("wake", returns_run=True)
    async def wake(self, run_id: str, *, by: str | None = None) -> Run:
        """End every current sleep of a run now.

        It is one commit. Questions, signals, joins and the pause before an effect is retried are
        not sleeps, and stay.

        Args:
            run_id: The id of the run.
            by: Who wakes it; recorded in the `woke` event.

        Returns:
            The run as it is now.

        Raises:
            WrongState: The run is not asleep.
            NotFound: The journal has no run with this id.
        """
        plan = self.services.waits.wake(run_id, by, number=call_number())
        await self.journal.arun(plan)
        self.engine.wake()
        return await self.get(run_id)

    # Records of older journals have no `by` here: the arguments must stay the same.
    @recorded("resume", returns_run=True, without=("by",))
    async def resume(self, run_id: str, *, by: str | None = None) -> Run:
        """Resume a paused run.

        Args:
            run_id: The id of the run.
            by: Who resumes it; it is in the event.

        Returns:
            The run as it is now, `pending`.

        Raises:
            WrongState: The run is not paused.
            NotFound: The journal has no run with this id.
        """
        plan = self.services.runs.resume(check_id("run", run_id), by, number=call_number())
        await self.journal.arun(plan)
        self.engine.wake()
        return await self.get(run_id)

    @recorded("retry", returns_run=True, without=("by",))
    async def retry(self, run_id: str, *, by: str | None = None) -> Run:
        """Try a failed or held run again, from its last step.

        The count of attempts starts again. Effects that failed are called again; effects that are
        done stay done, and unknown ones must be settled first. Two kinds of failed effects are not
        called again: those that a person settled with `fail`, and those whose result could not be
        stored.

        Args:
            run_id: The id of the run.
            by: Who retries it; it is in the event.

        Returns:
            The run as it is now, `pending`.

        Raises:
            WrongState: The run is neither failed nor held, or a later run of its thread has begun.
            NotFound: The journal has no run with this id.
        """
        plan = self.services.runs.retry(check_id("run", run_id), by, number=call_number())
        await self.journal.arun(plan)
        self.engine.wake()
        return await self.get(run_id)

    async def prune(
        self,
        *,
        older_than: timedelta,
        states: Iterable[State | str] = tuple(ENDED),
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete runs that ended some time ago, with their history.

        A run is deleted with its input, output, events, waits, answers, effects and scores. A
        thread without runs loses its checkpoints too. Effects with a business key stay, since they
        still prevent a second call. A child is kept until its parent has ended.

            deleted = await client.prune(older_than=timedelta(days=30))

        A process that dies in the middle leaves every run whole. On D1, which needs several
        transactions for a large run, it may leave one run `cancelled` and partly deleted; pruning
        again finishes it.

        Args:
            older_than: Delete only runs whose last change is older than this.
            states: Only runs that ended in these states. By default `done`, `failed` and
                `cancelled`.
            limit: Maximum number of runs to delete. By default all of them.
            dry_run: Only count the runs.

        Returns:
            How many runs were deleted, or would be.

        Raises:
            BadArgument: A state is not one in which a run has ended.
        """
        wanted = [check_member(State, "a state", state) for state in states]
        if not set(wanted) <= ENDED:
            raise BadArgument("Only runs that ended can be pruned: done, failed, cancelled.")
        check_duration("older_than", older_than)
        return await self._prune(older_than, [state.value for state in wanted], limit, dry_run)

    @recorded("prune")
    async def _prune(
        self, older_than: timedelta, states: list[str], limit: int | None, dry_run: bool
    ) -> int:
        wanted = [State(state) for state in states]
        plan = self.services.runs.prune(older_than, wanted, limit, dry_run=dry_run)
        return await self.journal.arun(plan)

    @recorded("erase")
    async def erase(self, thread_id: str) -> dict[str, int]:
        """Delete everything the journal holds about a thread.

        It deletes the thread's runs, checkpoints, events, questions, answers, signals, recorded
        reads, effects, scores, streamed output and outbox messages. Effects with a business key are
        deleted too, and then no longer prevent a second call. Child runs and forks have their own
        threads: erase those as well.

            await client.erase("customer-7")
            await client.scrub()

        After a crash, the next call deletes the rest. Deleted bytes stay in the files of a database
        until it reuses the space, or `scrub` removes them.

        Args:
            thread_id: The thread.

        Returns:
            How many rows were deleted, by table.

        Raises:
            WrongState: A run of the thread has not ended. Cancel it, wait for its end, and call
                again.
        """
        check_text("thread_id", thread_id)
        return await self.journal.arun(self.services.runs.erase(thread_id))

    async def scrub(self) -> bool:
        """Remove deleted bytes from the journal's files now.

        On SQLite this rewrites the file (`VACUUM`) and empties its WAL. It takes as long as writing
        the file twice, and needs free space equal to the file's size. Other processes can read in
        the meantime, but writes wait.

        Returns:
            `False` on a database that does so automatically: PostgreSQL, by autovacuum; and D1,
                whose Time Travel keeps the rows for up to 30 days.

        Raises:
            Unavailable: Other processes kept the file busy for 30 seconds.
        """
        await self.journal.aflush()
        return await asyncio.to_thread(scrub, self._url or os.environ.get("PERDURE_URL", ""))

    # -- schedules

    async def schedule(
        self,
        name: str,
        graph: str,
        *,
        cron: str,
        timezone: str = "UTC",
        input: Any = None,
        catch_up: bool | timedelta = False,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        context: Any = None,
        config: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Start runs of a graph according to a cron expression.

        Calling it again with the same name changes the schedule. Each scheduled time is a slot,
        and starts at most one run, however many workers there are and whenever one of them
        dies. The run has the key `name@time`, and its own thread, `schedule:name@time`. So two runs
        may overlap if the first takes a long time. Any worker or tick on the journal fires
        schedules. It is safe to call this every time the application starts: with the same cron
        expression and time zone the next slot is kept, and a disabled schedule stays disabled.

            await client.schedule(
                "digest", "digest", cron="0 9 * * 1", timezone="Europe/Rome"
            )

        When daylight saving skips the time of a daily slot, its run starts right after the jump.
        When a time occurs twice, its run starts once, the first time.

        Args:
            name: The name of the schedule.
            graph: The name of the graph. The version is the newest that this runtime has
                registered.
            cron: Five fields as in `crontab`, or six with seconds first.
            timezone: The time zone of the cron expression, such as `Europe/Rome`.
            input: The input of each run.
            catch_up: What to do about slots that passed while no worker ran. `False` starts slots
                up to a minute late. A timedelta starts slots up to that age. `True` starts all, at
                most the last 1,000.
            metadata: Metadata of each run.
            tags: Tags of each run.
            context: LangGraph's runtime context of each run.
            config: LangGraph's config of each run.

        Returns:
            The schedule, with the time of its next run.

        Raises:
            BadArgument: The cron expression or the time zone is not valid.
            UnknownGraph: This runtime has graphs, but none of this name.
        """
        check_text("name", name)
        setup = make_setup(
            input=input, metadata=metadata, tags=tags, context=context, config=config
        )
        resolved = self.engine.resolve_graph(graph, None)
        return Schedule(**await self._schedule(name, resolved, cron, timezone, setup, catch_up))

    @recorded("schedule")
    async def _schedule(
        self,
        name: str,
        graph: tuple[str, str],
        cron: str,
        timezone: str,
        setup: dict[str, Any],
        catch_up: bool | timedelta,
    ) -> dict[str, Any]:
        put, [graph_name, version] = self.services.schedules.put, graph
        times: Any = {"cron": cron, "timezone": timezone, "catch_up": catch_up}
        return vars(await self.journal.arun(put((graph_name, version), setup, name=name, **times)))

    async def schedules(self) -> list[Schedule]:
        """List all schedules, by name."""
        return await self.journal.arun(self.services.schedules.all())

    async def enable_schedule(self, name: str, *, enabled: bool = True) -> Schedule:
        """Enable a schedule, starting with its next slot, or disable it.

        Slots that pass while it is disabled are never started. Calling `schedule` again does not
        enable it.

            await client.enable_schedule("digest", enabled=False)

        Runs that it started are not affected.

        Args:
            name: The name of the schedule.
            enabled: `False` disables the schedule.

        Returns:
            The schedule as it is now.

        Raises:
            NotFound: The journal has no schedule of this name.
        """
        return Schedule(**await self._enable_schedule(check_text("name", name), bool(enabled)))

    @recorded("enable_schedule")
    async def _enable_schedule(self, name: str, enabled: bool) -> dict[str, Any]:
        return vars(await self.journal.arun(self.services.schedules.enable(name, enabled)))

    async def unschedule(self, name: str) -> None:
        """Delete a schedule. The runs it started stay.

        Args:
            name: The name of the schedule.

        Raises:
            NotFound: The journal has no schedule of this name.
        """
        await self._unschedule(check_text("name", name))

    async def _is_unscheduled(self, name: str) -> Done | None:
        return None if name in {one.name for one in await self.schedules()} else Done()

    @recorded("unschedule", verify=_is_unscheduled)
    async def _unschedule(self, name: str) -> None:
        await self.journal.arun(self.services.schedules.delete(name))

    # -- for operators

    async def run_counts(self, limit: int = 1000) -> dict[State, int]:
        """Count the runs in each state.

            counts = await client.run_counts()
            print("held:", counts[State.HELD])

        Counting stops early, so that it is fast on a large journal.

        Args:
            limit: Count up to this number in each state. `done` runs are counted among the newest
                10 × `limit` runs, so there may be more.
        """
        return await self.journal.ado(counts.runs_by_state(check_limit(limit)))

    async def workers(self) -> list[WorkerInfo]:
        """List the processes that drive runs, each with its runs, oldest first.

        A worker sends a heartbeat every ten seconds, on D1 every thirty. It is `silent` after three
        missed heartbeats. Its row is deleted when it stops. A short tick and the caller of a bound
        graph send no heartbeat: they are listed while they drive something.

            for worker in await client.workers():
                print(worker.host, worker.pid, worker.state, worker.driven)

        Only a `Runtime` on the same host can see that a worker is `dead`.
        """
        return await self.journal.arun(self.services.workers.workers())

    @recorded("drain")
    async def drain(self, worker_id: str, *, by: str | None = None) -> None:
        """Ask a worker to drain, as SIGTERM does.

        It claims nothing more, stops its runs at their next step, and exits. It sees the request
        within seconds. A worker inside a server stops, and the server keeps running.

        Args:
            worker_id: The id of the worker, from `workers`.
            by: Who asks.

        Raises:
            NotFound: No worker with this id sends heartbeats.
        """
        worker_id = check_id("worker", worker_id)
        await self.journal.arun(self.services.workers.drain(worker_id, by))
        self.engine.wake()

    async def wait_counts(self, limit: int = 1000) -> dict[Kind, int]:
        """Count the open waits of each kind.

        Args:
            limit: Count up to this number in each kind.
        """
        return await self.journal.ado(counts.open_waits(check_limit(limit)))

    async def now(self) -> datetime:
        """Return the time by the journal's clock."""
        return moment(await asyncio.to_thread(lambda: self.services.clock.now()))

    async def ping(self) -> None:
        """Read one row, to check that the journal answers.

        Raises:
            Unavailable: The journal does not answer.
        """
        journal = await asyncio.to_thread(lambda: self.journal)
        await journal.ado(claims.next_due())

    def schema_version(self) -> int | None:
        """Return the version of the journal's schema, or `None` if there is no journal.

        It never creates a journal.
        """
        return version(self._url or os.environ.get("PERDURE_URL", ""))

    @staticmethod
    def newest_schema() -> int:
        """Return the version of the schema that this perdure uses, and migrates journals to."""
        return max(migrations())

    async def doctor(self) -> Diagnosis:
        """Check the journal's invariants, from one snapshot. It changes nothing.

            diagnosis = await client.doctor()
            assert not diagnosis.findings

        `perdure doctor` prints the same.
        """
        return await self.journal.arun(diagnose(self.url, self.services.clock.now()))

    def redact(self, text: str) -> str:
        """Return the text without the password of the journal's URL.

        Args:
            text: The text, such as the message of an exception.
        """
        return redact(text, self._url or os.environ.get("PERDURE_URL", ""))


class BlockingClient(LoopThread):
    """`Client.blocking`: the methods of `Client`, each blocking until it has returned.

    They have the same parameters, results and errors. `run` runs any coroutine that uses the
    client.
    """

    start = blocking_method(Client.start)
    get = blocking_method(Client.get)
    join = blocking_method(Client.join)
    stream = blocking_iterator(Client.stream)
    runs = blocking_method(Client.runs)
    score = blocking_method(Client.score)
    scores = blocking_method(Client.scores)
    events = blocking_method(Client.events)
    inbox = blocking_method(Client.inbox)
    waits = blocking_method(Client.waits)
    answer = blocking_method(Client.answer)
    withdraw = blocking_method(Client.withdraw)
    link = blocking_method(Client.link)
    assign = blocking_method(Client.assign)
    comment = blocking_method(Client.comment)
    run_counts = blocking_method(Client.run_counts)
    wait_counts = blocking_method(Client.wait_counts)
    workers = blocking_method(Client.workers)
    drain = blocking_method(Client.drain)
    signal = blocking_method(Client.signal)
    effects = blocking_method(Client.effects)
    settle = blocking_method(Client.settle)
    messages = blocking_method(Client.messages)
    redeliver = blocking_method(Client.redeliver)
    pause = blocking_method(Client.pause)
    resume = blocking_method(Client.resume)
    wake = blocking_method(Client.wake)
    cancel = blocking_method(Client.cancel)
    retry = blocking_method(Client.retry)
    prune = blocking_method(Client.prune)
    erase = blocking_method(Client.erase)
    scrub = blocking_method(Client.scrub)
    schedule = blocking_method(Client.schedule)
    schedules = blocking_method(Client.schedules)
    enable_schedule = blocking_method(Client.enable_schedule)
    unschedule = blocking_method(Client.unschedule)
    find = blocking_method(Client.find)
    wait_history = blocking_method(Client.wait_history)
    now = blocking_method(Client.now)
    ping = blocking_method(Client.ping)
    doctor = blocking_method(Client.doctor)
