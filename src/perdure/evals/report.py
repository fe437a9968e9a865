"""Experiments as people read them: a table of texts, or a self-contained page."""

from __future__ import annotations

from typing import Literal

from perdure.evals.experiments import Experiment
from perdure.service.views.experiment_page import experiment_page
from perdure.service.views.experiment_tables import score_table
from perdure.service.views.experiments import view


def table(*experiments: Experiment) -> str:
    """The scores of one or more experiments with their intervals, and how they differ from the
    first."""
    return str(score_table(view(*experiments), measures=False))


def page(*experiments: Experiment, theme: Literal["auto", "light", "dark"] = "auto") -> str:
    """The HTML page of one or more experiments: scores, differences, examples that changed.

    It needs no network and no script. Light or dark is the reader's setting, or `theme`.
    """
    return experiment_page(view(*experiments), theme=theme)
