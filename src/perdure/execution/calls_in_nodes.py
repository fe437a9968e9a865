"""A bound graph that a node of another run invokes on a thread of its own: an effect, and a child.

A node that runs again gets the recorded result. If the process died during the call, or the call
raised, the next attempt finds the run by the key of the effect. A run that is done is not driven
again; any other goes on from its last step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from perdure.effects.client_calls import is_in_run
from perdure.effects.context import key
from perdure.effects.decorator import Effect, aperform
from perdure.execution.segment_drive import is_resume
from perdure.langgraph_port import configs
from perdure.operations.runs import RunRow

_KEY: ContextVar[str | None] = ContextVar("perdure_invoke", default=None)
_STORED = {"context", "durability"}
"""Arguments with which the result is what the run returns."""


class AlreadyDone(Exception):
    """The run of an earlier attempt is done."""

    def __init__(self, row: RunRow) -> None:
        super().__init__(row.id)
        self.row = row


def starts_own_run(graph: Any, input: Any, config: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a bound graph starts a run of its own inside another run."""
    if input is None or is_resume(input) or not kwargs.keys() <= _STORED or not is_in_run():
        return False
    return not configs.is_nested(configs.full_config(graph, config)["configurable"])


def invoke(graph: Any, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    return _INVOKE.call((graph, graph.name, _thread_of(config), input, config, kwargs), {})


async def ainvoke(graph: Any, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    bound = (graph, graph.name, _thread_of(config), input, config, kwargs)
    return await aperform(_AINVOKE.caller, (bound, {}), _AINVOKE.make_record)


def take_key() -> str | None:
    """The key of the run that a call is about to start, once; None outside of a node."""
    found = _KEY.get()
    _KEY.set(None)  # not for the calls that its nodes make
    return found


def _thread_of(config: Any) -> str:
    return str(((config or {}).get("configurable") or {}).get("thread_id") or "")


@contextlib.contextmanager
def _keyed() -> Iterator[None]:
    token = _KEY.set(key())
    try:
        yield
    finally:
        _KEY.reset(token)


def _invoke(
    graph: Any, name: str, thread_id: str, input: Any, given: Any, kwargs: dict[str, Any]
) -> Any:
    with _keyed():
        try:
            return graph.invoke_run(input, given, kwargs)
        except AlreadyDone as done:
            return graph.output_of(done.row)


async def _ainvoke(
    graph: Any, name: str, thread_id: str, input: Any, given: Any, kwargs: dict[str, Any]
) -> Any:
    with _keyed():
        try:
            return await graph.ainvoke_run(input, given, kwargs)
        except AlreadyDone as done:
            return await graph.aoutput_of(done.row)


def _effect(function: Any) -> Effect:
    """An exception is no outcome: a run that failed is retried by the next attempt. A run goes on
    with its recorded input, but with the graph and the config of the call: only of the same one."""
    record = ("name", "thread_id", "input")
    made = Effect.of(function, name="perdure.invoke", retry=None, record=record)
    return replace(made, spec=replace(made.spec, keeps_errors=False, identity=record[:2]))


_INVOKE, _AINVOKE = _effect(_invoke), _effect(_ainvoke)
