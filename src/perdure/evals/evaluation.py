"""`evaluate`: a target against a dataset, as durable runs. After a kill it goes on.

What a crash leaves behind, and which statement decides, when the same call is made again:

before the settings    nothing; `insert_experiment` stores them once, and later calls compare theirs
while runs are started some runs; each has a key made of experiment, example and repetition, and
                       `insert_run` accepts a key once. The examples are those of the version in the
                       settings, so they are the same ones
in a run               its last step; the run goes on from there, or is taken over (claims, fence)
output, no judgement   a run that is done; the run that judges it has a key too, and is started once
in an evaluator        an intent without an outcome: that evaluator is asked again
after an evaluator     its verdict, recorded with `write_effect`: it is not asked again
between two scores     some scores; the others are stored from the recorded verdicts, `put_score`
before the summary     everything; the result is read from the journal

So an evaluator is called once for each example, and once more for each crash in the middle of its
call. Nothing leaves the process: what each run does about its effects is in its setup.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from perdure.effects.simulation import simulating
from perdure.engine.graphs import Graph
from perdure.errors import BadArgument, ExperimentChanged, NotFound
from perdure.evals.datasets import Dataset, to_example
from perdure.evals.evaluators import Evaluator, evaluators_of
from perdure.evals.experiments import Experiment
from perdure.evals.judging import Judge
from perdure.evals.policy import policy_for, rules_of
from perdure.evals.targets import JUDGES, graph_of, make_graph, target_name
from perdure.journal import Poll
from perdure.operations.runs import RunRow
from perdure.runtime import Runtime
from perdure.segments.evaluation_policy import REAL, Rules
from perdure.service.datasets import check_examples
from perdure.service.experiments import JUDGE, TARGET, Case, cases_of
from perdure.service.runs import GRACE, make_setup
from perdure.service.validation import check_name
from perdure.types import ENDED, Example, State

STARTED_AT_ONCE = 100
"""Runs accepted at once, which share commits."""


async def evaluate(
    target: Any,
    dataset: Dataset | str | Iterable[Example | Mapping[str, Any]],
    evaluators: Sequence[Callable[..., Any]],
    *,
    experiment: str,
    runtime: Runtime | None = None,
    concurrency: int = 10,
    repetitions: int = 1,
    effects: Literal["refuse", "recorded"] | Mapping[str, Any] = "refuse",
    metadata: Mapping[str, Any] | None = None,
    context: Any = None,
    config: Mapping[str, Any] | None = None,
) -> Experiment:
    """Run a target for each example, let each evaluator judge each output, and return the results.

    Everything happens in runs in the journal. After a crash, call it again with the same
    `experiment`: no run is started twice, finished examples do not run again, and no evaluator is
    asked again for a stored verdict. Several processes may call it at once and share the work.

        experiment = await evaluate("campaign", letters, [correct], experiment="b")

    No effect leaves the process, unless `effects` allows it. Model calls are made, and so are tools
    that only read, unless `effects` names them. Sleeps and deadlines end at once; questions get the
    `answers` of the example. perdure cannot stop a node that sends something without an effect.

    Args:
        target: The name of a registered graph, a graph, or a function of the input.
        dataset: A `Dataset`, the name of one, or examples, which are stored as the dataset
            "examples of" the experiment.
        evaluators: Functions that judge an output. Each takes any of `inputs`, `outputs`,
            `reference_outputs`, `run` and `example` by name, or the run and the example; and
            returns a number, a `bool`, a category, a dict with `key`, `score` or `value` and
            `comment`, a list of these, or `None`. Evaluators of LangSmith and openevals work
            unchanged.
        experiment: The name of the experiment.
        runtime: Drives the runs. By default that of the dataset, or a new `Runtime()`.
        concurrency: How many runs are driven at once.
        repetitions: How often each example is run. Its scores are averaged.
        effects: What happens instead of calling an effect. `refuse` fails the run with
            `EffectRefused`. `recorded` returns the outcome in the run that the example was made
            from. A dict has, by the name of the effect, a value, a function of the same arguments,
            `refuse`, `recorded`, or `real`, which calls it; `"*"` is any other effect.
        metadata: Metadata of the experiment and of its runs.
        context: LangGraph's runtime context of each run.
        config: LangGraph's config of each run.

    Returns:
        The experiment, as `Experiment.load` reads it.

    Raises:
        ExperimentChanged: The experiment was started with different settings. Nothing was started.
        NotFound: The journal has no such dataset.
        BadArgument: An argument is not valid, or two evaluators have the same name.
    """
    check_name("experiment", experiment)
    for name, value in (("concurrency", concurrency), ("repetitions", repetitions)):
        if value < 1:
            raise BadArgument(f"{name}={value!r} must be at least 1.")
    rules, functions = rules_of(effects)
    judges = evaluators_of(evaluators)
    async with _driving(runtime, dataset) as runtime:
        setup = make_setup(
            input=None,
            metadata=metadata,
            tags=("evaluation",),
            context=context,
            config=config,
        )
        evaluation = Evaluation(
            runtime, experiment, target, judges, rules, functions, repetitions, setup
        )
        await evaluation.begin(await _stored(runtime, dataset, experiment))
        await evaluation.run(concurrency)
        return await Experiment.load(runtime, experiment)


@contextlib.asynccontextmanager
async def _driving(runtime: Runtime | None, dataset: Any) -> AsyncIterator[Runtime]:
    """The runtime of an evaluation: the one given, that of the dataset, or a new one."""
    if runtime is None and isinstance(dataset, Dataset):
        if not isinstance(dataset.client, Runtime):
            raise BadArgument(
                "evaluate() needs runtime=...: the client of its dataset drives nothing."
            )
        runtime = dataset.client
    if runtime is not None:
        yield runtime
        return
    async with Runtime() as runtime:
        yield runtime


async def _stored(runtime: Runtime, dataset: Any, experiment: str) -> Dataset:
    """The dataset of an evaluation, in the journal of the runtime."""
    if isinstance(dataset, Dataset):
        return await Dataset.load(runtime, dataset.name, dataset.version)
    if isinstance(dataset, str):
        return await Dataset.load(runtime, dataset)
    service, journal = runtime.services.datasets, runtime.journal
    given = {service.identified(one): one for one in map(to_example, dataset)}
    with contextlib.suppress(NotFound):
        info, _ = await journal.arun(service.settings(experiment))
        begun = await journal.arun(service.examples(info.dataset, info.version))
        if service.differ(begun, given):
            raise ExperimentChanged(experiment, "other examples")
        return await Dataset.load(runtime, info.dataset, info.version)
    made = await Dataset.create(runtime, f"examples of {experiment}")
    await made.replace(given.values())
    return made


@dataclass
class Evaluation:
    """One call of `evaluate`."""

    runtime: Runtime
    name: str
    target: Any
    evaluators: Sequence[Evaluator]
    rules: Rules
    functions: Mapping[str, Callable[..., Any]]
    repetitions: int
    setup: Mapping[str, Any]

    async def begin(self, dataset: Dataset) -> None:
        """Store the settings, or compare them with those that the experiment was begun with."""
        service, journal = self.runtime.services.datasets, self.runtime.journal
        self.target_name = target_name(self.target)
        # First: examples may be of its types, which are allowed from then on.
        self.graph = graph_of(self.target, self.target_name, self.name, self.runtime)
        self.examples = await journal.arun(service.examples(dataset.name, dataset.version))
        check_examples(self.examples)
        settings = {
            "target": self.target_name,
            "evaluators": [one.name for one in self.evaluators],
            "repetitions": self.repetitions,
            "effects": {name: list(rule) for name, rule in self.rules.items()},
            "metadata": self.setup["metadata"],
            "context": self.setup.get("context"),
            "config": self.setup["config"],
        }
        row = await journal.arun(service.begin(self.name, dataset.name, dataset.version, settings))
        if (row.dataset, row.version) != (dataset.name, dataset.version):
            was = f"dataset {row.dataset!r} version {row.version}"
            given = f"{dataset.name!r} version {dataset.version}"
            raise ExperimentChanged(self.name, f"{was}, not {given}")
        serializer = self.runtime.engine.serializer
        stored, encode = row.load(serializer), serializer.codec.encode
        for part in ("target", "evaluators", "repetitions", "effects", "context", "config"):
            if encode(stored[part], part) != encode(settings[part], part):
                shown = "" if part in ("effects", "context", "config") else f" ({stored[part]!r})"
                what = f"other {part}{shown}"
                raise ExperimentChanged(self.name, what)
        self.dataset = dataset.name

    async def run(self, concurrency: int) -> None:
        """Drive every run of the target to its end, then every run that judges one."""
        cases = [*cases_of(self.name, self.examples, self.repetitions)]
        graph, judge = self.graph, Judge(self.runtime, self.evaluators, self.examples, cases)
        judging = make_graph(judge.build(), JUDGES, self.name, self.runtime)
        with self._registered(graph, judging), simulating(self.name, self.functions):
            ended = await self._drive(cases, TARGET, graph, concurrency, self._target_setup)
            done = [case for case, row in ended.items() if row.state == State.DONE]
            await self._drive(done, JUDGE, judging, concurrency, self._judge_setup)

    def _target_setup(self, case: Case) -> dict[str, Any]:
        example = self.examples[case.example]
        return {
            **self.setup,
            "input": example.input,
            "metadata": {**self.setup["metadata"], **self._metadata(case)},
            "evaluation": policy_for(self.name, self.rules, example),
        }

    def _judge_setup(self, case: Case) -> dict[str, Any]:
        setup = make_setup(
            input={"case": case.key(TARGET)},
            metadata=self._metadata(case),
            tags=("evaluation",),
            context=None,
            config=None,
        )
        # What an evaluator calls stays in the process, too.
        rules = {**self.rules, **{one.effect: [REAL] for one in self.evaluators}}
        example = replace(self.examples[case.example], answers=(), signals={})
        return {**setup, "evaluation": policy_for(self.name, rules, example)}

    def _metadata(self, case: Case) -> dict[str, Any]:
        return {
            "experiment": self.name,
            "dataset": self.dataset,
            "example": case.example,
            "repetition": case.repetition,
        }

    async def _drive(
        self,
        cases: Sequence[Case],
        role: str,
        graph: Graph,
        concurrency: int,
        setup: Callable[[Case], dict[str, Any]],
    ) -> dict[Case, RunRow]:
        """Start the missing runs, and drive all until none is left for a worker."""
        ended: dict[Case, RunRow] = {}
        poll, engine = Poll(0.02, longest=0.5), self.runtime.engine
        missing = await self._note(cases, role, ended)
        while len(ended) < len(cases):
            for first in range(0, len(missing), STARTED_AT_ONCE):
                some = missing[first : first + STARTED_AT_ONCE]
                starts = (self._start(case, role, graph, setup(case)) for case in some)
                await asyncio.gather(*starts)
            await engine.drive(
                graphs=[graph.name],
                concurrency=concurrency,
                until_idle=True,
                grace=GRACE.total_seconds(),
                handle_signals=False,
            )
            missing = await self._note(cases, role, ended)  # one may have been pruned
            if len(ended) < len(cases):
                await self.runtime.journal.apause(poll)
        return ended

    async def _note(
        self, cases: Sequence[Case], role: str, ended: dict[Case, RunRow]
    ) -> list[Case]:
        """Add the runs that are over, or left to a person. Returns the cases without a run."""
        left = [case for case in cases if case not in ended]
        keys = {case.thread_id(role): case.key(role) for case in left}
        plan = self.runtime.services.datasets.runs(keys)
        rows = await self.runtime.journal.arun(plan) if keys else {}
        missing = []
        for case in left:
            row = rows.get(case.key(role))
            if row is None:
                missing.append(case)
            elif row.state in (*ENDED, State.HELD, State.PAUSED):
                ended[case] = row
        return missing

    async def _start(self, case: Case, role: str, graph: Graph, setup: dict[str, Any]) -> None:
        plan = self.runtime.services.runs.accept(
            (graph.name, graph.version),
            case.thread_id(role),
            setup,
            "enqueue",
            key=case.key(role),
        )
        await self.runtime.journal.arun(plan)

    @contextlib.contextmanager
    def _registered(self, *graphs: Graph) -> Iterator[None]:
        registry = self.runtime.engine.graphs
        with contextlib.ExitStack() as stack:
            for graph in graphs:
                registry.add(graph)
                stack.callback(registry.discard, graph)
            yield
