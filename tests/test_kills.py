"""Agents survive being killed at a single I/O operation: a few of those `make kills` takes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.evidence import PAGE
from matrix.kills.__main__ import INTRO, MADE, fork_servers, kill, render
from matrix.kills.io_stops import Operation, is_supported, listen, supervise
from matrix.kills.judge import PostgresDatabases, Trial
from matrix.kills.process import ForkServer
from matrix.kills.scenarios import SCENARIOS
from perdure.testing.postgres import Server
from tests.support.written_pages import says

needs_stops = pytest.mark.skipif(not is_supported(), reason="needs seccomp's notifications")


@pytest.fixture(scope="module")
def slots() -> Iterator[list[list[ForkServer]]]:
    with fork_servers(jobs=1, hash_seeds=2) as servers:
        yield servers


@pytest.mark.slow
@needs_stops
@pytest.mark.postgres
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_agent_survives_kills_at_its_sends_and_receives(
    scenario: str, slots: list[list[ForkServer]], postgres_server: Server
) -> None:
    trials = kill(scenario, PostgresDatabases(postgres_server), 3, slots, "sample")
    assert not [str(trial) for trial in trials if trial.findings]


@needs_stops
def test_a_process_is_killed_before_the_chosen_operation(tmp_path: Path) -> None:
    file = tmp_path / "written"
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        out = os.open(file, os.O_CREAT | os.O_WRONLY)
        stops = listen(["write"])
        socket.send_fds(theirs, [b"."], [stops])
        os.close(stops)
        for _ in range(10):
            os.write(out, b"x")
        os._exit(0)
    theirs.close()
    with ours:
        _, [stops], _, _ = socket.recv_fds(ours, 1, 1)
    seen: list[Operation] = []

    def third(operation: Operation) -> bool:
        assert operation.target == str(file)
        seen.append(operation)
        return len(seen) == 3

    found = supervise(stops, pid, third, time.monotonic() + 30)
    os.close(stops)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert found == seen[-1]
    assert found.call == "write"
    assert file.read_bytes() == b"xx"


def test_the_page_says_what_was_found() -> None:
    good = Trial("orders", "SQLite", "1/1", kills=["journal 3: pwrite64 journal.db-wal"])
    bad = Trial("orders", "SQLite", "1/2", kills=["world 1: write world"], lost=["mail"])
    page = render([good, bad], "1", 60.0)
    assert "2 kills in 2 trials: 0 silent duplicates, 1 lost, 0 stranded" in page
    assert "| orders | SQLite | 2 | 2 | journal 1, world 1 | 0 | 1 | 0 | 0 |" in page


def test_the_committed_page_says_what_its_source_says() -> None:
    for part in (INTRO, MADE):
        assert says(PAGE.read_text(), part), part
