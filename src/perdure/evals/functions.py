"""Functions that evaluate: what `perdure evals run` and tests call by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from perdure.errors import BadArgument
from perdure.evals.experiments import Experiment
from perdure.runtime import Runtime


async def call(function: Callable[..., Any], runtime: Runtime, experiment: str) -> Experiment:
    """Call a function that takes `runtime` and `experiment`, and returns an `Experiment`.

    async def letters(runtime, experiment):
        return await evaluate(write, "letters", [correct], runtime=runtime, experiment=experiment)
    """
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise BadArgument(f"{name} must be a function that takes runtime and experiment.")
    try:
        inspect.signature(function).bind(runtime=runtime, experiment=experiment)
    except TypeError as error:
        raise BadArgument(f"{name}() must take runtime and experiment by name: {error}.") from error
    found = function(runtime=runtime, experiment=experiment)
    found = await found if inspect.isawaitable(found) else found
    if not isinstance(found, Experiment):
        raise BadArgument(f"{name}() must return the Experiment that evaluate() returned.")
    return found
