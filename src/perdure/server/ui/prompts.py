"""Prompt versions: the list, one with its outcomes and plots, two versions side by side."""

from __future__ import annotations

from itertools import groupby

from fastapi import Response

from perdure.errors import NotFound
from perdure.server.json_errors import ApiError
from perdure.server.ui.lists import PAGE, require_every_thread
from perdure.server.ui.page import UiDep, ui_router
from perdure.types import PromptRecord
from perdure.views.prompt_page import prompt_body

router = ui_router()

VERSIONS = 500
"""Number of versions read for a page of the list."""


@router.get("/prompts")
async def list_prompts(ui: UiDep, after: str = "") -> Response:
    await require_every_thread(ui)
    plan = ui.runtime.services.prompts.texts(after, VERSIONS)
    found = await ui.runtime.journal.arun(plan)
    groups = [(name, list(some)) for name, some in groupby(found, key=lambda one: one.name)]
    if len(found) == VERSIONS and groups[1:]:
        groups.pop()  # it may have more versions, so it goes to the next page
    shown = groups[:PAGE]
    more = shown[-1][0] if len(found) == VERSIONS or len(groups) > PAGE else None
    return ui.page(
        "prompts.html", title="Prompts", section="prompts", prompts=shown, after=after, more=more
    )


@router.get("/prompts/one")
async def show(ui: UiDep, name: str, before: str = "", after: str = "") -> Response:
    """The versions of a prompt. `before` and `after` are compared, by default the last two."""
    await require_every_thread(ui)
    found, at = await ui.site.sums.get(f"prompt {name}", lambda: ui.runtime.prompts(name), ui.now)
    if not found:
        raise NotFound("prompt", name)
    pair = None
    if before and after:
        pair = _version(found, before), _version(found, after)
    return ui.page(
        "prompt.html",
        title=f"Prompt {name}",
        section="prompts",
        name=name,
        versions=[one.version for one in found],
        before=before or (found[-2].version if len(found) > 1 else ""),
        after=after or found[-1].version,
        at=min(at, ui.now),
        body=prompt_body(found, pair, ui.context["when"]),
    )


def _version(found: list[PromptRecord], version: str) -> PromptRecord:
    for one in found:
        if one.version == version:
            return one
    raise ApiError(404, f"This prompt has no version {version}.")
