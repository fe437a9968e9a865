"""Which pages are shown: the name of the file, the address, which may need an id, and what is
clicked before the picture is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

from playwright.async_api import Page

import perdure
from perdure.commands import question_links


@dataclass(frozen=True)
class Shot:
    """One page."""

    name: str
    path: str | Callable[[perdure.Runtime], str]
    full: bool = False
    """Whether the picture shows the whole page, not only what fits on the screen."""
    element: str = ""
    """The part of the page that the picture shows; empty: all of it."""
    act: Callable[[Page], Awaitable[None]] | None = None
    """What is done on the page first."""

    def address(self, rt: perdure.Runtime) -> str:
        return self.path if isinstance(self.path, str) else self.path(rt)


def question(thread: str) -> Callable[[perdure.Runtime], str]:
    """The open question of a thread whose id begins so."""

    def find(rt: perdure.Runtime) -> str:
        waits = rt.blocking.waits(kind="human", limit=100)
        first, *_ = [one.id for one in waits if one.thread_id.startswith(thread)]
        return f"/questions/{first}"

    return find


def busiest(rt: perdure.Runtime) -> str:
    """The campaign run that continued most often."""
    runs = rt.blocking.runs(graph="campaign", limit=100, output=False)
    return max(runs, key=lambda run: run.saved["steps"]).id


def link(rt: perdure.Runtime) -> str:
    """The page behind a signed link, as a mail has it."""
    waits = rt.blocking.waits(kind="human", limit=100)
    [asked] = [one for one in waits if one.thread_id.startswith("support")]
    make = question_links.make_link(rt.engine, asked.id, "mia@example.com", timedelta(days=2))
    _, token = rt.journal.run(make)
    return "/link?" + urlencode({"t": token})


# -- what is done on a page first; nothing here changes the journal


async def edit(page: Page) -> None:
    """Change a tool's argument, and see the difference."""
    await page.get_by_role("radio", name="Edit").first.check()
    await page.get_by_role("radio", name="Approve").last.check()
    await page.get_by_label("amount").first.fill("44.5")
    await page.get_by_role("button", name="Send decisions").click()
    await page.wait_for_load_state("load")


SHOTS: tuple[Shot, ...] = (
    Shot("inbox", "/inbox"),
    Shot("question-edit", question("support"), act=edit),
    Shot("question-form", question("invoice")),
    Shot("link", link),
    Shot("runs", "/runs"),
    Shot("timeline", lambda rt: f"/runs/{busiest(rt)}", element="figure.timeline"),
    Shot("health", "/health"),
    Shot("code-changes", "/code-changes?check=yes"),
)
