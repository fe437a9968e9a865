"""What others wrote, in what we log and print: it forges no line, and controls no terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from tests.support import hostile_journal
from tests.support.cli_process import CliProcess
from tests.support.commands import main
from tests.support.fork_server import ForkServer

FORGED = "2026-11-18 12:00:00,000 perdure run 42 is done"
"""A line as we log it."""
CONTROLS = "\r\x08\x1b[2J\x1b]0;title\x07\x7f\x85\x9b31m\u2028\u2029\u200e\u202e\u2066\u2069\ufeff"
"""Clears the screen, sets its title, begins lines, changes the order in which a line is read."""
HOSTILE = f"bad{CONTROLS}\n{FORGED}\r\n{FORGED}\x0b{FORGED}\x0c{FORGED}"


def check(text: str, what: str) -> None:
    """Fail for a character that controls something, and for a line that begins as the text of
    somebody else says."""
    wrong = sorted({char for char in text if char != "\n" and not char.isprintable()})
    assert not wrong, f"{what}: {wrong} in {text!r}"
    for line in text.split("\n"):
        assert not line.startswith(FORGED), f"{what}: {text!r}"


# -- what commands print


async def test_no_text_in_a_journal_controls_the_terminal_of_who_lists_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hostile_journal, "PAYLOADS", [HOSTILE])
    monkeypatch.setenv("COLUMNS", "400")
    rt = perdure.Runtime(sqlite_url)
    async with rt:
        await hostile_journal.fill(rt, range(1))
        runs = [run.id for run in await rt.runs(limit=100)]
    await asyncio.to_thread(main, ["evals", "list", "--json", "--at", sqlite_url])
    names = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    commands = [
        *(["runs"], ["inbox"], ["effects", "--state", "unknown"], ["effects", "--state", "done"]),
        *(["effects", "--state", "failed"], ["workers"], ["schedules"], ["doctor"]),
        *(["reflections"], ["evals", "list"], ["export"], ["tokens", "list"]),
        *(["export", "--what", "runs"], ["runs", "--json"], ["inbox", "--json"]),
        *(["workers", "--json"], ["effects", "--json"]),
        *(
            ["cancel", "--thread", HOSTILE, "--dry-run"],
            ["retry", "--state", "failed", "--dry-run"],
        ),
        *(["show", run] for run in runs),
        *(["show", run, "--events"] for run in runs),
        *(["evals", "show", name] for name in names),
        *(
            ["show", HOSTILE],
            ["answer", HOSTILE, "1"],
            ["drain", HOSTILE],
            ["settle", HOSTILE, "retry"],
        ),
        *(["nothing", HOSTILE], ["runs", "--limit", HOSTILE], ["signal", HOSTILE, HOSTILE]),
    ]
    printed = 0
    for command in commands:
        await asyncio.to_thread(main, [*command, "--at", sqlite_url])
        out, err = capsys.readouterr()
        printed += len(out)
        check(out + err, " ".join(command[:2]))
        if "--json" in command or "export" in command:
            for line in out.splitlines():
                json.loads(line)
    assert printed > 20_000  # the texts are there


# -- what is logged

AGENTS = f"""
import logging, sys, threading, warnings
from typing import TypedDict
import perdure
from langgraph.graph import START, StateGraph
from perdure.types import Retry

HOSTILE = {HOSTILE!r}

class Strange(Exception):
    def __repr__(self):
        return HOSTILE

class Dying:
    def __repr__(self):
        return HOSTILE
    def __del__(self):
        raise Strange(HOSTILE)

class State(TypedDict, total=False):
    x: int

def fail(state):
    logging.getLogger("app").warning("logged: %s", HOSTILE)
    try:
        raise ValueError(HOSTILE) from Strange(HOSTILE)
    except ValueError:
        logging.getLogger(HOSTILE).exception(HOSTILE)
    def crash():
        raise Strange(HOSTILE)
    thread = threading.Thread(target=crash, name=HOSTILE)
    thread.start()
    thread.join()
    warnings.warn(HOSTILE)
    Dying()
    raise Strange(HOSTILE)

rt = perdure.Runtime()
builder = StateGraph(State).add_node("fail", fail).add_edge(START, "fail")
rt.register(builder, name="agent" + HOSTILE[:40].replace("|", ""), retry=Retry(attempts=1))
"""
BROKEN = f"raise RuntimeError({HOSTILE!r})\n"


@contextlib.contextmanager
def command(
    fork_server: ForkServer, folder: Path, url: str, *arguments: str
) -> Iterator[CliProcess]:
    running = CliProcess(fork_server, folder, *arguments, PERDURE_URL=url)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--log-json"]], ids=["text", "json"])
def test_nothing_that_is_logged_forges_a_line(
    fork_server: ForkServer, tmp_path: Path, sqlite_url: str, options: list[str]
) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    (tmp_path / "broken.py").write_text(BROKEN)
    name = "agent" + HOSTILE[:40]
    with perdure.Client(sqlite_url) as client:
        for thread in ("t", f"t {HOSTILE}"[:200]):
            client.blocking.start(name, {"x": 1}, thread_id=thread, tags=[HOSTILE[:60]])
    with command(fork_server, tmp_path, sqlite_url, "tick", "agents:rt", *options) as running:
        assert running.ends() == 0
        assert "bad" in running.text
        check(running.text, "tick")
    for line in running.text.splitlines() if options else ():
        if not line.startswith(("    | ", "Exception in thread", "Exception ignored")):
            assert line.startswith("{"), (line, running.text)
            assert isinstance(json.loads(line), dict), running.text
    for broken in (["tick", "broken:rt"], ["worker", "agents:rt", f"--{HOSTILE}"]):
        with command(fork_server, tmp_path, sqlite_url, *broken) as running:
            assert running.ends() == 2
            assert "bad" in running.text
            check(running.text, " ".join(broken))


@pytest.mark.slow
def test_no_request_forges_a_line_of_the_servers_log(
    fork_server: ForkServer, tmp_path: Path, sqlite_url: str
) -> None:
    (tmp_path / "agents.py").write_text("import perdure\nrt = perdure.Runtime()\n")
    arguments = ("serve", "agents:rt", "--port", "0", "--no-worker", "--access-log")
    with command(fork_server, tmp_path, sqlite_url, *arguments) as running:
        port = int(running.says(r"serving .* at http://127\.0\.0\.1:(\d+)"))
        for sent in (
            f"/%0a{FORGED.replace(' ', '%20')}%1b%5b2J%c2%9b%e2%80%ae HTTP/1.1\r\nHost: a",
            f"/threads/%0d%0a{FORGED.replace(' ', '+')} HTTP/1.1\r\nHost: \x1b[2J",
            "/last HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: \x1b[2J\x9b",
            "/last HTTP/1.1\r\nHost: a",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as there:
                there.sendall(f"GET {sent}\r\n\r\n".encode("latin-1"))
                there.recv(1000)
        running.says("GET /last")
        assert running.stop() == 0
        check(running.text, "serve")
        assert FORGED.split()[-1] in running.text
