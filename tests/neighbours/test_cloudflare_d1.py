"""What the public D1 saver does where perdure's does otherwise, each on a real D1 in workerd.

The public saver is `langgraph-checkpoint-cloudflare-d1`. It speaks to the account's REST API, here
to one of that shape on loopback; perdure goes through its Worker. A scenario is written once, and
runs there and here, with LangGraph's blocking methods and with its coroutines.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypedDict
from uuid import uuid4

import httpx
import pytest
import requests
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph_checkpoint_cloudflare_d1 import AsyncCloudflareD1Saver, CloudflareD1Saver

import perdure
from perdure.errors import WriteLost
from perdure.testing.d1 import Workerd, local_d1

pytestmark = [pytest.mark.slow, pytest.mark.d1, pytest.mark.d1_sample]

THERE, HERE, REFUSES_THERE, REFUSES_HERE = range(4)
"""Databases of the server. Two of them refuse every checkpoint."""

BIG = random.Random(7).randbytes(3_000_000)


class State(TypedDict, total=False):
    picture: bytes
    draft: str | None
    cleared: bool
    answer: str


@dataclass
class Agent:
    """Two nodes side by side. The second one fails the first time, so that a run is resumed."""

    returned: dict[str, Any]
    calls: list[str] = field(default_factory=list)

    def first(self, state: State) -> dict[str, Any]:
        self.calls.append("first")
        return self.returned

    def second(self, state: State) -> dict[str, Any]:
        self.calls.append("second")
        if self.calls.count("second") == 1:
            raise ConnectionError("the model is overloaded")
        return {"answer": "yes"}


@dataclass
class Side:
    """A saver, and LangGraph on it by blocking calls or by coroutines."""

    saver: BaseCheckpointSaver[Any]
    runner: asyncio.Runner | None

    def graph(self, agent: Agent, *, siblings: bool = True) -> Graph:
        builder = StateGraph(State)
        builder.add_node("first", agent.first)
        builder.add_edge(START, "first")
        if siblings:
            builder.add_node("second", agent.second)
            builder.add_edge(START, "second")
        return Graph(builder.compile(checkpointer=self.saver), self)

    def list(self, thread: str, **filter: Any) -> list[CheckpointTuple]:
        if self.runner is None:
            return list(self.saver.list(_on(thread), filter=filter))
        return self.runner.run(_all(self.saver.alist(_on(thread), filter=filter)))

    def close(self) -> None:
        assert isinstance(self.saver, perdure.Saver)
        self.saver.close()


@dataclass
class Graph:
    compiled: CompiledStateGraph[Any, Any, Any, Any]
    side: Side
    thread: str = field(default_factory=lambda: uuid4().hex)

    def run(self, given: dict[str, Any] | None) -> Any:
        # One node after the other: the first one is done when the second one fails.
        config: RunnableConfig = {**_on(self.thread), "max_concurrency": 1}
        if self.side.runner is None:
            return self.compiled.invoke(given, config)
        return self.side.runner.run(self.compiled.ainvoke(given, config))

    def state(self) -> Any:
        if self.side.runner is None:
            return self.compiled.get_state(_on(self.thread)).values
        return self.side.runner.run(self.compiled.aget_state(_on(self.thread))).values

    def fail_then_resume(self, given: dict[str, Any]) -> Any:
        with pytest.raises(ConnectionError, match="overloaded"):
            self.run(given)
        return self.run(None)


def _on(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


async def _all(found: AsyncIterator[CheckpointTuple]) -> list[CheckpointTuple]:
    return [one async for one in found]


@pytest.fixture(scope="module")
def server() -> Iterator[Workerd]:
    with local_d1(databases=4) as server:
        yield server


@pytest.fixture(params=["blocking", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    if request.param == "blocking":
        yield None
    else:
        with asyncio.Runner() as runner:
            yield runner


Open = Callable[[int], Side]


@pytest.fixture
def there(
    server: Workerd, runner: asyncio.Runner | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """The public saver on a database. Only its address is another, and it retries at once."""
    clients: list[httpx.AsyncClient] = []

    async def at_once(seconds: float) -> None: ...

    monkeypatch.setattr(CloudflareD1Saver._execute_query.retry, "sleep", lambda seconds: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(AsyncCloudflareD1Saver._execute_query.retry, "sleep", at_once)  # type: ignore[attr-defined]

    def opened(database: int) -> Side:
        named = ("A", f"DB{database}", server.secret)
        saver: CloudflareD1Saver | AsyncCloudflareD1Saver
        if runner is None:
            saver = CloudflareD1Saver(*named)
        else:
            saver = runner.run(_made(lambda: AsyncCloudflareD1Saver(*named)))
            clients.append(saver.client)
        saver.base_url = saver.base_url.replace(
            "https://api.cloudflare.com", f"http://127.0.0.1:{server.port}"
        )
        return Side(saver, runner)

    yield opened
    for client in clients:
        assert runner is not None
        runner.run(client.aclose())


@pytest.fixture
def here(server: Workerd, runner: asyncio.Runner | None) -> Iterator[Open]:
    """perdure's saver on a database."""
    savers: list[perdure.Saver] = []

    def opened(database: int) -> Side:
        savers.append(perdure.Saver(server.url(database)))
        return Side(savers[-1], runner)

    yield opened
    for saver in savers:
        saver.close()


async def _made(make: Callable[[], AsyncCloudflareD1Saver]) -> AsyncCloudflareD1Saver:
    return make()


# A state of 3 MB. A row of D1 has at most 2 MB.


def three_megabytes(side: Side) -> Graph:
    graph = side.graph(Agent({"picture": BIG}), siblings=False)
    assert graph.run({"draft": "old"})["picture"] == BIG
    return graph


def test_there_a_state_of_3_mb_is_lost_without_an_error(there: Open) -> None:
    assert three_megabytes(there(THERE)).state() == {"draft": "old"}


def test_here_a_state_of_3_mb_is_stored(here: Open) -> None:
    graph = three_megabytes(here(HERE))
    again = here(HERE).graph(Agent({}), siblings=False)  # another saver, which remembers nothing
    again.thread = graph.thread
    assert again.state() == {"draft": "old", "picture": BIG}


# A database that refuses writes.


def refuse_writes(server: Workerd, database: int, table: str) -> None:
    reply = httpx.post(
        f"http://127.0.0.1:{server.port}/client/v4/accounts/A/d1/database/DB{database}/query",
        headers={"Authorization": f"Bearer {server.secret}"},
        json={
            "sql": f"CREATE TRIGGER IF NOT EXISTS refusal BEFORE INSERT ON {table} "
            "BEGIN SELECT RAISE(ABORT, 'no more writes'); END"
        },
    )
    assert reply.json()["success"], reply.text


def test_there_a_run_ends_well_though_none_of_it_could_be_stored(
    server: Workerd, there: Open
) -> None:
    side = there(REFUSES_THERE)
    assert side.list("nobody") == []  # makes its tables
    refuse_writes(server, REFUSES_THERE, "checkpoints")
    graph = side.graph(Agent({"cleared": True}), siblings=False)
    assert graph.run({"draft": "old"}) == {"draft": "old", "cleared": True}
    assert graph.state() == {}


def test_here_a_run_whose_checkpoints_cannot_be_stored_fails(server: Workerd, here: Open) -> None:
    side = here(REFUSES_HERE)
    assert side.list("nobody") == []
    refuse_writes(server, REFUSES_HERE, "perdure_checkpoints")
    graph = side.graph(Agent({"cleared": True}), siblings=False)
    with pytest.raises(perdure.Error, match="no more writes"):
        graph.run({"draft": "old"})
    with suppress(WriteLost):  # of what was queued before the run failed
        side.close()


# Bytes beside a sibling that failed.


def resumed_threads(side: Side) -> Iterator[str]:
    """What comes of one thread after the other: "done", or an error."""
    while True:
        graph = side.graph(agent := Agent({"picture": b"\x89PNG"}))
        try:
            state = graph.fail_then_resume({"draft": "old"})
        except TypeError as error:
            yield str(error)
        else:
            assert state == {"draft": "old", "picture": b"\x89PNG", "answer": "yes"}
            assert agent.calls.count("first") == 1
            yield "done"


def test_there_bytes_beside_a_failed_sibling_make_threads_unreadable(there: Open) -> None:
    """A checkpoint is decoded by the type of its last write. Which write is last is chance."""
    outcomes = islice(resumed_threads(there(THERE)), 32)
    assert "byte indices must be integers or slices, not str" in outcomes


def test_here_bytes_beside_a_failed_sibling_are_kept(here: Open) -> None:
    assert set(islice(resumed_threads(here(HERE)), 4)) == {"done"}


# None beside a sibling that failed.


def clear_a_draft(side: Side) -> Any:
    agent = Agent({"draft": None, "cleared": True})
    return side.graph(agent).fail_then_resume({"draft": "not to be sent"})


def test_there_none_beside_a_failed_sibling_is_not_written(there: Open) -> None:
    left = clear_a_draft(there(THERE))
    assert left == {"draft": "not to be sent", "cleared": True, "answer": "yes"}


def test_here_none_beside_a_failed_sibling_is_written(here: Open) -> None:
    assert clear_a_draft(here(HERE)) == {"draft": None, "cleared": True, "answer": "yes"}


def calls_of_a_node_that_writes_only_none(side: Side) -> int | str:
    """How often it is called in a run that is resumed, or why the thread is unreadable."""
    graph = side.graph(agent := Agent({"draft": None}))
    try:
        graph.fail_then_resume({"draft": "old"})
    except TypeError as error:
        return str(error)
    return agent.calls.count("first")


def test_there_a_node_that_wrote_only_none_is_called_again_or_breaks_its_thread(
    there: Open,
) -> None:
    """It breaks the thread if its write is the last one, which is chance."""
    found = calls_of_a_node_that_writes_only_none(there(THERE))
    assert found in (2, "'NoneType' object is not subscriptable")


def test_here_a_node_that_wrote_only_none_is_called_once(here: Open) -> None:
    assert calls_of_a_node_that_writes_only_none(here(HERE)) == 1


# The history of a thread, and filters of it.


def two_tenants(side: Side) -> tuple[str, str]:
    threads = [side.graph(Agent({"cleared": True}), siblings=False) for _ in range(2)]
    for thread in threads:
        thread.run({"draft": "private"})
    return threads[0].thread, threads[1].thread


OF_ANOTHER = "x') IS NULL AND 0 OR thread_id = ? --"
"""The name of a field of the metadata, as an attacker would have it."""


@pytest.mark.parametrize("runner", ["async"], indirect=True)
def test_there_checkpoints_of_an_ordinary_thread_are_listed_as_none(there: Open) -> None:
    """By the asynchronous saver only, by which LangGraph then cannot show the thread's history."""
    mine, _ = two_tenants(side := there(THERE))
    assert None in [one.checkpoint for one in side.list(mine)]


def test_here_every_checkpoint_of_a_thread_is_listed(here: Open) -> None:
    mine, _ = two_tenants(side := here(HERE))
    drafts = [one.checkpoint["channel_values"].get("draft") for one in side.list(mine)]
    assert drafts == ["private", "private", None]


def test_there_no_filter_by_metadata_works(there: Open) -> None:
    mine, _ = two_tenants(side := there(THERE))
    with pytest.raises((requests.HTTPError, httpx.HTTPStatusError)) as refusal:
        side.list(mine, source="input")
    reply = getattr(refusal.value, "response", None)
    assert reply is not None
    assert "malformed JSON" in reply.text


def test_here_a_filter_by_metadata_finds_its_checkpoints(here: Open) -> None:
    mine, _ = two_tenants(side := here(HERE))
    [found] = side.list(mine, source="input")
    assert (found.metadata["source"], found.config["configurable"]["thread_id"]) == ("input", mine)


def test_there_a_filters_key_is_sql_that_reads_anothers_thread(there: Open) -> None:
    mine, others = two_tenants(side := there(THERE))
    found = side.list(mine, **{OF_ANOTHER: others})
    assert {one.config["configurable"]["thread_id"] for one in found} == {others}
    assert "'draft': 'private'" in str([one.checkpoint for one in found])


def test_here_a_filters_key_is_a_name_and_finds_nothing(here: Open) -> None:
    mine, others = two_tenants(side := here(HERE))
    assert side.list(mine, **{OF_ANOTHER: others}) == []
