"""When a node makes its calls in another order than before, no recorded effect is repeated and none
is skipped: the node is left, and run again with each record given to its own call. Only where that
cannot be told is the run held."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

import perdure
from perdure.errors import OrderChanged
from perdure.types import Run, State
from tests.support.agents import Log, chain, driven, opened
from tests.support.effects import FOREVER, WAYS, Boom, Cut, Pair, Times, colour, drive, settled

NAMES = "abcd"
ORDERS = list(itertools.permutations(NAMES))


class Desk:
    """A far side that counts, and dies when it is told to."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}
        self.keys: dict[str, set[str]] = {}
        self.dies: set[tuple[str, str]] = set()

    def post(self, thread: str, to: str, key: str | None = None) -> str:
        if key is None or key not in self.keys.setdefault(thread, set()):
            self.sent.setdefault(thread, []).append(to)
        if key is not None:
            self.keys[thread].add(key)
        if (thread, to) in self.dies:
            self.dies.discard((thread, to))
            raise Cut
        return f"accepted for {to}"


def plain(desk: Desk) -> Any:
    @perdure.effect
    def send(thread: str, to: str) -> str:
        return desk.post(thread, to)

    return send


def keyed(desk: Desk) -> Any:
    @perdure.effect
    def send(thread: str, to: str) -> str:
        return desk.post(thread, to, perdure.key())

    return send


def verified(desk: Desk) -> Any:
    def find(thread: str, to: str) -> str | None:
        return f"accepted for {to}" if to in desk.sent.get(thread, ()) else None

    @perdure.effect(verify=find)
    def send(thread: str, to: str) -> str:
        return desk.post(thread, to)

    return send


def careful(desk: Desk) -> Any:
    @perdure.effect(unknown="hold")
    def send(thread: str, to: str) -> str:
        return desk.post(thread, to)

    return send


def loop(send: Any, orders: Mapping[str, Iterator[tuple[str, ...]]], stops: dict[str, int]) -> Any:
    """A node that mails everybody, each time in the next order, and dies once after so many."""

    def node(state: Log) -> Log:
        thread, log = state["value"], []
        for n, to in enumerate(next(orders[thread])):
            if stops.get(thread) == n:
                del stops[thread]
                raise Cut
            log.append(send(thread, to))
        return {"log": log}

    return node


async def runs_of(rt: perdure.Runtime, threads: list[str]) -> dict[str, Run]:
    for thread in threads:
        await rt.start("agent", {"log": [], "value": thread}, thread_id=thread)
    await rt.tick(limit=1000)
    return {run.thread_id: run for run in await rt.runs(limit=1000)}


@pytest.mark.parametrize(("kind", "done"), [(plain, 1), (keyed, 2), (verified, 3), (careful, 2)])
@pytest.mark.slow
async def test_a_set_in_any_order_is_mailed_once_each(
    sqlite_url: str, kind: Any, done: int
) -> None:
    desk = Desk()
    orders = {f"{n}": itertools.chain([ORDERS[0]], itertools.repeat(ORDERS[n])) for n in range(24)}
    stops = dict.fromkeys(orders, done)
    async with opened(sqlite_url) as rt:
        rt.register(chain(loop(kind(desk), orders, stops)), name="agent", retry=FOREVER)
        found = await runs_of(rt, list(orders))
        for thread, run in found.items():
            assert run.state is State.DONE, (thread, run.reason, run.error)
            order = ORDERS[int(thread)]
            assert Counter(desk.sent[thread]) == Counter(NAMES), (order, desk.sent[thread])
            assert run.output["log"] == [f"accepted for {to}" for to in order]


class Turns:
    """The orders of the attempts at a node, the last one for all that follow."""

    def __init__(self, *orders: str) -> None:
        self._orders = itertools.chain(orders, itertools.repeat(orders[-1]))
        self.attempts = 0

    def next(self) -> str:
        self.attempts += 1
        return next(self._orders)


def calling(turns: Turns, fails: Times, call: Callable[[str], Any], after: int = 2) -> Any:
    """A node that makes a call for each, in the order of its turn, and fails once after so many."""

    def node(state: Log) -> Log:
        log = []
        for n, to in enumerate(turns.next()):
            if n == after:
                fails()
            log.append(call(to))
        return {"log": log}

    return node


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("url", "order"),
    [
        ("sqlite", "cdab"),
        ("sqlite", "cadb"),
        ("sqlite", "dcba"),
        pytest.param("postgres", "cadb", marks=pytest.mark.postgres),
        pytest.param("d1", "cadb", marks=pytest.mark.d1),
    ],
    indirect=["url"],
)
async def test_it_is_so_with_the_runtime_and_with_only_the_saver(
    url: str, way: str, order: str
) -> None:
    sent: list[str] = []
    turns, fails = Turns("abcd", order), Times(1)

    def post(to: str) -> str:
        sent.append(to)
        return f"sent {to}"

    send = Pair(way, post)

    async def node(state: Log) -> Log:
        log = []
        for n, to in enumerate(turns.next()):
            if n == 2:
                fails()
            log.append(await send(to))
        return {"log": log}

    output = await drive(url, way, chain(("node", colour(way, node))))
    assert output["log"] == [f"sent {to}" for to in order]
    assert sorted(sent) == list("abcd")
    assert turns.attempts == 3


async def test_a_mail_that_is_worded_anew_for_each_of_a_set_finds_its_record(
    sqlite_url: str,
) -> None:
    sent: list[str] = []
    turns, fails = Turns("abcd", "cadb"), Times(1)

    @perdure.effect
    def send(to: str, text: str, urgent: bool) -> str:
        sent.append(to)
        return f"{text} {to}"

    def mail(to: str) -> str:
        return send(to, f"Text {turns.attempts} for", urgent=turns.attempts % 2 == 0)

    node = calling(turns, fails, mail)
    async with opened(sqlite_url) as rt:
        run = await _started(rt, node)
        assert run.output["log"] == [
            "Text 3 for c",
            "Text 1 for a",
            "Text 3 for d",
            "Text 1 for b",
        ]
        assert sorted(sent) == list("abcd")


async def test_a_uuid_of_the_node_does_not_hide_that_the_order_changed(sqlite_url: str) -> None:
    """A recorded read comes back in the same order, so that each call has the id of another."""
    sent: list[str] = []
    turns, fails = Turns("abcd", "cadb"), Times(1)

    @perdure.effect
    def send(to: str, id: str) -> str:
        sent.append(to)
        return to

    node = calling(turns, fails, lambda to: send(to, f"order-{perdure.uuid()}"))
    async with opened(sqlite_url) as rt:
        run = await _started(rt, node)
        assert (run.output["log"], sorted(sent)) == (list("cadb"), list("abcd"))


async def test_effects_that_use_the_result_of_another_find_theirs_too(url: str) -> None:
    calls: list[str] = []
    turns, fails = Turns("ab", "ca"), Times(1)

    @perdure.effect
    def send(to: str) -> str:
        calls.append(f"send {to}")
        return f"receipt of {to}"

    @perdure.effect
    def file(receipt: str) -> str:
        calls.append(f"file {receipt}")
        return f"filed {receipt}"

    def node(state: Log) -> Log:
        log = []
        for n, to in enumerate(turns.next()):
            if n == 1:
                fails()
            log.append(file(send(to)))
        return {"log": log}

    async with opened(url) as rt:
        run = await _started(rt, node)
        assert run.output["log"] == ["filed receipt of c", "filed receipt of a"]
        assert Counter(calls) == Counter(
            ["send a", "file receipt of a", "send c", "file receipt of c"]
        )


@pytest.mark.parametrize("how", ["done", "retry", "fail"])
async def test_a_call_made_with_the_outcome_of_another_is_shown_to_a_person(
    url: str, how: Any
) -> None:
    """The second attempt files the receipt of a under c, before it learns that it is not c's."""
    filed: list[str] = []
    turns, fails = Turns("ac", "ca"), Times(1)

    @perdure.effect
    def send(to: str) -> str:
        return f"receipt of {to}"

    @perdure.effect
    def file(to: str, receipt: str) -> str:
        filed.append(f"{to}: {receipt}")
        return "filed"

    def node(state: Log) -> Log:
        log = []
        for to in turns.next():
            receipt = send(to)
            fails()
            try:
                log.append(file(to, receipt))
            except perdure.errors.EffectFailed:
                log.append("not filed")
        return {"log": log}

    async with opened(url) as rt:
        run = await _started(rt, node)
        assert run.state is State.HELD
        [unknown] = await rt.effects(state="unknown")
        assert dict(unknown.arguments) == {"to": "c", "receipt": "receipt of c"}
        [wrong] = [one for one in await rt.effects(run.id) if one.arguments.get("to") == "c"][:1]
        assert filed == ["c: receipt of a"]
        assert unknown.key in (run.reason or "")
        assert wrong.key in (run.reason or "")
        await rt.retry(run.id)  # changes nothing about the effect
        await rt.tick()
        assert ((await rt.get(run.id)).state, filed) == (State.HELD, ["c: receipt of a"])
        await rt.settle(unknown.key, how, "corrected by hand" if how == "done" else None)
        await rt.tick()
        run = await rt.get(run.id)
        assert run.state is State.DONE
        first = {"done": "corrected by hand", "retry": "filed", "fail": "not filed"}[how]
        assert run.output["log"] == [first, "filed"]
        right = ["c: receipt of c"] if how == "retry" else []
        assert filed == ["c: receipt of a", *right, "a: receipt of a"]


async def test_what_an_effect_calls_in_a_set_is_not_repeated(url: str) -> None:
    sent: list[str] = []
    turns, fails = Turns("abcd", "cdab"), Times(1, Cut)

    @perdure.effect
    def send(to: str) -> str:
        sent.append(to)
        return to

    @perdure.effect
    def send_all() -> str:
        found = ""
        for n, to in enumerate(turns.next()):
            if n == 2:
                fails()
            found += send(to)
        return found

    def node(state: Log) -> Log:
        return {"log": [send_all()]}

    async with opened(url) as rt:
        run = await _started(rt, node)
        assert (run.output["log"], sorted(sent)) == (["cdab"], list("abcd"))


async def test_messages_of_the_outbox_are_stored_once_each(url: str) -> None:
    turns, fails = Turns("abcd", "cadb"), Times(1)

    node = calling(turns, fails, lambda to: perdure.outbox("mail", {"to": to}))
    async with opened(url) as rt:
        run = await _started(rt, node)
        assert run.state is State.DONE
        assert sorted(one.payload["to"] for one in await rt.messages()) == list("abcd")


@pytest.mark.parametrize("swallow", ["except", "gather"])
async def test_an_agent_that_swallows_the_signal_changes_nothing(
    sqlite_url: str, swallow: str
) -> None:
    sent: list[str] = []
    turns, fails = Turns("abcd", "cadb"), Times(1)

    @perdure.effect
    async def send(to: str) -> str:
        sent.append(to)
        return to

    async def one(to: str) -> str:
        if swallow == "gather":
            return await send(to)
        try:
            return await send(to)
        except BaseException:
            return "swallowed"

    async def node(state: Log) -> Log:
        log: list[str] = []
        for n, to in enumerate(turns.next()):
            if n == 2:
                fails()
            if swallow == "gather" and n > 1:
                log += map(str, await asyncio.gather(one(to), return_exceptions=True))
            else:
                log.append(await one(to))
        return {"log": log}

    async with opened(sqlite_url) as rt:
        run = await _started(rt, node)
        assert (run.output["log"], sorted(sent)) == (list("cadb"), list("abcd"))


async def test_it_says_what_happened(sqlite_url: str) -> None:
    turns, fails = Turns("ab", "ba"), Times(1)

    @perdure.effect
    def send(to: str) -> str:
        return to

    node = calling(turns, fails, send, after=1)
    async with opened(sqlite_url) as rt:
        run = await _started(rt, node)
        [released] = await settled(rt, run, "released")
        [first, _] = await rt.effects(run.id)
        saved = {"effects": 1, "replayed": (("send", first.key),)}
        assert released.data == {"effect": "send", "key": first.key, "saved": saved}


async def _started(rt: perdure.Runtime, node: Any) -> Run:
    run = await driven(rt, chain(("node", node)), {"log": []}, name="agent", retry=FOREVER)
    return await rt.get(run.id)


async def test_the_caller_of_a_bound_graph_invokes_it_again(url: str) -> None:
    sent: list[str] = []
    turns, fails = Turns("abcd", "cadb"), Times(1)

    @perdure.effect
    def send(to: str) -> str:
        sent.append(to)
        return to

    node = calling(turns, fails, send)
    builder: StateGraph[Any] = StateGraph(Log)
    retry = RetryPolicy(initial_interval=0, jitter=False, retry_on=Boom)
    builder.add_node("node", node, retry_policy=retry).add_edge(START, "node")
    config: Any = {"configurable": {"thread_id": "t"}}
    async with opened(url) as rt:
        bound = rt.register(builder, name="agent")
        with pytest.raises(OrderChanged, match="in another order"):
            await bound.ainvoke({"log": []}, config)
        found = await bound.ainvoke(None, config)
        assert (found["log"], sorted(sent)) == (list("cadb"), list("abcd"))
