"""An evaluation gates a build: its test passes or fails, and the failure shows the scores."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
CONFTEST = 'pytest_plugins = ["perdure.evals.pytest_plugin"]\n'
TESTS = """
from perdure.evals import evaluate

DATASET = [{"input": "Ada", "expected": "Dear Ada"}, {"input": "Bo", "expected": "Hello Bo"}]


def same(outputs, reference_outputs):
    return outputs == reference_outputs


def write(name):
    return f"Dear {name}"


async def letters(runtime, experiment):
    return await evaluate(write, DATASET, [same], runtime=runtime, experiment=experiment)


def test_good_enough(evaluation):
    evaluation(write, DATASET, [same], experiment="baseline").check("same", at_least=0.5)


def test_not_worse(evaluation):
    evaluation.run(letters).check("same", not_worse_than=evaluation.load("baseline"))


def test_too_bad(evaluation):
    evaluation(write, DATASET, [same]).check("same", at_least=0.9)
"""


def test_a_test_evaluates_compares_with_a_baseline_and_fails_with_a_table(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    journal = pytester.path / "kept.db"
    done = pytester.runpytest_inprocess(f"--evals-journal=sqlite:///{journal}")
    done.assert_outcomes(passed=2, failed=1)
    said = done.stdout.str()
    assert "same is 50 % (9–91 %, n = 2), less than 0.9" in said
    assert "Hello Bo" in said
    assert journal.exists()
