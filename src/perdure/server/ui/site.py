"""What all pages of one router share: the templates, the signer, the live feed, the navigation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined

from perdure.commands.question_links import server_secret
from perdure.commands.streams import count_questions
from perdure.server.authentication import AccessControl
from perdure.server.authorization import Scope
from perdure.server.ui.identity import Identities, Signer
from perdure.server.ui.live import LiveFeed

if TYPE_CHECKING:
    from perdure.runtime import Runtime

T = TypeVar("T")

MOST_COUNTED = 100
"""Maximum number of open questions that the navigation counts."""


@dataclass(frozen=True)
class Section:
    """An entry of the navigation."""

    name: str
    title: str
    path: str
    scope: Scope = Scope.READ


NAVIGATION: tuple[tuple[str, tuple[Section, ...]], ...] = (
    (
        "Work",
        (
            Section("inbox", "Inbox", "/inbox"),
            Section("runs", "Runs", "/runs"),
            Section("threads", "Threads", "/threads"),
        ),
    ),
    (
        "Operate",
        (
            Section("schedules", "Schedules", "/schedules"),
            Section("workers", "Workers", "/workers"),
            Section("effects", "Effects", "/effects"),
            Section("outbox", "Outbox", "/outbox", Scope.ADMIN),
            Section("reflections", "Reflections", "/reflections"),
            Section("code-changes", "Code changes", "/code-changes"),
            Section("health", "Health", "/health"),
        ),
    ),
)


@cache
def templates() -> Environment:
    """The Jinja environment. Escapes by default; an undefined name is an error."""
    return Environment(
        loader=PackageLoader("perdure.server.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


async def sign_in_path(runtime: Runtime) -> str:
    """The path of the pages with the key that signs in on this machine."""
    secret = await runtime.journal.arun(server_secret(runtime.engine.serializer))
    return f"/ui/?key={Signer(secret).sign_in_key}"


class Site:
    """The pages of one router."""

    def __init__(self, access: AccessControl) -> None:
        self.access, self.runtime = access, access.runtime
        self.identities = Identities(access)
        self._signer: Signer | None = None
        self._reading = asyncio.Lock()
        self._parts: dict[Callable[[Site], Any], Any] = {}

    @cached_property
    def live(self) -> LiveFeed:
        return LiveFeed(self.runtime.journal)

    def part(self, kind: Callable[[Site], T]) -> T:
        """An object that all requests share, created on first use: `site.part(RowSource)`."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        found: T = self._parts[kind]
        return found

    async def signer(self) -> Signer:
        """The signer, with the secret of the journal."""
        if self._signer is None:
            async with self._reading:
                plan = server_secret(self.runtime.engine.serializer)
                self._signer = Signer(await self.runtime.journal.arun(plan))
        return self._signer

    async def question_count(self) -> str:
        """The number of open questions for the navigation; empty if there is none."""
        count: int = await self.runtime.journal.ado(count_questions(MOST_COUNTED))
        return "99+" if count >= MOST_COUNTED else str(count or "")

    def render(self, template: str, context: dict[str, Any]) -> str:
        return templates().get_template(template).render(context)
