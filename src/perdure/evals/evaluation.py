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

from langgraph.func import entrypoint
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from perdure.commands import evaluation_policy as policy
from perdure.commands import starting
from perdure.commands.starting import make_setup
from perdure.errors import BadArgument, NotFound, UnknownGraph
from perdure.evals.evaluators import Evaluator, Verdict, evaluators_of, is_coroutine_function
from perdure.evals.examples import read_examples
from perdure.evals.results import Evaluation, Result
from perdure.runtime import Runtime
from perdure.types import ENDED, Example, Run, Score, State

STARTED_AT_ONCE = 100  # runs accepted at once, which share commits
# Seconds that a segment has for its step when the evaluation is stopped; and between two looks at
# runs that another process drives.
GRACE, PAUSE = 10.0, 0.1
RESTING = (*ENDED, State.HELD, State.PAUSED)  # states in which nothing is left for a worker
TARGETS = "evals:"  # the name of a target's graph begins with it
# Workers in a row that may die with a run: more than usual, since a person restarts each.
DEATHS = 25
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
    if not name:
        raise BadArgument("name must not be empty.")
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
        of = target_name(target)
        with registered(target, of, name, runtime) as graph, policy.simulating(name, functions):
            call = _Call(runtime, name, of, graph, judges, rules, setup, concurrency)
            return await call.run(given, repetitions)


class _Case(NamedTuple):
    """One example in one repetition."""

    example: Example
    repetition: int
    key: str  # the key of its run

    @property
    def thread_id(self) -> str:
        return f"evals-{self.key}"


@dataclass
class _Call:
    """One call of `evaluate`."""

    runtime: Runtime
    name: str
    target: str
    graph: tuple[str, str]  # the name and version of the target as a graph
    evaluators: Sequence[Evaluator]
    rules: policy.Rules
    setup: Mapping[str, Any]
    concurrency: int

    async def run(self, examples: Iterable[Example], repetitions: int) -> Evaluation:
        """Drive every run to its end, judging each one that is done."""
        cases = list(self._cases(examples, repetitions))
        gate = asyncio.Semaphore(self.concurrency)
        ended = await self._drive(cases)

        async def judge(case: _Case) -> Result:
            async with gate:
                return await self._result(case, ended[case.key])

        return Evaluation(self.name, tuple(await asyncio.gather(*map(judge, cases))))

    def _cases(self, examples: Iterable[Example], repetitions: int) -> Iterator[_Case]:
        encode = self.runtime.engine.serializer.encode
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

    async def _drive(self, cases: Sequence[_Case]) -> dict[str, Run]:
        """Start the runs that are missing, and drive all until none is left for a worker. Returns
        them by key."""
        ids: dict[str, str] = {}
        found: dict[str, Run] = {}
        while left := [case for case in cases if case.key not in found]:
            missing = [case for case in left if case.key not in ids]
            for first in range(0, len(missing), STARTED_AT_ONCE):
                some = missing[first : first + STARTED_AT_ONCE]
                started = await asyncio.gather(*map(self._start, some))
                ids |= {case.key: id for case, id in zip(some, started, strict=True)}
            await self.runtime.engine.drive(
                graphs=[self.graph[0]],
                concurrency=self.concurrency,
                until_idle=True,
                grace=GRACE,
                handle_signals=False,
            )
            for case in left:
                try:
                    run = await self.runtime.get(ids[case.key])
                except NotFound:  # it was pruned, and is started again
                    del ids[case.key]
                    continue
                if run.state in RESTING:
                    found[case.key] = run
            if len(found) < len(cases):
                await asyncio.sleep(PAUSE)
        return found

    async def _start(self, case: _Case) -> str:
        about = {"evaluation": self.name, "example": case.example.id, "repetition": case.repetition}
        setup = {
            **self.setup,
            "input": case.example.input,
            "metadata": {**self.setup["metadata"], **about},
            "evaluation": {
                "experiment": self.name,
                "effects": dict(self.rules),
                "answers": list(case.example.answers),
                "signals": dict(case.example.signals),
                "origin": case.example.run_id,
            },
        }
        plan = starting.accept(
            self.runtime.engine, self.graph, case.thread_id, setup, "enqueue", key=case.key
        )
        return (await self.runtime.journal.arun(plan)).id

    # -- scores

    async def _result(self, case: _Case, run: Run) -> Result:
        errors = await self._judge(run, case.example) if run.state is State.DONE else {}
        scores = [one for one in await self.runtime.scores(run.id) if not one.about]
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
        with policy.judging():
            found = await asyncio.gather(*(one.judge(run, example) for one in to_ask))
        errors: dict[str, str] = {}
        for evaluator, (verdicts, error) in zip(to_ask, found, strict=True):
            if error is not None:
                errors[evaluator.name] = error
                continue
            try:
                for name, value, comment in _own_last(verdicts, evaluator.name):
                    if stored.setdefault(name, evaluator.name) != evaluator.name:
                        raise BadArgument(f"{stored[name]} has given {name!r} already.")
                    by = evaluator.name
                    await self.runtime.score(run.id, name, value, comment=comment, by=by)
            except BadArgument as invalid:
                errors[evaluator.name] = f"BadArgument: {invalid}"
        return errors


def _own_last(verdicts: Sequence[Verdict], name: str) -> Sequence[Verdict]:
    """The verdicts of an evaluator; the last has its own name, and says that it was asked."""
    own = [one for one in verdicts if one.name == name]
    others = [one for one in verdicts if one.name != name]
    said = "gave " + (", ".join(one.name for one in others) or "no score")
    return [*others, *(own or [Verdict(name, None, said)])]


def _value(score: Score) -> float | str | None:
    return score.label if score.value is None else score.value


def rules_of(effects: Any) -> tuple[policy.Rules, dict[str, Callable[..., Any]]]:
    """The rules that `effects=` means, by the name of the effect, and the functions among them.

    The rules are in the setup of each run, so every worker that drives it obeys them. Only
    functions are not in the journal: they are known in the processes that evaluate, by the name of
    the evaluation. A worker without them refuses.
    """
    if isinstance(effects, str):
        if effects not in (policy.REFUSE, policy.RECORDED):
            raise BadArgument(f"effects={effects!r}: use 'refuse', 'recorded' or a dict.")
        return ({} if effects == policy.REFUSE else {policy.ANY: [effects]}), {}
    if not isinstance(effects, Mapping):
        raise BadArgument(f"effects={effects!r}: use 'refuse', 'recorded' or a dict.")
    rules: dict[str, list[Any]] = {}
    functions: dict[str, Callable[..., Any]] = {}
    for name, rule in effects.items():
        if not isinstance(name, str) or not name:
            raise BadArgument(f"effects={{{name!r}: …}}: the name of an effect is a text.")
        if isinstance(rule, str) and rule in policy.MODES:
            rules[name] = [str(rule)]
        elif callable(rule):
            rules[name], functions[name] = [policy.FUNCTION], rule
        else:
            rules[name] = [policy.VALUE, rule]
        is_other_run = name in (policy.ANY, "outbox") or name.startswith("perdure.")
        if rules[name] == [policy.REAL] and is_other_run:
            raise BadArgument(
                f"effects={{{name!r}: 'real'}}: this one reaches other runs, whose effects would "
                "not be simulated. Give a value or a function."
            )
    return rules, functions


# -- the target, as a graph with a name of its own: its runs are distinct from real ones, and only a
# process that evaluates drives them


def target_name(target: Any) -> str:
    """The name of a target."""
    if isinstance(target, str):
        return target
    if isinstance(target, StateGraph):
        return "graph"
    if isinstance(target, Pregel) or hasattr(target, "unbound"):
        return str(target.name)
    name = getattr(target, "__name__", None) or type(target).__name__
    return "function" if name == "<lambda>" else str(name)


@contextlib.contextmanager
def registered(
    target: Any, name: str, evaluation: str, runtime: Runtime
) -> Iterator[tuple[str, str]]:
    """Register the graph that the runs of the target are runs of, under another name and with the
    evaluation as its version. Gives both."""
    graphs = runtime.engine.graphs
    if hasattr(target, "unbound") and target.name in runtime.graphs:
        target = target.name
    if isinstance(target, str):
        if target not in graphs.newest:
            raise UnknownGraph(target, runtime.graphs)
        original = graphs.newest[target]
        graph = replace(
            original,
            name=TARGETS + name,
            version=evaluation,
            deaths=max(DEATHS, original.deaths),
            hold=False,
            _with_old_names={},
        )
        graphs.add(graph)
    else:
        if not isinstance(target, (StateGraph, Pregel)) and not hasattr(target, "unbound"):
            target = as_graph(target)
        runtime.register(target, name=TARGETS + name, version=evaluation, deaths=DEATHS)
        graph = graphs.newest[TARGETS + name]
    try:
        yield graph.name, graph.version
    finally:
        graphs.remove(graph.name, graph.version)


def as_graph(function: Callable[[Any], Any]) -> Any:
    """A function of the input, as a graph."""
    if not callable(function):
        raise BadArgument(
            f"The target must be the name of a registered graph, a graph, or a function of the "
            f"input, not {function!r}."
        )
    if is_coroutine_function(function):

        async def acall(input: Any) -> Any:
            return await function(input)

        return entrypoint()(acall)

    def call(input: Any) -> Any:
        return function(input)

    return entrypoint()(call)
