"""`evaluate`: a target for each example, as durable runs. After a kill it goes on.

What a crash leaves behind, and what happens when the same call is made again:

while runs are started  some runs; each has a key made of the name, the example and the
                        settings, and `insert_run` accepts a key once
in a run                its last step; the run goes on from there, or is taken over (claims, fence)
before a score          a run that is done; the evaluator is asked again
between two scores      some scores of an evaluator; it is asked again. The score with its own
                        name is stored last: an evaluator that has one is not asked again

So an evaluator is called once for each example, and once more for each crash in the middle of its
call. Nothing leaves the process: what each run does about its effects is in its setup.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from perdure.effects.simulation import judging, simulating
from perdure.errors import BadArgument
from perdure.evals.evaluators import Evaluator, Verdict, evaluators_of
from perdure.evals.examples import read_examples
from perdure.evals.results import Evaluation, Result
from perdure.evals.rules import policy_for, rules_of
from perdure.evals.targets import graph_of, target_name
from perdure.journal import Poll
from perdure.operations import runs
from perdure.operations.runs import RunRow
from perdure.runtime import Runtime
from perdure.segments.evaluation_policy import Rules
from perdure.service.runs import GRACE, make_setup
from perdure.service.validation import check_name
from perdure.types import ENDED, Example, Run, Score, State

STARTED_AT_ONCE = 100
"""Runs accepted at once, which share commits."""
RESTING = (*ENDED, State.HELD, State.PAUSED)
"""States in which nothing is left for a worker."""
_NAMESPACE = uuid.UUID("3a1f0c52-6f0e-5d5b-9a0e-65766c757065")


async def evaluate(
    target: Any,
    examples: str | os.PathLike[str] | Iterable[Example | Mapping[str, Any]],
    evaluators: Sequence[Callable[..., Any]],
    *,
    name: str,
    runtime: Runtime | None = None,
    concurrency: int = 10,
    repetitions: int = 1,
    effects: Literal["refuse", "recorded"] | Mapping[str, Any] = "refuse",
    metadata: Mapping[str, Any] | None = None,
    context: Any = None,
    config: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Run a target for each example, ask each evaluator about each output, and return the results.

    Each example is a run in the journal, and its results are scores of that run. After a crash,
    call it again with the same `name`: no run is started twice, finished examples do not run again,
    and no evaluator is asked again for a stored score. An example that was changed, or other
    `effects`, `context` or `config`, make new runs; use another name when your code has changed.

        found = await evaluate("campaign", "letters.jsonl", [correct], name="b", runtime=runtime)

    No effect leaves the process, unless `effects` allows it. Model calls are made, and so are tools
    that only read, unless `effects` names them. Sleeps and deadlines end at once; questions get the
    `answers` of the example. perdure cannot stop a node that sends something without an effect.

    Args:
        target: The name of a registered graph, a graph, or a function of the input.
        examples: Examples; or the path of a JSON Lines file, or `langsmith:NAME`, as
            `read_examples` takes them.
        evaluators: Functions that judge an output. Each takes any of `inputs`, `outputs`,
            `reference_outputs`, `run` and `example` by name, or the run and the example; and
            returns a number, a `bool`, a category, a dict with `key`, `score` or `value` and
            `comment`, a list of these, or `None`. Evaluators of LangSmith and openevals work
            unchanged.
        name: The name of the evaluation, in the metadata of its runs as `evaluation`.
        runtime: Drives the runs. By default a new `Runtime()`.
        concurrency: How many runs are driven, or judged, at once.
        repetitions: How often each example is run. Its scores are averaged.
        effects: What happens instead of calling an effect. `refuse` fails the run with
            `EffectRefused`. `recorded` returns the outcome in the run that the example was made
            from. A dict has, by the name of the effect, a value, a function of the same arguments,
            `refuse`, `recorded`, or `real`, which calls it; `"*"` is any other effect.
        metadata: Metadata of the runs.
        context: LangGraph's runtime context of each run.
        config: LangGraph's config of each run.

    Returns:
        The results. Write them to a file to compare a later evaluation with them.

    Raises:
        NotFound: LangSmith has no such dataset.
        BadArgument: An argument is not valid, or two evaluators or examples have the same name.
    """
    check_name("name", name)
    for option, value in (("concurrency", concurrency), ("repetitions", repetitions)):
        if value < 1:
            raise BadArgument(f"{option}={value!r} must be at least 1.")
    rules, functions = rules_of(effects)
    judges = evaluators_of(evaluators)
    given = await asyncio.to_thread(read_examples, examples)
    setup = make_setup(
        input=None, metadata=metadata, tags=("evaluation",), context=context, config=config
    )
    async with contextlib.AsyncExitStack() as stack:
        if runtime is None:
            runtime = await stack.enter_async_context(Runtime())
        called = _Call(runtime, name, target_name(target), judges, rules, setup, concurrency)
        with called.registered(target), simulating(name, functions):
            return await called.run(given, repetitions)


class _Case(NamedTuple):
    """One example in one repetition."""

    example: Example
    repetition: int
    key: str
    """The key of its run."""

    @property
    def thread_id(self) -> str:
        return f"evals-{self.key}"


@dataclass
class _Call:
    """One call of `evaluate`."""

    runtime: Runtime
    name: str
    target: str
    evaluators: Sequence[Evaluator]
    rules: Rules
    setup: Mapping[str, Any]
    concurrency: int

    @contextlib.contextmanager
    def registered(self, target: Any) -> Iterator[None]:
        """While the runtime has the graph of the target."""
        self.graph = graph_of(target, self.target, self.name, self.runtime)
        registry = self.runtime.engine.graphs
        registry.add(self.graph)
        try:
            yield
        finally:
            registry.discard(self.graph)

    async def run(self, examples: Iterable[Example], repetitions: int) -> Evaluation:
        """Drive every run to its end, judging each one that is done."""
        cases = list(self._cases(examples, repetitions))
        results: dict[str, Result] = {}
        gate = asyncio.Semaphore(self.concurrency)

        async def judge(case: _Case, row: RunRow) -> None:
            async with gate:
                results[case.key] = await self._result(case, row.id)

        ended = await self._drive(cases)
        await asyncio.gather(*(judge(case, ended[case.key]) for case in cases))
        return Evaluation(self.name, tuple(results[case.key] for case in cases))

    def _cases(self, examples: Iterable[Example], repetitions: int) -> Iterator[_Case]:
        encode = self.runtime.engine.serializer.codec.encode
        settings = [dict(self.rules), self.setup.get("context"), self.setup["config"]]
        seen: set[str] = set()
        for example in examples:
            own = [example.input, list(example.answers), dict(example.signals), example.run_id]
            content = encode([own, example.expected], "an example")
            id = example.id or hashlib.sha256(content).hexdigest()[:16]
            if id in seen:
                raise BadArgument(f"Two examples have the id {id!r}: give each its own.")
            seen.add(id)
            digest = hashlib.sha256(encode([own, settings], "an example")).hexdigest()
            for n in range(1, repetitions + 1):
                parts = json.dumps([self.name, self.target, id, n, digest])
                key = str(uuid.uuid5(_NAMESPACE, parts))
                yield _Case(replace(example, id=id), n, key)

    # -- runs

    async def _drive(self, cases: Sequence[_Case]) -> dict[str, RunRow]:
        """Start the runs that are missing, and drive all until none is left for a worker. Returns
        them by key."""
        journal, poll = self.runtime.journal, Poll(0.02, longest=0.5)
        rows: dict[str, RunRow] = {}
        left = list(cases)
        while left:
            missing = [case for case in left if case.key not in rows]
            for first in range(0, len(missing), STARTED_AT_ONCE):
                some = missing[first : first + STARTED_AT_ONCE]
                started = await asyncio.gather(*map(self._start, some))
                rows |= {case.key: row for case, row in zip(some, started, strict=True)}
            await self.runtime.engine.drive(
                graphs=[self.graph.name],
                concurrency=self.concurrency,
                until_idle=True,
                grace=GRACE.total_seconds(),
                handle_signals=False,
            )
            found = await journal.ado(runs.find_all(rows[case.key].id for case in left))
            now = {row.id: row for row in found}  # one that was pruned is started again
            for case in left:
                row = now.get(rows.pop(case.key).id)
                if row is not None:
                    rows[case.key] = row
            resting = (*ENDED, State.HELD, State.PAUSED)
            left = [
                one for one in left if one.key not in rows or rows[one.key].state not in resting
            ]
            if left:
                await journal.apause(poll)
        return rows

    async def _start(self, case: _Case) -> RunRow:
        about = {"evaluation": self.name, "example": case.example.id, "repetition": case.repetition}
        setup = {
            **self.setup,
            "input": case.example.input,
            "metadata": {**self.setup["metadata"], **about},
            "evaluation": policy_for(self.name, self.rules, case.example),
        }
        graph, key = (self.graph.name, self.graph.version), case.key
        accept = self.runtime.services.runs.accept
        plan = accept(graph, case.thread_id, setup, "enqueue", key=key)
        return await self.runtime.journal.arun(plan)

    # -- scores

    async def _result(self, case: _Case, run_id: str) -> Result:
        run, errors = await self.runtime.get(run_id), {}
        if run.state is State.DONE:
            errors = await self._judge(run, case.example)
        scores = [one for one in await self.runtime.scores(run_id) if not one.about]
        error = run.error or run.reason
        return Result(
            case.example.id,
            case.repetition,
            run.id,
            run.state,
            case.example.input,
            case.example.expected,
            run.output,
            None if run.state is State.DONE or error is None else str(error),
            {one.name: value for one in scores if (value := _value(one)) is not None},
            {one.name: one.comment for one in scores if one.comment is not None},
            errors,
            (run.updated_at - run.created_at).total_seconds() if run.ended else None,
        )

    async def _judge(self, run: Run, example: Example) -> dict[str, str]:
        """Ask the evaluators that have not judged a run, and store their scores. Returns errors."""
        stored = {one.name: one.by for one in await self.runtime.scores(run.id) if not one.about}
        to_ask = [one for one in self.evaluators if stored.get(one.name) != one.name]
        with judging():
            found = await asyncio.gather(*(one.judge(run, example) for one in to_ask))
        errors: dict[str, str] = {}
        for evaluator, (verdicts, error) in zip(to_ask, found, strict=True):
            if error is not None:
                errors[evaluator.name] = error
                continue
            for name, value, comment in _own_last(verdicts, evaluator.name):
                if stored.setdefault(name, evaluator.name) != evaluator.name:
                    errors[evaluator.name] = f"{stored[name]} has given {name!r} already"
                    break
                await self.runtime.score(run.id, name, value, comment=comment, by=evaluator.name)
        return errors


def _own_last(verdicts: Sequence[Verdict], name: str) -> Sequence[Verdict]:
    """The verdicts of an evaluator; the last has its own name, and says that it was asked."""
    own = [one for one in verdicts if one.name == name]
    others = [one for one in verdicts if one.name != name]
    said = "gave " + (", ".join(one.name for one in others) or "no score")
    return [*others, *(own or [Verdict(name, None, said)])]


def _value(score: Score) -> float | str | None:
    return score.label if score.value is None else score.value
