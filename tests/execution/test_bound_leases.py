"""The lease of a call is renewed from its claim on, as a worker's is.

A call that lost its lease is fenced, and its caller gets `ThreadBusy`. But compensations are made
while a segment begins, can take longer than a lease, and would be made twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.commands.runs import RunRow
from perdure.errors import Error, ThreadBusy
from perdure.execution.segment_start import begin_segment
from perdure.testing import TemporaryRuntime, runtime
from perdure.types import State
from tests.support.bound import Log, T, says, sequence
from tests.support.polling import until
from tests.support.raw import execute
from tests.support.sqlite_only import url as url

LEASE = timedelta(seconds=1)


def lease_of(url: str) -> int:
    [[due_at]] = execute(url, "SELECT due_at FROM perdure_runs WHERE state = 'running'")
    return int(due_at)


def outlive_the_lease(rt: TemporaryRuntime, url: str) -> None:
    """Let more time pass than a lease has, in steps that a renewal can keep up with."""
    for _ in range(3):
        is_renewed = functools.partial(_is_longer, url, lease_of(url))
        rt.clock.advance(LEASE / 2)
        until(is_renewed, "a renewal", 10)


def _is_longer(url: str, than: int) -> bool:
    return lease_of(url) > than


def test_the_lease_of_a_call_is_renewed_while_it_undoes_effects(url: str) -> None:
    undone: list[str] = []
    meanwhile: list[Callable[[], Any]] = []

    def undo(result: str) -> None:
        undone.append(result)
        meanwhile[0]()

    @perdure.effect(name="book a slow room", compensate=undo)
    def book() -> str:
        return "room 7"

    def books(state: Log) -> Log:
        return {"log": [book(), perdure.ask("go on?")]}

    builder = sequence(books=books, end=says("end"))
    options: dict[str, Any] = {"lease": LEASE}
    with runtime(url, **options) as rt, runtime(url, clock=rt.clock, **options) as worker:
        graph = rt.register(builder, name="g")
        worker.register(builder, name="g")
        graph.invoke({"log": []}, T)
        [run] = rt.blocking.runs()

        def pass_time() -> None:
            outlive_the_lease(rt, url)
            assert worker.blocking.tick().claimed == 0

        meanwhile.append(pass_time)
        rt.blocking.cancel(run.id)
        with pytest.raises(Error, match="cancelled"):
            graph.invoke(None, T)
        assert undone == ["room 7"]
        assert rt.blocking.get(run.id).state is State.CANCELLED


@pytest.mark.parametrize("call", ["invoke", "update_state"])
def test_a_call_that_loses_its_lease_while_it_begins_says_that_its_thread_is_busy(
    url: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(state: Log) -> Log:
        return {"log": [perdure.ask("one"), perdure.ask("two")]}

    with runtime(url) as rt:
        graph = rt.register(sequence(asks=asks), name="g")
        graph.invoke({"log": []}, T)
        [wait] = rt.blocking.waits()
        rt.blocking.answer(wait.id, "1")

        def lose_and_begin(driver: Any, row: RunRow, *args: Any, **options: Any) -> Any:
            execute(url, "UPDATE perdure_runs SET token = token + 1")
            return begin_segment(driver, row, *args, **options)

        monkeypatch.setattr("perdure.execution.bound_runs.begin_segment", lose_and_begin)
        if call == "update_state":
            execute(url, "UPDATE perdure_runs SET due_at = NULL")
        with pytest.raises(ThreadBusy):
            graph.invoke(None, T) if call == "invoke" else graph.update_state(T, {"log": ["x"]})


def test_a_call_that_loses_its_lease_at_a_breakpoint_says_that_its_thread_is_busy(url: str) -> None:
    def lose(state: Log) -> Log:
        execute(url, "UPDATE perdure_runs SET token = token + 1")
        return {"log": ["lost"]}

    with runtime(url) as rt:
        builder = sequence(lose=lose, end=says("end"))
        graph = rt.register(builder.compile(interrupt_before=["end"]), name="g")
        with pytest.raises(ThreadBusy):
            graph.invoke({"log": []}, T)
