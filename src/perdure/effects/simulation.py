"""Effects in a run of an evaluation: simulated, or refused. Nothing leaves the process.

`settlement.settle` asks here before it looks for a record, so every call passes: of functions, of
tools and models of agents, of a client, of the outbox, in subgraphs and inside other effects. A
simulated call is recorded like any other, as an effect of its run alone: without its business key,
which guards the real call, and without `verify`, `compensate` and a transaction, which reach
others.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn

from perdure.commands import effect_payload, effects
from perdure.commands.evaluation_policy import (
    FUNCTION,
    JUDGING,
    REAL,
    RECORDED,
    SIMULATIONS,
    VALUE,
    EvaluationPolicy,
)
from perdure.effects.call import Call
from perdure.effects.context import current
from perdure.effects.spec import ONCE
from perdure.effects.task import current_task
from perdure.errors import UNREADABLE, BadArgument, EffectRefused, NotInRun
from perdure.execution.segment import EVALUATED, Segment, driven, is_evaluating
from perdure.types import EffectState

_HARMLESS: ContextVar[str] = ContextVar("perdure_harmless_tool", default="")


@contextlib.contextmanager
def harmless_tool(name: str) -> Iterator[None]:
    """Set while a tool runs that only reads, or whose function is an effect itself. The tools that
    it calls may be others."""
    token = _HARMLESS.set(name)
    try:
        yield
    finally:
        _HARMLESS.reset(token)


def check_tool(segment: Segment, name: str, *, reads: bool) -> None:
    """Refuse a tool call that is not an effect, in an evaluation: nothing else would keep it in the
    process."""
    policy = segment.evaluation
    if policy is None or _HARMLESS.get() == name:
        return
    if policy.rule(f"tool {name}", reads=reads)[0] != REAL:
        why = (
            "its run is part of an evaluation, and its calls are not effects: to simulate it, give "
            "the agent perdure.langchain.Durable()"
        )
        refuse(segment, f"tool {name}", why)


def refuse(segment: Segment, name: str, why: str) -> NoReturn:
    """Refuse what is not an effect itself. It ends the segment, even if the agent's code catches
    it."""
    error = EffectRefused(name, why)
    segment.end_with(error)
    raise error


def simulate(call: Call, policy: EvaluationPolicy) -> None:
    """Put what simulates a call in its place, unless the effect is really called. Raises
    `EffectRefused`."""
    name = call.spec.name
    mode, *value = policy.rule(name, reads=call.spec.reads)
    if mode == REAL:
        return
    if mode == VALUE:
        call.function = lambda *_, **__: value[0]
    elif mode == FUNCTION:
        call.function = _in_colour_of(call.function, _function(policy, name), name)
    elif mode == RECORDED:
        call.function = _recorded(call, policy)
    else:
        raise EffectRefused(name, "its run is part of an evaluation")
    call.is_simulated, call.business_key = True, None
    call.spec = replace(
        call.spec,
        key=None,
        verify=None,
        unknown="retry",
        transactional=False,
        retry=ONCE,
        timeout=None,
        compensate=None,
        record=replace(call.spec.record, result=None),
    )


def _function(policy: EvaluationPolicy, name: str) -> Callable[..., Any]:
    function = SIMULATIONS.get(policy.experiment, [{}])[-1].get(name)
    if function is None:
        again = f"evaluate {policy.experiment!r} again"
        raise EffectRefused(name, f"the function that simulates it is not in this process: {again}")
    return function


def give(name: str, *arguments: Any) -> tuple[Any] | None:
    """The result of a call that is not recorded by itself, in a run of an evaluation. None: it is
    in no such run. Raises `EffectRefused`."""
    if (evaluation := _evaluation()) is None:
        return None
    segment, policy = evaluation
    mode, *value = policy.rule(name, reads=False)
    if mode == VALUE:
        return (value[0],)
    if mode != FUNCTION:
        refuse(segment, name, "its run is part of an evaluation")
    return (_in_colour_of(give, _function(policy, name), name)(*arguments),)


def check_unseen(name: str, *, reads: bool) -> None:
    """Refuse an effect that is called where no policy is seen: in a graph of a run of an evaluation
    that has a checkpointer of its own; or outside of any run while this process evaluates, where it
    may be a thread that a node started, which does not know its run."""
    segment = driven()
    if segment is not None:
        policy = segment.evaluation
        if policy is not None and policy.rule(name, reads=reads)[0] != REAL:
            why = (
                "its run is part of an evaluation, and a graph with a checkpointer of its own, or "
                "`verify`, calls it, where nothing is simulated"
            )
            refuse(segment, name, why)
    elif current() is None and (SIMULATIONS or is_evaluating()):
        if JUDGING.get():
            raise NotInRun(f"The effect {name!r} was not called: an evaluator must not call one.")
        raise NotInRun(
            f"The effect {name!r} was not called: this process evaluates, and the call comes from "
            "outside a run, perhaps from a thread that a node started. Start the thread with "
            "contextvars.copy_context().run, or evaluate in a process of its own."
        )


def refuse_in_evaluation(name: str) -> None:
    """Refuse what reaches other runs without being an effect, such as the stream of a bound graph:
    their effects would not be simulated."""
    if JUDGING.get():
        raise NotInRun(f"{name!r} was not called: an evaluator must not change a run.")
    if (evaluation := _evaluation()) is not None:
        refuse(evaluation[0], name, "it reaches another run, and its own is part of an evaluation")


def is_named(name: str) -> bool:
    """Whether the run that this is called in has a rule for an effect of this name."""
    evaluation = _evaluation()
    return evaluation is not None and name in evaluation[1].effects


def is_evaluated() -> bool:
    """Whether this is called in a run of an evaluation."""
    return _evaluation() is not None


def _evaluation() -> tuple[Segment, EvaluationPolicy] | None:
    """The segment of an evaluation that this is called in, and its policy."""
    if not EVALUATED:
        return None
    place = current_task()
    segment = (None if place is None else place[0].segment) or driven()
    if segment is None or segment.evaluation is None:
        return None
    return segment, segment.evaluation


def _in_colour_of(
    original: Callable[..., Any], stand_in: Callable[..., Any], name: str
) -> Callable[..., Any]:
    """Calls a function in place of the effect, which is a coroutine function or a plain one."""
    if inspect.iscoroutinefunction(original) or not inspect.iscoroutinefunction(stand_in):
        return stand_in

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(stand_in(*args, **kwargs))
        raise BadArgument(
            f"The effect {name!r} is a plain function called from a coroutine: simulate it with a "
            "plain function."
        )

    return call


def _recorded(call: Call, policy: EvaluationPolicy) -> Callable[..., Any]:
    """Returns or raises what the call with the same arguments did in the run that the example was
    made from."""
    name, task = call.spec.name, call.task
    if policy.origin is None:
        raise EffectRefused(
            name, "its example was not made from a run, so it has no recorded outcome"
        )

    def outcome(*_: Any, **__: Any) -> Any:
        for row in task.journal.do(effects.of_run(policy.origin or "")):
            with contextlib.suppress(*UNREADABLE):
                if row.name == name and call.has_arguments(row):
                    if row.state == EffectState.DONE:
                        return row.load_outcome(task.serializer)[0]
                    if row.state == EffectState.FAILED:
                        stored = row.load_outcome(task.serializer)
                        raise effect_payload.restore_error(row.key, stored)
        raise EffectRefused(name, f"run {policy.origin} did not call it with these arguments")

    return outcome
