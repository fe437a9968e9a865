"""Which pages are shown: the name of the file, the address, which may need an id, and what is
clicked before the picture is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

from playwright.async_api import Page

import perdure
from perdure.types import Kind, State


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
    phone: bool = False
    """Whether the docs show it on a phone, too."""

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


def failed(rt: perdure.Runtime) -> str:
    [run] = rt.blocking.runs(state=State.FAILED, limit=1, output=False)
    return run.id


def held(rt: perdure.Runtime) -> str:
    [run] = rt.blocking.runs(state=State.HELD, graph="payments", limit=1, output=False)
    return run.id


def unknown_effect(rt: perdure.Runtime) -> str:
    [effect] = rt.blocking.effects(state="unknown", limit=1)
    return "/effects/one?" + urlencode({"key": effect.key})


def link(rt: perdure.Runtime) -> str:
    """The page behind a signed link, as a mail has it."""
    waits = rt.blocking.waits(kind="human", limit=100)
    [asked] = [one for one in waits if one.thread_id.startswith("support")]
    make = rt.services.links.make(asked.id, "mia@example.com", timedelta(days=2))
    _, token = rt.journal.run(make)
    return "/link?" + urlencode({"t": token})


def answered(rt: perdure.Runtime) -> str:
    """A question that is over."""
    history = (one for run in rt.blocking.runs() for one in rt.blocking.wait_history(run.id))
    first = next(one.id for one in history if one.kind == Kind.HUMAN and one.answered_at)
    return f"/questions/{first}"


# -- what is done on a page first; nothing here changes the journal


async def edit(page: Page) -> None:
    """Change a tool's argument, and see the difference."""
    await page.get_by_role("radio", name="Edit").first.check()
    await page.get_by_role("radio", name="Approve").last.check()
    await page.get_by_label("amount").first.fill("44.5")
    await page.get_by_role("button", name="Send decisions").click()
    await page.wait_for_load_state("load")


async def approve_several(page: Page) -> None:
    for box in await page.locator("input[name=id]").all():
        await box.check()
    await page.get_by_role("button", name="Approve…").first.click()
    await page.wait_for_load_state("load")


async def cancel_several(page: Page) -> None:
    for box in (await page.locator("table.runs input[name=id]").all())[:12]:
        await box.check()
    await page.get_by_role("button", name="Cancel…").click()
    await page.wait_for_load_state("load")


async def open_crash(page: Page) -> None:
    """Open a takeover in the picture of a run's life."""
    await page.locator("figure.timeline a[href*='open=']", has_text="recovered").first.click()
    await page.wait_for_selector("#detail :first-child")


async def check_journal(page: Page) -> None:
    await page.get_by_role("button", name="octor").click()
    await page.wait_for_load_state("load")


SHOTS: tuple[Shot, ...] = (
    Shot("sign-in", "/sign-in"),
    Shot("inbox", "/inbox", phone=True),
    Shot("inbox-several", "/inbox", act=approve_several),
    Shot("question-tools", question("support"), phone=True),
    Shot("question-edit", question("support"), act=edit),
    Shot("question-draft", question("campaign")),
    Shot("question-form", question("invoice"), phone=True),
    Shot("question-over", answered),
    Shot("link", link, phone=True),
    Shot("runs", "/runs", phone=True),
    Shot("runs-bulk", "/runs?state=waiting", act=cancel_several),
    Shot("run", lambda rt: f"/runs/{busiest(rt)}", phone=True),
    Shot("timeline", lambda rt: f"/runs/{busiest(rt)}", element="figure.timeline", phone=True),
    Shot("run-crash", lambda rt: f"/runs/{busiest(rt)}", act=open_crash),
    Shot("run-held", lambda rt: f"/runs/{held(rt)}"),
    Shot("run-failed", lambda rt: f"/runs/{failed(rt)}"),
    Shot("run-state", lambda rt: f"/runs/{busiest(rt)}?tab=state"),
    Shot("fork", lambda rt: f"/runs/{busiest(rt)}/fork"),
    Shot("threads", "/threads"),
    Shot("thread", "/threads/one?id=support-mia-berg", phone=True),
    Shot("effects", "/effects"),
    Shot("effect", unknown_effect),
    Shot("outbox", "/outbox"),
    Shot("schedules", "/schedules"),
    Shot("schedule", "/schedules/one?name=weekly+stock+count"),
    Shot("workers", "/workers"),
    Shot("reflections", "/reflections"),
    Shot("health", "/health"),
    Shot("doctor", "/health", act=check_journal),
    Shot("code-changes", "/code-changes?check=yes"),
    Shot("prompts", "/prompts"),
    Shot("prompt", "/prompts/one?name=shipping+reply"),
    Shot("scores", "/scores"),
)
