"""`Client`: start runs, look at them, answer, signal, cancel, schedule.

A client drives nothing and does not load LangGraph, unless it is asked for an output that is
stored in a checkpoint. So it starts at once, in a web handler or on the command line. `Runtime` is
a client that has graphs too. Every method is one or a few operations, and the decisions are in the
statements they name: a crash loses no change whose method has returned.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.blocking import LoopThread, blocking_iterator
from perdure.commands import (
    answering,
    claims,
    deleting,
    effect_decisions,
    health,
    question_links,
    run_control,
    run_reads,
    signals,
    starting,
)
from perdure.commands import messages as of_messages
from perdure.commands import schedules as of_schedules
from perdure.commands import scores as of_scores
from perdure.commands import waits as of_waits
from perdure.commands import workers as of_workers
from perdure.commands.connection import Connection, check_public_url
from perdure.commands.streams import check_modes, read_stream
from perdure.context_managed import ContextManaged
from perdure.journal import Journal, version
from perdure.journal import scrub as scrub_journal
from perdure.journal.clock import Clock
from perdure.journal.migrate import migrations
from perdure.observe.observers import Observers
from perdure.recorded_calls import RecordingConnection
from perdure.serde import redaction
from perdure.serde.redaction import Redaction, secrets_in
from perdure.serde.serializer import Serializer
from perdure.times import moment
from perdure.types import Chunk, EffectState, Kind, State
from perdure.verbs import PAGE, Caller, verb

if TYPE_CHECKING:  # imported on first use
    from perdure.views.waiting_for import InboxItem


B = TypeVar("B", bound=LoopThread)


def url_of(on: Connection) -> str:
    """The URL of the journal, with its password."""
    return on.url or os.environ.get("PERDURE_URL", "")


@verb(name="now")
async def _now(on: Connection) -> datetime:
    """Return the time by the journal's clock."""
    return moment(await asyncio.to_thread(lambda: on.clock.now()))


@verb(name="scrub")
async def _scrub(on: Connection) -> bool:
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
    await on.journal.aflush()
    return await asyncio.to_thread(scrub_journal, url_of(on))


@verb(name="inbox")
async def _inbox(
    on: Connection, *, thread_id: str | None = None, limit: int = PAGE
) -> list[InboxItem]:
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
    from perdure.views import waiting_for

    run = on.journal.arun
    unknown = EffectState.UNKNOWN
    of: Any = {"thread_id": thread_id, "limit": limit}
    return waiting_for.inbox(
        await run(of_waits.open_waits.plan(on, kind=Kind.HUMAN, **of)),
        await run(effect_decisions.list_effects.plan(on, state=unknown, **of)),
        await run(run_reads.list_runs.plan(on, state=State.HELD, output=False, **of)),
        moment(await asyncio.to_thread(lambda: on.clock.now())),
    )


class Verbs:
    """The verbs of `Client`, and of its blocking twin."""

    start = starting.start
    get = run_reads.get
    find = run_reads.find
    join = run_reads.join
    runs = run_reads.list_runs
    score = of_scores.score
    scores = of_scores.list_scores
    events = run_reads.list_events
    comment = run_control.comment
    waits = of_waits.open_waits
    wait_history = of_waits.wait_history
    inbox = _inbox
    answer = answering.answer
    assign = answering.assign
    withdraw = answering.withdraw
    link = question_links.link
    signal = signals.signal
    effects = effect_decisions.list_effects
    settle = effect_decisions.settle
    messages = of_messages.list_messages
    redeliver = of_messages.redeliver
    pause = run_control.pause
    cancel = run_control.cancel
    wake = run_control.wake
    resume = run_control.resume
    retry = run_control.retry
    prune = deleting.prune
    erase = deleting.erase
    scrub = _scrub
    schedule = of_schedules.schedule
    schedules = of_schedules.list_schedules
    enable_schedule = of_schedules.enable_schedule
    unschedule = of_schedules.unschedule
    run_counts = health.run_counts
    workers = of_workers.list_workers
    drain = of_workers.drain_worker
    wait_counts = health.wait_counts
    now = _now
    ping = claims.ping
    doctor = health.doctor


class Client(Verbs, Caller, ContextManaged):
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

    engine: Connection  # internal: it may change in any release

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
        serializer = Serializer(allow, redact, encryption_keys)
        engine = RecordingConnection(url, serializer, Observers(observe))
        self._compose(engine, clock, public_url)

    def _compose(self, engine: Connection, clock: Clock | None, public_url: str | None) -> None:
        self.engine = engine
        engine.given_clock = clock
        engine.given_url = None if public_url is None else check_public_url(public_url)
        engine.failures.redact = self.redact
        engine.observers.attach(engine)
        self._opening = threading.RLock()
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
    def url(self) -> str:
        """The URL of the journal, without its password."""
        return self.engine.shown_url

    def __repr__(self) -> str:
        return f"<perdure.Client {self.url}>"

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
        row = await self.journal.arun(run_reads.find_row(self.engine, run_id))
        async with aclosing(read_stream(self.engine, row, after, wanted, until_waiting)) as chunks:
            async for chunk in chunks:
                yield chunk

    # -- for operators

    def schema_version(self) -> int | None:
        """Return the version of the journal's schema, or `None` if there is no journal.

        It never creates a journal.
        """
        return version(url_of(self.engine))

    @staticmethod
    def newest_schema() -> int:
        """Return the version of the schema that this perdure uses, and migrates journals to."""
        return max(migrations())

    def redact(self, text: str) -> str:
        """Return the text without the password of the journal's URL.

        Args:
            text: The text, such as the message of an exception.
        """
        return redaction.redact(text, secrets_in(url_of(self.engine)))


class BlockingClient(Verbs, LoopThread):
    """`Client.blocking`: the methods of `Client`, each blocking until it has returned.

    They have the same parameters, results and errors. `run` runs any coroutine that uses the
    client.
    """

    stream = blocking_iterator(Client.stream)
