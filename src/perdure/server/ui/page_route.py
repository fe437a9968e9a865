"""The route class of every page: the viewer, forged forms, errors as pages, security headers.

As for the API, this is done in the route and not in middleware, so it also applies in an
application that includes `Runtime.router(ui=True)`.

A POST is refused unless it carries the token of a form that we rendered, bound to a cookie of the
browser and to the signed-in person, and comes from our own pages, as the browser reports it.

`last_router` is the page for unknown addresses.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import wraps
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import compile_path

from perdure.commands import question_links
from perdure.errors import Error, LinkRefused, NotFound, Unavailable
from perdure.server.authorization import ANYONE, Caller
from perdure.server.bodies import PUBLIC_BODY, ApiRequest
from perdure.server.errors import AWAY, FAILED, ApiError, log_failure, status_of
from perdure.server.origins import is_same_origin
from perdure.server.routes import FILES, Api
from perdure.server.ui.identity import Session, Signer
from perdure.server.ui.page import KEY, PREFIX, Form, Ui, UiDep, finished, ui_router
from perdure.server.ui.site import Site

BROWSER_AGE = timedelta(days=30)
PUBLIC_SECONDS = 10.0
"""Seconds in which a form must arrive that anyone may send."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # "no-referrer" makes browsers send `Origin: null` with forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=()",
}
NUL = "The address of this page has a character that no id and no name has (NUL)."
FORGED = "This form was not sent by one of our pages, or is too old. Reload the page and try again."

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRequest(ApiRequest):
    """A request for a page, whose body is read once, within limits: a handler of the application
    that says who is looking may read it before the form is."""

    async def json(self) -> Any:
        """A form is not JSON, so a handler that asks for the parsed body gets None."""
        return None


class SignInFirst(Exception):
    """The page needs a signed-in viewer."""


def session_cookie(signer: Signer) -> str:
    return f"perdure_session_{signer.name}"


def browser_cookie(signer: Signer) -> str:
    """The name of the random cookie that form tokens are bound to."""
    return f"perdure_browser_{signer.name}"


class PageRoute(APIRoute):
    """A page of one router: `bound_to` makes the class."""

    site: Site

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        declared = compile_path(getattr(endpoint, "ui_path", path).rstrip("/"))[0].pattern
        self._with_prefix = re.compile(f"(?P<prefix>.*?){declared.removeprefix('^')}")

    @classmethod
    def bound_to(cls, site: Site) -> type[PageRoute]:
        return type(cls.__name__, (cls,), {"site": site})

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            asked = PageRequest(request.scope, request.receive, self.site.access.limits)
            try:
                await self._admit(asked)
                async with AsyncExitStack() as files:
                    asked.scope.setdefault(FILES, files)
                    response = await finished(await handle(asked))
            except SignInFirst:
                response = asked.refused(self._to_sign_in(asked))
            except Exception as error:
                page = await self._error_page(asked.scope.get(KEY), error)
                response = asked.refused(page)
            finally:
                asked.release()
            ui: Ui | None = request.scope.get(KEY)
            if ui is not None and ui.new_browser and response.media_type == "text/html":
                signer = await self.site.signer()
                ui.set_cookie(response, browser_cookie(signer), ui.new_browser, BROWSER_AGE)
            for name, value in SECURITY_HEADERS.items():
                response.headers.setdefault(name, value)
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return handle_page

    def place(self, request: Request) -> tuple[str, str]:
        """The path of the pages, including any prefix of the router, and the path of this page in
        them. FastAPI does not report the prefix: it is what precedes this route's own path."""
        path, root = request.scope["path"], request.scope.get("root_path", "").rstrip("/")
        found = self._with_prefix.match(path.removesuffix("/"))
        inside = f"{found['prefix'] if found else ''}{PREFIX}"
        removed = "" if path.startswith(root) else root  # by a proxy
        return f"{removed}{inside}", path.removeprefix(inside)

    async def _admit(self, request: PageRequest) -> None:
        """Make the `Ui` of a request, and check a posted form. Raises `SignInFirst`."""
        site, signer = self.site, await self.site.signer()
        access = site.access
        is_public = (self.openapi_extra or {}).get("security") == []
        if access.options.hosts or access.options.insecure:
            access.check_host(request)
        if request.method in SAFE:
            access.refuse_cross_site(request, links=True)
        session = signer.read_session(request.cookies.get(session_cookie(signer), ""))
        caller = ANYONE if is_public else await self._viewer(request, session)
        if not is_public or (request.method not in SAFE and await self._has_link(request)):
            request.trust()
        else:
            request.largest = PUBLIC_BODY
            request.seconds = min(request.seconds, PUBLIC_SECONDS)
        api = Api(access, caller, site.identities.address_of(request))
        known = request.cookies.get(browser_cookie(signer), "")
        browser = known or secrets.token_urlsafe(24)
        identity = "" if is_public else caller.identity or ""
        tokens = signer.form_token(browser, identity), signer.form_token(browser, "")
        now = await site.runtime.now()
        base, _ = self.place(request)
        ui = Ui(site, api, request, base, *tokens, now=now, is_public=is_public)
        ui.new_browser = "" if known else browser
        request.scope[KEY] = ui
        asked = [request.scope["path"], *map("".join, request.query_params.multi_items())]
        if not is_public and any("\0" in one for one in asked):  # others look for no such text
            raise ApiError(422, NUL)
        if request.method not in SAFE:
            ui.posted = await self._checked_form(request, signer, known, identity)

    async def _viewer(self, request: Request, session: Session | None) -> Caller:
        found = await self.site.identities.find(request, session)
        if found is None:
            raise SignInFirst
        return found

    async def _has_link(self, request: Request) -> bool:
        """Whether the address has a signed link that opens its question."""
        runtime, token = self.site.runtime, request.query_params.get("t", "")
        try:
            await runtime.journal.arun(question_links.look_at(runtime.engine, token))
        except (LinkRefused, NotFound):
            return False
        return True

    async def _checked_form(
        self, request: Request, signer: Signer, browser: str, identity: str
    ) -> Form:
        """The posted form, if it is one of ours. Raises 403."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if site not in (None, "same-origin", "none") or (
            origin is not None and not is_same_origin(origin, request)
        ):
            raise ApiError(403, FORGED)
        form = Form.parse(await request.body())
        if not signer.is_form_token(form.get("csrf"), browser, identity):
            raise ApiError(403, FORGED)
        return form

    def _to_sign_in(self, request: Request) -> Response:
        base, wanted = self.place(request)
        query = f"?{request.url.query}" if request.url.query and request.method in SAFE else ""
        there = quote(f"{wanted}{query}" if request.method in SAFE else "/")
        if request.headers.get("hx-request") == "true":  # htmx would put the page into a part
            return Response(
                status_code=401, headers={"HX-Redirect": f"{base}/sign-in?next={there}"}
            )
        return RedirectResponse(f"{base}/sign-in?next={there}", 303)

    async def _error_page(self, ui: Ui | None, error: Exception) -> Response:
        status, message = describe(error, self.site)
        if isinstance(error, HTTPException) and error.status_code in (301, 302, 303, 307):
            return RedirectResponse((error.headers or {})["Location"], error.status_code)
        title = TITLES.get(status, "Something went wrong")
        if ui is not None:
            try:
                page = ui.page("error.html", title=title, status=status, message=message)
                page.status_code = status
                return await finished(page)
            except Exception as second:  # the journal is unavailable, so the frame cannot be read
                log_failure("Rendering an error page", second, self.site.runtime.redact)
        text = self.site.render("plain_error.html", {"title": title, "message": message})
        return HTMLResponse(text, status)


def describe(error: Exception, site: Site) -> tuple[int, str]:
    """The status and the message of an error, without details that belong in the log."""
    redact = site.runtime.redact
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail)
    if isinstance(error, RequestValidationError):
        return 422, "This address has an invalid parameter."
    if isinstance(error, Unavailable):
        log_failure("A page", error, redact)
        return 503, AWAY
    if isinstance(error, Error):
        return status_of(error), redact(str(error))
    log_failure("A page", error, redact)
    return 500, FAILED


TITLES = {
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    409: "Changed in the meantime",
    422: "Not valid",
    503: "The journal is unavailable",
}


def add_pages(router: APIRouter, declared: APIRouter, site: Site) -> None:
    """Add the pages that a module declares, bound to a site."""
    for route in declared.routes:
        if not isinstance(route, APIRoute):
            raise TypeError(f"{route!r} is not a FastAPI endpoint.")
        router.add_api_route(
            route.path,
            _with_path(route.endpoint, route.path),
            methods=sorted(route.methods or ()),
            include_in_schema=False,
            response_model=None,
            name=route.name,
            openapi_extra=route.openapi_extra,
            route_class_override=PageRoute.bound_to(site),
        )


def _with_path(endpoint: Callable[..., Any], path: str) -> Callable[..., Any]:
    """An endpoint that knows the path it was declared with."""

    @wraps(endpoint)
    async def page(*arguments: Any, **named: Any) -> Any:
        return await endpoint(*arguments, **named)

    page.__dict__["ui_path"] = path
    return page


last_router = ui_router()


@last_router.api_route("/{path:path}", methods=["GET", "POST"])
async def missing(ui: UiDep, path: str) -> Response:
    raise ApiError(404, f"There is no page at {ui.base}/{path}.")
