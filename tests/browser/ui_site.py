"""A site with accounts, for tests in a browser: its server, its runtime, and who is signed in.

    with site_of(url, {"mail": graph}).serving() as site:
        page = await site.visit(people, "ana", "/inbox", dark=True)

Each account signs in by a cookie, as if they had done so before: the sign-in page has its own test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from playwright.async_api import BrowserContext, Page

import perdure
from perdure.commands import tokens
from perdure.commands.question_links import server_secret
from perdure.server.ui.identity import Session, Signer
from perdure.server.ui.page_route import session_cookie
from perdure.types import ENDED, Retry, Run, State, Wait
from tests.browser.chromium import People
from tests.support.agent_server import served
from tests.support.polling import auntil

ACCOUNTS = {"ana": "answer", "ben": "answer", "ron": "read", "root": "admin"}


class Site:
    """A server of the pages of a runtime, and accounts: their scope by their name."""

    def __init__(
        self,
        runtime: perdure.Runtime,
        accounts: Mapping[str, str] = MappingProxyType(ACCOUNTS),
        **options: Any,
    ) -> None:
        self.runtime, self._accounts, self._options = runtime, accounts, options
        self.address = ""
        self._cookies: dict[str, str] = {}

    @contextmanager
    def serving(self) -> Iterator[Site]:
        journal, on = self.runtime.journal, self.runtime.engine
        signer = Signer(journal.run(server_secret(self.runtime.engine.serializer)))
        for name, scope in self._accounts.items():
            journal.run(tokens.create(on, name, [scope]))
        for row in journal.run(tokens.read_rows(on)):
            self._cookies[row.name] = signer.session(Session(row.hash))
        self._cookie = session_cookie(signer)
        with self.runtime, served(self.runtime, ui=True, **self._options) as server:
            self.address = f"{server.url}/ui"
            yield self

    async def visit(self, people: People, who: str, path: str, **look: Any) -> Page:
        """A page opened by a signed-in person."""
        person = await self.person(people, who, **look)
        page = await person.new_page()
        await page.goto(f"{self.address}{path}")
        return page

    async def person(self, people: People, who: str, **look: Any) -> BrowserContext:
        """A signed-in person without a page yet."""
        person = await people.person(**look)
        cookie: Any = {"name": self._cookie, "value": self._cookies[who], "url": self.address}
        await person.add_cookies([cookie])
        people.may_ask(self.address)
        return person

    # -- the journal behind it, which the server's process has open

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the runtime."""
        function = getattr(self.runtime.blocking, method)
        return await asyncio.to_thread(function, *arguments, **named)

    async def ask(self, graph: str, thread: str, input: Any = None, **options: Any) -> Wait:
        """Start a run, and wait for its question."""
        run: Run = await self.call("start", graph, input or {}, thread_id=thread, **options)
        return await self.question(run.id)

    async def question(self, run_id: str, but: str = "") -> Wait:
        async def asked() -> list[Wait]:
            waits: list[Wait] = await self.call("waits", run_id=run_id, kind="human")
            return [one for one in waits if one.id != but]

        found: list[Wait] = await auntil(asked, "a question")
        return found[0]

    async def ended(self, run_id: str) -> Run:
        return await self._until(run_id, ENDED)

    async def rests(self, run_id: str) -> Run:
        """The run, once it is neither due nor driven."""
        return await self._until(run_id, {*State} - {State.PENDING, State.RUNNING})

    async def _until(self, run_id: str, states: Collection[State]) -> Run:
        async def get() -> Run | None:
            run: Run = await self.call("get", run_id)
            return run if run.state in states else None

        found: Run = await auntil(get, "the end of a run")
        return found


def site_of(url: str, graphs: Mapping[str, Any], **options: Any) -> Site:
    """A site with some graphs, which fail at the first exception."""
    runtime = perdure.Runtime(url)
    for name, graph in graphs.items():
        runtime.register(graph, name=name, retry=Retry(attempts=1))
    return Site(runtime, **options)
