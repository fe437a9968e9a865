"""`Client`: start runs, look at them, answer, signal, cancel, schedule.

A client drives nothing and does not load LangGraph, unless it is asked for an output that is
stored in a checkpoint. So it starts at once, in a web handler or on the command line. `Runtime` is
a client that has graphs too. Every method is one or a few operations, and the decisions are in the
statements they name: a crash loses nothing that a method has returned.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from perdure.blocking import LoopThread, blocking_iterator, blocking_method
from perdure.context_managed import ContextManaged
from perdure.errors import BadArgument, NotFound
from perdure.journal import Journal, scrub, version
from perdure.journal.clock import Clock, JournalClock
from perdure.journal.names import check_id, check_renamed, check_text, maybe_id
from perdure.observe.observers import Observers
from perdure.operations import claims, journal_counts, messages, sizes
from perdure.operations.runs import RunRow
from perdure.recorded_calls import call_key, call_number, parent_of_call, recorded
from perdure.serde.codec import Codec
from perdure.serde.encryption import ChecksumEnvelope, EncryptedEnvelope
from perdure.serde.redaction import hide_in_url
from perdure.serde.redaction_policy import Redaction
from perdure.serde.serializer import Serializer
from perdure.service.frames import FrameBuilder
from perdure.service.health import Diagnosis, diagnose, redact
from perdure.service.local_engine import LocalEngine
from perdure.service.public_url import MISSING, check_public_url
from perdure.service.question_links import LASTS
from perdure.service.records import Cursor
from perdure.service.reflections import ReflectionService
from perdure.service.run_selection import select_runs
from perdure.service.runs import GRACE, PAGE, make_setup
from perdure.service.saved import saved_by_run, saved_in_total
from perdure.service.scores import check_score
from perdure.service.services import Services
from perdure.service.streams import StreamReader, check_modes, kept_modes
from perdure.service.validation import (
    check_duration,
    check_limit,
    check_member,
    check_name,
    check_time,
)
from perdure.service.views import tables
from perdure.service.views.saved_work import SavedWork
from perdure.service.views.tables import Table
from perdure.times import FIRST_MS, LAST_MS, deadline, milliseconds, moment, position_before
from perdure.types import (
    ENDED,
    Chunk,
    Control,
    DatabaseSize,
    Decision,
    Done,
    Durability,
    EffectRecord,
    EffectState,
    Event,
    EventKind,
    Kind,
    Message,
    PromptRecord,
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
    from perdure.service.views.inbox_value import Inbox
    from perdure.service.views.run_life import Timeline

STRATEGIES = ("enqueue", "reject", "interrupt", "rollback")
WITHOUT_BY = Record(without=("by",))
"""For calls whose records in older journals have no `by`: their arguments must stay the same."""
_NAMESPACE = uuid.UUID("9a4b4f0e-5d1c-5b6e-8a51-7d7065726475")

B = TypeVar("B", bound=LoopThread)


class Client(ContextManaged):
    """A journal's runs, waits, effects, messages and schedules.

    `url` is the journal, `PERDURE_URL` by default; it is opened on first use. `allow` and
    `encryption_keys` are those of `Saver`, and so is `redact`: a `Redaction`. `observe` is an
    observer, or several: `perdure.observe` has some, and True takes those that the environment
    configures. `public_url` is where people reach the pages, for `link`; `PERDURE_PUBLIC_URL` by
    default. Every method is a coroutine; `blocking` has the same methods for callers without an
    event loop.

        async with Client("postgresql://localhost/agents") as client:
            run = await client.start("campaign", {"to": "ada@example.com"})
            await client.join(run.id)
    """

    engine: LocalEngine
    """The engine in this process. For perdure's own modules; it may change."""

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
        keys: None = None,
        observer: None = None,
    ) -> None:
        check_renamed("keys", "encryption_keys", keys)
        check_renamed("observer", "observe", observer)
        envelope = (
            ChecksumEnvelope() if encryption_keys is None else EncryptedEnvelope(encryption_keys)
        )
        serializer = Serializer(Codec(allow, redact), envelope)
        engine = LocalEngine(url, serializer, Observers(observe), lambda: self.services.clock)
        self._compose(url, engine, clock, public_url)

    def _compose(
        self, url: str | None, engine: LocalEngine, clock: Clock | None, public_url: str | None
    ) -> None:
        self._url, self._given_clock = url, clock
        self.engine = engine
        engine.given_url = None if public_url is None else check_public_url(public_url)
        engine.observers.attach(engine)
        self._opening = threading.RLock()
        self._services: Services | None = None
        self._blocking: LoopThread | None = None

    # -- opening and closing

    @property
    def journal(self) -> Journal:
        """The journal. Its first use opens it, `setup()` does so now."""
        return self.engine.journal

    @property
    def is_open(self) -> bool:
        """Whether the journal was opened. Asking does not open it."""
        return self.engine.is_open

    @property
    def reflections(self) -> ReflectionService:
        """Plans about the LangMem reflections in this journal, for `journal.run`."""
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
        """The plans behind the methods. For perdure's own modules; they may change."""
        with self._opening:
            if self._services is None:
                clock = self._given_clock or JournalClock(self.journal)
                self._services = Services(self.engine, clock)
            return self._services

    @property
    def blocking(self) -> BlockingClient:
        """The same methods for callers without an event loop.

        run = client.blocking.start("campaign", {"to": "ada@example.com"})
        """
        return self._on_loop_thread(BlockingClient)

    def _on_loop_thread(self, kind: type[B]) -> B:
        with self._opening:
            found = self._blocking
            if not isinstance(found, kind) or found.pid != os.getpid():
                found = self._blocking = kind(self)
            return found

    def setup(self) -> None:
        """Open the database and bring its schema up to date now instead of on first use. After
        `close()` it opens the database again."""
        self.engine.setup()

    def close(self) -> None:
        """Drain what is driven here, commit what is queued and close the database.

        Runs that were driven stop at their next step, or are given back; others are not touched.
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
        """Accept a run. When this returns, the run is on disk and workers bring it to its end.

        The same `key` on a thread returns the run it started before. Without a `thread_id` the run
        has a new thread, or with a `key` the thread of that key. If the thread has a run under way,
        `enqueue` waits for its end, `reject` raises `ThreadBusy`, `interrupt` stops it and keeps
        its steps, `rollback` stops it and deletes them. `after` delays the start. `stream` names
        the modes of LangGraph's output that are kept for `stream()`: none by default;
        `stream_subgraphs` says whether that of subgraphs is. The URL `webhook` is told when the run
        ends, is held, or waits for a person.

        In a node it is an effect, and the run is a child of the node's run: it is cancelled with
        its parent unless `on_parent_cancel="leave"`. A `detached` run has no parent.

            run = await client.start("campaign", {"to": "ada@example.com"}, key="ada-2026-05")
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
        """A run as it is now. With `output=False` its output is not read. Raises `NotFound`."""
        return await self.journal.arun(self.services.runs.get(run_id, output=output))

    async def find(self, prefix: str) -> Run:
        """The run with this id, or the only one whose id starts with `prefix`, without its output.

        Raises `NotFound`, or `BadArgument` if the prefix is too short or several runs have it.
        """
        return await self.journal.arun(self.services.runs.by_prefix(prefix))

    async def join(self, run_id: str, *, timeout: timedelta | None = None) -> Run:
        """Wait until a run has ended, whichever process drives it.

        Raises `TimeoutError` after `timeout`; the run goes on.
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
        """What a run produces, while it is produced and afterwards, whichever process drives it.

        The run must have been started with `stream=`. `after` is the number of the last chunk that
        was seen: a reader that was cut off, by a crash of the server too, goes on from there. A
        chunk of mode `segment` says that chunks from `replaces_from` on are void, because a process
        died or a node runs again; a reader that comes later does not get the void ones. It ends
        when the run has ended; with `until_waiting` also when it waits for a person, is paused or
        held. Raises `NotFound`.

            async for chunk in client.stream(run.id, modes="messages"):
                print(chunk.n, chunk.data)
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
        before: None = None,
    ) -> list[Run]:
        """Runs, newest first, at most `limit`. `after` is the last run of the page before.

        `parent_id` gives the children of a run, `state` is one state or several, `metadata` what a
        run's metadata must contain; `since` and `until` bound when it was accepted. Metadata is
        encoded in the row, so every run is read until enough match. With `output=False` outputs are
        not read.

            page = await client.runs(state="held")
            next_page = await client.runs(state="held", after=page[-1])
        """
        check_renamed("before", "after", before)
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

    async def frame(
        self,
        what: Table | str = Table.RUNS,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        parent_id: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        graph: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        content: bool = False,
    ) -> Any:
        """A pandas DataFrame of `"runs"`, or of their `"events"`, `"effects"`, `"waits"`,
        `"scores"` or `"decisions"`, newest run first. Needs the extra `frames`.

        The filters select runs, as in `runs`, or `run_id` names one. Columns have the same dtypes
        in every frame, an empty one too, and can be written as Parquet. Inputs, outputs, arguments
        and other content are columns only with `content=True`.

            runs = await client.frame("runs", graph="campaign")
            runs.groupby("state").size()
        """
        table = check_member(Table, "a table", what)
        which = select_runs(
            ids=None if run_id is None else (run_id,),
            thread_id=thread_id,
            parent_id=parent_id,
            state=state,
            graph=graph,
            metadata=metadata,
            since=since,
            until=until,
        )
        columns = tables.columns(table, content=content)
        builder = await asyncio.to_thread(FrameBuilder, columns)
        cursor = Cursor(which)
        while not cursor.is_end:
            plan = self.services.records.batch(table, cursor, content=content)
            rows, cursor = await self.journal.arun(plan)
            builder.add(rows)
        return await asyncio.to_thread(builder.frame)

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
        """Store how well a run did, now or weeks after its end: a number, a category, or only a
        comment.

        It is about the run, the part of it that `about` names, the step of a checkpoint, or the
        effect of a key. A score of the same name and part is replaced; saying the same again
        changes nothing. Raises `NotFound` if the run has no such step or effect.

            await client.score(run.id, "replied", True, about="touch-2")
            await client.score(run.id, "tone", "too formal", effect=sent.key, by="ana")
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

    async def prompts(self, name: str | None = None) -> list[PromptRecord]:
        """The versions of a prompt, or of all prompts, oldest first, each with the outcomes of what
        it touched: for every score its number, mean or share, and 95 % interval.

            for version in await client.prompts("writer"):
                print(version.version, version.runs, version.outcomes)
        """
        return await self.journal.arun(
            self.services.prompts.prompts(None if name is None else check_text("name", name))
        )

    async def scores(self, run_id: str) -> list[Score]:
        """The scores of a run, oldest first."""
        return await self.journal.arun(self.services.scores.scores(run_id))

    async def saved(
        self,
        run_id: str | None = None,
        *,
        graph: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> SavedWork:
        """What recovery did not repeat, and what crashes cost: of a run, with each crash, or in
        total over the runs of a graph, or over all; `since` and `until` bound when a run was
        accepted.

            saved = await client.saved(run.id)
            print(saved.work.tokens, [crash.lost for crash in saved.recoveries])
        """
        if run_id is not None:
            if (graph, since, until) != (None, None, None):
                raise BadArgument("Name a run, or select runs by graph and time; not both.")
            return await self.journal.arun(saved_by_run(self.services.runs, run_id))
        first = FIRST_MS if since is None else milliseconds(check_time("since", since))
        last = LAST_MS if until is None else milliseconds(check_time("until", until))
        graph = None if graph is None else check_text("graph", graph)
        return await self.journal.arun(saved_in_total(graph, first, last))

    async def timeline(self, run_id: str) -> Timeline:
        """The timeline of a run: who drove it when, where it rested, what crashed. Notebooks show
        it as a picture.

            timeline = await client.timeline(run.id)
            print(timeline.totals)
        """
        from perdure.service.views.run_life import Timeline

        run = await self.get(run_id, output=False)
        events = await self.events(run_id)
        going = []
        if run.state is State.RUNNING:
            going = await self.effects(run_id, state=EffectState.OPEN)
        return Timeline.of(run, events, await self.now(), going)

    async def events(
        self,
        run_id: str,
        *,
        after: int | Event = 0,
        limit: int | None = None,
        kinds: Iterable[EventKind | str] | None = None,
    ) -> list[Event]:
        """The history of a run, oldest first, also while it grows. `kinds` selects kinds of events.
        `after` is the last event of the previous page, or its number.

            for event in await client.events(run.id):
                print(event.at, event.kind, event.data)
        """
        if limit is not None:
            check_limit(limit)
        number = after.n if isinstance(after, Event) else after
        wanted = None
        if kinds is not None:
            wanted = [check_member(EventKind, "a kind of event", one) for one in kinds]
        return await self.journal.arun(self.services.runs.events(run_id, number, limit, wanted))

    async def comment(
        self, run_id: str, text: str, *, wait_id: str | None = None, by: str | None = None
    ) -> None:
        """Add a comment to the history of a run, optionally about one of its questions. It changes
        nothing else. Raises `NotFound`.

            await client.comment(run.id, "Asked finance.", wait_id=wait.id, by="ana")
        """
        await self._comment(check_id("run", run_id), text, maybe_id("wait", wait_id), by)

    @recorded("comment")
    async def _comment(self, run_id: str, text: str, wait_id: str | None, by: str | None) -> None:
        plan = self.services.decisions.comment(run_id, text, wait_id, by, number=call_number())
        await self.journal.arun(plan)

    async def decisions(
        self, *, after: Decision | None = None, limit: int = PAGE
    ) -> list[Decision]:
        """Decisions about runs from outside, newest first: answers, withdrawals, settled effects,
        runs paused, resumed, retried, cancelled or woken, assigned questions, comments. `after` is
        the last decision of the previous page.

            for one in await client.decisions():
                print(one.event.at, one.graph, one.event.kind, one.event.data.get("by"))
        """
        return await self.journal.arun(self.services.decisions.decisions(after, check_limit(limit)))

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
        """Open waits, oldest first, at most `limit`. `after` is the last wait of the page before.

        `graph` and `assignee` select questions to people; `assignee=""` selects unassigned ones.

            inbox = await client.waits(kind="human")
            mine = await client.waits(assignee="ana")
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
        """Every wait of a run, with its answer."""
        return await self.journal.arun(self.services.waits.history(check_id("run", run_id)))

    async def inbox(self, *, thread_id: str | None = None, limit: int = PAGE) -> Inbox:
        """What needs a person, on all threads or one: open questions, oldest first, effects with an
        unknown outcome, and held runs; at most `limit` of each. Notebooks show it as a list.

            for item in await client.inbox():
                print(item.title, item.shown)
        """
        from perdure.service.views import attention
        from perdure.service.views.inbox_value import Inbox

        items = attention.inbox(
            await self.waits(kind=Kind.HUMAN, thread_id=thread_id, limit=limit),
            await self.effects(state=EffectState.UNKNOWN, thread_id=thread_id, limit=limit),
            await self.runs(state=State.HELD, thread_id=thread_id, limit=limit, output=False),
            await self.now(),
        )
        return Inbox(tuple(items))

    async def answer(self, wait_id: str, value: Any, *, by: str | None = None) -> None:
        """Answer a wait for a person. Accepted once; `by` is stored with the time.

        Raises `AlreadyAnswered`, `WaitExpired`, `WaitClosed`, `WrongWait` or `BadAnswer`, and then
        changes nothing.

            await client.answer(wait.id, {"approved": True}, by="ada")
        """
        await self._answer(check_id("wait", wait_id), value, by)
        self.engine.wake()

    @recorded("answer")
    async def _answer(self, wait_id: str, value: Any, by: str | None) -> None:
        plan = self.services.waits.answer(wait_id, value, by, number=call_number())
        await self.journal.arun(plan)

    async def assign(
        self,
        wait_id: str,
        to: str | None,
        *,
        by: str | None = None,
        expected: str | None = None,
    ) -> None:
        """Assign an open question to a person, or unassign it with `to=None`. Anyone may still
        answer it.

        Raises `AlreadyAssigned` if the current assignee is neither `by` nor `expected`. If the
        question was answered or closed, raises what `answer` would.

            await client.assign(wait.id, "ana", by="ana")
            await client.assign(wait.id, "bo", by="bo", expected="ana")
        """
        await self._assign(check_id("wait", wait_id), to, by, expected)

    @recorded("assign")
    async def _assign(
        self, wait_id: str, to: str | None, by: str | None, expected: str | None
    ) -> None:
        plan = self.services.waits.assign(wait_id, to, by, expected, number=call_number())
        await self.journal.arun(plan)

    async def withdraw(
        self, wait_id: str, *, by: str | None = None, reason: str | None = None
    ) -> None:
        """Take an answer back: the question is open again. For an answer that made its run fail.

        A run that failed or is held goes on from its last step, and asks again. `by` and `reason`
        are in the event. Raises `NotWithdrawn` if the run has gone on with the answer, or is driven
        at this moment, and then changes nothing.

            await client.withdraw(wait.id, by="ada")
        """
        await self._withdraw(wait_id, by, reason)
        self.engine.wake()

    @recorded("withdraw")
    async def _withdraw(self, wait_id: str, by: str | None, reason: str | None) -> None:
        plan = self.services.waits.withdraw(wait_id, by, reason, number=call_number())
        await self.journal.arun(plan)

    async def link(self, wait_id: str, *, to: str, expires: timedelta = LASTS) -> str:
        """The URL of a page where a person can answer an open question without signing in.

        For mail or chat. Opening it decides nothing. It works once, until it expires, for anyone
        who has it, and the answer is recorded under the name `to`: send each person their own.
        Requires a server with the pages (`asgi(ui=True)`) at `public_url`. Raises `NotFound`, or
        an `AnswerRefused` if the question cannot be answered.

            url = await client.link(wait.id, to="ana@example.com", expires=timedelta(days=2))
        """
        if (public := self.engine.public_url) is None:
            raise BadArgument(MISSING)
        _, token = await self.journal.arun(self.services.links.make(wait_id, to, expires))
        return public.link(token)

    async def signal(
        self, thread_id: str, name: str, value: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a named message to a thread. It is on disk when this returns, and delivered once.

        If no run waits for it yet, it is stored until one does. Returns False if a signal with this
        `key` was sent before. In a node it is an effect, and sent once.
        """
        stored = await self._signal(thread_id, name, value, key)
        self.engine.wake()
        return stored

    @recorded("signal")
    async def _signal(self, thread_id: str, name: str, value: Any, key: str | None) -> bool:
        plan = self.services.waits.signal(thread_id, name, value, key, id=call_key())
        return await self.journal.arun(plan)

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
        """Effects of a run, of a thread or in a state, oldest first. `state="unknown"` are those
        that `settle` is for. `after` is the last effect of the page before."""
        plan = self.services.effects.effects(
            run_id=maybe_id("run", run_id),
            thread_id=maybe_id("thread", thread_id),
            state=None if state is None else check_member(EffectState, "an effect's state", state),
            after=after,
            count=check_limit(limit),
        )
        return await self.journal.arun(plan)

    async def settle(
        self,
        key: str,
        how: Literal["done", "retry", "fail"],
        result: Any = None,
        *,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Settle an effect with an unknown outcome.

        `done`: it happened, and `result` is what the call would have returned. `retry`: it did not
        happen, and is called again. `fail`: it did not happen and is not called again; `reason`
        says why. The event of the decision has `by` and `reason`. The run continues when no effect
        of it is unknown.
        """
        await self._settle(check_id("effect", key), how, result, by, reason)
        self.engine.wake()

    @recorded("settle")
    async def _settle(
        self, key: str, how: str, result: Any, by: str | None, reason: str | None
    ) -> None:
        await self.journal.arun(self.services.effects.settle(key, how, result, by, reason))

    async def messages(self, *, after: Message | None = None, limit: int = PAGE) -> list[Message]:
        """Messages in the outbox that are not delivered, oldest first. `after` is the last message
        of the page before. One that was given up has no `due_at`."""
        return await self.journal.arun(self.services.effects.messages(after, check_limit(limit)))

    async def redeliver(self, message_id: str) -> None:
        """Deliver a message of the outbox now: one that was given up, or is to be tried later.
        Raises `NotFound`."""
        op = messages.redeliver(check_text("message_id", message_id), self.services.clock.now())
        if not await self.journal.ado(op):
            raise NotFound("message", message_id)
        self.engine.wake()

    # -- control

    async def pause(self, run_id: str, *, grace: timedelta = GRACE, by: str | None = None) -> Run:
        """Pause a run until `resume`: at once, after its current step, or after `grace` in the
        middle of the step."""
        return await self._stop(run_id, Control.PAUSE, grace, None, by)

    async def cancel(
        self,
        run_id: str,
        *,
        grace: timedelta = GRACE,
        reason: str | None = None,
        by: str | None = None,
    ) -> Run:
        """End a run: at once, after its current step, or after `grace` in the middle of the step.

        The compensations of its effects are run first, last effect first. Its children, and theirs,
        are cancelled with it, unless they were started with `on_parent_cancel="leave"`.
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

    async def wake(self, run_id: str, *, by: str | None = None) -> Run:
        """End the sleep of a run now: every `sleep` that it is in. `by` is in the event.

        Raises `WrongState` if it is not asleep.
        """
        await self._wake(run_id, by)
        self.engine.wake()
        return await self.get(run_id)

    @recorded("wake")
    async def _wake(self, run_id: str, by: str | None) -> None:
        plan = self.services.waits.wake(run_id, by, number=call_number())
        await self.journal.arun(plan)

    async def resume(self, run_id: str, *, by: str | None = None) -> Run:
        """Resume a paused run. `by` is in the event."""
        await self._resume(check_id("run", run_id), by)
        self.engine.wake()
        return await self.get(run_id)

    @recorded("resume", record=WITHOUT_BY)
    async def _resume(self, run_id: str, by: str | None) -> None:
        await self.journal.arun(self.services.runs.resume(run_id, by, number=call_number()))

    async def retry(self, run_id: str, *, by: str | None = None) -> Run:
        """Retry a failed or held run from its last step. `by` is in the event."""
        await self._retry(check_id("run", run_id), by)
        self.engine.wake()
        return await self.get(run_id)

    @recorded("retry", record=WITHOUT_BY)
    async def _retry(self, run_id: str, by: str | None) -> None:
        await self.journal.arun(self.services.runs.retry(run_id, by, number=call_number()))

    async def prune(
        self,
        *,
        older_than: timedelta,
        states: Iterable[State | str] = tuple(ENDED),
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete runs that ended longer ago than `older_than`, with their history; return how many.

        A thread that has no run left loses its checkpoints too. A child is kept until its parent
        has ended. `dry_run` only counts the runs.
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

    async def erase(self, thread_id: str) -> dict[str, int]:
        """Delete every row of a thread: runs, checkpoints, events, signals, also effects with a
        business key. Returns how many rows it deleted, by table.

        Raises `WrongState` if a run of the thread has not ended: cancel it first. After a crash the
        next call deletes what is left. Deleted bytes stay in the files of a database until it uses
        the place again, or `scrub` removes them.
        """
        return await self._erase(check_text("thread_id", thread_id))

    @recorded("erase")
    async def _erase(self, thread_id: str) -> dict[str, int]:
        return await self.journal.arun(self.services.runs.erase(thread_id))

    async def scrub(self) -> bool:
        """Remove deleted bytes from the journal's files, now. On SQLite the file is rewritten
        (`VACUUM`) and its WAL emptied: others wait to write for as long as that takes. Raises
        `Unavailable` if others keep it from that for 30 seconds.

        Returns False on a database that does so by itself: PostgreSQL's autovacuum; D1, whose Time
        Travel has the rows for up to 30 days.
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
        """Start a run of a graph at each time of a cron line, each on a thread of its own.

        A slot starts at most one run, however many workers there are. Slots that passed while no
        worker was running are skipped, unless `catch_up` is True, or a timedelta that says how old
        they may be. The same name again changes the schedule.

            await client.schedule("digest", "digest", cron="0 9 * * 1", timezone="Europe/Rome")
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
        """Every schedule, by name."""
        return await self.journal.arun(self.services.schedules.all())

    async def enable_schedule(self, name: str, *, enabled: bool = True) -> Schedule:
        """Enable a schedule from its next time on, or disable it with `enabled=False`. Runs missed
        while it was disabled are not started. Raises `NotFound`.

            await client.enable_schedule("digest", enabled=False)
        """
        return Schedule(**await self._enable_schedule(check_text("name", name), bool(enabled)))

    @recorded("enable_schedule")
    async def _enable_schedule(self, name: str, enabled: bool) -> dict[str, Any]:
        return vars(await self.journal.arun(self.services.schedules.enable(name, enabled)))

    async def unschedule(self, name: str) -> None:
        """Delete a schedule. The runs it started stay. Raises `NotFound`."""
        await self._unschedule(check_text("name", name))

    async def _is_unscheduled(self, name: str) -> Done | None:
        return None if name in {one.name for one in await self.schedules()} else Done()

    @recorded("unschedule", verify=_is_unscheduled)
    async def _unschedule(self, name: str) -> None:
        await self.journal.arun(self.services.schedules.delete(name))

    # -- for operators

    async def run_counts(self, limit: int = 1000) -> dict[State, int]:
        """The number of runs in each state, counted up to `limit`. `done` is counted among the
        newest 10 * `limit` runs, so there may be more.

            counts = await client.run_counts()
            print("held:", counts[State.HELD])
        """
        return await self.journal.ado(journal_counts.runs_by_state(check_limit(limit)))

    async def workers(self) -> list[WorkerInfo]:
        """The processes that drive runs, each with its runs, oldest first.

        A worker sends a heartbeat every ten seconds, on D1 every thirty. It is `silent` after three
        missed heartbeats. Its row is deleted when it stops.

            for worker in await client.workers():
                print(worker.host, worker.pid, worker.state, worker.driven)
        """
        return await self.journal.arun(self.services.workers.workers())

    async def drain(self, worker_id: str, *, by: str | None = None) -> None:
        """Ask a worker to drain, as SIGTERM does: it claims nothing more, stops its runs at their
        next step, and exits. It sees the request within seconds. A worker inside a server stops,
        and the server keeps running. Raises `NotFound` if no such worker has announced itself."""
        await self._drain(check_id("worker", worker_id), by)
        self.engine.wake()

    @recorded("drain")
    async def _drain(self, worker_id: str, by: str | None) -> None:
        await self.journal.arun(self.services.workers.drain(worker_id, by))

    async def sizes(self, since: datetime | None = None) -> list[DatabaseSize]:
        """The size of the database, sampled hourly by workers and ticks, oldest first. Empty on D1,
        which does not report it."""
        first = FIRST_MS if since is None else milliseconds(check_time("since", since))
        return await self.journal.ado(sizes.since(first))

    async def wait_counts(self, limit: int = 1000) -> dict[Kind, int]:
        """The number of open waits of each kind, counted up to `limit`."""
        return await self.journal.ado(journal_counts.open_waits(check_limit(limit)))

    async def now(self) -> datetime:
        """The time by the journal's clock."""
        return moment(await asyncio.to_thread(lambda: self.services.clock.now()))

    async def ping(self) -> None:
        """Read one row. Raises `Unavailable` if the journal does not answer."""
        journal = await asyncio.to_thread(lambda: self.journal)
        await journal.ado(claims.next_due())

    def schema_version(self) -> int | None:
        """The version of the journal's schema; None if there is no journal. Never creates one."""
        return version(self._url or os.environ.get("PERDURE_URL", ""))

    async def doctor(self) -> Diagnosis:
        """Check the journal's invariants, from one snapshot."""
        return await self.journal.arun(diagnose(self.url))

    def redact(self, text: str) -> str:
        """A text without the password of the journal's URL."""
        return redact(text, self._url or os.environ.get("PERDURE_URL", ""))


class BlockingClient(LoopThread):
    """`Client.blocking`: the client's methods, each blocking until it has returned."""

    start = blocking_method(Client.start)
    get = blocking_method(Client.get)
    join = blocking_method(Client.join)
    stream = blocking_iterator(Client.stream)
    runs = blocking_method(Client.runs)
    score = blocking_method(Client.score)
    scores = blocking_method(Client.scores)
    prompts = blocking_method(Client.prompts)
    frame = blocking_method(Client.frame)
    saved = blocking_method(Client.saved)
    events = blocking_method(Client.events)
    timeline = blocking_method(Client.timeline)
    inbox = blocking_method(Client.inbox)
    waits = blocking_method(Client.waits)
    answer = blocking_method(Client.answer)
    withdraw = blocking_method(Client.withdraw)
    link = blocking_method(Client.link)
    assign = blocking_method(Client.assign)
    comment = blocking_method(Client.comment)
    decisions = blocking_method(Client.decisions)
    run_counts = blocking_method(Client.run_counts)
    wait_counts = blocking_method(Client.wait_counts)
    sizes = blocking_method(Client.sizes)
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
