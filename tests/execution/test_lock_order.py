"""On PostgreSQL the end of a child and its parent's batches lock the rows of both.

    the end of a child            end_segment locks the child, lock_joiners then those that join it
    the cancelling of its parent  stop_run locks the parent, stop_descendants then its children: a
                                  deadlock. PostgreSQL undoes one of the batches, and
                                  `postgres._commit` sends it again
    a join that is asked again    insert_join locks the child before anything locks the parent
    a join that is asked          the end of the child does not see the wait, and locks no parent

Any run may join any other, so there is no one order. On SQLite there is one writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.types import State
from tests.contract.test_children import children, nap
from tests.execution.test_children import HOUR
from tests.support.agents import Log, chain, driven, opened
from tests.support.polling import auntil

WAITING = """SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'"""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
STOP_AT_END = """
CREATE FUNCTION stop_at_end() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END';
CREATE TRIGGER stop_at_end BEFORE INSERT ON perdure_events FOR EACH ROW
WHEN (NEW.kind = 'done' AND NEW.run_id = '{child}') EXECUTE FUNCTION stop_at_end()"""


class Server:
    """A connection past perdure, which keeps the end of a child in the middle of its batch."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: str) -> list[Any]:
        cursor = self._connection.execute(sql)
        return cursor.fetchall() if cursor.description else []

    async def until_waiting(self, count: int) -> None:
        await auntil(lambda: self.execute(WAITING)[0][0] == count, f"{count} locks")


@contextmanager
def stopping_at_end(url: str, child: str) -> Iterator[Server]:
    with psycopg.connect(url, autocommit=True) as connection:
        server = Server(connection)
        server.execute(STOP_AT_END.format(child=child))
        server.execute("SELECT pg_advisory_lock(7)")
        yield server


def family(rt: perdure.Runtime) -> Any:
    """A parent that starts a child, then joins it and asks a person, both in one step."""

    async def starts(state: Log) -> Log:
        return {"log": [(await rt.start("child", {})).id]}

    def joins(state: Log) -> Log:
        return {"log": [perdure.join(state["log"][0])["log"]]}

    def asks(state: Log) -> Log:
        return {"log": [perdure.ask("ok?")]}

    builder = StateGraph(Log)
    for node in (starts, joins, asks):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "starts")
    builder.add_edge("starts", "joins")
    builder.add_edge("starts", "asks")
    return builder


@pytest.mark.parametrize("what", ["cancelled", "driven"])
async def test_a_parent_and_its_child_that_ends_meanwhile_both_come_to_the_right_end(
    postgres_url: str, what: str
) -> None:
    async with opened(postgres_url) as rt, opened(postgres_url, rt.clock) as other:
        other.register(chain(nap), name="child")
        rt.register(chain(nap), name="child")
        run = await driven(rt, family(rt), {"log": []}, name="parent")
        [child] = await children(rt, run)
        with stopping_at_end(postgres_url, child.id) as server:
            rt.clock.advance(HOUR)
            ending = asyncio.create_task(other.tick(limit=1))  # it has only the child's graph
            await server.until_waiting(1)
            if what == "cancelled":
                changing: Any = asyncio.create_task(rt.cancel(run.id))
            else:
                [wait] = await rt.waits(kind="human")
                await rt.answer(wait.id, "ok")
                changing = asyncio.create_task(rt.tick())
            await server.until_waiting(2)
            server.execute("SELECT pg_advisory_unlock(7)")
            await asyncio.gather(ending, changing)
            if what == "cancelled":
                await auntil(lambda: server.execute(DEADLOCKS)[0][0] >= 1, "a deadlock")
        await rt.tick()
        [child], run = await children(rt, run), await rt.get(run.id)
        assert child.state is State.DONE
        if what == "cancelled":
            assert run.state is State.CANCELLED
        else:
            assert (run.state, run.output["log"][1:]) == (State.DONE, ["ok", ["worked"]])
