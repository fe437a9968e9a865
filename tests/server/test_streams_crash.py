"""A client of a stream over HTTP gets the same text whether or not the server and the worker were
killed: no event is lost or repeated. A slow reader does not slow the run.

    killed      the client                                      decided by
    worker      keeps its connection, learns what is void       `begin_stream`
    server      reconnects to the next with `Last-Event-ID`     the ids are those of stored chunks

`perdure serve --no-worker` and a worker run in processes of their own, on SQLite and PostgreSQL.
The clients are langgraph-sdk, which reconnects by itself, and a plain reader that never gives up.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.databases import DATABASES
from tests.support.fork_server import ForkServer
from tests.support.killed_server import Killer, running
from tests.support.polling import auntil
from tests.support.postgres_journals import Journals
from tests.support.stream_child import expected
from tests.support.sweep import examples
from tests.support.wire_listener import MessageListener, WireListener, come_back, read_all

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


async def test_many_clients_read_at_once_through_the_kills(
    fork_server: ForkServer, new_journal: NewJournal, tmp_path: Path
) -> None:
    many, chunks = examples(50, 10), 0
    async with running(fork_server, new_journal(), tmp_path) as (pair, http):
        for n in range(examples(5, 1)):
            await auntil(lambda: pair.is_up(http), "the next server")
            thread, killer = str(uuid4()), Killer(pair, first=n % 2)
            body = {"assistant_id": "story", "input": hello(), **ASKED}
            run = (await http.post(f"/threads/{thread}/runs", json=body)).json()["run_id"]
            path = f"/threads/{thread}/runs/{run}/stream"
            in_full = asyncio.create_task(_read_messages(http, path))
            readers = await asyncio.gather(
                read_and_kill(http, path, killer),
                *(_reader(http, path, number) for number in range(2, many)),
            )
            later = await read_all(http, path)
            check(readers, later)
            texts = {name: words for name, words in expected().items() if name.isupper()}
            assert (await in_full).said() == (await _read_messages(http, path)).said() == texts
            chunks += sum(one.count for one in readers)
        assert "socket.send() raised" not in pair.log.read_text()  # who has left is sent no more
        print(f"\n{many} readers at once, killed {dict(pair.killed)}; {chunks} events")


async def _read_messages(http: httpx.AsyncClient, path: str) -> MessageListener:
    heard = MessageListener()
    async for _ in come_back(http, f"{path}?stream_mode=messages", heard):
        pass
    return heard


async def _reader(http: httpx.AsyncClient, path: str, number: int) -> WireListener:
    """One that stays, one that leaves after every seventh event, one that is slow, one that is
    late."""
    kind = number % 4
    await asyncio.sleep(number / 50 if kind == 3 else 0)
    leave_after, pause = 7 if kind == 1 else 0, 0.03 if kind == 2 else 0.0
    return await read_all(http, path, leave_after=leave_after, pause=pause)
