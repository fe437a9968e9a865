"""A reader of a stream has the same text whether or not the processes that produced it were killed:
nothing is lost, nothing is there twice, and the numbers have no gap.

    killed                          leaves                              decided by
    chunk in memory                 nothing; no reader was given it     the commit of its row
    row on disk, checkpoint not     chunks behind the mark: void        `begin_stream`
    in a row of several steps       a row that is void in part          the mark in the row
    checkpoint on disk              every chunk of its nodes, too       the order of the queue
    a parallel node has finished    its chunks, given again             its task's writes
    while it begins again           the row with what is given again    one row: all or nothing
"""

from __future__ import annotations

import asyncio

import pytest

import perdure
from perdure.commands.streams import chunks_after
from tests.contract.test_stream_workers_crash import Workers, listen
from tests.support.fork_server import ForkServer
from tests.support.raw import execute
from tests.support.stream_child import COUNT_MODES, COUNTED, Listener, counted
from tests.support.sweep import examples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

EVERY = 10
"""Chunks between two kills."""


async def test_a_reader_has_every_step_once_though_transactions_take_several(
    fork_server: ForkServer, url: str
) -> None:
    workers, all_once = Workers(fork_server, url), [*range(1, COUNTED + 1)]
    cut = 0
    async with perdure.Client(url) as client:
        try:
            for _ in range(examples(30, 2)):
                options = {"recursion_limit": 100}
                run = await client.start("count", {"n": 0}, stream=COUNT_MODES, config=options)
                heard, next_kill = Listener(), EVERY
                other = asyncio.create_task(listen(client, run.id))
                async for chunk in client.stream(run.id):
                    heard.hear(chunk)
                    if len(heard.chunks) >= next_kill:
                        next_kill += EVERY
                        await workers.kill()
                later = await listen(client, run.id)
                for reader in (heard, await other, later):
                    found = counted(reader.chunks)
                    assert found == {
                        "values": [0, *all_once],
                        "updates": all_once,
                        "tasks": all_once,
                        "custom": all_once,
                    }
                rows = (await client.journal.ado(chunks_after(run.thread_id, run.id, 0, 0))).rows
                cut += sum(row.void_from is not None for row in rows)
                await _check_numbers(client, run)
        finally:
            await workers.stop()
        assert workers.killed > 5
        if not client.journal.capabilities.bounded:
            assert cut, "no row was void in part"


async def _check_numbers(client: perdure.Client, run: perdure.Run) -> None:
    rows = execute(
        client.url, "SELECT n, last FROM perdure_stream WHERE run_id = ? ORDER BY n", run.id
    )
    assert [n for n, _ in rows] == [1, *(last + 1 for _, last in rows[:-1])]
