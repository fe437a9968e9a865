"""Experiments: the list, one, and several side by side. The same plots as `perdure evals`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Response

from perdure.server.json_errors import ApiError
from perdure.server.ui.lists import require_every_thread
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.service.experiments import ExperimentResults
from perdure.service.views.experiment_page import experiment_body, experiment_title
from perdure.service.views.experiment_tables import headline
from perdure.service.views.experiments import view
from perdure.service.views.markup import Html, element

router = ui_router()

MOST = 200
"""Maximum number of experiments in the list."""
BESIDE = 6
"""Maximum number of experiments compared."""


@router.get("/experiments")
async def list_experiments(ui: UiDep, dataset: str = "") -> Response:
    await require_every_thread(ui)
    datasets = ui.runtime.services.datasets
    found = await ui.runtime.journal.arun(datasets.experiments(dataset or None, MOST))
    every = await ui.runtime.journal.arun(datasets.every())
    return ui.page(
        "experiments.html",
        title="Experiments",
        section="experiments",
        rows=found,
        datasets=every,
        dataset=dataset,
    )


@router.get("/experiments/show")
async def show(ui: UiDep, name: Annotated[list[str], Query()]) -> Response:
    """One experiment, or several: the oldest is the baseline."""
    await require_every_thread(ui)
    names = list(dict.fromkeys(name))
    if len(names) > BESIDE:
        raise ApiError(422, f"Choose at most {BESIDE} experiments.")
    shown = view(*await _load(ui, names))

    def run_link(run_id: str) -> Html:
        return element("a", run_id[:13], href=ui.url(f"/runs/{run_id}"), class_="mono")

    return ui.page(
        "experiment.html",
        title=experiment_title(shown),
        section="experiments",
        headline=headline(shown),
        unfinished=[one for one in shown.columns if one.unfinished],
        names=names,
        body=experiment_body(shown, run_link, ui.context["when"]),
    )


async def _load(ui: Ui, names: Sequence[str]) -> list[ExperimentResults]:
    service = ui.runtime.services.experiments
    found = [await ui.runtime.journal.arun(service.load(name)) for name in names]
    return sorted(found, key=lambda one: one.info.created_at)
