"""`evaluate` runs a target for each example, has it judged, and stores the verdicts as scores."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from langgraph.func import entrypoint
from langsmith import Client

import perdure
from perdure.errors import BadArgument, NotFound, UnknownGraph
from perdure.evals import Evaluation, Example, evaluate, read_examples
from perdure.runtime import Runtime
from perdure.testing import TemporaryRuntime
from perdure.types import Retry, State
from tests.support.agents import Log, chain
from tests.support.http import serving

EXAMPLES = [Example(n, expected=2 * n, id=f"e{n}") for n in range(4)]

ID = "11111111-1111-4111-8111-111111111111"


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
        found = await evaluate(double, EXAMPLES, [right], name="a", runtime=rt)
        assert [(one.example, one.output, one.state) for one in found.results] == [
            (f"e{n}", 2 * n, State.DONE) for n in range(4)
        ]
        for result in found.results:
            [score] = await rt.scores(result.run_id)
            assert result.scores == {"right": 1.0}
            assert (score.name, score.value, score.by) == ("right", 1.0, "right")
            run = await rt.get(result.run_id)
            assert run.metadata == {"evaluation": "a", "example": result.example, "repetition": 1}
            assert (run.graph, run.version, run.output) == ("evals:double", "a", result.output)
        assert found.mean("right") == 1.0
        assert len(await rt.runs(metadata={"evaluation": "a"})) == 4
        assert await evaluate(double, EXAMPLES, [right], name="a", runtime=rt) == found
        with pytest.raises(BadArgument, match="it has right"):
            found.mean("write")


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
        found = await evaluate(target, EXAMPLES[:1], [right], name=f"{n}", runtime=rt)
        assert [one.scores["right"] for one in found.results] == [1.0], target
    graph = chain(lambda state: {"value": 2 * state["value"]})
    example = Example({"value": 3}, expected={"value": 6})
    found = await evaluate(graph, [example], [right], name="graph", runtime=rt)
    assert found.results[0].output["value"] == 6
    with pytest.raises(UnknownGraph):
        await evaluate("regestered", EXAMPLES, [], name="b", runtime=rt)
    with pytest.raises(BadArgument, match="The target must be"):
        await evaluate(7, EXAMPLES, [], name="c", runtime=rt)
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
    found = await evaluate(double, EXAMPLES[1:3], evaluators, name="a", runtime=rt)
    for result, number in zip(found.results, (1, 2), strict=True):
        assert result.scores == {
            "pair": number,
            "anything": 3,
            "x": "good",
            "y": 1,
            "object": number / 2,
        }
        assert result.comments["anything"] == "a" * 500
        assert list(result.evaluator_errors) == ["not_a_number"]
    for wrong in ([right, right], [lambda outputs: 1], ["right"], [lambda a, b, c: 1], right):
        with pytest.raises(BadArgument):
            await evaluate(double, EXAMPLES, wrong, name="b", runtime=rt)  # type: ignore[arg-type]


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
    found = await evaluate("fragile", examples, [strict], name="a", runtime=rt)
    assert [one.state for one in found.results] == [State.DONE, State.FAILED, State.DONE]
    assert "not this one" in str(found.results[1].error)
    assert found.results[2].evaluator_errors == {"strict": "KeyError: 'two'"}
    assert sorted(asked) == [0, 2, 2]
    again = await evaluate("fragile", examples, [strict], name="a", runtime=rt)
    assert (again, sorted(asked)) == (found, [0, 2, 2, 2, 2])  # only the one that raised
    assert "KeyError: 'two'" in found.table()
    assert "is failed: ValueError: not this one" in found.table()


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
        count, EXAMPLES[:2], [value], name="a", runtime=rt, repetitions=3, concurrency=1
    )
    assert [(one.example, one.repetition) for one in found.results] == [
        (id, n) for id in ("e0", "e1") for n in (1, 2, 3)
    ]
    assert len({one.run_id for one in found.results}) == 6 == len(seen)
    assert found.numbers("value") == {"e0": 2, "e1": 5}
    assert found.mean("value") == 3.5


async def test_an_example_or_setting_that_was_changed_runs_again(rt: TemporaryRuntime) -> None:
    seen: list[int] = []

    def count(input: int) -> int:
        seen.append(input)
        return 2 * input

    def wrong(outputs: int) -> bool:
        return False

    options: Any = {"name": "a", "runtime": rt}
    await evaluate(count, EXAMPLES, [], **options)
    assert sorted(seen) == [0, 1, 2, 3]
    others = [*EXAMPLES[:2], Example(7, expected=14, id="e2")]
    found = await evaluate(count, others, [right, wrong], **options, concurrency=2)
    assert sorted(seen) == [0, 1, 2, 3, 7]
    assert [one.scores for one in found.results] == [{"right": 1.0, "wrong": 0.0}] * 3
    await evaluate(count, EXAMPLES[:1], [], **options, effects={"mail": 1})
    await evaluate(count, EXAMPLES[:1], [], **options, context={"prompt": "b"})
    await evaluate(count, EXAMPLES[:1], [], name="b", runtime=rt)
    assert sorted(seen) == [0, 0, 0, 0, 1, 2, 3, 7]
    for same in (Example(1, id="e"), Example(2, id="e")), (Example(1), Example(1)):
        with pytest.raises(BadArgument, match="Two examples have the id"):
            await evaluate(count, same, [], **options)


async def test_two_processes_that_evaluate_at_once_share_the_runs(sqlite_url: str) -> None:
    ran: list[int] = []

    async def count(input: int) -> int:
        ran.append(input)
        await asyncio.sleep(0.01)
        return 2 * input

    examples = [Example(n, expected=2 * n) for n in range(20)]
    async with Runtime(sqlite_url) as one, Runtime(sqlite_url) as two:
        options: Any = {"name": "a", "concurrency": 3}
        found = await asyncio.gather(
            *(evaluate(count, examples, [right], runtime=rt, **options) for rt in (one, two))
        )
        assert found[0] == found[1]
        assert sorted(ran) == [*range(20)]
        assert len(await one.runs(limit=1000)) == 20


async def test_a_comparison_pairs_the_examples_of_two_files(
    rt: TemporaryRuntime, tmp_path: Path
) -> None:
    def length(outputs: str) -> Any:
        kind = {"key": "kind", "score": "long" if len(outputs) > 2 else "short"}
        return [{"key": "length", "score": len(outputs), "comment": "counted"}, kind]

    def changed(input: str) -> str:
        if input == "dddd":
            raise ValueError(input)
        return {"a": "a", "bb": "bbbbb", "ccc": "cc"}.get(input, input)

    examples = [Example(one, id=one) for one in ("a", "bb", "ccc", "dddd")]
    rt.register(entrypoint()(changed), name="changed", retry=Retry(attempts=1))
    a = await evaluate(lambda input: input, examples, [length], name="a", runtime=rt)
    b = await evaluate("changed", [*examples, Example("eeeee")], [length], name="b", runtime=rt)
    a.write(tmp_path / "a.jsonl")
    assert Evaluation.read(tmp_path / "a.jsonl") == a
    kinds, scores, failed = b.table(Evaluation.read(tmp_path / "a.jsonl")).splitlines()[1:]
    assert scores.split("  ")[-1] == "+0.667 (\N{MINUS SIGN}4.50 to +5.84, n = 3)"
    assert re.split(r" {2,}", kinds)[1:] == ["2 long, 2 short", "2 long, 2 short"]
    assert failed == "dddd is failed: ValueError: dddd"
    for wrong in ("nothing.jsonl", "bad.jsonl"):
        (tmp_path / "bad.jsonl").write_text('{"evaluation": "a"}\n')
        with pytest.raises(BadArgument, match=wrong):
            Evaluation.read(tmp_path / wrong)


def test_examples_are_read_from_a_file_of_either_form(tmp_path: Path) -> None:
    lines = [
        '{"id": "1", "input": "Ada", "expected": "Dear", "answers": ["yes"], "run_id": null}',
        "",
        '{"id": "2", "inputs": {"to": "Bo"}, "outputs": {"text": "\u2028"}, "split": "test"}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = read_examples(tmp_path / "in.jsonl")
    assert found == [
        Example("Ada", "Dear", "1", answers=["yes"]),
        Example({"to": "Bo"}, {"text": "\u2028"}, "2"),
    ]
    assert read_examples(found) == found
    for line, why in {
        "{": "Line 1 is not JSON",
        "[]": "Example 1 needs `input`",
        '{"input": 1, "outptu": 2}': "does not have: outptu",
    }.items():
        (tmp_path / "in.jsonl").write_text(line)
        with pytest.raises(BadArgument, match=why):
            read_examples(str(tmp_path / "in.jsonl"))
    with pytest.raises(BadArgument, match="No such file"):
        read_examples("nothing.jsonl")


def test_examples_are_read_from_langsmith(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(path: str) -> Any:
        dataset = {"id": ID, "name": "letters", "created_at": "2026-01-01T00:00:00+00:00"}
        example = {"id": ID, "dataset_id": ID, "inputs": {"to": "Ada"}, "outputs": {"text": "Dear"}}
        if path.startswith("/datasets"):
            return [dataset] if "letters" in path else []
        return [example | {"metadata": {"n": 1}}] if "offset=0" in path else []

    class LangSmith(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.delenv("LANGSMITH_API_KEY", raising=False)
    with pytest.raises(BadArgument, match="set LANGSMITH_API_KEY"):
        read_examples("langsmith:letters")
    with serving(LangSmith) as url:
        monkeypatch.setenv("LANGSMITH_API_KEY", "made up")
        monkeypatch.setattr("langsmith.Client", partial(Client, url, api_key="made up"))
        found = read_examples("langsmith:letters")
        assert found == [Example({"to": "Ada"}, {"text": "Dear"}, ID, {"n": 1})]
        with pytest.raises(NotFound, match="LangSmith"):
            read_examples("langsmith:others")


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
    [result] = (await evaluate(double, [Example(1)], judges, name="a", runtime=rt)).results
    assert result.scores == {"share": 0.5, "comment": 1}
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
    options: Any = {"name": "a", "effects": {"mail": "sent"}}
    for _ in range(2):
        async with Runtime(sqlite_url, redact=policy) as rt:
            found = await evaluate(sends, [example], [judge], runtime=rt, **options)
            assert found.mean("judge") == 1, found.results
