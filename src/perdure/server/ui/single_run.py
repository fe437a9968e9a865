"""The page of one run: what it is waiting for, its timeline, its graph, and its details.

    /runs/{id}                  the page; `from` and `to` zoom, `open` shows an event, `tab` a tab
    /runs/{id}/events/{n}       the details of an event, as a part of the page
    /runs/{id}/live             live updates of the page

`single_run_actions` has the actions, `single_run_fork` the forks. The modules are named so that
their routes come after those of lists, such as `/runs/live`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from perdure.server.authorization import Scope
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.server.ui.single_run_detail import render_detail
from perdure.server.ui.single_run_live import follow
from perdure.server.ui.single_run_tabs import TABS, TITLES, render_tab
from perdure.server.ui.single_run_view import Asked, RunView, read_run
from perdure.views.formatting import graph_title
from perdure.views.markup import Html
from perdure.views.timeline_parts import Zoom

router = ui_router()

Number = Annotated[int | None, Query(ge=0, le=2**53)]
First = Annotated[int | None, Query(alias="from", ge=0, le=2**53)]
Last = Annotated[int | None, Query(alias="to", ge=0, le=2**53)]
Tab = Annotated[str, Query(max_length=20)]
Pages = Annotated[int, Query(ge=0, le=100_000)]


@router.get("/runs/{run_id}")
async def show(
    ui: UiDep,
    run_id: str,
    first: First = None,
    last: Last = None,
    open: Number = None,
    tab: Tab = "history",
    page: Pages = 0,
) -> Response:
    ui.require(Scope.READ)
    view = await read_run(ui, run_id, _asked(first, last, open, tab, page))
    return await _page(ui, view)


@router.get("/runs/{run_id}/events/{number}")
async def show_event(
    ui: UiDep,
    run_id: str,
    number: int,
    first: First = None,
    last: Last = None,
    tab: Tab = "history",
    page: Pages = 0,
) -> Response:
    """The panel of an event, for htmx; else the page with it."""
    ui.require(Scope.READ)
    view = await read_run(ui, run_id, _asked(first, last, number, tab, page))
    headers = ui.request.headers
    if headers.get("hx-request") != "true" or headers.get("hx-history-restore-request") == "true":
        return await _page(ui, view)
    response = ui.html(await render_detail(view, number))
    response.headers["HX-Push-Url"] = view.url()
    return response


@router.get("/runs/{run_id}/live")
async def live(
    ui: UiDep,
    run_id: str,
    first: First = None,
    last: Last = None,
    open: Number = None,
    tab: Tab = "history",
    page: Pages = 0,
    seen: Pages = 0,
) -> Response:
    """Live updates of the page, until the run ends."""
    ui.require(Scope.READ)
    asked = _asked(first, last, open, tab, page)
    view = await read_run(ui, run_id, asked)
    return ui.stream(follow(ui, view, seen))


def _asked(first: int | None, last: int | None, open: int | None, tab: str, page: int) -> Asked:
    zoom = None if first is None or last is None or last < first else Zoom(first, last)
    return Asked(zoom, open, tab if tab in TABS else "history", page)


async def _page(ui: Ui, view: RunView) -> Response:
    run, asked = view.run, view.asked
    detail = Html("") if asked.open is None else await render_detail(view, asked.open)
    return ui.page(
        "run.html",
        title=f"{graph_title(run.graph, run.version)} {run.id[:8]}",
        section="runs",
        view=view,
        run=run,
        header=view.header(),
        now_part=view.now(),
        timeline=view.timeline(),
        graph=view.graph(),
        detail=detail,
        tabs=[(name, TITLES[name], name == asked.tab) for name in TABS],
        tab=await render_tab(view),
        live=""
        if run.ended
        else ui.url(f"/runs/{run.id}/live", **asked.query(), seen=len(view.events)),
        streams=bool(view.row.streams),
    )
