"""A busy `perdure serve` that is told to stop: it drains, and its log is for people."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

import perdure
from perdure.testing.local_server import free_port
from perdure.types import State
from tests.support.polling import until

pytestmark = pytest.mark.slow

APP = """
import asyncio, perdure
from langgraph.graph import START, MessagesState, StateGraph


async def nap(state: MessagesState):
    await asyncio.sleep(600)


runtime = perdure.Runtime({url!r})
runtime.register(StateGraph(MessagesState).add_sequence([nap]).add_edge(START, "nap"), name="nap")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_busy_server_gives_its_runs_back_and_quotes_nobody(
    sqlite_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    """Streams are open, callers wait, and no step ends within the grace."""
    (tmp_path / "busy.py").write_text(APP.format(url=sqlite_url))
    port = free_port()
    command = [sys.executable, "-m", "perdure", "serve", "busy:runtime", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--grace", "1"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    base = f"http://127.0.0.1:{port}"
    body = {"assistant_id": "nap", "input": {"messages": ["a secret of Ada"]}}
    try:
        until(lambda: _is_up(base), "a server", seconds=60)
        run = httpx.post(f"{base}/runs", json=body).json()["run_id"]
        requests = [
            ("POST", "/runs/wait", body),
            ("POST", "/runs/wait", {**body, "on_disconnect": "cancel"}),
            ("POST", "/runs/stream", body),
            ("GET", f"/runs/{run}/join", None),
            ("GET", f"/runs/{run}/stream", None),
            ("GET", f"/perdure/runs/{run}/join?timeout=300", None),
            ("GET", f"/perdure/runs/{run}/events/stream", None),
            ("GET", "/perdure/events/stream", None),
        ]
        with ThreadPoolExecutor(len(requests)) as beside:
            asked = [beside.submit(_ask, base, *one) for one in requests]
            until(lambda: _running(base) == 4, "four driven runs", seconds=60)
            server.send_signal(number)
            log = server.communicate(timeout=60)[1]
            *cut, joined, _, _ = [one.result() for one in asked]
            assert ({*cut}, joined) == ({0}, 200)
    finally:
        with suppress(ProcessLookupError):
            server.kill()
        server.wait()
    assert server.returncode == 0
    assert "Traceback" not in log
    assert "Ada" not in log
    assert "ASGI" not in log
    assert log.count("released") == 4
    with perdure.Client(sqlite_url) as client:
        assert {one.state for one in client.blocking.runs()} == {State.PENDING}


def _is_up(base: str) -> bool:
    try:
        return httpx.get(f"{base}/ok").status_code == 200
    except httpx.TransportError:
        return False


def _running(base: str) -> int:
    return len(httpx.get(f"{base}/perdure/runs?state=running").json()["items"])


def _ask(base: str, method: str, path: str, body: object) -> int:
    """The code of an answer; 0 if it was cut."""
    try:
        with httpx.stream(method, base + path, json=body, timeout=60) as answer:
            for _ in answer.iter_raw():
                pass
            return answer.status_code
    except httpx.TransportError:
        return 0
