"""`perdure.testing.d1`: the D1 in workerd that the other tests stand on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from perdure.testing.d1 import Workerd, local_d1
from tests.support.polling import until

pytestmark = [pytest.mark.slow, pytest.mark.d1]


@pytest.fixture(scope="module")
def server() -> Iterator[Workerd]:
    """A server of this module's own, since these tests stop it under everybody's feet."""
    with local_d1(databases=2) as server:
        yield server


def api(server: Workerd, n: int, sql: str, *params: object, secret: str = "") -> httpx.Response:
    """A statement through the shape of Cloudflare's REST API."""
    return httpx.post(
        f"http://127.0.0.1:{server.port}/client/v4/accounts/A/d1/database/DB{n}/query",
        json={"sql": sql, "params": params},
        headers={"Authorization": f"Bearer {secret or server.secret}"},
    )


def rows(server: Workerd, n: int, sql: str, *params: object) -> list[dict[str, object]]:
    reply = api(server, n, sql, *params).json()
    assert reply["success"], reply
    found: list[dict[str, object]] = reply["result"][0]["results"]
    return found


def fill(server: Workerd, n: int) -> None:
    rows(server, n, "DROP TABLE IF EXISTS kept")
    rows(server, n, "CREATE TABLE kept AS SELECT 7 AS n")


def is_alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")


def test_what_was_committed_is_there_after_a_kill_and_after_a_stop(server: Workerd) -> None:
    fill(server, 0)
    server.kill()
    server.start()
    assert rows(server, 0, "SELECT n FROM kept") == [{"n": 7}]
    server.stop()
    server.start()
    assert rows(server, 0, "SELECT n FROM kept") == [{"n": 7}]


def test_the_rest_api_answers_in_the_shape_of_cloudflares(server: Workerd) -> None:
    bad = api(server, 0, "SELECT * FROM nowhere")
    assert (bad.status_code, bad.json()["success"]) == (400, False)
    assert bad.json()["errors"] == [
        {"code": 7500, "message": "no such table: nowhere: SQLITE_ERROR"}
    ]
    assert api(server, 0, "SELECT 1", secret="x" * 32).status_code == 401
    assert api(server, 9, "SELECT 1").status_code == 404


def test_a_folder_of_ones_own_keeps_its_data_for_the_next_time(tmp_path: Path) -> None:
    with local_d1(databases=1, directory=tmp_path) as server:
        fill(server, 0)
    with local_d1(databases=1, directory=tmp_path) as server:
        assert rows(server, 0, "SELECT n FROM kept") == [{"n": 7}]


def test_workerd_and_its_files_are_gone_after_its_owner_was_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from perdure.testing.d1 import local_d1\n"
        "with local_d1(databases=1) as server:\n"
        "    print(server._process.pid, server._workerd, server._log.parent, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    node, workerd, home = child.stdout.split()
    until(lambda: not is_alive(int(node)), "the end of node")
    until(lambda: not is_alive(int(workerd)), "the end of workerd")
    until(lambda: not os.path.exists(home), "the end of its folder")


def test_a_missing_miniflare_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_MINIFLARE", str(tmp_path))
    with pytest.raises(RuntimeError, match="make workerd"), local_d1():
        pass
