"""A call finds its own record and no other: nested, in threads, beside waits; and nothing that was
cut off is forgotten.

Each of these was once wrong: an answer went to another call, a call was never made, or twice.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.types import Command, Send

import perdure
from perdure.commands import effects
from perdure.types import Retry, State
from tests.support.agents import Log, chain, driven, opened
from tests.support.effects import AT_ONCE, Boom, Cut, Times, started
from tests.support.sqlite_only import url as url


async def test_what_an_effect_calls_is_its_own_and_no_later_call_takes_it(url: str) -> None:
    sent: list[str] = []
    fails = Times(1)

    @perdure.effect
    def mail(to: str) -> str:
        sent.append(to)
        return f"sent {to}"

    @perdure.effect
    def onboard(user: str) -> str:
        return mail(user)

    def node(state: Log) -> Log:
        first = onboard("ann")
        fails()
        return {"log": [first, mail("bo")]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert (run.output["log"], sent) == (["sent ann", "sent bo"], ["ann", "bo"])


async def test_an_effect_that_is_retried_finds_what_it_called_before(url: str) -> None:
    paid: list[str] = []
    fails = Times(2)

    @perdure.effect
    async def pay(amount: int) -> str:
        paid.append(perdure.key())
        return "receipt"

    @perdure.effect(retry=Retry(attempts=5, first=timedelta(0)))
    async def check_out(amount: int) -> str:
        receipt = await pay(amount)
        fails()
        return receipt

    async def node(state: Log) -> Log:
        return {"log": [await check_out(10)]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert (run.output["log"], len(paid)) == (["receipt"], 1)


async def test_a_question_inside_a_recorded_effect_takes_no_answer_of_a_later_one(
    url: str,
) -> None:
    fails = Times(1)

    @perdure.effect
    def approve(what: str) -> str:
        answer: str = perdure.ask({"approve": what})
        return answer

    def node(state: Log) -> Log:
        first = approve("budget")
        second = perdure.ask("delete production?")
        fails()
        return {"log": [first, second]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        for answer in ("YES", "NO"):
            [wait] = await rt.waits()
            await rt.answer(wait.id, answer)
            await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["YES", "NO"]


async def test_reads_inside_a_recorded_effect_shift_no_others(url: str) -> None:
    fails = Times(1)
    seen: list[Any] = []

    @perdure.effect
    def draw() -> str:
        return str(perdure.uuid())

    def node(state: Log) -> Log:
        draw()
        seen.append(perdure.uuid())
        fails()
        return {"log": []}

    async with opened(url) as rt:
        await started(rt, chain(node), retry=AT_ONCE)
        assert len(seen) == 2
        assert seen[0] == seen[1]


def _batch(one: Callable[[str], str]) -> list[str]:
    return RunnableLambda(one).batch(["a", "b"])


def _parallel(one: Callable[[str], str]) -> list[str]:
    parts: Any = {"p": lambda _: one("a"), "q": lambda _: one("b")}
    both = RunnableParallel[Any](parts).invoke(1)
    return [both["p"], both["q"]]


def _pool(one: Callable[[str], str]) -> list[str]:
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(contextvars.copy_context().run, one, name) for name in "ab"]
        return [job.result() for job in jobs]


@pytest.mark.parametrize("fan_out", [_batch, _parallel, _pool])
async def test_threads_of_a_node_find_their_own(sqlite_url: str, fan_out: Any) -> None:
    """The first time only the first mail goes out; then the second thread is the faster one."""
    sent: list[str] = []
    times: list[int] = []

    @perdure.effect
    def mail(to: str) -> str:
        sent.append(to)
        return f"sent {to}"

    def one(name: str) -> str:
        first = len(times) == 1
        time.sleep(0.1 if first == (name == "b") else 0)
        if first and name == "b":
            raise Cut
        return mail(name)

    def node(state: Log) -> Log:
        times.append(1)
        return {"log": fan_out(one)}

    async with opened(sqlite_url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert (run.output["log"], sent) == (["sent a", "sent b"], ["a", "b"])


async def test_methods_of_two_objects_side_by_side_are_refused(sqlite_url: str) -> None:
    class Account:
        @perdure.effect
        async def charge(self, amount: int) -> int:
            await asyncio.sleep(0.01)
            return amount

    async def node(state: Log) -> Log:
        both: Any = await asyncio.gather(Account().charge(1), Account().charge(1))
        return {"log": list(both)}

    async with opened(sqlite_url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.error is not None
        assert "could not be told apart" in run.error.message


@pytest.mark.parametrize("swallow", ["gather", "except", "group"])
@pytest.mark.parametrize("unknown", ["retry", "hold"])
async def test_who_swallows_our_signals_changes_nothing(
    url: str, swallow: str, unknown: Any
) -> None:
    fails = Times(1)

    @perdure.effect(unknown=unknown, retry=Retry(attempts=2, first=timedelta(hours=1)))
    async def fetch() -> str:
        fails()
        return "fetched"

    async def node(state: Log) -> Log:
        if swallow == "gather":
            return {"log": list(map(str, await asyncio.gather(fetch(), return_exceptions=True)))}
        if swallow == "group":
            async with asyncio.TaskGroup() as group:
                task = group.create_task(fetch())
            return {"log": [task.result()]}
        try:
            return {"log": [await fetch()]}
        except BaseException:
            return {"log": ["swallowed"]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        if unknown == "hold":
            assert run.state is State.HELD
            [effect] = await rt.effects(state="unknown")
            await rt.settle(effect.key, "done", "told")
        else:
            assert run.state is State.WAITING
            rt.clock.advance(timedelta(hours=2))
        await rt.tick()
        run = await rt.get(run.id)
        assert run.output["log"] == ["told" if unknown == "hold" else "fetched"]


async def test_what_happened_is_not_made_again_by_a_retry_of_the_run(url: str) -> None:
    calls: list[str] = []

    @perdure.effect
    async def pay() -> Any:
        calls.append("pay")
        return object()

    async def node(state: Log) -> Log:
        return {"log": [await pay()]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.state is State.FAILED
        await rt.retry(run.id)
        await rt.tick()
        assert ((await rt.get(run.id)).state, calls) == (State.FAILED, ["pay"])


async def test_a_retry_of_the_run_asks_the_far_side_first(url: str) -> None:
    calls: list[str] = []
    far: list[str] = []

    async def find() -> str | None:
        return far[0] if far else None

    @perdure.effect(verify=find, retry=None)
    async def order() -> str:
        calls.append("order")
        raise Boom("the answer was lost")

    async def node(state: Log) -> Log:
        return {"log": [await order()]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.state is State.FAILED
        far.append("it came late")
        await rt.retry(run.id)
        await rt.tick()
        assert ((await rt.get(run.id)).output["log"], calls) == (["it came late"], ["order"])


async def test_a_call_gets_the_recorded_arguments_whatever_the_last_one_did_to_them(
    url: str,
) -> None:
    seen: list[list[int]] = []
    fails = Times(2)

    @perdure.effect(retry=Retry(attempts=5, first=timedelta(0)))
    async def ship(items: list[int]) -> str:
        seen.append(list(items))
        items.pop()
        fails()
        return "shipped"

    async def node(state: Log) -> Log:
        return {"log": [await ship([1, 2, 3])]}

    async with opened(url) as rt:
        await started(rt, chain(node), retry=AT_ONCE)
        assert seen == [[1, 2, 3]] * 3


async def test_tasks_that_go_on_side_by_side_read_the_places_of_their_run_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.effect
    def quote(n: int) -> int:
        return n

    def fan_out(state: Log) -> Any:
        return Command(goto=[Send("one", {"log": [], "value": n}) for n in range(5)])

    def one(state: Log) -> Log:
        quoted = quote(state["value"])
        perdure.sleep(timedelta(hours=1))
        return {"log": [str(quoted)]}

    read: list[str | None] = []
    read_task = effects.of_task

    def of_task(thread_id: str, task: str, run_id: str, whole_run: str | None) -> Any:
        read.append(whole_run)
        return read_task(thread_id, task, run_id, whole_run)

    graph = chain(fan_out)
    graph.add_node("one", one)
    async with opened(url) as rt:
        run = await driven(rt, graph, {"log": []}, config={"max_concurrency": 1}, name="agent")
        monkeypatch.setattr(effects, "of_task", of_task)
        rt.clock.advance(timedelta(hours=1))
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["0", "1", "2", "3", "4"]
        assert read == [run.id, *[None] * 4]
