"""Evaluators: functions that judge an output. Those of LangSmith and openevals work unchanged.

An evaluator takes any of `inputs`, `outputs`, `reference_outputs`, `run` and `example` by name, or
two positional arguments, the run and the example. It returns

    a number or a bool               the score
    a str                            the score as a category
    a dict                           with "key", "score" or "value", and "comment"
    an object with such attributes   LangSmith's EvaluationResult
    a list, or {"results": [...]}    several of these
    None                             no score
"""

from __future__ import annotations

import asyncio
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure.errors import BadArgument
from perdure.types import Example, Retry, Run

BY_NAME = ("inputs", "outputs", "reference_outputs", "run", "example")
RETURNED = ("key", "score", "value", "comment")
RETRY = Retry()  # attempts at an evaluator that raises


class Verdict(NamedTuple):
    """A score that an evaluator gave."""

    name: str
    value: float | str | None
    comment: str | None


@dataclass(frozen=True)
class EvaluatedRun:
    """The run of the target, as evaluators see it."""

    run: Run
    inputs: Any
    outputs: Any

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def error(self) -> str | None:
        return None if self.run.error is None else str(self.run.error)


@dataclass(frozen=True)
class Evaluator:
    """One evaluator, under the name of its scores."""

    name: str
    function: Callable[..., Any]

    @classmethod
    def of(cls, function: Any) -> Evaluator:
        if not callable(function):
            raise BadArgument(f"An evaluator must be a function, not {function!r}.")
        _arguments(function, dict.fromkeys(BY_NAME))
        return cls(name_of(function), function)

    async def judge(self, run: Run, example: Example) -> tuple[list[Verdict], str | None]:
        """The scores that it gives, and its error after the last attempt."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._call(run, example), None
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # it is we who are cancelled, not something that the evaluator called
                if isinstance(error, BadArgument) or RETRY.is_over(attempt, error):
                    return [], f"{type(error).__name__}: {error}"[:2000]
            await asyncio.sleep(RETRY.pause(attempt).total_seconds())

    async def _call(self, run: Run, example: Example) -> list[Verdict]:
        values = {
            "inputs": example.input,
            "outputs": run.output,
            "reference_outputs": example.expected,
            "run": EvaluatedRun(run, example.input, run.output),
            "example": example,
        }
        args, kwargs = _arguments(self.function, values)
        if is_coroutine_function(self.function):
            found = await self.function(*args, **kwargs)
        else:
            found = await asyncio.to_thread(self.function, *args, **kwargs)
            if inspect.isawaitable(found):
                found = await found
        verdicts = [*_verdicts(found, self.name)]
        if len({one.name for one in verdicts}) < len(verdicts):
            raise BadArgument(f"Evaluator {self.name!r} returned two scores of the same name.")
        return verdicts


def evaluators_of(functions: Sequence[Any]) -> list[Evaluator]:
    """The evaluators of an evaluation. Raises `BadArgument` if two have the same name."""
    if callable(functions):
        raise BadArgument(f"evaluators must be a list of functions, not {functions!r}.")
    found = [Evaluator.of(function) for function in functions]
    for n, one in enumerate(found):
        if one.name in {other.name for other in found[:n]}:
            raise BadArgument(
                f"Two evaluators are named {one.name!r}: their scores would replace each other. "
                "Rename one, or set its `feedback_key` attribute."
            )
    return found


def name_of(function: Any) -> str:
    """The name of an evaluator: its `feedback_key` (openevals), else that of the function."""
    for attribute in ("feedback_key", "__name__", "name"):
        name = getattr(function, attribute, None)
        if isinstance(name, str) and name not in ("", "<lambda>"):
            return name
    if getattr(function, "__name__", "") == "<lambda>":
        raise BadArgument("An evaluator needs a name for its score: use def, not lambda.")
    return type(function).__name__


def _arguments(
    function: Callable[..., Any], values: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a function takes from these values."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # functions written in C may have no signature
        return (), {name: values[name] for name in BY_NAME[:3]}
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    needed = [
        one
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if all(one.name in values and one.kind is not one.POSITIONAL_ONLY for one in needed):
        wanted = {one.name for one in named}
        if takes_any:
            wanted |= set(BY_NAME[:3])
        return (), {name: values[name] for name in values if name in wanted}
    if len(needed) == 2 and all(one.kind is not one.KEYWORD_ONLY for one in needed):
        return (values["run"], values["example"]), {}
    raise BadArgument(
        f"Evaluator {name_of(function)!r} must take any of {', '.join(BY_NAME)} by name, or the "
        f"run and the example, not {', '.join(one.name for one in needed)}."
    )


def _verdicts(found: Any, name: str) -> Iterable[Verdict]:
    if found is None:
        return
    if isinstance(found, Mapping) and "results" in found:
        found = found["results"]
    if isinstance(found, (list, tuple)) and not hasattr(found, "score"):
        for one in found:
            yield from _verdicts(one, name)
        return
    comment, kind, found = None, type(found).__name__, _plain(found)
    if not isinstance(found, (bool, int, float, str)):
        if not isinstance(found, Mapping):
            found = {one: getattr(found, one) for one in RETURNED if hasattr(found, one)}
        fields = found
        name = fields.get("key") or name
        comment = fields.get("comment")
        score = fields.get("score")
        found = _plain(fields.get("value") if score is None else score)
        if found is None and comment is None:
            if not {*RETURNED[1:]} & fields.keys():
                raise BadArgument(
                    f"Evaluator {name!r} must return a number, a bool, a str, or a dict with "
                    f"'score', not {kind}."
                )
            return
    yield Verdict(name, found, None if comment is None else _storable(str(comment)))


def _storable(text: str) -> str:
    """A text without lone surrogates, which no database takes."""
    return text.encode(errors="replace").decode()


def _plain(value: Any) -> Any:
    """A number of another kind, such as one of NumPy or a Decimal, as Python's own."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    is_other = isinstance(value, numbers.Number) and not isinstance(value, (int, float, complex))
    return float(value) if is_other else value


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine: it may also be an object with `async def __call__`."""
    call = getattr(function, "__call__", None)  # noqa: B004 (is it a coroutine function?)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
