"""A coroutine where a value is expected is told as what it is: a forgotten `await`."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument, Unserializable
from perdure.types import Retry, State
from tests.support.agents import chain, opened

FORGOTTEN = r"Did you forget await\?"


class late:  # noqa: N801  as if it were called
    """An awaitable for which Python gives no "never awaited" warning."""

    def __await__(self) -> Any:
        yield


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


async def test_the_methods_of_a_runtime_ask_for_it(url: str) -> None:
    async with opened(url) as rt:
        forgotten: Any = rt.start("g")
        for call in (
            rt.get(forgotten),
            rt.join(forgotten),
            rt.find(forgotten),
            rt.cancel(late()),  # type: ignore[arg-type]
            rt.answer(late(), True),  # type: ignore[arg-type]
            rt.settle(late(), "retry"),  # type: ignore[arg-type]
            rt.signal(late(), "reply"),  # type: ignore[arg-type]
            rt.start(late()),  # type: ignore[arg-type]
            rt.start("g", thread_id=late()),  # type: ignore[arg-type]
            rt.runs(thread_id=late()),  # type: ignore[arg-type]
            rt.runs(parent_id=late()),  # type: ignore[arg-type]
            rt.runs(graph=late()),  # type: ignore[arg-type]
            rt.waits(run_id=late()),  # type: ignore[arg-type]
            rt.waits(thread_id=late()),  # type: ignore[arg-type]
            rt.wait_history(late()),  # type: ignore[arg-type]
            rt.effects(late()),  # type: ignore[arg-type]
            rt.effects(thread_id=late()),  # type: ignore[arg-type]
            rt.unschedule(late()),  # type: ignore[arg-type]
        ):
            with pytest.raises(BadArgument, match=FORGOTTEN):
                await call
        forgotten.close()
        with pytest.raises(BadArgument, match=FORGOTTEN):
            rt.register(late(), name="g")
        rt.register(chain(("quick", lambda state: {"log": ["quick"]})), name="g")
        with pytest.raises(BadArgument, match=FORGOTTEN):
            await rt.start(late())  # type: ignore[arg-type]
        for accepted in (rt.start("g", late()), rt.signal("t", "reply", {"text": late()})):
            with pytest.raises(Unserializable, match=FORGOTTEN):
                await accepted
        assert await rt.runs() == []
        run = await rt.start("g", {"log": []})
        with pytest.raises(BadArgument, match=r"must be a str, not Run\. Pass its id\."):
            await rt.get(run)  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match=r"must be a str, not Run\. Pass its thread_id\."):
            await rt.runs(thread_id=run)  # type: ignore[arg-type]


async def test_a_node_and_an_effect_that_hand_on_a_coroutine_fail_with_the_question(
    url: str,
) -> None:
    @perdure.effect
    def send(text: Any) -> str:
        return "sent"

    @perdure.effect
    def returns() -> Any:
        return late()

    nodes: dict[str, Any] = {
        "state": lambda state: {"value": late()},
        "argument": lambda state: {"value": send(late())},
        "result": lambda state: {"value": returns()},
        "join": lambda state: {"value": perdure.join(late())},  # type: ignore[call-overload]
        "joins": lambda state: {"value": perdure.join([late()])},  # type: ignore[list-item]
    }
    async with opened(url) as rt:
        for name, node in nodes.items():
            rt.register(chain((name, node)), name=name, retry=Retry(attempts=1))
            run = await rt.start(name, {"log": []})
            await rt.tick()
            failed = await rt.get(run.id)
            told = str(failed.error or failed.reason)
            assert failed.state in (State.FAILED, State.HELD), name
            assert "Did you forget await?" in told, (name, told)
