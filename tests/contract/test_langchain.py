"""The tools and models of LangChain agents under Durable."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool

from perdure.langchain import Durable
from perdure.types import Run, State
from tests.support.effects import Cut
from tests.support.fork_server import ForkServer
from tests.support.langchain_child import AGENTS, Ledger, Script, calls, says
from tests.support.sqlite_only import url as url
from tests.support.waiters import drive, healthy


def mailer() -> Script:
    """A model that sends one mail."""
    return Script(answers=[calls(("send", {"to": "ann"}, "c1")), says("it is sent")])


@pytest.mark.parametrize("said", [None, "idempotentHint", "readOnlyHint"])
async def test_a_call_that_was_cut_off_holds_the_run_unless_the_tool_says_it_is_safe(
    said: str | None,
) -> None:
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        if len(sent) == 1:
            raise Cut
        return f"sent to {to}"

    send.metadata = {said: True} if said else None
    async with healthy() as rt:
        rt.register(create_agent(mailer(), [send], middleware=[Durable()]), name="agent")
        await rt.start("agent", {"messages": [("human", "mail ann")]})
        for _ in range(3):
            await rt.tick()
            rt.clock.advance(timedelta(minutes=1))
        [run] = await rt.runs()
        assert run.state is (State.DONE if said else State.HELD)
        assert len(sent) == (2 if said else 1)


Killed = Callable[[str, str, Path, str], None]


@pytest.fixture
def killed(fork_server: ForkServer) -> Killed:
    """Has a process drive an agent, and die at a point."""

    def kill(agent: str, url: str, ledger: Path, point: str) -> None:
        order: dict[str, Any] = {"agent": agent, "url": url, "ledger": str(ledger), "point": point}
        assert fork_server.run("langchain_child:run", **order).status == -9

    return kill


async def taken_over(agent: str, url: str, ledger: Path) -> tuple[Run, list[str]]:
    """What becomes of the run of a process that died, and what happened in the world."""
    async with healthy(url) as rt:
        rt.register(AGENTS[agent](str(ledger)), name="agent")
        rt.clock.advance(timedelta(days=1))
        await drive(rt)
        [run] = await rt.runs()
        found = await rt.get(run.id)
    return found, sorted(Ledger(ledger).lines())


@pytest.mark.slow
async def test_a_process_killed_after_a_model_call_is_recorded_pays_for_it_once(
    killed: Killed, url: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    killed("plain", url, ledger, "after model")
    run, lines = await taken_over("plain", url, ledger)
    assert run.state is State.DONE, (run.reason, run.error)
    assert [line.split()[0:2] for line in lines] == [
        ["model", "0"],
        ["model", "1"],
        ["send", "ann"],
        ["wire", "bob"],
    ]
    assert run.saved["model_calls"] == 1
