"""`perdure worker` and `tick` drive due runs, until stopped or once; `serve` is also an HTTP
server."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.logs import configure_logging
from perdure.cli.options import Parameter, RuntimeAt
from perdure.cli.output import at_option, print_json
from perdure.cli.target import measured, observed, runtime_at
from perdure.errors import BadArgument, Error, Unavailable, needs_extra

if TYPE_CHECKING:
    from perdure.runtime import Runtime

PORT = 2024
Quiet = Annotated[bool, Parameter("Log warnings only, not a line for each segment.")]
LogJson = Annotated[
    bool,
    Parameter(
        "Log each event as a line of JSON to stderr, without content.", names=("--log-json",)
    ),
]
Grace = Annotated[float, Parameter("Time for running steps to finish when it stops.")]
Concurrency = Annotated[int, Parameter("Segments to drive at once.")]
Host = Annotated[
    str,
    Parameter(
        "Address to listen on; 0.0.0.0 is every address. Other machines need a token.", "ADDRESS"
    ),
]
AllowHost = Annotated[
    tuple[str, ...],
    Parameter("Host name the server accepts, besides loopback names; repeatable.", "NAME"),
]
Cors = Annotated[
    tuple[str, ...],
    Parameter("Allow web pages from this origin to call; repeatable. * is any.", "ORIGIN"),
]
Ui = Annotated[bool, Parameter("Serve the inbox and the dashboard under /ui.")]
Insecure = Annotated[bool, Parameter("Require no token, even from other machines.")]
log = logging.getLogger("perdure")


def worker(
    at: RuntimeAt = None,
    *,
    concurrency: Concurrency = 50,
    grace: Grace = 10.0,
    until_idle: bool = False,
    metrics: Annotated[str | None, Parameter(metavar="[HOST:]PORT")] = None,
    quiet: Quiet = False,
    as_json: LogJson = False,
) -> None:
    """Drive runs until SIGTERM or SIGINT.

    Then it drains and exits with 0. If the variables of OpenTelemetry or LangSmith are set, it
    sends traces, metrics and scores, and says so when it starts.

    Args:
        until_idle: Stop when nothing is due.
        metrics: Serve /metrics for Prometheus here. Without a host, on this machine only.
    """
    configure_logging(quiet=quiet, as_json=as_json)
    rt = observed(runtime_at(at), log_events=as_json)
    if metrics is not None:
        log.info("metrics at %s", measured(rt).serve(metrics))

    async def work() -> None:
        if not until_idle:
            await _wait_until_open(rt)
        async with rt:
            log.info("working on %s at %s", ", ".join(rt.graphs) or "nothing", rt.url)
            counts = await rt.work(
                concurrency=concurrency, until_idle=until_idle, grace=timedelta(seconds=grace)
            )
            done = [f"{count} {name}" for name, count in asdict(counts).items() if count]
            log.info("stopped: %s", ", ".join(done) or "nothing done")

    asyncio.run(work())


async def _wait_until_open(rt: Runtime) -> None:
    """Open the journal of a runtime, however long it is not available. What does not pass by itself
    is raised, such as a wrong password."""
    while True:
        try:
            return await asyncio.to_thread(rt.setup)
        except Unavailable as error:
            log.warning("%s The worker waits for the journal.", error)
        except asyncio.CancelledError:
            rt.close()  # ends the attempt, which is in another thread
            raise
        await asyncio.sleep(1.0)


def tick(
    at: RuntimeAt = None,
    *,
    limit: int = 25,
    budget: float | None = None,
    concurrency: Concurrency = 10,
    quiet: Quiet = False,
    as_json: LogJson = False,
) -> None:
    """Drive what is due, then exit. For use from cron.

    Prints what it did as one line of JSON, with the fields of `Counts`.

    Args:
        limit: Segments to drive in total.
        budget: Claim nothing more after this time.
    """
    configure_logging(quiet=quiet, as_json=as_json)
    rt = observed(runtime_at(at), log_events=as_json)

    async def drive() -> None:
        async with rt:
            counts = await rt.tick(
                limit,
                budget=None if budget is None else timedelta(seconds=budget),
                concurrency=concurrency,
                handle_signals=True,
            )
            print_json(counts)

    asyncio.run(drive())


def serve(
    at: RuntimeAt = None,
    *,
    host: Host = "127.0.0.1",
    port: int = PORT,
    worker: bool = True,
    concurrency: Concurrency = 50,
    grace: Grace = 10.0,
    allow_host: AllowHost = (),
    cors: Cors = (),
    insecure: Insecure = False,
    max_streams: int = 1000,
    max_connections: int = 2000,
    ui: Ui = True,
    proxy: Annotated[tuple[str, ...], Parameter(metavar="ADDRESS")] = (),
    user_header: Annotated[str, Parameter(metavar="NAME")] = "X-Forwarded-User",
    admin: Annotated[tuple[str, ...], Parameter(metavar="PERSON")] = (),
    access_log: bool = False,
    quiet: Quiet = False,
    as_json: LogJson = False,
) -> None:
    """Serve a Runtime or a LangGraph project over HTTP.

    Serves LangGraph's Agent Server API, perdure's own API, the inbox and the dashboard, and drives
    the runs. On SIGTERM or SIGINT it drains and exits with 0. Needs the packages of the extra
    `server`.

    Args:
        port: Port to listen on. 0 picks a free one.
        worker: Drive runs in this process.
        max_streams: Streams open at once.
        max_connections: Connections open at once.
        proxy: Proxy that signs people in and names them in a header; repeatable.
        user_header: That header. It is trusted only in requests from the proxy.
        admin: Person who may do everything, as the proxy names them; repeatable. All others may
            read and answer.
        access_log: Log each request, without its query.
    """
    configure_logging(quiet=quiet, as_json=as_json)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if access_log else logging.WARNING)
    rt = observed(runtime_at(at), log_events=as_json)
    measured(rt)
    server = import_server()
    from perdure import TrustedProxy

    settings: dict[str, Any] = {
        "worker": worker,
        "concurrency": concurrency,
        "grace": grace,
        "hosts": allow_host,
        "cors": cors,
        "insecure": insecure,
        "ui": ui,
        "max_streams": max_streams,
        **({"ui_proxy": TrustedProxy(proxy, user_header, admin)} if proxy else {}),
    }

    async def run() -> None:
        app = make_app(rt, settings)
        async with rt:
            await check_exposure(rt, settings, host, at)
            with server.listen(host, port) as listening:
                address = server.address(listening)
                log.info("serving %s at %s", ", ".join(rt.graphs) or "nothing", address)
                if ui:
                    log.info("open %s", await server.pages_url(rt, settings, address))
                http = server.HttpServer(app, grace=grace, most_connections=max_connections)
                await http.serve(sockets=[listening])
                log.info("stopped")

    server.run(run())


def import_server() -> Any:
    """Import the HTTP server. Raises if the packages of the extra `server` are missing."""
    try:
        from perdure.server import http_server
    except ImportError as error:
        raise Error(needs_extra("Serving", "server")) from error
    return http_server


def make_app(rt: Runtime, settings: dict[str, Any]) -> Any:
    """The application of a runtime, with the server settings of its project's langgraph.json."""
    from perdure.cli.graph_loading import ProjectRuntime, import_part

    if not isinstance(rt, ProjectRuntime):
        return rt.asgi(**settings)
    project = rt.project
    if project.auth is not None:
        settings["auth"] = import_part(project, "auth.path", project.auth)
    settings["cors"] = [*settings["cors"], *project.cors]
    settings["configurable_headers"] = project.configurable_headers
    if project.app is None:
        return rt.asgi(**settings)
    own = import_part(project, "http.app", project.app)
    if not hasattr(own, "router") or not hasattr(own, "add_middleware"):
        kind = type(own).__name__
        raise BadArgument(f'{project.file}: "http.app" is {kind}; use Starlette or FastAPI.')
    return import_server().add_to_app(own, rt.router(**settings))


async def check_exposure(rt: Runtime, settings: dict[str, Any], host: str, at: str | None) -> None:
    """Raise `BadArgument` if the server would be open to other machines without credentials."""
    if await import_server().is_exposed(rt, settings, host):
        raise BadArgument(
            f"{host} can be reached from other machines, but there is no token. Create one first: "
            f"perdure tokens create NAME --scope admin{at_option(at)}. Or pass --insecure."
        )


@dataclass(frozen=True)
class DevOptions:
    """What the child of `perdure dev` is told, as JSON."""

    file: str
    """The langgraph.json."""
    at: str
    """The project's place, for commands to paste; empty if it is the current folder."""
    concurrency: int
    grace: float
    as_json: bool
    host: str
    socket: int | None
    """The descriptor of the listening socket. None: nothing is served."""
    settings: dict[str, Any]
    """Those of the server."""
    browser: bool
    """Open the pages in a browser."""
