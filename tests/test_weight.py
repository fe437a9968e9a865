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


@pytest.mark.slow
def test_what_the_code_weighs_fits_its_budgets() -> None:
    """One test, because measuring takes half a minute: in a process of its own, which counts calls
    in every thread."""
    code = "import json; from tests.support.weight import measured; print(json.dumps(measured()))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    figures: dict[str, float] = json.loads(done.stdout)
    assert figures.keys() == budgets().keys()
    wrong = []
    for name, (budget, _) in budgets().items():
        # A call more or less is a matter of timing: who commits for whom.
        room = budget * 0.05 if "no-op" in name else 0
        if figures[name] > budget + room:
            wrong.append(f"{name}: {figures[name]:,.0f} are more than {budget:,}")
        elif figures[name] < budget * (1 - SLACK) - 1:
            wrong.append(f"{name} is {figures[name]:,.0f} now: lower it")
    assert not wrong, "\n".join(wrong)
