"""The pages of a server as a person without JavaScript uses them: links, and forms that are posted.

with ui_server(runtime) as person:
    page = person.get("/inbox")
    done = page.submit("/questions/1/answer", decision="approve")
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import httpx

from perdure import Runtime
from perdure.commands import tokens
from tests.support.agent_server import AgentServer, served


@dataclass
class HtmlForm:
    """A form of a page, with the fields as they are filled in."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)


class _Forms(HTMLParser):
    """Finds the forms of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[HtmlForm] = []
        self._form: HtmlForm | None = None
        self._textarea: str | None = None
        self._select: str | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        given = dict(attrs)
        if tag == "form":
            self._form = HtmlForm(found.get("action", ""), found.get("method", "get").lower())
            self.forms.append(self._form)
        elif self._form is None:
            return
        elif tag == "input" and "name" in found:
            ticked = found.get("type") not in ("checkbox", "radio") or "checked" in given
            if ticked and found.get("type") != "submit":
                self._form.fields.append((found["name"], found.get("value", "")))
        elif tag == "textarea" and "name" in found:
            self._textarea, self._text = found["name"], ""
        elif tag == "select" and "name" in found:
            self._select = found["name"]
        elif tag == "option" and self._select is not None and "selected" in given:
            self._form.fields.append((self._select, found.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._textarea is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "textarea" and self._textarea is not None and self._form is not None:
            self._form.fields.append((self._textarea, self._text.removeprefix("\n")))
            self._textarea = None
        elif tag == "select":
            self._select = None


@dataclass
class Page:
    """A page that a person got."""

    person: Person
    response: httpx.Response

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def html(self) -> str:
        return self.response.text

    @property
    def path(self) -> str:
        return self.response.url.raw_path.decode()

    @property
    def text(self) -> str:
        """The visible text."""
        without = re.sub(r"<(script|style|dialog)\b.*?</\1>", "", self.html, flags=re.S)
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", without)))

    @property
    def forms(self) -> list[HtmlForm]:
        parser = _Forms()
        parser.feed(self.html)
        return [one for one in parser.forms if one.method != "dialog"]

    def form(self, action: str, having: Mapping[str, str] = MappingProxyType({})) -> HtmlForm:
        """The form whose action ends with this path, and that has these hidden fields."""
        found = [
            one
            for one in self.forms
            if one.action.partition("?")[0].endswith(action) and having.items() <= {*one.fields}
        ]
        assert found, f"no form for {action} among {[one.action for one in self.forms]}"
        return found[0]

    def submit(
        self, action: str, /, having: Mapping[str, str] = MappingProxyType({}), **fields: Any
    ) -> Page:
        """Fill in fields of a form, and send it. A list repeats a field; None leaves it out."""
        form = self.form(action, having)
        pairs = [(name, one) for name, one in form.fields if name not in fields]
        for name, given in fields.items():
            values = given if isinstance(given, list) else [given]
            pairs += [(name, str(one)) for one in values if one is not None]
        if form.method == "get":
            return self.person.get(f"{form.action.partition('?')[0]}?{urlencode(pairs)}")
        return self.person.post(form.action, pairs)


@dataclass
class Person:
    """A person with a browser."""

    http: httpx.Client
    server: AgentServer
    base: str = "/ui"

    def get(self, path: str, **options: Any) -> Page:
        """Open a page; a path without the base is one of ours."""
        address = path if path.startswith(self.base) else f"{self.base}{path}"
        return Page(self, self.http.get(address, **options))

    def post(self, address: str, fields: list[tuple[str, str]]) -> Page:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode(fields).encode()
        return Page(self, self.http.post(address, content=body, headers=headers))

    def with_token(self, token: str) -> Person:
        """Another person, who signed in with a token."""
        other = Person(self.server.http(follow_redirects=True), self.server, self.base)
        page = other.get("/sign-in").submit("/sign-in", token=token)
        assert page.status == 200, page.text
        return other

    def stranger(self) -> Person:
        """A person who is not signed in."""
        return Person(self.server.http(follow_redirects=True), self.server, self.base)


@contextmanager
def ui_server(runtime: Runtime, **options: Any) -> Iterator[Person]:
    """Serve the pages of a runtime, with its worker; signed in by the printed URL, unless there are
    tokens."""
    from perdure.server.ui.site import sign_in_path

    with served(runtime, **{"ui": True, **options}) as server:
        person = Person(server.http(follow_redirects=True), server)
        person.get(runtime.blocking.run(sign_in_path(runtime)))
        yield person


@contextmanager
def ui_account(runtime: Runtime, *scopes: str, **options: Any) -> Iterator[Person]:
    """The same for somebody who signed in with a token of these scopes."""
    create = tokens.create(runtime.engine, "ana", scopes)
    token: str = runtime.blocking.run(runtime.journal.arun(create))
    with ui_server(runtime, **options) as person:
        yield person.with_token(token)


def form_token(runtime: Runtime, person: Person, name: str) -> str:
    """The token of a person's forms, for a form that no page shows them."""
    from perdure.commands.question_links import server_secret
    from perdure.server.ui.identity import Signer
    from perdure.server.ui.page_route import browser_cookie

    signer = Signer(runtime.journal.run(server_secret(runtime.engine.serializer)))
    return signer.form_token(person.http.cookies[browser_cookie(signer)], name)
