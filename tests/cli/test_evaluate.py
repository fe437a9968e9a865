"""`perdure evaluate`: examples from a file, a comparison with a file, and a bound that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Command

MODULE = """
import perdure

@perdure.effect(name="mail")
def mail(to):
    raise RuntimeError("a real mail")

def dear(name):
    return f"Dear {name}"

def hello(name):
    return f"{mail(name)} {name}"

def same(outputs, reference_outputs):
    return outputs == reference_outputs

effects = {"mail": lambda to: "Hello"}
"""
EXAMPLES = [("Ada", "Dear Ada"), ("Bo", "Hello Bo"), ("Cy", "Hello Cy")]


@pytest.fixture
def evaluate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str, command: Command
) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_URL", sqlite_url)
    (tmp_path / "letters_evals.py").write_text(MODULE)
    lines = (json.dumps({"input": name, "expected": text}) for name, text in EXAMPLES)
    (tmp_path / "letters.jsonl").write_text("\n".join(lines))
    return command


def test_an_evaluation_is_compared_with_the_file_of_an_earlier_one(evaluate: Command) -> None:
    judge = ("letters.jsonl", "--evaluator", "letters_evals:same")
    shown = evaluate("evaluate", "letters_evals:dear", *judge, "--to", "a.jsonl").done.out
    assert "33 % (6–79 %, n = 3)" in shown
    [line, *_] = Path("a.jsonl").read_text().splitlines()
    assert json.loads(line)["scores"] == {"same": 1.0}
    more = ("--effects", "letters_evals:effects", "--baseline", "a.jsonl", "--name", "b")
    bounds = ("--at-least", "same=0.6", "--at-least", "same=0.9", "--at-least", "other=0")
    fails = evaluate("evaluate", "letters_evals:hello", *judge, *more, *bounds)
    assert fails.code == 1
    assert fails.err.splitlines() == [
        "perdure: same is 0.667, less than 0.9.",
        "perdure: 3 of 3 examples have no other.",
    ]
    assert "+33 points" in fails.out
    refused = evaluate("evaluate", "letters_evals:hello", *judge).done.out
    assert refused.count("The effect 'mail' was not called") == 3


def test_wrong_use_is_refused_in_a_sentence(evaluate: Command) -> None:
    judge = ("--evaluator", "letters_evals:same")
    target = ("evaluate", "letters_evals:dear")
    assert "No such file" in evaluate(*target, "nothing.jsonl", *judge).refused
    assert "has no 'x'" in evaluate(*target, "x", "--evaluator", "letters_evals:x").refused
    some = (*target, "letters.jsonl", *judge)
    assert "No such file" in evaluate(*some, "--baseline", "nothing").refused
    for wrong, why in {"no": "write key=value", "same=x": "write correct=0.9"}.items():
        assert why in evaluate(*some, "--at-least", wrong).refused
    assert "No graph 'x'" in evaluate("evaluate", "x", "letters.jsonl", *judge).refused
