"""FastAPI looks at each endpoint of perdure once per process, and not once per application.

An application has a hundred endpoints, and looking at them is most of what a test with a server
takes: 0.15 s of a processor. What FastAPI finds is a function of the endpoint and its path, and
nothing changes it afterwards. `make test-all` does without.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from fastapi import routing as _routing
from fastapi.dependencies.models import Dependant

from tests.support.sweep import EVERY_POINT

routing: Any = _routing
_plain: Callable[..., Dependant] = routing.get_dependant


@functools.cache
def _described(function: Any, **more: Any) -> Dependant:
    return _plain(call=function, **more)


def _get_dependant(*, call: Any, **more: Any) -> Dependant:
    function = inspect.unwrap(call, stop=lambda one: hasattr(one, "__signature__"))
    own = isinstance(function, FunctionType) and function.__module__.startswith("perdure.")
    if not own or function.__closure__ or any(isinstance(one, list) for one in more.values()):
        return _plain(call=call, **more)
    found = _described(function, **more)
    fields = {one.name: getattr(found, one.name) for one in dataclasses.fields(found)}
    lists: Any = {name: [*one] for name, one in fields.items() if isinstance(one, list)}
    return dataclasses.replace(found, call=call, **lists)


def describe_once() -> None:
    """From now on, in this process."""
    if EVERY_POINT or routing.get_dependant is _get_dependant:
        return
    routing.get_dependant = _get_dependant
    routing.create_model_field = functools.cache(routing.create_model_field)
