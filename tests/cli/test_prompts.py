"""`perdure prompts`: outcome by version, what two versions differ in, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.runtime import Runtime
from perdure.service.prompts import compare
from perdure.testing import Clock
from perdure.types import Prompt
from perdure.views.intervals import Sample, difference, estimate
from tests.support.agents import NOON, Log, chain
from tests.support.commands import Command

FIRST, SECOND = "Write.\nBe formal.", "Write.\nBe <brief>."
VALUES = {FIRST: [1.0, 2.0, 2.5, 4.0], SECOND: [5.0, 6.5, 6.5]}
HITS = {FIRST: [0, 1, 0, 0], SECOND: [1, 1, 1]}


@pytest.fixture
def scored(sqlite_url: str) -> str:
    """A journal in which two versions of a prompt were scored."""

    def node(state: Log) -> Log:
        perdure.prompt("writer", state["value"])
        perdure.prompt("house rules", "Be kind.")
        return {}

    clock = Clock(NOON)
    with Runtime(sqlite_url, clock=clock) as rt:
        rt.register(chain(node), name="g")
        for text in (FIRST, SECOND):
            for n, value in enumerate(VALUES[text]):
                run = rt.blocking.start("g", {"value": text})
                rt.blocking.tick()
                rt.blocking.score(run.id, "stars", value)
                rt.blocking.score(run.id, "reply", bool(HITS[text][n]))
                rt.blocking.score(run.id, "tone", "kind" if n else "rude")
                rt.blocking.score(run.id, "note", comment="only words")
            clock.move_to(NOON.replace(day=2))
    return sqlite_url


def test_the_outcome_of_a_version_is_what_its_scores_say(scored: str) -> None:
    with perdure.Client(scored) as client:
        first, second = client.blocking.prompts("writer")
        assert [(one.version, one.runs) for one in (first, second)] == [
            (Prompt("writer", FIRST).version, 4),
            (Prompt("writer", SECOND).version, 3),
        ]
        assert (first.text, first.first_at) == (FIRST, NOON)
        told = {(one.score, one.label): one for one in first.outcomes}
        assert {*told} == {("stars", None), ("reply", None), ("tone", "kind"), ("tone", "rude")}
        for name, values in (("stars", VALUES[FIRST]), ("reply", HITS[FIRST])):
            one, expected = told[name, None], estimate(values)
            assert expected is not None
            found = (one.value, one.low, one.high)
            assert found == pytest.approx((expected.value, expected.low, expected.high))
            assert (one.n, one.share) == (4, expected.share)
        assert (told["tone", "kind"].value, told["tone", "kind"].n) == (0.75, 4)
        changes = {one.title: one.difference for one in compare(first, second)}
        for name, given in (("stars", VALUES), ("reply", HITS)):
            moved, by_values = changes[name], difference(given[FIRST], given[SECOND])
            assert moved is not None
            assert by_values is not None
            assert (moved.value, moved.low) == pytest.approx((by_values.value, by_values.low))
        [rules] = client.blocking.prompts("house rules")
        assert rules.runs == 7
        assert len(client.blocking.prompts()) == 3
        assert client.blocking.prompts("nobody") == []


def test_a_sample_sums_up_its_values() -> None:
    values = [0.5, 2.0, 2.0, 7.25]
    sample = Sample.of(values)
    assert (sample.n, sample.mean, sample.hits) == (4, 2.9375, False)
    assert Sample.of([1, 0]).hits


def test_prompts_are_listed_compared_and_drawn(
    scored: str, command: Command, tmp_path: Path
) -> None:
    at = ("--at", scored)
    listed = command("prompts", *at).done.out
    assert listed.splitlines()[0] == "house rules"
    assert "  4 runs\n" in listed
    assert "reply      25 % (5–70 %, n = 4)" in listed
    a, b = (Prompt("writer", text).version for text in (FIRST, SECOND))
    told = command("prompts", "writer", "--diff", a[:5], b, *at).done.out
    assert "-Be formal." in told
    assert "+Be <brief>." in told
    [stars] = [line for line in told.splitlines() if line.startswith("stars")]
    assert stars.endswith("higher")
    both = command("prompts", "writer", "--diff", a, b, "--json", *at).json[0]
    assert {one["score"] for one in both["changes"]} == {"stars", "reply", "tone"}

    page = tmp_path / "prompts.html"
    said = command("prompts", "writer", "--html", str(page), *at).done.out
    assert said == f"2 versions written to {page}.\n"
    html = page.read_text()
    assert "&lt;brief&gt;" in html
    assert "<brief>" not in html
    assert "<script" not in html
    assert html.count("<svg") == 4 + 2

    assert (
        "No version begins with 'zzz'"
        in command("prompts", "writer", "--diff", "zzz", b, *at).refused
    )
    assert command("prompts", "nobody", *at).refused == (
        "perdure: There is no prompt 'nobody' in this journal. `perdure prompts` lists what is "
        "there.\n"
    )
    assert "needs the NAME" in command("prompts", "--diff", a, b, *at).refused


def test_a_prompt_that_cannot_be_read_is_listed_as_damaged(scored: str) -> None:
    from tests.support.raw import execute

    execute(scored, "UPDATE perdure_prompts SET body = ? WHERE name = 'writer'", b"\x01broken")
    with perdure.Client(scored) as client:
        found: Any = client.blocking.prompts("writer")
        assert all(one.damaged and not one.text for one in found)
        assert all(one.outcomes for one in found)
