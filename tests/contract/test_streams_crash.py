"""Readers of streams whose workers and servers are killed."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.contract.killed_server import Killer, Pair, running
from tests.contract.wire_listener import WireListener, come_back, read_all
from tests.support.databases import DATABASES, Journals
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil
from tests.support.stream_child import expected
from tests.support.sweep import examples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


MODES: Any = ["custom", "messages-tuple", "values"]


ASKED: Any = {"stream_mode": MODES, "stream_subgraphs": True, "if_not_exists": "create"}


NewJournal = Callable[[], str]


@pytest.fixture(params=DATABASES[:2])
def new_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewJournal]:
    """Makes journals."""
    if request.param == "sqlite":
        template, names = request.getfixturevalue("sqlite_template"), itertools.count()

        def copy() -> str:
            return f"sqlite:///{shutil.copy(template, tmp_path / f'{next(names)}.db')}"

        yield copy
        return
    journals: Journals = request.getfixturevalue("postgres_journals")
    made: list[str] = []

    def take() -> str:
        made.append(journals.take())
        return made[-1]

    yield take
    for url in made:
        journals.give_back(url)


def hello(text: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def stream_by_sdk(
    client: LangGraphClient, thread: str, begun: asyncio.Future[str], killer: Killer | None
) -> WireListener:
    """A new run through the SDK, which comes back by itself after a cut."""
    heard = WireListener()
    async for part in client.runs.stream(thread, "story", input=hello(), **ASKED):
        heard.hear(part.event, part.data, part.id)
        if not begun.done():
            begun.set_result(part.data["run_id"])
        if killer is not None:
            await killer.look(heard)
    return heard


async def join_by_sdk(client: LangGraphClient, thread: str, run: str) -> WireListener:
    """A run through the SDK's `join_stream`, called again where the SDK gives up: if the server is
    not there when it is called."""
    heard = WireListener()
    while not heard.is_over:
        parts = client.runs.join_stream(thread, run, last_event_id=heard.last_event_id)
        try:
            async for part in parts:
                heard.hear(part.event, part.data, part.id)
        except httpx.TransportError:
            await asyncio.sleep(0.1)
    return heard


async def read_and_kill(http: httpx.AsyncClient, path: str, killer: Killer | None) -> WireListener:
    heard = WireListener()
    async with aclosing(come_back(http, path, heard)) as events:
        async for _ in events:
            if killer is not None:
                await killer.look(heard)
    return heard


def check(readers: Sequence[WireListener], later: WireListener, states: Any = None) -> None:
    """Each reader has the whole text, and exactly the events that one has who comes afterwards."""
    assert later.said() == expected()
    for heard in readers:
        assert heard.said() == expected()
        lost = [one for one in later.events if one not in heard.events]
        twice = [one for one in heard.events if one not in later.events]
        assert (lost, twice) == ([], [])
        assert heard.events == later.events
        assert states is None or heard.states() == states


async def test_clients_get_every_word_once_though_every_tenth_kills_the_server_or_the_worker(
    fork_server: ForkServer, new_journal: NewJournal, tmp_path: Path
) -> None:
    lanes, rounds = examples(4, 1), examples(25, 2)
    pairs = [running(fork_server, new_journal(), tmp_path) for _ in range(lanes)]
    tallies = await asyncio.gather(*(_rounds(pair, rounds) for pair in pairs))
    total = sum(tallies, Counter[str]())
    print(f"\n{lanes * rounds} rounds, 0 events lost, 0 twice: {dict(total)}")
    assert total["serve"] == total["work"] == lanes * rounds * 4
    assert total["void"] > 0


async def _rounds(
    opened: AbstractAsyncContextManager[tuple[Pair, httpx.AsyncClient]], rounds: int
) -> Counter[str]:
    """Many runs, one after the other. In every other one the SDK's client says when to kill, else a
    plain reader that is back at once."""
    tally: Counter[str] = Counter()
    async with opened as (pair, http), get_client(url=pair.base, api_key=None) as client:
        pair.leash.set(1000)
        states = await _faultless_states(client)
        for n in range(rounds):
            await auntil(lambda: pair.is_up(http), "the next server")
            thread, killer = str(uuid4()), Killer(pair, first=n // 2 % 2)
            begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            by_sdk = asyncio.create_task(
                stream_by_sdk(client, thread, begun, killer if n % 2 else None)
            )
            futures: list[asyncio.Future[Any]] = [by_sdk, begun]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            path = f"/threads/{thread}/runs/{begun.result()}/stream"
            readers = await asyncio.gather(
                by_sdk,
                join_by_sdk(client, thread, begun.result()),
                read_and_kill(http, path, None if n % 2 else killer),
            )
            check(readers, await read_all(http, path), states)
            tally["events"] += sum(one.count for one in readers)
            tally["void"] += sum(one.count - one.segments - len(one.events) for one in readers)
            tally["words"] += sum(len(one.words()) for one in readers)
        return tally + pair.killed


async def _faultless_states(client: LangGraphClient) -> list[tuple[str, list[str]]]:
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    heard = await stream_by_sdk(client, str(uuid4()), begun, None)
    assert heard.said() == expected()
    assert heard.segments == 0
    return heard.states()


@pytest.mark.parametrize("one", [False, True], ids=["worker elsewhere", "worker in the server"])
async def test_a_sleeping_reader_slows_no_run_and_then_gets_everything(
    fork_server: ForkServer, new_journal: NewJournal, tmp_path: Path, one: bool
) -> None:
    pieces, sleep = examples(4000, 1500), examples(60, 2)
    async with running(fork_server, new_journal(), tmp_path, one=one) as (pair, http):
        thread, heard = str(uuid4()), WireListener()
        body = {"assistant_id": "flood", "input": hello(str(pieces)), **ASKED}
        run = (await http.post(f"/threads/{thread}/runs", json=body)).json()["run_id"]
        path = f"/threads/{thread}/runs/{run}"

        async def has_ended() -> bool:
            return bool((await http.get(path)).json()["status"] == "success")

        async with aclosing(come_back(http, f"{path}/stream", heard)) as events:
            async for event in events:
                if event.name == "custom":
                    break
            began = time.monotonic()
            await auntil(has_ended, "the end of the run", seconds=max(sleep, 60))
            took = time.monotonic() - began
            await asyncio.sleep(sleep - took)
            if not one:
                await pair.kill("serve")  # what it had not sent is gone
            async for _ in events:
                pass
        numbers = [event.data["n"] for event in heard.events if event.mode == "custom"]
        assert numbers == list(range(pieces))
        assert heard.segments == 0
