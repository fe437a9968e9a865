"""What was stored with an old key is answered, withdrawn, settled, retried and forked with a new
one, and says which key is missing once the old one is gone."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.errors import WrongKey
from perdure.types import Retry, State
from tests.support.agents import Calls, Log, chain, history, opened
from tests.support.effects import Boom, Times

OLD, NEW = {"2025": b"o" * 32}, {"2026": b"n" * 16}
BOTH = {**NEW, **OLD}


def said(*texts: Any) -> dict[str, Any]:
    return {"log": list(texts)}


def fragile(state: Log) -> Any:
    return said(str(10 // perdure.ask("by what?")))


async def test_a_question_is_answered_and_its_answer_withdrawn_after_a_rotation(url: str) -> None:
    async with opened(url, encryption_keys=OLD) as rt:
        rt.register(chain(fragile), name="g", retry=Retry(attempts=1))
        runs = [await rt.start("g", said(), thread_id=thread) for thread in "ab"]
        await rt.tick()
        [early] = await rt.waits(thread_id="a")
        [late] = await rt.waits(thread_id="b")
        await rt.answer(early.id, 0, by="bo")
        await rt.tick()
        assert (await rt.get(runs[0].id)).state is State.FAILED
    async with opened(url, encryption_keys=NEW) as rt:
        with pytest.raises(WrongKey, match="2025"):
            await rt.answer(late.id, 5)
    async with opened(url, encryption_keys=BOTH) as rt:
        rt.register(chain(fragile), name="g", retry=Retry(attempts=1))
        await rt.answer(late.id, 0, by="bo")
        await rt.tick()
        for run, wait in zip(runs, (early, late), strict=True):
            assert (await rt.get(run.id)).state is State.FAILED
            await rt.withdraw(wait.id, by="ana", reason="a slip")
            await rt.tick()
            [again] = await rt.waits(run_id=run.id)
            assert (again.id, again.value) == (wait.id, "by what?")
            await rt.answer(again.id, 5, by="ana")
            await rt.tick()
            assert (await rt.get(run.id)).output == said("2")
            await history(rt, run)


async def test_a_failed_run_is_retried_and_forked_after_a_rotation(url: str) -> None:
    calls, fails = Calls(), Times(1)

    @perdure.effect
    def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    def node(state: Log) -> Any:
        log = [send("ana")]
        fails()
        return said(*log, send("bo"))

    async with opened(url, encryption_keys=OLD) as rt:
        rt.register(chain(node), name="g", retry=Retry(attempts=1))
        run = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.FAILED
    async with opened(url, encryption_keys=BOTH) as rt:
        rt.register(chain(node), name="g", retry=Retry(attempts=1))
        found = await rt.get(run.id)
        assert Boom.__name__ in str(found.error)
        forked = await rt.fork(run.id, thread_id="fork")
        await rt.retry(run.id)
        await rt.tick()
        for one in (run, forked):
            assert (await rt.get(one.id)).output == said("a", "sent ana", "sent bo")
        assert sorted(calls) == ["ana", "ana", "bo", "bo"]  # a fork calls its own
        await history(rt, run)


async def test_an_unknown_effect_is_settled_after_a_rotation(sqlite_url: str) -> None:
    @perdure.effect(unknown="hold")
    def send(to: str) -> str:
        raise Boom("no reply")

    def node(state: Log) -> Any:
        return said(send("ana"))

    async with opened(sqlite_url, encryption_keys=OLD) as rt:
        rt.register(chain(node), name="g")
        run = await rt.start("g", said())
        await rt.tick()
        assert (await rt.get(run.id)).state is State.HELD
    async with opened(sqlite_url, encryption_keys=BOTH) as rt:
        rt.register(chain(node), name="g")
        [unknown] = await rt.effects(run.id, state="unknown")
        await rt.settle(unknown.key, "done", "sent by hand")
        await rt.tick()
        assert (await rt.get(run.id)).output == said("sent by hand")
