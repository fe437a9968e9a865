"""Experiments as people read them: a table of texts, or a self-contained page."""

from __future__ import annotations

from typing import Literal

from perdure.evals.experiments import Experiment
from perdure.service.views.experiment_page import experiment_page
from perdure.service.views.experiment_tables import score_table
from perdure.service.views.experiments import view


def table(*experiments: Experiment) -> str:
    """Return the scores of experiments as a table of text, with intervals and differences.

    Args:
        *experiments: The experiments; differences are to the first.
    """
    return str(score_table(view(*experiments), measures=False))


def page(*experiments: Experiment, theme: Literal["auto", "light", "dark"] = "auto") -> str:
    """Return an HTML page of experiments: scores, differences, examples that changed.

    It needs no network and no script.

    Args:
        *experiments: The experiments; differences are to the first.
        theme: `light`, `dark`, or `auto`, the reader's setting.
    """
    return experiment_page(view(*experiments), theme=theme)
