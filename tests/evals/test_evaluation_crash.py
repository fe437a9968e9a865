"""An evaluation whose process is killed with SIGKILL, and that is called again, ends as if it had
not been killed: every example has one run and one score of each evaluator, and no mail was sent.

An evaluator is called once for each example, and once more for each kill in the middle of its call:
one whose score is stored is never asked again.
"""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Runtime
from perdure.client import Client
from perdure.evals import Example, evaluate
from perdure.testing import set_commit_interval
from tests.contract.test_killed_anywhere import kills
from tests.support.agents import Log, chain
from tests.support.fork_server import Ended, ForkServer, Tell
from tests.support.runtime_child import NEVER, Ledger, killed_at
from tests.support.sweep import parts, sample


def examples(count: int) -> list[Example]:
    return [
        Example({"value": f"n{n}"}, expected=n % 3, id=f"e{n}", answers=["yes"])
        for n in range(count)
    ]


async def judged(order: dict[str, Any], tell: Tell) -> None:
    """Evaluate, to the end or to the point of `kill`."""
    ledger, process = Ledger(order["ledger"]), order["process"]

    @perdure.effect(name="mail", key=lambda to: to)
    def mail(to: str) -> str:
        ledger.add(f"{process} REALLY SENT {to}")
        return "sent"

    def draft(state: Log) -> Log:
        perdure.sleep(timedelta(days=3))
        return {"value": f"{state['value']} {perdure.ask('may I?')}"}

    def send(state: Log) -> Log:
        return {"value": [state["value"], mail(state["value"])]}

    def simulated(to: str) -> str:
        ledger.add(f"{process} simulated {to}")
        return f"not sent to {to}"

    async def length(outputs: Any, example: Example) -> dict[str, Any]:
        ledger.add(f"{process} length {example.id}")
        return {"key": "length", "score": len(outputs["value"][0]), "comment": "counted"}

    def right(outputs: Any, reference_outputs: int, example: Example) -> bool:
        ledger.add(f"{process} right {example.id}")
        return len(outputs["value"][0]) % 3 == reference_outputs

    rt = Runtime(order["url"])
    rt.register(chain(draft, send), name="letter")
    async with rt:
        set_commit_interval(rt, NEVER)
        with killed_at(order["kill"]) as counts:
            found = await evaluate(
                "letter",
                examples(order["examples"]),
                [length, right],
                name="a",
                runtime=rt,
                concurrency=order["concurrency"],
                effects={"mail": simulated, "*": "refuse"},
            )
        tell("findings", [str(one) for one in (await rt.doctor()).findings])
        tell("complete", all(one.scores and not one.evaluator_errors for one in found.results))
        tell("results", [summary(one) for one in found.results])
        tell("runs", len(await rt.runs(limit=10_000, output=False)))
    tell("points", dict(counts))


def summary(result: Any) -> list[Any]:
    scores = [*sorted(result.scores.items()), *sorted(result.comments.items())]
    return [result.example, result.state, result.output, result.error, scores]


pytestmark = pytest.mark.slow

PARTS = parts(4)


class Evaluations:
    """The processes of one evaluation."""

    def __init__(self, server: ForkServer, url: str, ledger: Path, **order: Any) -> None:
        self._server, self.url, self.ledger = server, url, Ledger(ledger)
        self._order = {
            "url": url,
            "ledger": str(ledger),
            "kill": None,
            "examples": 2,
            "concurrency": 2,
            **order,
        }
        self.processes = 0

    def run(self, **order: Any) -> Ended:
        self.processes += 1
        asked = {**self._order, "process": self.processes, **order}
        ended = self._server.run(judged, **asked)
        assert ended.status in (0, -signal.SIGKILL), ended.facts
        return ended

    def stored_verdicts(self) -> set[str]:
        """The evaluators whose scores are stored: `length e0` and the like."""
        with Client(self.url) as client:
            ask = client.blocking
            return {
                f"{score.name} {run.metadata['example']}"
                for run in ask.runs(limit=10_000, output=False)
                for score in ask.scores(run.id)
            }

    def check(self, whole: Ended, stored: list[set[str]]) -> None:
        """`stored` are the verdicts that were there when each process but the last had died."""
        ended = self.run()
        assert ended.one("results") == whole.one("results")
        assert ended.one("complete") is True
        assert ended.one("findings") == []
        assert ended.one("runs") == whole.one("runs")
        asked: dict[str, int] = {}
        for line in self.ledger.lines():
            process, _, call = line.partition(" ")
            assert not call.startswith("REALLY"), line
            if not call.startswith("simulated"):
                asked[call] = asked.get(call, 0) + 1
                before = stored[: int(process) - 1]
                assert not any(call in verdicts for verdicts in before), f"asked again: {line}"
        assert asked.keys() == {
            f"{name} e{n}" for name in ("length", "right") for n in range(self._order["examples"])
        }
        in_the_middle = sum(asked.values()) - len(asked)
        assert in_the_middle <= (self.processes - 1) * 2 * self._order["concurrency"]


@pytest.mark.parametrize("part", PARTS)
def test_an_evaluation_killed_at_any_point_ends_as_if_it_had_not_been(
    fork_server: ForkServer, sqlite_url: str, tmp_path: Path, part: int
) -> None:
    template = Path(sqlite_url.removeprefix("sqlite:///")).read_bytes()
    whole = Evaluations(fork_server, sqlite_url, tmp_path / "whole").run()
    points = kills(whole.one("points"))
    names = {point.partition(".")[0] for point, _ in points}
    assert {"insert_run", "put_score", "effect mail", "answer_by_driver", "write_effect"} <= names
    for number, (point, n) in enumerate(
        sample(points, 13, lambda point: point[0])[part :: len(PARTS)]
    ):
        (tmp_path / f"{number}.db").write_bytes(template)
        url = f"sqlite:///{tmp_path}/{number}.db"
        killed = Evaluations(fork_server, url, tmp_path / f"{number}")
        killed.run(kill=[point, n])
        try:
            killed.check(whole, [killed.stored_verdicts()])
        except AssertionError as error:
            raise AssertionError(f"killed at {point}, time {n}: {error}") from error
