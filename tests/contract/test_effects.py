"""An effect is called once, after the state that led to it is on disk, and gets its own outcome."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

import perdure
from tests.support.agents import Log, chain, opened
from tests.support.effects import WAYS, Pair, Times, colour, drive
from tests.support.raw import execute

every_way = pytest.mark.parametrize("way", WAYS)


@every_way
async def test_a_process_that_fails_after_an_effect_does_not_call_it_again(
    url: str, way: str
) -> None:
    calls: list[tuple[str, str]] = []
    fails = Times(3)

    def send(to: str) -> str:
        calls.append((to, perdure.key()))
        return f"sent {to} {len(calls)}"

    effect = Pair(way, send)

    async def node(state: Log) -> Log:
        first = await effect("ana")
        second = await effect("ben")
        fails()
        return {"log": [first, second]}

    output = await drive(url, way, chain(colour(way, node)))
    assert output["log"] == ["sent ana 1", "sent ben 2"]
    assert [to for to, _ in calls] == ["ana", "ben"]
    assert len({key for _, key in calls}) == 2


@every_way
async def test_parallel_branches_find_their_own(sqlite_url: str, way: str) -> None:
    calls: list[str] = []
    fails = Times(4)
    lock = threading.Lock()

    def send(to: str) -> str:
        with lock:
            calls.append(to)
        return f"sent {to}"

    effect = Pair(way, send)

    def branch(name: str) -> Any:
        async def run(state: Log) -> Log:
            told = [await effect(f"{name} one"), await effect(f"{name} two")]
            if name in "bd":
                fails()
            return {"log": told}

        return colour(way, run)

    builder: StateGraph[Any] = StateGraph(Log)
    for name in "abcd":
        builder.add_node(name, branch(name))
        builder.add_edge(START, name)
    output = await drive(sqlite_url, way, builder)
    assert sorted(output["log"]) == sorted(f"sent {x} {n}" for x in "abcd" for n in ("one", "two"))
    assert sorted(calls) == sorted(f"{x} {n}" for x in "abcd" for n in ("one", "two"))


@pytest.mark.parametrize("way", ["runtime-async", "saver-async"])
@pytest.mark.parametrize("gathered", ["gather", "tasks", "group"])
async def test_helpers_side_by_side_in_a_node_never_get_anothers_answer(
    sqlite_url: str, way: str, gathered: str
) -> None:
    calls: list[str] = []
    order = random.Random(7)
    fails = Times(12)

    @perdure.effect
    async def ask(what: str) -> str:
        await asyncio.sleep(order.random() / 500)
        calls.append(what)
        return f"answer to {what}"

    async def helper(n: int) -> list[str]:
        await asyncio.sleep(order.random() / 200)
        first = await ask(f"{n} first")
        if order.random() < 0.3:
            fails()
        return [first, await ask(f"{n} after {first}")]

    async def node(state: Log) -> Log:
        if gathered == "gather":
            found = await asyncio.gather(*(helper(n) for n in range(5)))
        elif gathered == "tasks":
            tasks = [asyncio.create_task(helper(n)) for n in range(5)]
            try:
                found = [await one for one in tasks]
            finally:
                await asyncio.gather(*tasks, return_exceptions=True)
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(helper(n)) for n in range(5)]
            except ExceptionGroup as error:
                raise error.exceptions[0] from None
            found = [one.result() for one in tasks]
        return {"log": [text for pair in found for text in pair]}

    output = await drive(sqlite_url, way, chain(node))
    assert output["log"] == [
        text
        for n in range(5)
        for text in (f"answer to {n} first", f"answer to {n} after answer to {n} first")
    ]
    assert len(calls) == len(set(calls)) == 10


@pytest.mark.parametrize("way", ["saver", "saver-async"])
async def test_with_the_saver_alone_the_checkpoint_and_the_intent_are_on_disk_before_the_call(
    url: str, way: str
) -> None:
    seen: list[Any] = []

    def send(to: str) -> str:
        [[stored]] = execute(url, "SELECT count(*) FROM perdure_checkpoints")
        seen.append((stored, execute(url, "SELECT state, key FROM perdure_effects WHERE n = 0")))
        return perdure.key()

    effect = Pair(way, send)

    async def think(state: Log) -> Log:
        return {"log": ["thought"]}

    async def node(state: Log) -> Log:
        return {"log": [await effect("ana")]}

    graph = chain(("think", colour(way, think)), ("node", colour(way, node)))
    output = await drive(url, way, graph)
    assert seen == [(3, [("open", output["log"][-1])])]


@pytest.mark.parametrize("durability", ["auto", "async", "sync", "exit"])
async def test_the_runtime_does_so_with_every_durability(url: str, durability: Any) -> None:
    seen: list[Any] = []

    @perdure.effect
    async def send(to: str) -> str:
        [[stored]] = execute(url, "SELECT count(*) FROM perdure_checkpoints")
        seen.append((stored, execute(url, "SELECT state, key FROM perdure_effects")))
        return perdure.key()

    async def node(state: Log) -> Log:
        return {"log": [await send("ana")]}

    async with opened(url) as rt:
        rt.register(chain(("think", lambda state: {"log": []}), node), name="agent")
        run = await rt.start("agent", {"log": []}, durability=durability)
        await rt.tick()
        assert seen == [(3, [("open", (await rt.get(run.id)).output["log"][-1])])]


AGENT = """
import os, signal, sys
from typing import TypedDict
from langgraph.graph import START, StateGraph
import perdure

url, sent, unknown = sys.argv[1:]


class State(TypedDict, total=False):
    log: list[str]


@perdure.effect(unknown=unknown)
def send(to):
    with open(sent, "a") as file:
        print(to, file=file)
    return to


def node(state):
    log = []
    for to in {"ann", "bo", "cy", "dee"}:
        if len(log) == 2 and not os.path.exists(sent + ".killed"):
            open(sent + ".killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        log.append(send(to))
    return {"log": log}


rt = perdure.Runtime(url)
rt.register(StateGraph(State).add_node(node).add_edge(START, "node"), name="agent")
rt.blocking.start("agent", {}, thread_id="t", key="one")
rt.blocking.work(until_idle=True)
run = rt.blocking.runs()[0]
print(run.state, *run.output["log"])
rt.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "unknown", "seed"),
    [
        ("sqlite", "retry", 2),
        ("sqlite", "hold", 5),
        pytest.param("postgres", "retry", 5, marks=pytest.mark.postgres),
        pytest.param("postgres", "hold", 2, marks=pytest.mark.postgres),
        pytest.param("d1", "retry", 5, marks=pytest.mark.d1),
    ],
    indirect=["url"],
)
def test_a_killed_process_and_one_with_another_hash_seed_mail_a_set_once(
    url: str, tmp_path: Path, unknown: str, seed: int
) -> None:
    sent = tmp_path / "sent"
    command = [sys.executable, "-c", AGENT, url, str(sent), unknown]

    def process(seed: int) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    assert process(1).returncode == -signal.SIGKILL
    first = sent.read_text().split()
    last = process(seed)
    state, *log = last.stdout.split()
    assert (state, sorted(log)) == ("done", ["ann", "bo", "cy", "dee"]), last.stderr
    assert log[:2] != first, "this seed gives the same order"
    assert sorted(sent.read_text().split()) == ["ann", "bo", "cy", "dee"]
