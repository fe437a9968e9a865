"""Weight is a budget: what the code has, and what a run does, fits the table of ARCHITECTURE.md.

A figure that falls well below its budget lowers it: `python -m tests.support.weight --write`.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.weight import ROOT, budgets

SLACK = 0.03
"""How far a figure may be below its budget before the table is out of date."""


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    """The figures, measured in a process of its own: it counts calls in every thread."""
    code = "import json; from tests.support.weight import measured; print(json.dumps(measured()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("name", budgets())
def test_what_the_code_weighs_fits_its_budget(name: str, found: dict[str, float]) -> None:
    budget, _ = budgets()[name]
    # A call more or less is a matter of timing: who commits for whom.
    room = budget * 0.05 if "no-op" in name else 0
    assert found[name] <= budget + room, f"{name}: {found[name]:,.0f} are more than {budget:,}"
    assert found[name] >= budget * (1 - SLACK) - 1, f"{name} is {found[name]:,.0f} now: lower it"


def test_every_figure_has_a_budget(found: dict[str, float]) -> None:
    assert found.keys() == budgets().keys()
