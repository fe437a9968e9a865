"""What one can ask of a journal: start runs, look at them, answer, signal, stop, schedule.

A client drives nothing and never loads LangGraph, unless it is asked for an output that is kept in
a checkpoint: it starts in a moment, in a web handler or on the command line. `Runtime` is a client
that has graphs, too. Every method is one or a few operations; the decisions are in the statements
they name. Nothing is kept here that a crash may take.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from perdure.blocking import Lender, lent
from perdure.errors import BadArgument, NotFound
from perdure.journal import Journal, Op, Plan, connect, version
from perdure.journal.clock import Clock, JournalClock
from perdure.journal.names import check_text
from perdure.operations import messages, runs, schedules
from perdure.operations.runs import RunRow
from perdure.serde.codec import Codec
from perdure.serde.encryption import ChecksumEnvelope, EncryptedEnvelope
from perdure.serde.serializer import Serializer
from perdure.service.effects import EffectService
from perdure.service.health import Diagnosis, diagnose, redact
from perdure.service.reflections import ReflectionPlans
from perdure.service.runs import GRACE, PAGE, Ledger, make_setup
from perdure.service.validation import (
    check_dict,
    check_duration,
    check_effect_state,
    check_kind,
    check_limit,
    check_name,
    check_state,
    check_time,
)
from perdure.service.waits import Inbox
from perdure.types import (
    ENDED,
    Durability,
    EffectRecord,
    EffectState,
    Event,
    Kind,
    Message,
    Run,
    Schedule,
    Score,
    State,
    Strategy,
    Wait,
    WaitRecord,
    milliseconds,
    moment,
)

if TYPE_CHECKING:
    from perdure.checkpoint.reader import Reader

STRATEGIES = ("enqueue", "reject", "interrupt", "rollback")
LARGEST = 1e300
"""The largest score."""
_NAMESPACE = uuid.UUID("9a4b4f0e-5d1c-5b6e-8a51-7d7065726475")


class Client:
    """A journal to ask. `url`, `allow` and `keys` are those of `Runtime`; it opens on first use."""

    def __init__(
        self,
        url: str | None = None,
        *,
        allow: Iterable[type | tuple[str, ...]] = (),
        keys: Mapping[str, bytes] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._url, self._given_clock = url, clock
        self._serializer = Serializer(
            Codec(allow), EncryptedEnvelope(keys) if keys is not None else ChecksumEnvelope()
        )
        self._opening = threading.RLock()
        self._journal_: Journal | None = None
        self._clock_: Clock | None = None
        self._blocking: Asking | None = None

    # -- opening and closing

    @property
    def journal(self) -> Journal:
        """The journal underneath, opened now if it was not yet."""
        with self._opening:
            if self._journal_ is None:
                self._journal_ = connect(self._url)
            return self._journal_

    @property
    def is_open(self) -> bool:
        """Whether the journal was opened. Asking does not open it."""
        return self._journal_ is not None

    @property
    def url(self) -> str:
        """Where the journal is, without its password."""
        url = self._url or os.environ.get("PERDURE_URL", "")
        return re.sub(r"(?<=://)([^:/@]*):[^@]*@", r"\1:***@", url)

    def __repr__(self) -> str:
        return f"<perdure.Client {self.url}>"

    @property
    def _clock(self) -> Clock:
        with self._opening:
            if self._clock_ is None:
                self._clock_ = self._given_clock or JournalClock(self.journal)
            return self._clock_

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self._serializer, self._clock, self._load, self._forget)

    @property
    def _inbox(self) -> Inbox:
        return Inbox(self._serializer, self._clock)

    @property
    def _effects(self) -> EffectService:
        return EffectService(self._serializer, self._clock)

    @property
    def reflections(self) -> ReflectionPlans:
        """Plans about the LangMem reflections in this journal, for `journal.run`."""
        return ReflectionPlans(self._ledger, self._serializer, self._clock)

    def _load(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        """The state at a checkpoint."""
        from perdure.checkpoint.operations import CheckpointKey

        place = CheckpointKey(thread_id, "", checkpoint_id)
        found = yield from self._reader().get_tuple(place, False)
        return None if found is None else found.checkpoint["channel_values"]

    def _reader(self) -> Reader:
        from perdure.checkpoint.cache import CheckpointCache
        from perdure.checkpoint.reader import Reader
        from perdure.checkpoint.row_format import RowFormat

        return Reader(
            RowFormat(self._serializer.codec, self._serializer.envelope), CheckpointCache(1, 0)
        )

    @property
    def blocking(self) -> Asking:
        """The same methods for callers without an event loop."""
        with self._opening:
            if self._blocking is None or self._blocking.pid != os.getpid():
                self._blocking = self._lend()
            return self._blocking

    def _lend(self) -> Asking:
        return Asking(self)

    def setup(self) -> None:
        """Open the database and bring its schema up to date now. Otherwise the first use does."""
        _ = self.journal

    def close(self) -> None:
        """Let the database go. What is queued is committed; runs are not touched."""
        if self._blocking is not None:  # first: what it drives needs its lease to stop well
            self._blocking.close()
            self._blocking = None
        self._let_go()

    def _let_go(self) -> None:
        if self._journal_ is not None:
            self._journal_.close()

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.setup)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    # -- what a runtime knows better

    def _graph(self, name: str, version: str | None) -> tuple[str, str]:
        """The graph, and its version, that a caller means."""
        return check_text("graph", name), check_text("version", version or "")

    def _wake(self, *, stopped: bool = False) -> None:
        """Something may be due, or is to be stopped, in this process."""

    def _stop_here(self, run_id: str, why: str) -> None:
        """Stop a run before its next step, if this process drives it."""

    def _forget(self, thread_id: str) -> None:
        """What is known of a thread is deleted."""

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
    ) -> Run:
        """Accept a run for good: when this returns, it is on disk, and workers bring it to its end.

        The same `key` on a thread gives the run it made before. Without a `thread_id` the thread is
        a new one, or, with a key, the one of that key. On a thread with a run under way, `enqueue`
        waits for its end, `reject` raises `ThreadBusy`, `interrupt` stops it and keeps its steps,
        `rollback` stops it and deletes them.
        """
        name, version = self._graph(graph, version)
        if multitask_strategy not in STRATEGIES:
            raise BadArgument(
                f"multitask_strategy={multitask_strategy!r}: use one of {', '.join(STRATEGIES)}."
            )
        if durability is not None and durability not in ("auto", "sync", "async", "exit"):
            raise BadArgument(f"durability={durability!r}: use auto, sync, async or exit.")
        if key is not None:
            check_name("key", key)
        if thread_id is None:
            thread_id = str(
                uuid.uuid4() if key is None else uuid.uuid5(_NAMESPACE, json.dumps([name, key]))
            )
        setup = make_setup(
            input=input, metadata=metadata, tags=tags, context=context, config=config
        )
        if durability is not None:
            setup["durability"] = durability
        thread_id = check_name("thread_id", str(thread_id))
        plan = self._ledger.accept(
            (name, version), thread_id, setup, multitask_strategy, key=key, after=after
        )
        row = await self.journal.arun(plan)
        self._wake(stopped=multitask_strategy in ("interrupt", "rollback"))
        return await self.journal.arun(self._ledger.show(row))

    async def get(self, run_id: str, *, output: bool = True) -> Run:
        """A run as it is now. With `output=False` what it gave back is not read."""
        return await self.journal.arun(self._ledger.get(run_id, output=output))

    async def find(self, prefix: str) -> Run:
        """The run with this id, or the only one whose id begins so, without its output.

        Raises `NotFound`, or `BadArgument` if the beginning is too short or several runs have it.
        """
        return await self.journal.arun(self._ledger.by_prefix(prefix))

    async def join(self, run_id: str, *, timeout: timedelta | None = None) -> Run:
        """Wait until a run has ended, whoever drives it. Raises `TimeoutError` after `timeout`."""
        if timeout is not None:
            check_duration("timeout", timeout)
        pause = 0.02
        async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
            while not (run := await self.get(run_id)).ended:
                await asyncio.sleep(pause)
                pause = min(0.5, pause * 1.5)
        return run

    async def runs(
        self,
        *,
        thread_id: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        graph: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: Run | None = None,
        limit: int = PAGE,
        output: bool = True,
    ) -> list[Run]:
        """Runs, newest first, at most `limit`; the page behind a run with `before`.

        `state` is one or several, `metadata` what a run must have among its own, and `since` and
        `until` bound when it was accepted. Metadata is sealed, so every run is read until enough
        have it. With `output=False` what they gave back is not read.
        """
        given = [state] if isinstance(state, str) else state
        states = None if given is None else {check_state(one).value for one in given}
        position = None if before is None else (milliseconds(before.created_at), before.id)
        if until is not None:
            end = (milliseconds(check_time("until", until)), "")
            position = end if position is None else min(position, end)
        first = 0 if since is None else milliseconds(check_time("since", since))

        def rows(position: tuple[int, str] | None, count: int) -> Op[list[RunRow]]:
            return runs.page(
                thread_id=thread_id,
                states=states,
                graph=graph,
                since=first,
                before=position,
                count=count,
            )

        plan = self._ledger.page(
            rows, position, check_limit(limit), check_dict("metadata", metadata), output=output
        )
        return await self.journal.arun(plan)

    async def score(
        self,
        run_id: str,
        name: str,
        value: float,
        *,
        about: str = "",
        comment: str | None = None,
        by: str | None = None,
    ) -> None:
        """Note how well a run did, now or weeks after its end; `about` is what part of it earned
        that. The last word of a name and part counts, so to say it again changes nothing."""
        given: Any = value
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if not is_number or not abs(given) <= LARGEST:
            raise BadArgument(f"A score is a number, not {str(given)[:40]}.")
        plan = self._ledger.score(
            run_id,
            check_name("name", name),
            float(value),
            about=check_text("about", about),
            comment=None if comment is None else check_text("comment", comment),
            by=None if by is None else check_text("by", by),
        )
        await self.journal.arun(plan)

    async def scores(self, run_id: str) -> list[Score]:
        """What was said of a run, oldest first."""
        return await self.journal.arun(self._ledger.scores(run_id))

    async def events(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """The history of a run from event `after` on; it can be read while it grows."""
        if limit is not None:
            check_limit(limit)
        return await self.journal.arun(self._ledger.events(run_id, after, limit))

    # -- waits

    async def waits(
        self,
        *,
        thread_id: str | None = None,
        run_id: str | None = None,
        kind: Kind | str | None = None,
        after: Wait | None = None,
        limit: int = PAGE,
    ) -> list[Wait]:
        """What is open, oldest first, at most `limit`; the page behind a wait with `after`."""
        plan = self._inbox.waits(
            thread_id=thread_id,
            run_id=run_id,
            kind=None if kind is None else check_kind(kind).value,
            after=after,
            count=check_limit(limit),
        )
        return await self.journal.arun(plan)

    async def wait_history(self, run_id: str) -> list[WaitRecord]:
        """Every wait a run has or had, with its answer."""
        return await self.journal.arun(self._inbox.history(run_id))

    async def answer(self, wait_id: str, value: Any, *, by: str | None = None) -> None:
        """Answer what a run asks a person. Accepted once; `by` is recorded with the time.

        Raises `AlreadyAnswered`, `WaitExpired`, `WaitClosed`, `WrongWait` or `BadAnswer`, and then
        changes nothing.
        """
        await self.journal.arun(self._inbox.answer(wait_id, value, by))
        self._wake()

    async def signal(
        self, thread_id: str, name: str, value: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a named message to a thread. It is on disk when this returns, and delivered once.

        Kept when nobody waits for it yet. False: one with this `key` was sent before.
        """
        kept = await self.journal.arun(self._inbox.signal(thread_id, name, value, key))
        self._wake()
        return kept

    # -- effects

    async def effects(
        self,
        run_id: str | None = None,
        *,
        thread_id: str | None = None,
        state: EffectState | str | None = None,
        after: EffectRecord | None = None,
        limit: int = PAGE,
        strict: bool = True,
    ) -> list[EffectRecord]:
        """Effects, oldest first: of a run, of a thread, in a state. `state="unknown"` is what
        waits for `settle`. `after` is the last one of the page before. With `strict=False` an
        effect that cannot be read here is listed with the reason as its error."""
        plan = self._effects.effects(
            run_id=run_id,
            thread_id=thread_id,
            state=None if state is None else check_effect_state(state).value,
            after=after,
            count=check_limit(limit),
            strict=strict,
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

        `done`: it happened, and `result` is what it would have returned. `retry`: it did not
        happen, and is called. `fail`: it did not happen, and is not called; `reason` says why. The
        event of the decision has `by` and `reason`. The run continues when no effect of it is
        unknown.
        """
        await self.journal.arun(self._effects.settle(key, how, result, by, reason))
        self._wake()

    async def messages(self, *, limit: int = PAGE) -> list[Message]:
        """What is in the outbox and not delivered yet, oldest first."""
        return await self.journal.ado(messages.pending(self._serializer, check_limit(limit)))

    # -- control

    async def pause(self, run_id: str, *, grace: timedelta = GRACE, by: str | None = None) -> Run:
        """Let a run rest until `resume`: at once, or after the step it is in."""
        return await self._stop(run_id, "pause", State.PAUSED, grace, None, by)

    async def cancel(
        self,
        run_id: str,
        *,
        grace: timedelta = GRACE,
        reason: str | None = None,
        by: str | None = None,
    ) -> Run:
        """End a run: at once, or after the step it is in, or after `grace` in the middle of it."""
        return await self._stop(run_id, "cancel", State.CANCELLED, grace, reason, by)

    async def _stop(
        self,
        run_id: str,
        verb: str,
        state: State,
        grace: timedelta,
        reason: str | None,
        by: str | None,
    ) -> Run:
        plan = self._ledger.stop(run_id, verb, state, grace, reason=reason, by=by)
        stopped = await self.journal.arun(plan)
        if stopped.state is State.RUNNING:
            self._stop_here(run_id, verb)
        self._wake()
        return stopped

    async def resume(self, run_id: str) -> Run:
        """Let a paused run go on."""
        return await self._go_on(run_id, (State.PAUSED,), "resumed", "only a paused run can.")

    async def retry(self, run_id: str) -> Run:
        """Try a run again that failed or is held, from its last step."""
        why = "only a failed or held run can, if no later run of its thread has begun."
        return await self._go_on(run_id, (State.FAILED, State.HELD), "retried", why)

    async def _go_on(self, run_id: str, states: tuple[State, ...], kind: str, why: str) -> Run:
        gone_on = await self.journal.arun(self._ledger.go_on(run_id, states, kind, why))
        self._wake()
        return gone_on

    async def prune(
        self,
        *,
        older_than: timedelta,
        states: Iterable[State | str] = tuple(ENDED),
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete runs that ended longer ago than that, with their history, and give how many.

        A thread of which no run is left loses its checkpoints too. `dry_run` only counts them.
        """
        wanted = [check_state(state) for state in states]
        if not set(wanted) <= ENDED:
            raise BadArgument("Only runs that ended can be pruned: done, failed, cancelled.")
        check_duration("older_than", older_than)
        plan = self._ledger.prune(older_than, wanted, limit, dry_run=dry_run)
        return await self.journal.arun(plan)

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

        A slot starts at most one run, however many workers there are. Slots that nobody was there
        for are passed over, unless `catch_up` is True, or how long ago they may have been. The same
        name again changes the schedule.
        """
        chosen, version = self._graph(graph, None)
        check_text("name", name)
        setup = make_setup(
            input=input, metadata=metadata, tags=tags, context=context, config=config
        )
        plan = self._ledger.schedule(
            (chosen, version), setup, name=name, cron=cron, timezone=timezone, catch_up=catch_up
        )
        await self.journal.arun(plan)
        return next(one for one in await self.schedules() if one.name == name)

    async def schedules(self) -> list[Schedule]:
        """Every schedule by name."""
        return [row.to_schedule() for row in await self.journal.ado(schedules.every())]

    async def unschedule(self, name: str) -> None:
        """Remove a schedule; runs it started stay."""
        if name not in {one.name for one in await self.schedules()}:
            raise NotFound("schedule", name)
        await self.journal.ado(schedules.delete(name))

    # -- for operators

    async def now(self) -> datetime:
        """The time by the journal's clock."""
        return moment(await asyncio.to_thread(lambda: self._clock.now()))

    async def ping(self) -> None:
        """Read one row. Raises `Unavailable` if the journal does not answer."""
        journal = await asyncio.to_thread(lambda: self.journal)
        await journal.ado(runs.next_due())

    def schema_version(self) -> int | None:
        """The version of the journal's schema; None if there is no journal. Never creates one."""
        return version(self._url or os.environ.get("PERDURE_URL", ""))

    async def doctor(self) -> Diagnosis:
        """Check the journal's invariants, from one snapshot."""
        return await self.journal.arun(diagnose(self.url))

    def redact(self, text: str) -> str:
        """A text without the password of the journal's URL."""
        return redact(text, self._url or os.environ.get("PERDURE_URL", ""))


class Asking(Lender):
    """`Client.blocking`: each method is the client's own."""

    start = lent(Client.start)
    get = lent(Client.get)
    join = lent(Client.join)
    runs = lent(Client.runs)
    score = lent(Client.score)
    scores = lent(Client.scores)
    events = lent(Client.events)
    waits = lent(Client.waits)
    answer = lent(Client.answer)
    signal = lent(Client.signal)
    effects = lent(Client.effects)
    settle = lent(Client.settle)
    messages = lent(Client.messages)
    pause = lent(Client.pause)
    resume = lent(Client.resume)
    cancel = lent(Client.cancel)
    retry = lent(Client.retry)
    prune = lent(Client.prune)
    schedule = lent(Client.schedule)
    schedules = lent(Client.schedules)
    unschedule = lent(Client.unschedule)
    find = lent(Client.find)
    wait_history = lent(Client.wait_history)
    now = lent(Client.now)
    ping = lent(Client.ping)
    doctor = lent(Client.doctor)
