"""`evaluate` runs a target for each example, has it judged, and stores the verdicts as scores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from langgraph.func import entrypoint

import perdure
from perdure.client import Client
from perdure.errors import BadArgument, ExperimentChanged, NotFound, UnknownGraph
from perdure.evals import Dataset, Example, Experiment, compare, evaluate
from perdure.runtime import Runtime
from perdure.testing import TemporaryRuntime
from perdure.types import Retry, State
from tests.support.agents import Log, chain

EXAMPLES = [Example(n, expected=2 * n, id=f"e{n}") for n in range(4)]


@pytest.fixture
async def rt() -> AsyncIterator[TemporaryRuntime]:
    async with TemporaryRuntime() as runtime:
        yield runtime


def double(input: int) -> int:
    return 2 * input


def right(outputs: int, reference_outputs: int) -> bool:
    return outputs == reference_outputs


async def test_every_output_is_judged_and_the_scores_are_on_its_run(url: str) -> None:
    async with Runtime(url) as rt:
        found = await evaluate(double, EXAMPLES, [right], experiment="a", runtime=rt)
        assert found.is_complete
        assert [(one.example.id, one.output, one.state) for one in found.results] == [
            (f"e{n}", 2 * n, State.DONE) for n in range(4)
        ]
        for result in found.results:
            [score] = await rt.scores(result.run_id)
            assert score == result.scores["right"]
            assert (score.name, score.value, score.by) == ("right", 1.0, "right")
            run = await rt.get(result.run_id)
            assert run.metadata["example"] == result.example.id
            assert (run.graph, run.version, run.output) == ("evals:double", "a", result.output)
        estimate = found.summary["right"].estimate
        assert estimate is not None
        assert (estimate.value, estimate.n) == (1.0, 4)
        async with Client(url) as client:
            assert await Experiment.load(client, "a") == found
            [info] = await Experiment.all(client, dataset="examples of a")
            assert info == found.info
            assert (info.dataset, info.target) == ("examples of a", "double")
            assert await Experiment.all(client, dataset="b") == []
            with pytest.raises(NotFound):
                await Experiment.load(client, "b")


async def test_a_target_is_a_function_a_graph_or_the_name_of_one(rt: TemporaryRuntime) -> None:
    async def later(input: int) -> int:
        await asyncio.sleep(0)
        return 2 * input

    @entrypoint()
    def entry(input: int) -> int:
        return 2 * input

    bound = rt.register(entry, name="registered")
    for n, target in enumerate(
        [double, later, lambda input: 2 * input, entry, bound, "registered"]
    ):
        found = await evaluate(target, EXAMPLES[:1], [right], experiment=f"{n}", runtime=rt)
        assert [one.scores["right"].value for one in found.results] == [1.0], target
    graph = chain(lambda state: {"value": 2 * state["value"]})
    example = Example({"value": 3}, expected={"value": 6})
    found = await evaluate(graph, [example], [right], experiment="graph", runtime=rt)
    assert found.results[0].output["value"] == 6
    with pytest.raises(UnknownGraph):
        await evaluate("regestered", EXAMPLES, [], experiment="b", runtime=rt)
    with pytest.raises(BadArgument, match="The target must be"):
        await evaluate(7, EXAMPLES, [], experiment="c", runtime=rt)
    assert rt.graphs == ["registered"]


async def test_evaluators_written_for_other_tools_work_unchanged(rt: TemporaryRuntime) -> None:
    def run_and_example(root_run: Any, one: Any) -> Any:
        return {"key": "pair", "score": root_run.outputs - one.outputs + one.inputs}

    async def anything(**given: Any) -> Any:
        return SimpleNamespace(key=None, score=len(given), comment="a" * 500)

    def several(inputs: int) -> Any:
        return {"results": [{"key": "x", "value": "good"}, {"key": "y", "score": True}]}

    def nothing(example: Example) -> None:
        return None

    class Judge:
        feedback_key = "object"

        async def __call__(self, *, outputs: int, **_: Any) -> float:
            return outputs / 4

    def not_a_number() -> float:
        return float("nan")

    evaluators: Any = [run_and_example, anything, several, nothing, Judge(), not_a_number]
    found = await evaluate(double, EXAMPLES[1:3], evaluators, experiment="a", runtime=rt)
    for result, number in zip(found.results, (1, 2), strict=True):
        values = {name: one.label or one.value for name, one in result.scores.items()}
        assert values == {
            "pair": number,
            "anything": 3,
            "x": "good",
            "y": 1,
            "object": number / 2,
        }
        assert result.scores["anything"].comment == "a" * 500
        assert list(result.evaluator_errors) == ["not_a_number"]
    assert found.summary["x"].labels == {"good": 2}
    for wrong in ([right, right], [lambda outputs: 1], ["right"], [lambda a, b, c: 1], right):
        with pytest.raises(BadArgument):
            await evaluate(double, EXAMPLES, wrong, experiment="b", runtime=rt)  # type: ignore[arg-type]


async def test_a_run_or_an_evaluator_that_fails_is_shown_and_stops_nothing(
    rt: TemporaryRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "perdure.evals.evaluators.RETRY", Retry(attempts=2, first=Retry().first * 0)
    )
    asked: list[int] = []

    def fragile(state: Log) -> Log:
        if state["value"] == 1:
            raise ValueError("not this one")
        return {"value": state["value"]}

    def strict(outputs: Any) -> bool:
        asked.append(outputs["value"])
        if outputs["value"] == 2:
            raise KeyError("two")
        return True

    rt.register(chain(fragile), name="fragile", retry=Retry(attempts=1), hold=True)
    examples = [Example({"value": n}) for n in range(3)]
    found = await evaluate("fragile", examples, [strict], experiment="a", runtime=rt)
    assert [one.state for one in found.results] == [State.DONE, State.FAILED, State.DONE]
    assert "not this one" in str(found.results[1].error)
    assert found.results[2].evaluator_errors == {"strict": "KeyError: 'two'"}
    assert (found.is_complete, sorted(asked)) == (True, [0, 2, 2])
    again = await evaluate("fragile", examples, [strict], experiment="a", runtime=rt)
    assert (again, sorted(asked)) == (found, [0, 2, 2])


async def test_repetitions_are_runs_of_their_own_and_count_as_one_example(
    rt: TemporaryRuntime,
) -> None:
    seen: list[int] = []

    def count(input: int) -> int:
        seen.append(input)
        return len(seen)

    def value(outputs: int) -> int:
        return outputs

    found = await evaluate(
        count, EXAMPLES[:2], [value], experiment="a", runtime=rt, repetitions=3, concurrency=1
    )
    assert [(one.example.id, one.repetition) for one in found.results] == [
        (id, n) for id in ("e0", "e1") for n in (1, 2, 3)
    ]
    assert len({one.run_id for one in found.results}) == 6 == len(seen)
    estimate = found.summary["value"].estimate
    assert estimate is not None
    assert (estimate.n, estimate.value) == (2, 3.5)


async def test_another_setting_under_the_same_name_is_refused(rt: TemporaryRuntime) -> None:
    def wrong(outputs: int) -> bool:
        return False

    dataset = await Dataset.create(rt, "numbers", EXAMPLES)
    begun: dict[str, Any] = {"experiment": "a", "runtime": rt}
    await evaluate(double, dataset, [right], **begun)
    await evaluate(double, "numbers", [right], **begun, concurrency=2)
    changed: dict[str, Any] = {
        "target": (lambda input: 0, dataset, [right], {}),
        "evaluators": (double, dataset, [right, wrong], {}),
        "repetitions": (double, dataset, [right], {"repetitions": 2}),
        "effects": (double, dataset, [right], {"effects": {"mail": 1}}),
        "context": (double, dataset, [right], {"context": {"prompt": "b"}}),
    }
    for said, (target, examples, evaluators, options) in changed.items():
        with pytest.raises(ExperimentChanged, match=f"Experiment 'a' was begun with other {said}"):
            await evaluate(target, examples, evaluators, **begun, **options)
    await dataset.add(Example(9))
    with pytest.raises(ExperimentChanged, match="'numbers' version 1, not 'numbers' version 2"):
        await evaluate(double, "numbers", [right], **begun)
    with pytest.raises(ExperimentChanged, match="other examples"):
        await evaluate(double, EXAMPLES[1:], [right], **begun)
    assert [one.name for one in await Dataset.all(rt)] == ["numbers"]
    old = await Dataset.load(rt, "numbers", 1)
    assert len((await evaluate(double, old, [right], **begun)).results) == 4


async def test_two_processes_that_evaluate_at_once_share_the_work(sqlite_url: str) -> None:
    asked: list[int] = []

    async def judge(outputs: int, reference_outputs: int) -> bool:
        asked.append(outputs)
        await asyncio.sleep(0.01)
        return outputs == reference_outputs

    examples = [Example(n, expected=2 * n) for n in range(20)]
    async with Runtime(sqlite_url) as one, Runtime(sqlite_url) as two:
        dataset = await Dataset.create(one, "numbers", examples)
        options: Any = {"experiment": "a", "concurrency": 3}
        found = await asyncio.gather(
            *(evaluate(double, "numbers", [judge], runtime=rt, **options) for rt in (one, two))
        )
        assert found[0] == found[1] == await Experiment.load(one, "a")
        assert sorted(asked) == [2 * n for n in range(20)]
        assert len(await one.runs(limit=1000)) == 40
        assert dataset.version == 1


async def test_a_comparison_pairs_examples(rt: TemporaryRuntime) -> None:
    def length(outputs: str) -> int:
        return len(outputs)

    def fails(input: str) -> str:
        if input == "dddd":
            raise ValueError(input)
        return {"a": "a", "bb": "bbbbb", "ccc": "cc"}.get(input, input)

    names = ["a", "bb", "ccc", "dddd"]
    dataset = await Dataset.create(rt, "words", [Example(one, id=one) for one in names])
    rt.register(entrypoint()(fails), name="fails", retry=Retry(attempts=1))
    a = await evaluate(lambda input: input, dataset, [length], experiment="a", runtime=rt)
    await dataset.add(Example("eeeee", id="eeeee"))
    b = await evaluate("fails", dataset, [length], experiment="b", runtime=rt)
    found = compare(a, b)
    assert (found.only_a, found.only_b) == ((), ("eeeee",))
    [score] = found.scores
    assert (score.a.value, score.b.value, score.a.n) == (2, 8 / 3, 3)
    assert score.difference.value == pytest.approx(2 / 3)
    assert score.difference.low is not None
    assert (score.wins, score.losses, score.ties) == (1, 1, 1)
    assert [(one.example.id, one.difference) for one in score.changed] == [("bb", 3), ("ccc", -1)]
    with pytest.raises(BadArgument, match="two experiments"):
        compare(a, "b")  # type: ignore[arg-type]


def test_a_caller_without_an_event_loop_evaluates_too() -> None:
    with TemporaryRuntime() as rt:
        dataset = rt.blocking.run(Dataset.create(rt, "numbers", EXAMPLES))
        found = rt.blocking.run(evaluate(double, dataset, [right], experiment="a"))
        assert found.is_complete


async def test_odd_verdicts_are_scores_or_errors_of_their_evaluator(rt: TemporaryRuntime) -> None:
    def share(outputs: int) -> Any:
        return Decimal("0.5")

    def again(outputs: int) -> Any:
        return {"key": "share", "score": 1}

    def comment(outputs: int) -> Any:
        return {"score": numpy.bool_(True), "comment": "half a letter: \ud800"}

    def stops(outputs: int) -> Any:
        raise asyncio.CancelledError

    judges = [share, again, comment, stops]
    [result] = (await evaluate(double, [Example(1)], judges, experiment="a", runtime=rt)).results
    assert {name: one.value for name, one in result.scores.items()} == {"share": 0.5, "comment": 1}
    assert result.evaluator_errors.keys() == {"again", "stops"}
    assert "has given 'share' already" in result.evaluator_errors["again"]


async def test_a_policy_may_name_what_an_evaluation_needs(sqlite_url: str) -> None:
    @perdure.effect(name="mail")
    def mail(to: str) -> str:
        raise AssertionError(to)

    keys = ["mail", "effects", "answers", "evaluators", "config", "*_id", "example", "scores"]
    keys += ["errors", "step"]
    policy = perdure.Redaction(keys=keys, patterns=[perdure.Redaction.EMAIL])

    def sends(input: Any) -> Any:
        return [mail(input), perdure.ask("sure?")]

    def judge(outputs: Any, example: Example) -> bool:
        return bool(outputs == ["sent", "yes"] and example.id == "ada@example.com")

    example = Example("ada", id="ada@example.com", answers=["yes"])
    options: Any = {"experiment": "a", "effects": {"mail": "sent"}}
    for _ in range(2):
        async with Runtime(sqlite_url, redact=policy) as rt:
            found = await evaluate(sends, [example], [judge], runtime=rt, **options)
            assert found.summary["judge"].estimate.value == 1, found.results  # type: ignore[union-attr]
