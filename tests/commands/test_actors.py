"""The history of a run records who decided: the name, how, and the network address."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

from perdure import Redaction
from perdure.types import Actor, Event, State
from tests.contract.test_events import last
from tests.support.agents import Log, chain, opened
from tests.support.commands import main
from tests.support.controls import ONCE, approve, fail, resting, said

ANA = Actor("ana", via="browser", address="10.0.0.7")
SAID = {"by": "ana", "via": "browser", "from": "10.0.0.7"}


def test_an_actor_is_its_name() -> None:
    assert ANA == "ana"
    assert hash(ANA) == hash("ana")
    assert f"{ANA}" == "ana"
    assert type(str(ANA)) is str
    for made in (copy.copy(ANA), copy.deepcopy(ANA), pickle.loads(pickle.dumps(ANA))):
        assert (made, made.via, made.address) == ("ana", "browser", "10.0.0.7")


def who(event: Event) -> dict[str, Any]:
    return {name: event.data[name] for name in SAID if name in event.data}


async def test_a_decision_without_a_name_still_says_how_it_came(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(approve), name="g")
        run = await resting(rt, State.WAITING)
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes", by=Actor(via="link"))
        [found] = await rt.wait_history(run.id)
        assert found.answered_by is None
        assert found.damaged is None
        assert (await last(rt, run, "answer")).data == {"wait": wait.id, "via": "link"}
        for _ in range(2):
            await rt.score(run.id, "tone", 1, by=Actor(via="link"))
        assert [one.kind for one in await rt.events(run.id)].count("scored") == 1


async def test_a_request_to_stop_a_driven_run_says_who_asked(sqlite_url: str) -> None:
    async def node(state: Log) -> Any:
        await rt.pause(run.id, by=ANA)
        return said("paused")

    async with opened(sqlite_url) as rt:
        rt.register(chain(node), name="g")
        run = await rt.start("g", said(), thread_id="t")
        await rt.tick()
        asked = await last(rt, run, "pausing")
        assert asked.data["by"] == "ana"


async def test_a_redaction_policy_leaves_the_way_and_the_address(sqlite_url: str) -> None:
    async with opened(sqlite_url, redact=Redaction(patterns=[r"10\.0\.0\.\d"])) as rt:
        rt.register(chain(approve), name="g")
        run = await resting(rt, State.WAITING)
        await rt.cancel(run.id, by=ANA, reason="10.0.0.7 asked")
        event = await last(rt, run, "cancelled")
        assert who(event) == SAID
        assert "10.0.0.7" not in event.data["reason"]


async def test_an_actor_in_a_node_is_stored_as_the_name(sqlite_url: str) -> None:
    async def node(state: Log) -> Any:
        await rt.retry(target.id, by=ANA)
        await rt.score(target.id, "tone", 1, by=ANA)
        return {"log": [ANA]}

    async with opened(sqlite_url) as rt:
        rt.register(chain(fail), name="g", retry=ONCE)
        rt.register(chain(node), name="agent", retry=ONCE)
        target = await resting(rt, State.FAILED)
        run = await rt.start("agent", said(), thread_id="agent")
        await rt.tick()
        assert (await rt.get(run.id)).output == said("ana")
        assert who(await last(rt, target, "retried")) == SAID
        retried, scored = await rt.effects(run.id)
        assert (retried.arguments, scored.arguments["by"]) == ({"run_id": target.id}, "ana")


async def test_decisions_by_commands_are_marked_as_such(sqlite_url: str, capsys: Any) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(fail), name="g", retry=ONCE)
        run = await resting(rt, State.FAILED)
        for command in (["retry"], ["pause"], ["resume"]):
            line = [*command, run.id, "--by", "ana", "--at", sqlite_url]
            assert await asyncio.to_thread(main, line) == 0
        for kind in ("retried", "paused", "resumed"):
            found = await last(rt, run, kind)
            assert found.data == {"by": "ana", "via": "command line"}
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["show", run.id, "--at", sqlite_url]) == 0
        assert "retried by ana (command line)" in capsys.readouterr().out
