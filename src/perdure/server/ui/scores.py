"""Scores of the newest runs, by people and programs, with plots by name."""

from __future__ import annotations

from fastapi import Response

from perdure.operations import newest, scores
from perdure.operations.newest import ScoreHead, ScorePosition
from perdure.server.caller import Scope
from perdure.server.own_api.access import ThreadFilter
from perdure.server.ui.lists import EVALUATED, LOOKED_AT, Looked, as_cursor, from_cursor, look
from perdure.server.ui.page import UiDep, ui_router
from perdure.views.score_summary import score_plots, summarise

router = ui_router()


@router.get("/scores")
async def list_scores(ui: UiDep, name: str = "", graph: str = "", behind: str = "") -> Response:
    """The plots cover all rows that were read; the list shows a page of them."""
    ui.require(Scope.READ)
    seen = await ThreadFilter.of(ui.api)
    at = from_cursor(behind, int, str, str, str)
    position = ScorePosition() if at is None else ScorePosition(*at)
    serializer = ui.runtime.engine.serializer
    read = newest.recent_scores(position, LOOKED_AT)
    heads: list[ScoreHead] = await ui.runtime.journal.ado(read)

    async def wanted(head: ScoreHead) -> bool:
        one = head.score
        if one is None or name not in ("", one.name) or not _is_of(graph, head.graph):
            return False
        return await seen.sees(head.thread_id)

    every: Looked[ScoreHead] = await look(heads, wanted, most=LOOKED_AT)
    found: Looked[ScoreHead] = await look(heads, wanted)
    given = [(one, one.score) for one in every.rows if one.score]
    summaries = summarise((one.graph, scores.bare(one.run_id, row)) for one, row in given)
    shown = [
        (one, scores.whole(serializer, one.thread_id, one.run_id, one.score))
        for one in found.rows
        if one.score
    ]
    query = {"name": name, "graph": graph}
    last = None if found.last is None else found.last.position
    return ui.page(
        "scores.html",
        title="Scores",
        section="scores",
        rows=shown,
        summaries=summaries,
        plots=score_plots(summaries),
        runs=len({one.run_id for one in heads}),
        query=query,
        behind=behind,
        is_cut=found.is_cut,
        more=None if last is None else ui.url("/scores", **query, behind=as_cursor(last)),
    )


def _is_of(wanted: str, graph: str) -> bool:
    """Whether a graph matches. Evaluations have their own page, and match only if asked for."""
    return graph == wanted if wanted else not graph.startswith(EVALUATED)
