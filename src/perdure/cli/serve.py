"""`perdure serve`: serve a runtime or a LangGraph project over HTTP, with a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from perdure.cli.options import Concurrency, LogJson, Place, RuntimeAt
from perdure.cli.worker import Quiet
from perdure.errors import BadArgument, Error, needs_extra

if TYPE_CHECKING:
    from perdure.runtime import Runtime
    from perdure.server.options import ServerSettings

PORT = 2024

Host = Annotated[
    str,
    Option(
        metavar="ADDRESS",
        help="Address to listen on; 0.0.0.0 is every address. Other machines need a token.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    Option(
        metavar="NAME", help="Host name the server accepts, besides loopback names; repeatable."
    ),
]
Cors = Annotated[
    list[str] | None,
    Option(
        metavar="ORIGIN", help="Allow web pages from this origin to call; repeatable. * is any."
    ),
]

Ui = Annotated[bool, Option(help="Serve the inbox and the dashboard under /ui.")]
Insecure = Annotated[bool, Option("--insecure", help="Require no token, even from other machines.")]


def serve(
    place: Place = None,
    at: RuntimeAt = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(metavar="N", help="Port to listen on. 0 picks a free one.")] = PORT,
    worker: Annotated[bool, Option(help="Drive runs in this process.")] = True,
    concurrency: Concurrency = 50,
    grace: Annotated[
        float, Option(metavar="SECONDS", help="Time for running steps to finish when it stops.")
    ] = 10,
    allow_host: AllowHost = None,
    cors: Cors = None,
    insecure: Insecure = False,
    max_body: Annotated[
        int | None, Option(metavar="BYTES", help="Largest request body.", show_default="8 MiB")
    ] = None,
    max_streams: Annotated[
        int | None, Option(metavar="N", help="Streams open at once.", show_default="1000")
    ] = None,
    max_connections: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Connections open at once.",
            show_default="1000 more than --max-streams",
        ),
    ] = None,
    ui: Ui = True,
    proxy: Annotated[
        list[str] | None,
        Option(
            metavar="ADDRESS",
            help="Proxy that signs people in and names them in a header; repeatable.",
        ),
    ] = None,
    user_header: Annotated[
        str,
        Option(metavar="NAME", help="That header. It is trusted only in requests from the proxy."),
    ] = "X-Forwarded-User",
    admin: Annotated[
        list[str] | None,
        Option(
            metavar="PERSON",
            help="Person who may do everything, as the proxy names them; repeatable. All others "
            "may read and answer.",
        ),
    ] = None,
    access_log: Annotated[bool, Option(help="Log each request, without its query.")] = False,
    quiet: Quiet = False,
    as_json: LogJson = False,
) -> None:
    """Serve a Runtime or a LangGraph project over HTTP.

    Serves LangGraph's Agent Server API, perdure's own API, the inbox and the dashboard, and drives
    the runs. On SIGTERM or SIGINT it drains and exits with 0. Needs the packages of the extra
    `server`.
    """
    import logging

    from perdure.cli.log_output import configure_logging, log_json
    from perdure.cli.target import measured, observed, one_place, runtime_at

    configure_logging(quiet=quiet)
    for name, level in {"uvicorn.access": access_log, "uvicorn.error": False}.items():
        logging.getLogger(name).setLevel(logging.INFO if level else logging.WARNING)
    where = one_place(place, at)
    rt = observed(runtime_at(where))
    measured(rt)
    if as_json:
        log_json(rt, quiet=quiet)
    settings: ServerSettings = {
        "worker": worker,
        "concurrency": concurrency,
        "grace": grace,
        "hosts": allow_host or (),
        "cors": cors or (),
        "insecure": insecure,
    }
    settings["ui"] = ui
    if proxy:
        import_server()
        from perdure.server.ui.identity import TrustedProxy

        settings["ui_proxy"] = TrustedProxy(proxy, user_header, admin or ())
    if max_body is not None:
        settings["max_body"] = max_body
    if max_streams is not None:
        settings["max_streams"] = max_streams
    import_server().run(_serve(rt, settings, host, port, where, max_connections))


async def _serve(
    rt: Runtime,
    settings: ServerSettings,
    host: str,
    port: int,
    at: str | None,
    max_connections: int | None,
) -> None:
    import logging

    app, http_server = make_app(rt, settings), import_server()
    if max_connections is None:
        max_connections = settings.get("max_streams", 1000) + 1000
    if max_connections <= 0:
        raise BadArgument(f"max_connections must be more than 0, not {max_connections}.")
    async with rt:
        await check_exposure(rt, settings, host, at)
        with http_server.listen(host, port) as listening:
            log = logging.getLogger("perdure")
            graphs = ", ".join(rt.graphs) or "nothing"
            address = http_server.address(listening)
            log.info("serving %s at %s", graphs, address)
            if settings.get("ui"):
                log.info("open %s", await pages_url(rt, settings, address))
            server = http_server.HttpServer(
                app, grace=settings["grace"], most_connections=max_connections
            )
            await server.serve(sockets=[listening])
            log.info("stopped")


def import_server() -> Any:
    """Import the HTTP server. Raises if the packages of the extra `server` are missing."""
    try:
        from perdure.server import http_server
    except ImportError as error:
        raise Error(needs_extra("Serving", "server")) from error
    return http_server


def make_app(rt: Runtime, settings: ServerSettings) -> Any:
    """The application of a runtime, with the server settings of its project's langgraph.json."""
    from perdure.cli.graph_loading import ProjectRuntime, import_part

    if not isinstance(rt, ProjectRuntime):
        return rt.asgi(**settings)
    project = rt.project
    if project.auth is not None:
        settings["auth"] = import_part(project, "auth.path", project.auth)
    settings["cors"] = [*settings.get("cors", ()), *project.cors]
    settings["configurable_headers"] = project.configurable_headers
    if project.app is None:
        return rt.asgi(**settings)
    import_server()
    from starlette.applications import Starlette

    from perdure.server.app import add_to_app

    own = import_part(project, "http.app", project.app)
    if not isinstance(own, Starlette):
        kind = type(own).__name__
        raise BadArgument(f'{project.file}: "http.app" is {kind}; use Starlette or FastAPI.')
    return add_to_app(own, rt.router(**settings))


async def pages_url(rt: Runtime, settings: ServerSettings, address: str) -> str:
    """The URL of the pages: on loopback with the key that signs in, if there are no accounts."""
    from perdure.server.authorization import authenticate_handler
    from perdure.server.origins import host_name, is_loopback
    from perdure.server.ui.site import sign_in_path

    auth = settings.get("auth")
    has_accounts = (
        settings.get("ui_proxy") is not None
        or (auth is not None and authenticate_handler(auth) is not None)
        or bool(await rt.journal.arun(rt.services.tokens.rows()))
    )
    if has_accounts or not is_loopback(host_name(address.partition("//")[2])):
        return f"{address}/ui/"
    return address + await sign_in_path(rt)


async def check_exposure(rt: Runtime, settings: ServerSettings, host: str, at: str | None) -> None:
    """Raise `BadArgument` if the server would be open to other machines without credentials."""
    from perdure.cli.output import at_option
    from perdure.server.authorization import authenticate_handler
    from perdure.server.origins import is_loopback

    auth = settings.get("auth")
    if is_loopback(host) or settings.get("insecure"):
        return
    if auth is not None and authenticate_handler(auth) is not None:
        return
    if not await rt.journal.arun(rt.services.tokens.rows()):
        raise BadArgument(
            f"{host} can be reached from other machines, but there is no token. Create one first: "
            f"perdure tokens create NAME --scope admin{at_option(at)}. Or pass --insecure."
        )
