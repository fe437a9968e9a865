"""`perdure evals`: datasets in and out, an evaluation, its page, and a bound that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Command

MODULE = """
from perdure.evals import evaluate

def same(outputs, reference_outputs):
    return outputs == reference_outputs

async def first(runtime, experiment):
    return await evaluate(lambda name: f"Dear {name}", "letters", [same],
                          runtime=runtime, experiment=experiment)

async def second(runtime, experiment):
    return await evaluate(lambda name: f"Hello {name}", "letters", [same],
                          runtime=runtime, experiment=experiment)
"""
CSV = "id,name,letter\n1,Ada,Dear Ada\n2,Bo,Hello Bo\n3,Cy,Hello Cy\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_URL", sqlite_url)
    (tmp_path / "letters_evals.py").write_text(MODULE)
    (tmp_path / "letters.csv").write_text(CSV)
    return tmp_path


def test_an_evaluation_from_a_file_to_a_page(folder: Path, command: Command) -> None:
    columns = ("--input", "name", "--expected", "letter")
    read = command("evals", "import", "letters.csv", "letters", *columns).done.out
    assert read == "3 examples read; letters version 1 has 3 examples.\n"
    [line, *_] = command("evals", "export", "letters").done.json
    assert line == {"id": "1", "input": "Ada", "expected": "Dear Ada"}
    assert command("evals", "export", "letters", "out.jsonl", "--format", "langsmith").done.out
    assert json.loads((folder / "out.jsonl").read_text().splitlines()[0])["inputs"]

    shown = command("evals", "run", "letters_evals:first", "--experiment", "a").done.out
    assert "33 % (6–79 %, n = 3)" in shown
    bound = ("--at-least", "same=0.9", "--baseline", "a", "--html", "page.html")
    fails = command("evals", "run", "letters_evals:second", "--experiment", "b", *bound)
    assert (fails.code, fails.err) == (
        1,
        "perdure: same is 67 % (21–94 %, n = 3), less than 0.9.\n",
    )
    assert "+33 points" in fails.out
    assert "<ins>Hello</ins>" in (folder / "page.html").read_text()

    listed = command("evals", "list").done.out
    assert [line.split()[0] for line in listed.splitlines() if line] == [
        "DATASET",
        "letters",
        "EXPERIMENT",
        "b",
        "a",
    ]
    compared = command("evals", "compare", "a", "b").done.out
    assert "3 changed" in compared
    [view] = command("evals", "compare", "a", "b", "--json").done.json
    assert [one["name"] for one in view["columns"]] == ["a", "b"]
    assert "Hello Ada" in command("evals", "show", "b", "--limit", "1").done.out


def test_wrong_use_is_refused_in_a_sentence(folder: Path, command: Command) -> None:
    assert "no experiment 'x'" in command("evals", "show", "x").refused
    assert "no dataset 'x'" in command("evals", "export", "x").refused
    assert "at least two" in command("evals", "compare", "x").refused
    assert "write correct=0.9" in command("evals", "run", "m:f", "--at-least", "no").refused
    assert "No such file" in command("evals", "import", "nothing.csv", "x").refused
    assert "must take runtime and experiment" in command("evals", "run", "json:dumps").refused


def test_runs_become_examples(folder: Path, command: Command, sqlite_url: str) -> None:
    from tests.evals.test_from_runs import answered, mails

    with mails(sqlite_url) as rt:
        run = rt.blocking.run(answered(rt, "Ada", {"approved": True, "draft": "Hello Ada,"}))
    dry = command("evals", "from-runs", "mails", "--dry-run").done.out
    assert "Hello Ada," in dry
    assert "1 example of 1 run." in dry
    stored = command("evals", "from-runs", "mails", run, "--graph", "mail")
    assert "not both" in stored.refused
    assert "mails version 1 has 1 example" in command("evals", "from-runs", "mails", run).done.out
    none = command("evals", "from-runs", "others", "--state", "failed").done.out
    assert none == "None of 0 runs was approved or edited by a person.\n"
