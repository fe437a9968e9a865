"""What perdure leaves in the log of a PostgreSQL server: no error while all is well, and no content
in that of a guard that refuses."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

import perdure
from perdure.testing.postgres import Server
from tests.support.agents import chain, driving, gate
from tests.support.polling import auntil

SECRET = "a-value-of-the-state"


@pytest.fixture
def logged(postgres_server: Server) -> Callable[[], str]:
    """What the server logged since the test began."""
    begin = len(postgres_server._log.read_text(errors="replace"))
    return lambda: postgres_server._log.read_text(errors="replace")[begin:]


@perdure.effect
def charge(amount: str) -> str:
    return amount


async def test_a_system_without_faults_leaves_no_error_in_the_servers_log(
    empty_postgres_url: str, logged: Callable[[], str]
) -> None:
    rt = perdure.Runtime(empty_postgres_url)
    rt.register(chain(("a", lambda state: {"log": [charge(SECRET)]})), name="paying")
    asking = chain(("ask", lambda state: {"value": perdure.ask("May it?")}))
    bound = rt.register(asking, name="asking")
    async with rt, driving(rt), driving(rt):
        for _ in range(3):
            await rt.join((await rt.start("paying", {}, key="once")).id)
        run = await rt.start("asking", {})
        await auntil(lambda: rt.waits(run_id=run.id))
        [wait] = await rt.waits(run_id=run.id)
        await rt.answer(wait.id, SECRET)
        await rt.join(run.id)
        await rt.cancel((await rt.start("asking", {})).id)
        await bound.ainvoke({}, {"configurable": {"thread_id": "t"}})
        await rt.cancel((await rt.start("paying", {}, thread_id="t")).id)
    assert "ERROR:" not in logged()


async def test_a_guard_that_refuses_leaves_no_content_in_the_servers_log(
    postgres_url: str, logged: Callable[[], str]
) -> None:
    rt = perdure.Runtime(postgres_url)
    with gate() as standing:
        rt.register(chain(("a", standing.wait), ("b", lambda state: {"value": SECRET})), name="g")
        async with rt, driving(rt):
            run = await rt.start("g", {"value": SECRET}, key="key-of-a-run")
            await standing.reached()
            with psycopg.connect(postgres_url, autocommit=True) as other:  # another worker has it
                other.execute("UPDATE perdure_runs SET token = token + 1")
            standing.open()
            await auntil(lambda: "perdure refuses this batch" in logged())
    for content in (SECRET, run.id, run.thread_id, "key-of-a-run", "Failing row"):
        assert content not in logged()
