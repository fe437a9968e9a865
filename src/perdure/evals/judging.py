"""The graph that judges: each evaluator is an effect of its run, then the scores are stored.

A verdict is asked for until it is stored, and never after that: a process that dies in the middle
of an evaluator leaves an intent without an outcome, and the evaluator is asked again; one that dies
later leaves the outcome, which is returned. Scores are stored when all verdicts are there. Storing
one again changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

from perdure.effects.call_record import CallRecord
from perdure.effects.decorator import aperform
from perdure.effects.identity import TaskContext
from perdure.effects.invocation import Caller
from perdure.effects.record_matching import CallPosition
from perdure.effects.simulation import harmless_tool
from perdure.effects.spec import ONCE, EffectSpec
from perdure.errors import NotFound
from perdure.evals.evaluators import Evaluator
from perdure.runtime import Runtime
from perdure.segments.evaluation_policy import ANY
from perdure.service.experiments import JUDGE, TARGET, Case
from perdure.types import Example, Run


class JudgeState(TypedDict, total=False):
    case: str
    errors: dict[str, str]


class JudgeOutput(TypedDict, total=False):
    errors: dict[str, str]


class Judge:
    """Judges the runs of one experiment. The thread of a run that judges says which one: what else
    is stored of it may be redacted."""

    def __init__(
        self,
        runtime: Runtime,
        evaluators: Sequence[Evaluator],
        examples: Mapping[str, Example],
        cases: Iterable[Case],
    ) -> None:
        self._runtime, self._evaluators, self._examples = runtime, evaluators, examples
        self._cases = {case.thread_id(JUDGE): case for case in cases}

    def build(self) -> StateGraph[JudgeState, None, JudgeState, JudgeOutput]:
        builder = StateGraph(JudgeState, output_schema=JudgeOutput)
        builder.add_node("judge", self._judge)
        builder.add_edge(START, "judge")
        return builder

    async def _judge(self, state: JudgeState, config: RunnableConfig) -> JudgeState:
        case = self._cases[config["configurable"]["thread_id"]]
        keys = {case.thread_id(TARGET): case.key(TARGET)}
        rows = await self._runtime.journal.arun(self._runtime.services.datasets.runs(keys))
        if (row := rows.get(case.key(TARGET))) is None:
            raise NotFound("run", f"of example {case.example!r}")
        run, example = await self._runtime.get(row.id), self._examples[case.example]
        asked = (ask(evaluator, run, example) for evaluator in self._evaluators)
        found = await asyncio.gather(*asked)
        errors: dict[str, str] = {}
        given: dict[str, str] = {}
        for evaluator, (scores, error) in zip(self._evaluators, found, strict=True):
            if error is not None:
                errors[evaluator.name] = error
            for name, value, comment in scores:
                if given.setdefault(name, evaluator.name) != evaluator.name:
                    errors[evaluator.name] = (
                        f"Evaluator {given[name]!r} has given {name!r} already."
                    )
                    continue
                plan = self._runtime.services.scores.score(
                    run.id, name, value, "", comment, evaluator.name
                )
                await self._runtime.journal.arun(plan)
        return {"errors": errors}


async def ask(evaluator: Evaluator, run: Run, example: Example) -> Any:
    """The verdict of an evaluator: from the record, or by asking it."""
    spec = EffectSpec(evaluator.effect, retry=ONCE)

    async def judge(run_id: str) -> list[Any]:
        with harmless_tool(ANY):
            return await evaluator.judge(run, example)

    def make_record(
        task: TaskContext, attempt: int, _: tuple[Any, ...], arguments: Mapping[str, Any]
    ) -> CallRecord:
        return CallRecord(task, spec, arguments, CallPosition(attempt, is_parallel=True))

    caller = Caller(spec.name, judge, lambda arguments: ((), arguments))
    return await aperform(caller, ((), {"run_id": run.id}), make_record)
