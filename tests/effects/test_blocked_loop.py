"""A plain effect that a coroutine calls stops the event loop: that must cost nobody a lease."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

import pytest

import perdure
from perdure.types import State
from tests.support.agents import Log, chain

LEASE = timedelta(seconds=0.4)


@pytest.mark.slow
def test_a_plain_effect_that_blocks_the_loop_keeps_its_lease_and_is_called_once(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    @perdure.effect(name=f"slow on {url[:4]}")  # it is warned of once per name
    def slow(to: str) -> str:
        calls.append(to)
        time.sleep(4 * LEASE.total_seconds())
        return "sent"

    async def node(state: Log) -> Log:
        return {"log": [slow("ana")]}

    graph = chain(node)
    with perdure.Runtime(url, lease=LEASE) as one, perdure.Runtime(url, lease=LEASE) as other:
        for runtime in (one, other):
            runtime.register(graph, name="agent")
        run = one.blocking.start("agent", {"log": []}, thread_id="t")
        with caplog.at_level(logging.WARNING, "perdure"):
            workers = [
                threading.Thread(target=runtime.blocking.work, kwargs={"until_idle": True})
                for runtime in (one, other)
            ]
            workers[0].start()
            while not calls:
                time.sleep(0.01)
            workers[1].start()
            for worker in workers:
                worker.join()
        done = one.blocking.get(run.id)
        assert (done.state, done.output["log"], calls) == (State.DONE, ["sent"], ["ana"])
        [effect] = one.blocking.effects(run.id)
        assert effect.attempts == 1
    assert f"slow on {url[:4]}" in caplog.text
