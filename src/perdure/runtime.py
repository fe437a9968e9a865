"""`Runtime`, the composition root: a client of its journal that has graphs and drives them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from langgraph.store.base import BaseStore

from perdure.blocking import blocking_method
from perdure.client import BlockingClient, Client
from perdure.engine import forking
from perdure.engine.bound_graph import BoundGraph
from perdure.engine.engine import Engine
from perdure.engine.graph_changes import check_renames, with_aliases
from perdure.engine.graph_check import GraphCheck, check
from perdure.engine.graphs import Graph, bind
from perdure.engine.journal_store import JournalStore
from perdure.engine.node_outputs import with_redacted_outputs
from perdure.engine.outbox_delivery import Receiver
from perdure.errors import BadArgument, Error, needs_extra
from perdure.journal.clock import Clock
from perdure.journal.names import check_id, check_renamed, check_text
from perdure.observe.observers import Observers
from perdure.operations import runs
from perdure.operations.messages import QUESTION
from perdure.operations.runs import RunRow
from perdure.recorded_calls import call_key, recorded
from perdure.saver import Saver
from perdure.serde.redaction_policy import Redaction
from perdure.server.mail.sender import MailSender
from perdure.server.webhooks.sender import WebhookSender
from perdure.service.mail import Mail
from perdure.service.mail import from_environment as mail_from
from perdure.service.runs import GRACE
from perdure.service.validation import check_duration, check_limit
from perdure.service.webhooks import RunWebhooks, Webhook
from perdure.service.webhooks import from_environment as webhooks_from
from perdure.types import (
    Control,
    Counts,
    DrivenBy,
    Durability,
    Message,
    Record,
    Retention,
    Retry,
    Run,
)

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI

    from perdure.server.options import ServerSettings


class Runtime(Client):
    """Runs that survive crashes: a `Client` that registers graphs and drives their runs.

    `url` is the journal, `PERDURE_URL` by default; it is opened on first use. `lease` is how long a
    worker on another host may be silent before its runs are taken over; one that died on this host
    is noticed at once. `allow`, `encryption_keys`, `max_bytes` and `durability` are those of
    `Saver`. `observe` is an observer, or several: traces, metrics and logs of `perdure.observe`, or
    your own. True takes those that the environment configures.
    `on_question` is given each new question for a person, as `deliver` would. `webhooks` are
    endpoints that are told of questions, and of runs that are held or failed; `run_webhooks` says
    how the webhooks that runs are started with are signed, and where they may lead. By default
    both are those that `PERDURE_WEBHOOK_URL` and `PERDURE_WEBHOOK_SECRET` name. `mail`, a `Mail`,
    sends e-mail about questions, with a link to answer each; by default that of `PERDURE_SMTP_URL`.
    `public_url` is where people reach the pages; `PERDURE_PUBLIC_URL` by default.
    `redact`, a `Redaction`, says what is never stored, and what nodes therefore never see either.
    `retention`, a `Retention`, says when workers delete the runs that ended; `stream_ttl` is how
    long after that what a run streamed is kept.
    `store` is the LangGraph store of graphs that have none of their own; True is one beside the
    journal: on SQLite a file of its own, on PostgreSQL tables in the same database.

        runtime = Runtime("sqlite:///agents.db")
        graph = runtime.register(builder, name="campaign")
        graph.invoke({"to": "ada@example.com"}, {"configurable": {"thread_id": "ada"}})
    """

    engine: Engine
    """The engine in this process. For perdure's own modules; it may change."""

    def __init__(
        self,
        url: str | None = None,
        *,
        durability: Durability = "auto",
        allow: Iterable[type | tuple[str, ...]] = (),
        encryption_keys: Mapping[str, bytes] | None = None,
        max_bytes: int = 256 * 1024 * 1024,
        lease: timedelta = timedelta(seconds=3),
        clock: Clock | None = None,
        observe: Any = None,
        on_question: Callable[[Message], Any] | None = None,
        webhooks: Sequence[Webhook] | None = None,
        run_webhooks: RunWebhooks | None = None,
        mail: Mail | None = None,
        public_url: str | None = None,
        redact: Redaction | None = None,
        retention: Retention | None = None,
        stream_ttl: timedelta = timedelta(days=1),
        store: BaseStore | bool | None = None,
        keys: None = None,
        observer: None = None,
    ) -> None:
        check_renamed("keys", "encryption_keys", keys)
        check_renamed("observer", "observe", observer)
        check_duration("lease", lease, timedelta(seconds=0.2))  # a shorter one is always lost
        observers = Observers(observe)
        saver = Saver(
            durability=durability,
            allow=allow,
            encryption_keys=encryption_keys,
            max_bytes=max_bytes,
            redact=redact,
            journal=lambda: observers.connect(url),
        )
        check_duration("stream_ttl", stream_ttl)
        engine = Engine(
            saver, lease.total_seconds(), observers, lambda: self.services, retention, stream_ttl
        )
        self._compose(url, engine, clock, public_url)
        told, own = webhooks_from(os.environ)
        told = told if webhooks is None else list(webhooks)
        WebhookSender(engine, run_webhooks or own, told).attach()
        if (mail := mail or mail_from(os.environ)) is not None:
            MailSender(engine, mail, engine.public_url).attach()
        if store:
            self.use_store(store)
        if on_question is not None:
            self.deliver(QUESTION, on_question)

    @property
    def saver(self) -> Saver:
        """The checkpointer of every graph of this runtime."""
        return self.engine.saver

    @property
    def retention(self) -> Retention | None:
        """How long this runtime keeps runs that ended."""
        return self.engine.retention

    @property
    def store(self) -> BaseStore | None:
        """The store of graphs that have none of their own."""
        found: BaseStore | None = self.engine.store
        return found

    def use_store(self, store: BaseStore | bool) -> None:
        """Give a store to the graphs that have none, those registered already among them; True is
        one beside the journal. Graphs that `register` returned before keep having none."""
        if store is True:
            store = JournalStore(self._url or os.environ.get("PERDURE_URL", ""))
        if not isinstance(store, BaseStore):
            raise BadArgument(f"store must be a LangGraph store, or True, not {store!r}.")
        self.engine.store = store
        self.engine.graphs.give_store(store)

    def __repr__(self) -> str:
        return f"<perdure.Runtime {self.url} of {', '.join(self.graphs) or 'no graphs'}>"

    @property
    def blocking(self) -> BlockingRuntime:
        """The same methods for callers without an event loop.

        runtime.blocking.work(until_idle=True)
        """
        return self._on_loop_thread(BlockingRuntime)

    # -- graphs

    def register(
        self,
        graph: Any,
        name: str | None = None,
        *,
        version: str = "",
        timeout: timedelta = timedelta(hours=1),
        retry: Retry | None = None,
        deaths: int = 5,
        hold: bool = False,
        renamed: Mapping[str, str] | None = None,
    ) -> BoundGraph:
        """Let this runtime drive a graph. Returns the graph bound to the journal.

        `graph` is a StateGraph, a compiled graph or an `@entrypoint`; it is not changed. `timeout`
        bounds a step: after that long without progress the segment fails. `retry` says how often a
        segment that raised is retried. After `deaths` workers in a row died with a run, the later
        ones driving nothing else, the run is held. With `hold` a run that failed for good is held
        too, for a person to retry. Runs keep the `version` they were started with, and only a
        runtime that registered that version drives them. `renamed` has the old names of nodes of a
        StateGraph and their new ones: a run that is at an old one goes on, and nothing is repeated.

            graph = runtime.register(builder, name="campaign", retry=Retry(attempts=5))
        """
        check_duration("timeout", timeout, timedelta(milliseconds=1))
        if retry is not None and not isinstance(retry, Retry):
            raise BadArgument(f"retry must be a perdure.Retry(attempts=...), not {retry!r}.")
        if deaths < 3:
            raise BadArgument(
                f"deaths={deaths}: use at least 3, as the first two deaths may have been caused by "
                "another run in the same worker."
            )
        check_text("version", version)
        if isinstance(graph, BoundGraph):
            graph = graph.unbound
        name, pregel = bind(graph, self.saver, name, self.store)
        pregel = with_redacted_outputs(pregel, self.saver.serializer)
        names = dict(renamed or {})
        check_renames(names, pregel, name)
        pregel = with_aliases(names, pregel)
        bound = Graph(name, version, pregel, timeout, retry or Retry(), deaths, hold, names)
        self.engine.graphs.add(bound)
        return BoundGraph.of(bound, self.engine)

    def unregister(self, name: str) -> None:
        """Stop driving a graph."""
        self.engine.graphs.remove(name)

    def compiled(self, name: str) -> Any:
        """The compiled graph registered under this name, in its newest version, or None."""
        graph = self.engine.graphs.newest.get(name)
        return None if graph is None else graph.pregel

    @property
    def graphs(self) -> list[str]:
        """The names of the registered graphs."""
        return self.engine.graphs.names

    async def check(self) -> GraphCheck:
        """Find the unfinished runs that the graphs of this runtime would hold because they changed.

        Reads only: for a test before a deploy, against the journal that the deploy will work on.

            assert not (await runtime.check()).lost
        """
        return await self.journal.arun(check(self.saver, self.engine.graphs))

    def deliver(self, topic: str, handler: Callable[[Message], Any]) -> None:
        """Have the workers of this runtime pass the outbox messages of a topic to `handler`.

        Each is delivered at least once, always with the same id. If the handler raises, the message
        is delivered again later.

            runtime.deliver("mail", lambda message: smtp.send(message.id, message.payload))
        """
        check_text("topic", topic)
        if not callable(handler):
            raise BadArgument(f"The handler of topic {topic!r} must be callable, not {handler!r}.")
        self.engine.receivers[topic] = Receiver(handler)

    async def fork(
        self,
        run_id: str,
        *,
        at: str | None = None,
        update: Any = None,
        as_node: str | None = None,
        thread_id: str | None = None,
    ) -> Run:
        """Start a run on a new thread that goes on from a checkpoint of this run.

        `at` is the id of a checkpoint, the latest by default. `update` changes its state first, as
        if `as_node` had returned it, which says where the graph goes on. The old run and its thread
        stay as they are. Raises `GraphChanged` if the graph has lost the place where the run is,
        unless `as_node` is given.
        """
        forked = await self._fork(check_id("run", run_id), at, update, as_node, thread_id)
        self.engine.wake()
        if isinstance(forked, str):  # its id, from the record of the effect
            return await self.get(forked)
        return await self.journal.arun(self.services.runs.show(forked))

    @recorded("fork", record=Record(result=lambda row: row.id))
    async def _fork(
        self,
        run_id: str,
        at: str | None,
        update: Any,
        as_node: str | None,
        thread_id: str | None,
    ) -> RunRow | str:
        if thread_id is None and (key := call_key()) is not None:
            thread_id = str(uuid.uuid5(uuid.NAMESPACE_OID, key))
            if made := await self.journal.ado(runs.page(thread_id=thread_id, count=1)):
                return made[0]  # by an attempt that was cut off
            await self.saver.adelete_thread(thread_id)
        return await forking.fork(
            self.engine,
            self.services,
            run_id,
            at=at,
            update=update,
            as_node=as_node,
            thread_id=thread_id,
        )

    # -- driving

    async def work(
        self,
        *,
        concurrency: int = 50,
        until_idle: bool = False,
        grace: timedelta = GRACE,
        handle_signals: bool = True,
        graphs: Iterable[str] | None = None,
        signals: None = None,
    ) -> Counts:
        """Drive due runs until SIGTERM, SIGINT or cancellation.

        Then nothing more is claimed, and each segment stops at its next step or is given back after
        `grace`. With `until_idle` it stops when nothing is due. An application with signal handlers
        of its own passes `handle_signals=False` and cancels the task. `graphs` names those to
        drive, all by default; with it neither schedules are fired nor messages delivered.

            asyncio.run(runtime.work())
        """
        check_renamed("signals", "handle_signals", signals)
        return await self.engine.drive(
            graphs=graphs,
            concurrency=concurrency,
            until_idle=until_idle,
            grace=check_duration("grace", grace).total_seconds(),
            handle_signals=handle_signals,
        )

    async def tick(
        self,
        limit: int = 25,
        *,
        budget: timedelta | None = None,
        concurrency: int = 10,
        grace: timedelta = GRACE,
        handle_signals: bool = False,
        signals: None = None,
    ) -> Counts:
        """Drive due runs, at most `limit` segments, then return: for a cron job.

        After `budget` nothing more is claimed and each segment stops at its next step. Two calls at
        once share the work. `concurrency=1` drives one segment after the other.
        """
        check_renamed("signals", "handle_signals", signals)
        return await self.engine.drive(
            concurrency=concurrency,
            driven_by=DrivenBy.CRON,
            limit=check_limit(limit),
            budget=None if budget is None else check_duration("budget", budget).total_seconds(),
            until_idle=True,
            grace=check_duration("grace", grace).total_seconds(),
            handle_signals=handle_signals,
        )

    @property
    def worker_id(self) -> str:
        """The id under which this process holds leases."""
        return self.engine.keeper.worker

    def look_now(self) -> None:
        """Let the workers of this runtime look for due runs now, not at their next poll."""
        self.engine.wake()

    def stop_here(self, run_id: str, why: str) -> None:
        """Stop a run before its next step, if this process drives it: `cancel` or `pause`."""
        self.engine.stop(run_id, Control(why))

    # -- over HTTP

    def asgi(self, **settings: Unpack[ServerSettings]) -> FastAPI:
        """This runtime as an ASGI application: LangGraph's Agent Server API, perdure's own routes,
        `GET /ok`, `GET /metrics` if it has `Metrics`, and `POST /cron/tick` for a cron service.

        The application's lifespan opens the runtime, unless it is open already, runs a worker
        beside (`worker=False`: none) and closes it; it may run again. Mounted into another
        application its lifespan does not run: include `router()` there instead.

            app = runtime.asgi(worker=False, secret="...")
        """
        try:
            from perdure.server.app import make_app
            from perdure.server.options import ServerOptions
        except ImportError as error:
            raise Error(needs_extra("asgi()", "server")) from error
        return make_app(self, ServerOptions.of(settings))

    def router(self, **settings: Unpack[ServerSettings]) -> APIRouter:
        """The routes of `asgi()` for an application of your own, with their lifespan.

            app = FastAPI()
            app.include_router(runtime.router(), prefix="/agents")

        In Starlette: `Starlette(routes=router.routes, lifespan=router.lifespan_context)`.
        """
        try:
            from perdure.server.app import make_router
            from perdure.server.options import ServerOptions
        except ImportError as error:
            raise Error(needs_extra("router()", "server")) from error
        return make_router(self, ServerOptions.of(settings))


class BlockingRuntime(BlockingClient):
    """`Runtime.blocking`: the runtime's methods, each blocking until it has returned."""

    check = blocking_method(Runtime.check)
    fork = blocking_method(Runtime.fork)
    tick = blocking_method(Runtime.tick)
    work = blocking_method(Runtime.work)
