"""Experiments beside each other, as a view, tables, a page, and the message of a failed check."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from perdure.errors import BadArgument
from perdure.evals import Example, Experiment, ExperimentInfo, Result
from perdure.service.views import experiment_tables as tables
from perdure.service.views.experiment_page import experiment_page
from perdure.service.views.experiments import view
from perdure.service.views.value_text import value_text
from perdure.types import Score, ScoreKind, State

AT = datetime(2026, 1, 1, tzinfo=UTC)


def score(name: str, value: float | str) -> Score:
    if isinstance(value, str):
        return Score("r", name, None, "", AT, kind=ScoreKind.CATEGORY, label=value)
    return Score("r", name, float(value), "", AT, comment=f"why {name}")


def result(example: str, output: Any = "ok", repetition: int = 1, **scores: Any) -> Result:
    given = {name: score(name, value) for name, value in scores.items()}
    when = {"began_at": AT, "ended_at": AT + timedelta(seconds=2)}
    return Result(
        Example(f"input {example}", "expected", example),
        repetition,
        f"run-{example}",
        "thread",
        State.DONE,
        output,
        scores=given,
        is_judged=True,
        **when,  # type: ignore[arg-type]
    )


def experiment(name: str, *results: Result) -> Experiment:
    info = ExperimentInfo(name, "letters", 1, "write", ("correct",), 1, {}, {}, AT)
    return Experiment(info, results)


def failed(example: str) -> Result:
    return Result(
        Example("input", None, example), 1, "r", "t", State.FAILED, error="ValueError: no"
    )


A = experiment("a", *(result(str(n), correct=n % 2, tone="warm") for n in range(20)))
B = experiment("b", *(result(str(n), correct=1, tone="cold", size=n) for n in range(20)))


def test_a_comparison_pairs_examples_and_counts_what_is_higher_and_lower() -> None:
    both = view(A, B)
    correct, size, tone = both.scores
    assert (correct.higher, correct.lower) == ((0, 10), (0, 0))
    assert correct.differences[0] is None
    assert correct.differences[1] is not None
    assert (correct.differences[1].value, correct.differences[1].apart_from_zero) == (0.5, True)
    assert tone.labels == ({"warm": 20}, {"cold": 20})
    assert size.estimates[0] is None
    assert size.differences[1] is None
    assert [one.name for one in both.measures] == ["seconds"]
    assert len(both.changed) == 20
    assert both.changed[0].changes["correct"] == (0.0, 1.0)


def test_repetitions_count_as_one_example() -> None:
    repeated = experiment("r", result("1", correct=1), result("1", "no", 2, correct=0))
    [correct] = view(repeated).scores
    assert correct.estimates[0] is not None
    assert (correct.estimates[0].value, correct.estimates[0].n) == (0.5, 1)
    [example] = view(repeated).examples
    assert example.outcomes[0] is not None
    assert example.outcomes[0].outputs == ("ok", "no")


def test_examples_of_one_version_only_and_failed_ones_are_shown_as_such() -> None:
    shown = view(experiment("a", result("1", correct=1)), experiment("b", failed("2")))
    assert [row.outcomes[0] is None for row in shown.examples] == [False, True]
    assert [row.id for row in shown.failed] == ["2"]
    assert shown.columns[1].failed == 1
    assert "ValueError: no" in str(tables.failure_table(shown))
    assert "Not in this version of the dataset." in experiment_page(shown)


def test_tokens_are_those_that_messages_report() -> None:
    usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    messages = [HumanMessage("hi"), AIMessage("ho", usage_metadata=usage)]
    shown = view(experiment("a", result("1", {"messages": messages}, correct=1)))
    assert {row.name: row.values for row in shown.measures}["tokens"] == ([7.0],)
    assert value_text({"messages": messages}) == "messages: \n  human: hi\n  ai: ho"


def test_a_page_shows_scores_changes_and_diffs_and_escapes_what_users_wrote() -> None:
    evil = "<script>alert(1)</script>"
    before = experiment("a", result("1", "Dear Ada", correct=0, tone=evil, size=0.5))
    after = experiment(evil, result("1", f"Dear Bo {evil}", correct=1, tone="x", size=0.7))
    whole = experiment_page(view(before, after))
    assert "<script" not in whole
    assert "<del>Ada</del>" in whole
    assert "correct 0 → 1" in whole
    assert whole.count("<svg") >= 4
    alone = experiment_page(view(before))
    assert "why correct" in alone
    assert "run run-1" in alone


def test_three_experiments_are_compared_with_the_first() -> None:
    shown = view(A, B, A)
    head, rows = tables.score_table(shown)
    assert head[-2:] == ("b to a", "a to a")
    assert rows[0][-1].startswith("0 points")
    assert "b: difference to a, example by example" in experiment_page(shown)


def test_an_experiment_under_way_and_an_empty_one_are_shown() -> None:
    begun = view(experiment("x", Result(Example("input", None, "1"), 1)))
    assert begun.columns[0].unfinished == 1
    assert begun.examples[0].outcomes[0] is not None
    assert begun.examples[0].outcomes[0].states == ("not started",)
    assert "unfinished" in experiment_page(begun)
    assert experiment_page(view(experiment("x")))


def test_a_check_passes_if_the_score_is_good_enough() -> None:
    B.check("correct", at_least=1)
    A.check("correct", at_least=0.5, at_most=0.5)
    B.check("correct", not_worse_than=A)
    B.check("correct", not_worse_than=A, margin=0)
    B.check("correct", not_worse_than=B)


@pytest.mark.parametrize(
    ("bad", "bounds", "said"),
    [
        (A, {"at_least": 0.9}, r"correct is 50 % \(.*\), less than 0.9"),
        (B, {"at_most": 0.9}, "more than 0.9"),
        (A, {"not_worse_than": B}, "correct is lower than in b: .50 points"),
        (B, {"not_worse_than": B, "margin": 0.01}, "may be more than 0.01 lower than in b: 0 p"),
        (experiment("c", failed("1")), {"at_least": 0}, "c has no numbers named 'correct'"),
        (
            experiment("c", failed("1"), result("2", correct=1)),
            {"at_least": 0},
            "1 of 2 examples have no correct",
        ),
    ],
)
def test_a_check_that_fails_says_why_and_shows_the_examples(
    bad: Experiment, bounds: dict[str, Any], said: str
) -> None:
    with pytest.raises(AssertionError, match=said) as caught:
        bad.check("correct", **bounds)
    assert "input" in str(caught.value)


def test_a_check_of_nothing_is_refused() -> None:
    with pytest.raises(BadArgument, match="needs at_least"):
        A.check("correct")
    with pytest.raises(BadArgument, match="pass both"):
        A.check("correct", at_least=1, margin=0.1)
