"""`Ui`, the context of a page's endpoint: renders, reads forms, redirects, and knows the viewer.

    router = ui_router()

    @router.get("/runs/{run_id}")
    async def show(ui: UiDep, run_id: str) -> Response:
        ui.require(Scope.READ)
        return ui.page("run.html", title=run_id, section="runs", run=await ui.runtime.get(run_id))

A GET changes nothing. A POST comes from a form of ours: the route has checked its token before the
endpoint is called.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from perdure.server.agent_api.sse import EventStreamResponse
from perdure.server.authorization import Caller, Scope
from perdure.server.errors import ApiError
from perdure.server.origins import is_encrypted
from perdure.server.routes import Api
from perdure.server.ui import display
from perdure.server.ui.assets import asset_url
from perdure.server.ui.live import LiveFeed
from perdure.server.ui.site import NAVIGATION, Site
from perdure.types import Actor
from perdure.views import formatting
from perdure.views.formatting import revealed, whole_value
from perdure.views.markup import Html, element

if TYPE_CHECKING:
    from perdure.runtime import Runtime


KEY = "perdure.ui"
PREFIX = "/ui"
MOST_FIELDS = 5000
"""Maximum number of fields in a form."""
NOTICE = "perdure_notice"
"""The cookie of a notice that the next page shows once."""
ZONE = "perdure_zone"
"""The cookie with the time zone of the browser, which the script sets."""
PUBLIC: dict[str, Any] = {"security": []}
"""`openapi_extra` of a page that needs no sign-in."""
REFUSED = {
    Scope.ADMIN: "Only operators can do this: it requires the scope 'admin'.",
    Scope.ANSWER: "Only approvers can do this: it requires the scope 'answer'.",
}


class Form:
    """The fields of a posted form."""

    def __init__(self, pairs: Sequence[tuple[str, str]] = ()) -> None:
        self.pairs = list(pairs)

    @classmethod
    def parse(cls, body: bytes) -> Form:
        """Read a URL-encoded body. Raises `ApiError`."""
        try:
            text = body.decode("utf-8")
            pairs = parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS
            )
        except (UnicodeDecodeError, ValueError):
            raise ApiError(422, "The form could not be read. Reload the page.") from None
        if any("\0" in name or "\0" in one for name, one in pairs):
            raise ApiError(422, "A field has a NUL character, which cannot be stored.")
        # Browsers send line breaks of a text area as CR LF.
        return cls([(name, one.replace("\r\n", "\n")) for name, one in pairs])

    def get(self, name: str, default: str = "") -> str:
        """The first value of a field."""
        return next((one for key, one in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        """Every value of a field, as check boxes share a name."""
        return [one for key, one in self.pairs if key == name]

    def __contains__(self, name: str) -> bool:
        return any(key == name for key, _ in self.pairs)


@dataclass
class Ui:
    """One request of a page."""

    site: Site
    api: Api
    """The context of API endpoints, for `perdure_api.requests`."""
    request: Request
    base: str
    """The path of the pages: `/ui`, after the prefix that the router was included with."""
    form_token: str
    public_form_token: str = ""
    """The same for a page that needs no sign-in."""
    posted: Form = field(default_factory=Form)
    now: datetime = field(kw_only=True)
    """By the journal's clock."""
    new_browser: str = ""
    """The new cookie that form tokens are bound to, if the browser has none yet."""
    is_public: bool = False
    """Whether the page needs no sign-in: it then shows no navigation."""

    @property
    def runtime(self) -> Runtime:
        return self.api.runtime

    @property
    def caller(self) -> Caller:
        return self.api.caller

    @property
    def live(self) -> LiveFeed:
        return self.site.live

    @property
    def actor(self) -> Actor:
        """The actor to record, with how and from where: pass it as `by`."""
        return Actor(self.caller.identity or "", via="browser", address=self.api.address)

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone of the browser, or UTC."""
        try:
            return ZoneInfo(self.request.cookies.get(ZONE, "UTC"))
        except (ValueError, OSError, LookupError):
            return ZoneInfo("UTC")

    def require(self, scope: Scope) -> None:
        """Raise 403 unless the viewer has this scope."""
        if not self.api.may(scope):
            who = f"You are signed in as {self.caller.identity}. " if self.caller.identity else ""
            raise ApiError(
                403, who + REFUSED.get(scope, f"This requires the scope {scope.value!r}.")
            )

    async def renew(self) -> None:
        """Update the clock before the next part of a stream is rendered."""
        self.now = await self.runtime.now()
        self.__dict__.pop("context", None)

    async def form(self) -> Form:
        """The posted form. Its token was checked."""
        return self.posted

    def url(self, path: str, **query: Any) -> str:
        """The address of a page: `url("/runs", state="held")`. None leaves a parameter out; a list
        repeats it."""
        asked = urlencode([pair for name, one in query.items() for pair in _pairs(name, one)])
        return f"{self.base}{quote(path, safe='/:@!$&()*+,;=~-._%')}{'?' if asked else ''}{asked}"

    # -- responses

    def page(self, template: str, *, title: str, section: str = "", **context: Any) -> Response:
        """A whole page with navigation."""
        return _Deferred(self, template, {"title": title, "section": section, **context})

    def fragment(self, template: str, **context: Any) -> Html:
        """A part of a page."""
        return Html(self.site.render(template, {**self.context, **context}))

    def html(self, html: Html, status: int = 200) -> Response:
        """A response with only a part of a page, for htmx."""
        return HTMLResponse(_encoded(html), status)

    def redirect(self, path: str, *, notice: str = "", **query: Any) -> Response:
        """Redirect after a POST to a page that shows the notice once."""
        response = RedirectResponse(self.url(path, **query), 303)
        if notice:
            self.set_cookie(response, NOTICE, quote(notice[:500]), timedelta(minutes=1))
        return response

    def stream(self, events: AsyncGenerator[bytes]) -> Response:
        """Server-sent events, made with `sse`."""
        return EventStreamResponse(self.api.open_stream(), events)

    def set_cookie(self, response: Response, name: str, value: str, age: timedelta | None) -> None:
        """Set a cookie that scripts cannot read, and that other sites' forms do not send."""
        seconds = None if age is None else int(age.total_seconds())
        secure = is_encrypted(self.request)
        response.set_cookie(
            name, value, seconds, path=self.base, secure=secure, httponly=True, samesite="lax"
        )

    @cached_property
    def context(self) -> dict[str, Any]:
        """The variables of every template."""
        return {
            "ui": self,
            "url": self.url,
            "asset": partial(asset_url, self.base),
            "csrf": self._csrf,
            "may": self.api.may,
            "Scope": Scope,
            "now": self.now,
            "when": lambda at: display.when(at, self.now, self.zone),
            "clock": lambda at: display.clock(at, self.zone),
            "age": lambda at: formatting.age(at, self.now),
            "span": formatting.duration,
            "count": formatting.count,
            "short": formatting.short_id,
            "value": display.value,
            "whole": whole_value,
            "revealed": revealed,
            "state_badge": display.state_badge,
        }

    def _csrf(self) -> Html:
        return element("input", type="hidden", name="csrf", value=self.form_token)

    def public_csrf(self) -> Html:
        """The same for a form that leads to a page without sign-in."""
        return element("input", type="hidden", name="csrf", value=self.public_form_token)

    @property
    def _counts(self) -> bool:
        """Whether the navigation counts questions: not if handlers may hide some of them."""
        sees_all = self.api.access.handlers is None or self.caller.is_token
        return sees_all and not self.is_public

    async def frame(self) -> dict[str, Any]:
        """The variables of the frame around a page."""
        signed_in = not self.is_public
        return {
            "navigation": [
                (name, [one for one in sections if self.api.may(one.scope)])
                for name, sections in NAVIGATION
            ]
            if signed_in
            else [],
            "question_count": await self.site.question_count() if self._counts else "",
            "notice": unquote(self.request.cookies.get(NOTICE, ""))[:500],
        }


class _Deferred(HTMLResponse):
    """A page that is rendered when the route sends it: its frame is read from the journal."""

    def __init__(self, ui: Ui, template: str, context: Mapping[str, Any]) -> None:
        super().__init__("")
        self.ui, self.template, self.page_context = ui, template, context

    async def rendered(self) -> HTMLResponse:
        context = {**self.ui.context, **await self.ui.frame(), **self.page_context}
        html = self.ui.site.render(self.template, context)
        done = HTMLResponse(_encoded(html), self.status_code)
        done.raw_headers += [
            (name, one) for name, one in self.raw_headers if name not in _OF_THE_BODY
        ]
        if context["notice"]:
            done.delete_cookie(NOTICE, path=self.ui.base)
        return done


_OF_THE_BODY = (b"content-length", b"content-type")


async def finished(response: Response) -> Response:
    """A response that can be sent."""
    return await response.rendered() if isinstance(response, _Deferred) else response


async def ui(request: Request) -> Ui:
    """The `Ui` of a request, as a dependency."""
    found: Ui = request.scope[KEY]
    return found


UiDep = Annotated[Ui, Depends(ui)]


def ui_router() -> APIRouter:
    """A router for the pages of one module."""
    return APIRouter(prefix=PREFIX, include_in_schema=False)


def sse(name: str, html: str) -> bytes:
    """One server-sent event with HTML. Each line is a data line."""
    lines = html.splitlines() or [""]
    data = "".join(f"data: {line}\n" for line in lines)
    return _encoded(f"event: {name}\n{data}\n")


def _encoded(html: str) -> bytes:
    """What is sent. Half of a surrogate pair, which a person may have typed as JSON, is shown as a
    question mark: UTF-8 does not have it."""
    return html.encode("utf-8", "replace")


def _pairs(name: str, one: Any) -> list[tuple[str, str]]:
    if one is None or one == "":
        return []
    if isinstance(one, list | tuple | set | frozenset):
        return [(name, str(each)) for each in one]
    return [(name, str(one))]


log = logging.getLogger("perdure")


def note_change(ui: Ui, what: str) -> None:
    """Log who changed something in the browser: `ana, from 10.0.0.7, disabled a schedule: 'daily'`.
    `what` has the names that people chose as `repr`, so a line stays one line."""
    who = ui.actor
    address = f", from {who.address}," if who.address else ""
    log.info("%s%s %s", repr(str(who))[1:-1] or "somebody", address, what)
