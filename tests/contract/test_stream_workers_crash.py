"""A reader shows each word once, whichever worker is killed."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import pytest

import perdure
from tests.support.fork_server import Child, ForkServer
from tests.support.raw import execute
from tests.support.stream_child import MODES, Listener, expected
from tests.support.sweep import examples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


EVERY = 10
"""Chunks between two kills."""


class Workers:
    """The one worker of a journal, replaced whenever it is killed."""

    def __init__(self, server: ForkServer, url: str) -> None:
        self._server, self._url = server, url
        self.killed = 0
        self._child = self._new()

    def _new(self) -> Child:
        return self._server.start("stream_child:work", url=self._url)

    async def kill(self) -> None:
        self.killed += 1
        self._child.send(signal.SIGKILL)
        await asyncio.to_thread(self._child.wait)
        self._child = self._new()

    async def stop(self) -> None:
        self._child.send(signal.SIGKILL)
        await asyncio.to_thread(self._child.wait)


async def listen(client: perdure.Client, run_id: str, *, pause: float = 0.0) -> Listener:
    """A reader that is cut off again and again, and goes on from the last number it saw."""
    heard = Listener()
    while True:
        count = 0
        async for chunk in client.stream(run_id, after=heard.seen):
            heard.hear(chunk)
            count += 1
            if count == 7:
                break
        else:
            return heard
        await asyncio.sleep(pause)


async def test_a_reader_has_every_word_once_though_every_tenth_chunk_kills_the_worker(
    fork_server: ForkServer, url: str
) -> None:
    workers = Workers(fork_server, url)
    async with perdure.Client(url) as client:
        try:
            for _ in range(examples(100, 2)):
                run = await client.start("story", {"messages": []}, stream=MODES)
                heard, next_kill = Listener(), EVERY
                others = [asyncio.create_task(listen(client, run.id)) for _ in range(3)]
                async for chunk in client.stream(run.id):
                    heard.hear(chunk)
                    if len(heard.chunks) >= next_kill:
                        next_kill += EVERY
                        await workers.kill()
                assert (await client.join(run.id, timeout=timedelta(minutes=1))).state == "done"
                assert heard.said() == expected()
                for other in await asyncio.gather(*others):
                    assert other.said() == expected()
                later = await listen(client, run.id)
                assert later.said() == expected()
                assert later.segments <= heard.segments  # one that is void itself is left out
                await _check_numbers(url, run)
        finally:
            await workers.stop()
        assert workers.killed > 5


async def _check_numbers(url: str, run: perdure.Run) -> None:
    rows = execute(url, "SELECT n, last FROM perdure_stream WHERE run_id = ? ORDER BY n", run.id)
    assert [n for n, _ in rows] == [1, *(last + 1 for _, last in rows[:-1])]
