"""An evaluation whose process is killed: a child of `tests.support.fork_server`.

Its target drafts in one node and sends in another, asks a person and sleeps in between. Two
evaluators judge it. What they and the (simulated) mail do goes to a ledger, with the number of the
process that did it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import perdure
from perdure import Runtime
from perdure.evals import Example, evaluate
from perdure.testing import set_commit_interval
from tests.support.agents import Log, chain
from tests.support.fork_server import Tell
from tests.support.runtime_child import NEVER, Ledger, killed_at


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
