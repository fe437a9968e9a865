"""`Runtime`, the composition root: a client of its journal that has graphs and drives them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from langgraph.store.base import BaseStore

from perdure.blocking import blocking_method
from perdure.client import BlockingClient, Client, Verbs, url_of
from perdure.commands.mail import Mail
from perdure.commands.mail import from_environment as mail_from
from perdure.commands.messages import QUESTION
from perdure.commands.webhooks import RunWebhooks, Webhook
from perdure.commands.webhooks import from_environment as webhooks_from
from perdure.errors import BadArgument, Error, needs_extra
from perdure.execution.bound_graph import BoundGraph
from perdure.execution.code_changes import check
from perdure.execution.engine import Engine
from perdure.execution.forks import fork
from perdure.execution.graphs import Graph, bind, check_renames, with_aliases, with_redacted_outputs
from perdure.journal.clock import Clock
from perdure.journal.names import check_text
from perdure.journal_store import JournalStore
from perdure.notifications.mail import MailSender
from perdure.notifications.webhooks import attach_webhooks
from perdure.observe.observers import Observers
from perdure.saver import Saver
from perdure.serde.redaction import Redaction
from perdure.times import check_duration
from perdure.types import Control, Counts, DrivenBy, Durability, Message, Retention, Retry
from perdure.verbs import GRACE, check_limit

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI

    from perdure.server.options import ServerSettings


class RuntimeVerbs(Verbs):
    """The verbs of `Runtime`, and of its blocking twin."""

    fork = fork
    check = check


class Runtime(RuntimeVerbs, Client):
    """Registers graphs and drives their runs. It is also a `Client`.

    Creating a runtime and registering graphs opens nothing: the journal is opened on first use, by
    `setup` or by a `with` or `async with` block. Make one runtime per process, at module level, so
    that workers and commands can load it as `module:name`.

        runtime = Runtime("sqlite:///agents.db")
        graph = runtime.register(builder, name="campaign")
        graph.invoke({"to": "ada"}, {"configurable": {"thread_id": "ada"}})

    If the process dies, the runs that it drove are taken over by another worker, from their last
    checkpoint: at once on the same host, elsewhere when the lease has run out.

    Args:
        url: The journal: `sqlite:///agents.db`, `postgresql://…` or `d1://…`. By default the value
            of `PERDURE_URL`. It is opened on first use.
        durability: When checkpoints are on disk, for runs that do not say otherwise. `auto` waits
            when a run hands control back, `sync` at each checkpoint, `async` never. `exit` waits as
            `auto` does, and writes about once a second in between.
        allow: Your own types that may be stored and loaded, besides those in the graphs'
            schemas, as classes or as `(module, qualified name)`.
        encryption_keys: Keys by id, each 16, 24 or 32 bytes: the first one encrypts, all of them
            decrypt. They encrypt checkpoints, inputs, outputs, answers, signals, events, errors,
            effects and messages. Every process of a journal needs the same keys. By default nothing
            is encrypted. Needs the extra `encryption`.
        max_bytes: Maximum size in bytes of the state of one checkpoint, and of the arguments or the
            result of an effect.
        lease: How long a worker on another host may be silent before its runs are taken over; at
            least 0.2 seconds. A worker that dies on this host is noticed at once. The processes of
            a journal may have different leases.
        clock: The clock, for tests: a `perdure.testing.Clock`. By default the journal's.
        observe: An observer, or a list of them, called for each event that this process stores: an
            object with the method of `Observer`, or one of `perdure.observe`. `True` uses those
            that the environment configures.
        on_question: A handler for each new question to a person: a function or coroutine function
            of one `Message` with the topic `perdure.question`. The workers of this runtime call it,
            at least once for each question. Give it to every runtime that drives runs.
        webhooks: Endpoints to notify of questions, and of runs that are held or failed. By default
            the endpoint in `PERDURE_WEBHOOK_URL`.
        run_webhooks: How webhooks of individual runs (`start(webhook=…)`) are signed, and
            which addresses they may have. By default they are signed with `PERDURE_WEBHOOK_SECRET`.
        mail: Sends e-mail about questions, with a link to answer each. By default the settings in
            `PERDURE_SMTP_URL`, `PERDURE_MAIL_FROM` and `PERDURE_MAIL_TO`.
        public_url: The address where people reach the pages, for links in mail, chat and webhooks.
            By default the value of `PERDURE_PUBLIC_URL`.
        redact: Keys and patterns that are never written to the journal. Nodes do not see them
            either.
        retention: How long ended runs are kept. Workers delete older ones. By default nothing is
            deleted.
        stream_ttl: How long after the end of a run its streamed output is kept.
        store: The LangGraph store for graphs that were compiled without one. `True` creates one
            next to the journal: on SQLite a separate file, on PostgreSQL tables in the same
            database.

    Raises:
        BadArgument: An argument is not valid.
    """

    engine: Engine  # internal: it may change in any release

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
    ) -> None:
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
        engine = Engine(url, saver, lease.total_seconds(), observers, retention, stream_ttl)
        self._compose(engine, clock, public_url)
        endpoints, own = webhooks_from(os.environ)
        endpoints = endpoints if webhooks is None else list(webhooks)
        attach_webhooks(engine, run_webhooks or own, endpoints)
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
        """How long this runtime keeps ended runs. `None` keeps them forever."""
        return self.engine.retention

    @property
    def store(self) -> BaseStore | None:
        """The store of graphs that were compiled without one, or `None`."""
        return self.engine.store

    def use_store(self, store: BaseStore | bool) -> None:
        """Give a store to the graphs that have none, including those registered before.

        Graphs that `register` returned before this call still have no store.

        Args:
            store: A LangGraph store. `True` makes one next to the journal.

        Raises:
            BadArgument: `store` is not a LangGraph store.
        """
        if store is True:
            store = JournalStore(url_of(self.engine))
        if not isinstance(store, BaseStore):
            raise BadArgument(f"store must be a LangGraph store, or True, not {store!r}.")
        self.engine.store = store
        self.engine.graphs.give_store(store)

    def __repr__(self) -> str:
        return f"<perdure.Runtime {self.url} of {', '.join(self.graphs) or 'no graphs'}>"

    @property
    def blocking(self) -> BlockingRuntime:
        """The same methods for callers without an event loop: `runtime.blocking.tick()`.

        Each call runs on an event loop in another thread, and blocks until it has returned.
        `blocking.stream` is a plain iterator; `blocking.run(coroutine)` runs any coroutine that
        uses this runtime, such as `evals.evaluate(…)`. Do not use it in a coroutine: it would block
        the event loop. `close` ends the thread.
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
        """Register a graph for this runtime to drive, and return it bound to the journal.

        `graph` itself is not changed. Registration is not stored: call it in every process that
        drives runs of this graph. Runs keep the `version` they were started with, and only a
        runtime that has registered that version drives them.

            graph = runtime.register(builder, name="campaign", retry=Retry(attempts=5))

        The returned graph is a LangGraph graph of the same class. Each call to it that runs or
        changes something is a run in the journal.

        Args:
            graph: A `StateGraph`, a compiled graph or an `@entrypoint`. A graph must be compiled
                without a checkpointer, or with this runtime's.
            name: The name of the graph, without an `@`. By default, a compiled graph's own name;
                for a graph with a single node, such as an `@entrypoint`, the name of that node.
            version: The version of the graph. By default it has none.
            timeout: How long a step may take. If no checkpoint, wait or outcome of an effect is
                stored for that long, the segment fails with `StepTimeout` and is retried. At least
                a millisecond.
            retry: How often a segment that raised is tried, with stored pauses in between. By
                default `Retry()`: three attempts. A stored step resets the count. Errors that a
                retry would only repeat are not retried.
            deaths: The run is held after this many workers in a row died while driving it, without
                a step in between. After two deaths, a worker drives the run alone. At least
                3.
            hold: Whether a run that failed permanently is `held`, for a person to retry or cancel,
                instead of `failed`.
            renamed: Old names of nodes of a `StateGraph`, with their new names. A run that is at
                an old name continues at the new one, and nothing is repeated.

        Returns:
            The bound graph.

        Raises:
            NotDurable: The graph was compiled with another checkpointer. Compile it without one.
            BadArgument: The graph needs a name, its name and version are taken, or an argument is
                not valid.
            Unserializable: The graph's state has a class that is defined inside a function, which
                no other process could load.
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
        """Stop driving a graph, in all its versions. A segment in progress continues.

        Args:
            name: The name of the graph. An unknown name is ignored.
        """
        self.engine.graphs.remove(name)

    def compiled(self, name: str) -> Any:
        """Return the compiled graph registered under a name, in its newest version, or `None`.

        Args:
            name: The name of the graph.
        """
        graph = self.engine.graphs.newest.get(name)
        return None if graph is None else graph.pregel

    def bound(self, name: str, version: str | None = None) -> BoundGraph | None:
        """Return a registered graph as `register` did, or `None`.

        Args:
            name: The name of the graph.
            version: Its version. Default: the one that was registered last.
        """
        graphs = self.engine.graphs
        graph = graphs.newest.get(name) if version is None else graphs.find(name, version)
        return None if graph is None else BoundGraph.of(graph, self.engine)

    @property
    def graphs(self) -> list[str]:
        """The names of the registered graphs, sorted."""
        return self.engine.graphs.names

    def deliver(self, topic: str, handler: Callable[[Message], Any]) -> None:
        """Pass the outbox messages of a topic to a handler, in the workers of this runtime.

        Each message is delivered at least once, always with the same id. If the handler raises, the
        message is delivered again later; if the process dies while the handler runs, another worker
        delivers it again. The handler is not stored: call this where graphs are registered, in
        every process that drives runs.

            runtime.deliver("mail", lambda message: send(message.id, message.payload))

        `tick`, and `work` without `graphs`, deliver messages.

        Args:
            topic: The topic, as passed to `perdure.outbox`.
            handler: A function or coroutine function of one `Message`.

        Raises:
            BadArgument: The handler is not callable.
        """
        check_text("topic", topic)
        if not callable(handler):
            raise BadArgument(f"The handler of topic {topic!r} must be callable, not {handler!r}.")
        self.engine.outbox.receive(topic, handler)

    # -- driving

    async def work(
        self,
        *,
        concurrency: int = 50,
        until_idle: bool = False,
        grace: timedelta = GRACE,
        handle_signals: bool = True,
        graphs: Iterable[str] | None = None,
    ) -> Counts:
        """Drive due runs until SIGTERM, SIGINT or cancellation, then drain.

        A worker claims due runs, renews their leases, takes over from workers that died, fires
        schedules, delivers messages and applies `retention`. It looks for due runs every 0.2
        seconds, on D1 every 1.5. To drain, it claims nothing more, and each segment stops at its
        next step or is given back after `grace`; its late writes are refused. A second signal ends
        the process at once. If a worker is killed, only the steps in progress are lost: other
        workers run them again.

            asyncio.run(runtime.work())

        Inside an application with its own signal handlers, start it as a task with
        `handle_signals=False`, and cancel and await the task at shutdown.

        Args:
            concurrency: How many segments to drive at once. Waiting runs do not count.
            until_idle: Return when nothing is due.
            grace: How long segments may take to reach their next step when the worker drains, 10
                seconds by default.
            handle_signals: Whether to drain on SIGTERM and SIGINT. A handler set earlier with
                `signal.signal` is called too, but one set with `loop.add_signal_handler` is not.
            graphs: The names of the graphs to drive. By default all. With `graphs`, the worker
                fires no schedules, delivers no messages and deletes no old runs.

        Returns:
            How many segments were driven, and how they ended.

        Raises:
            BadArgument: This runtime has no graph to drive, or an argument is not valid.
            UnknownGraph: `graphs` names a graph that is not registered here.
            Closed: The runtime is closed.
        """
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
    ) -> Counts:
        """Drive due runs, at most `limit` segments, then return. For a cron job or a test.

        It returns when `limit` is reached, when nothing is due, or after `budget`. Any number of
        ticks and workers may run at the same time: they share the work, so no lock is needed. A
        tick that is killed leaves its runs to the next one.

            counts = await runtime.tick(100, budget=timedelta(seconds=50))

        Sleeps are then only as precise as the cron interval.

        Args:
            limit: Maximum number of segments to drive.
            budget: After this time nothing more is claimed, and each segment stops at its next step
                or is given back after `grace`. By default there is no limit.
            concurrency: How many segments to drive at once. With 1, they are driven one after the
                other, in the order in which they are due.
            grace: How long segments may take to reach their next step, 10 seconds by default.
            handle_signals: Whether to drain on SIGTERM and SIGINT.

        Returns:
            How many segments were driven, and how they ended.

        Raises:
            BadArgument: This runtime has no graph to drive, or an argument is not valid.
            Closed: The runtime is closed.
        """
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
        """The id under which this process holds leases: `host:pid:…`."""
        return self.engine.keeper.worker

    def look_now(self) -> None:
        """Make the workers of this runtime look for due runs now, not at their next poll."""
        self.engine.wake()

    def stop_here(self, run_id: str, why: str) -> None:
        """Stop a run before its next step, if this process drives it.

        Args:
            run_id: The id of the run.
            why: `cancel` or `pause`.
        """
        self.engine.stop(run_id, Control(why))

    # -- over HTTP

    def asgi(self, **settings: Unpack[ServerSettings]) -> FastAPI:
        """Return this runtime as an ASGI application. Needs the extra `server`.

        It serves LangGraph's Agent Server API, perdure's own routes, `GET /ok`, `GET /metrics` if
        the runtime has `Metrics`, and `POST /cron/tick` if a secret is set. Its lifespan opens the
        runtime unless it is open, runs a worker, drains it and closes the runtime; the lifespan may
        run again in the same process. A mounted application gets no lifespan, so no worker would
        run: include `router()` instead, or pass `worker=False` and run workers elsewhere.

            app = runtime.asgi(worker=False, secret="...")

        Run it with an ASGI server: `uvicorn agents:app`.

        Args:
            **settings: Settings of the server: the fields of `ServerOptions`.

        Returns:
            A FastAPI application.

        Raises:
            Error: The extra `server` is not installed.
            BadArgument: A setting is unknown or not valid.
        """
        try:
            from perdure.server.app import make_app
            from perdure.server.options import ServerOptions
        except ImportError as error:
            raise Error(needs_extra("asgi()", "server")) from error
        return make_app(self, ServerOptions.of(settings))

    def router(self, **settings: Unpack[ServerSettings]) -> APIRouter:
        """Return the routes of `asgi` for your own application, with their lifespan.

            app = FastAPI()
            app.include_router(runtime.router(), prefix="/agents")

        FastAPI runs the lifespan of the router with that of the application. In Starlette:
        `Starlette(routes=router.routes, lifespan=router.lifespan_context)`. Needs the extra
        `server`.

        Args:
            **settings: Settings of the server: the fields of `ServerOptions`.

        Raises:
            Error: The extra `server` is not installed.
            BadArgument: A setting is unknown or not valid.
        """
        try:
            from perdure.server.app import make_router
            from perdure.server.options import ServerOptions
        except ImportError as error:
            raise Error(needs_extra("router()", "server")) from error
        return make_router(self, ServerOptions.of(settings))


class BlockingRuntime(RuntimeVerbs, BlockingClient):
    """`Runtime.blocking`: the methods of `Runtime`, each blocking until it has returned.

    They have the same parameters, results and errors. `run` runs any coroutine that uses the
    runtime.
    """

    tick = blocking_method(Runtime.tick)
    work = blocking_method(Runtime.work)
