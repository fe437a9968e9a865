"""Code changes: the unfinished runs that the registered graphs would hold when they wake."""

from __future__ import annotations

from fastapi import Response

from perdure.commands import runs
from perdure.server.ui.lists import LOOKED_AT, require_every_thread
from perdure.server.ui.page import UiDep, ui_router
from perdure.views.code_changes import code_changes

router = ui_router()

SHOWN = 20
"""Maximum number of runs listed for each reason."""


@router.get("/code-changes")
async def show(ui: UiDep, check: str = "") -> Response:
    """Check at once if there are few unfinished runs; many are checked on request, because each may
    have to be read."""
    await require_every_thread(ui)
    few = await ui.runtime.journal.ado(
        runs.unfinished_of_threads("", "\U0010ffff", None, LOOKED_AT)
    )
    changes = None
    if check or len(few) < LOOKED_AT:
        found = await ui.runtime.check()
        changes = code_changes(found.checked, found.lost, found.missing, ui.runtime.graphs)
    return ui.page(
        "code_changes.html",
        title="Code changes",
        section="code-changes",
        changes=changes,
        graphs=ui.runtime.graphs,
        shown=SHOWN,
    )
