"""`perdure worker` and `tick` drive due runs, until stopped or once; `serve` is also an HTTP
server."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perdure.cli.logs import configure_logging
from perdure.cli.options import COUNT, PLACE, RUNTIME_AT, flag, many, opt, switch
from perdure.cli.output import at_option, print_json
from perdure.cli.target import measured, observed, one_place, runtime_at
from perdure.errors import BadArgument, Error, Unavailable, needs_extra

if TYPE_CHECKING:
    from perdure.runtime import Runtime

PORT = 2024
QUIET = flag("Log warnings only, not a line for each segment.")
LOG_JSON = flag("Log each event as a line of JSON to stderr, without content.", "--log-json")
GRACE = opt("SECONDS", "Time for running steps to finish when it stops.", default=10.0)
CONCURRENCY = opt("N", "Segments to drive at once.", default=50)
HOST = opt(
    "ADDRESS",
    "Address to listen on; 0.0.0.0 is every address. Other machines need a token.",
    default="127.0.0.1",
)
ALLOW_HOST = many("NAME", "Host name the server accepts, besides loopback names; repeatable.")
CORS = many("ORIGIN", "Allow web pages from this origin to call; repeatable. * is any.")
UI = switch("Serve the inbox and the dashboard under /ui.", "ui")
INSECURE = flag("Require no token, even from other machines.")
log = logging.getLogger("perdure")


def worker(
    place: str | None = PLACE,
    at: str | None = RUNTIME_AT,
    concurrency: int = CONCURRENCY,
    grace: float = GRACE,
    until_idle: bool = flag("Stop when nothing is due."),
    metrics: str | None = opt(
        "[HOST:]PORT",
        "Serve /metrics for Prometheus here. Without a host, on this machine only.",
    ),
    quiet: bool = QUIET,
    as_json: bool = LOG_JSON,
) -> None:
    """Drive runs until SIGTERM or SIGINT.

    Then it drains and exits with 0. If the variables of OpenTelemetry or LangSmith are set, it
    sends traces, metrics and scores, and says so when it starts.
    """
    configure_logging(quiet=quiet, as_json=as_json)
    rt = observed(runtime_at(one_place(place, at)), log_events=as_json)
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
    place: str | None = PLACE,
    at: str | None = RUNTIME_AT,
    limit: int = opt("N", "Segments to drive in total.", default=25),
    budget: float | None = opt(
        "SECONDS", "Claim nothing more after this time.", type=float, show_default="none"
    ),
    concurrency: int = opt("N", "Segments to drive at once.", default=10),
    quiet: bool = QUIET,
    as_json: bool = LOG_JSON,
) -> None:
    """Drive what is due, then exit. For use from cron.

    Prints what it did as one line of JSON, with the fields of `Counts`.
    """
    configure_logging(quiet=quiet, as_json=as_json)
    rt = observed(runtime_at(one_place(place, at)), log_events=as_json)

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
    place: str | None = PLACE,
    at: str | None = RUNTIME_AT,
    host: str = HOST,
    port: int = opt("N", "Port to listen on. 0 picks a free one.", default=PORT),
    worker: bool = switch("Drive runs in this process.", "worker"),
    concurrency: int = CONCURRENCY,
    grace: float = GRACE,
    allow_host: tuple[str, ...] = ALLOW_HOST,
    cors: tuple[str, ...] = CORS,
    insecure: bool = INSECURE,
    max_body: int | None = opt("BYTES", "Largest request body.", type=int, show_default="8 MiB"),
    max_streams: int | None = opt("N", "Streams open at once.", type=int, show_default="1000"),
    max_connections: int | None = opt(
        "N",
        "Connections open at once.",
        type=COUNT,
        show_default="1000 more than --max-streams",
    ),
    ui: bool = UI,
    proxy: tuple[str, ...] = many(
        "ADDRESS", "Proxy that signs people in and names them in a header; repeatable."
    ),
    user_header: str = opt(
        "NAME",
        "That header. It is trusted only in requests from the proxy.",
        default="X-Forwarded-User",
    ),
    admin: tuple[str, ...] = many(
        "PERSON",
        "Person who may do everything, as the proxy names them; repeatable. All others may read "
        "and answer.",
    ),
    access_log: bool = flag("Log each request, without its query."),
    quiet: bool = QUIET,
    as_json: bool = LOG_JSON,
) -> None:
    """Serve a Runtime or a LangGraph project over HTTP.

    Serves LangGraph's Agent Server API, perdure's own API, the inbox and the dashboard, and drives
    the runs. On SIGTERM or SIGINT it drains and exits with 0. Needs the packages of the extra
    `server`.
    """
    configure_logging(quiet=quiet, as_json=as_json)
    for name, level in {"uvicorn.access": access_log, "uvicorn.error": False}.items():
        logging.getLogger(name).setLevel(logging.INFO if level else logging.WARNING)
    where = one_place(place, at)
    rt = observed(runtime_at(where), log_events=as_json)
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
        **({"ui_proxy": TrustedProxy(proxy, user_header, admin)} if proxy else {}),
        **({} if max_body is None else {"max_body": max_body}),
        **({} if max_streams is None else {"max_streams": max_streams}),
    }
    most = max_connections or (1000 if max_streams is None else max_streams) + 1000

    async def run() -> None:
        app = make_app(rt, settings)
        async with rt:
            await check_exposure(rt, settings, host, where)
            with server.listen(host, port) as listening:
                address = server.address(listening)
                log.info("serving %s at %s", ", ".join(rt.graphs) or "nothing", address)
                if ui:
                    log.info("open %s", await server.pages_url(rt, settings, address))
                http = server.HttpServer(app, grace=grace, most_connections=most)
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
