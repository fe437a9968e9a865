"""`perdure serve`, `perdure dev` and `perdure tokens` as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

import perdure
from perdure.cli.project import find_project
from perdure.errors import BadArgument
from perdure.types import State
from tests.support.cli_process import CliProcess, cli_process
from tests.support.fork_server import ForkServer
from tests.support.polling import until

Command = Callable[..., AbstractContextManager[CliProcess]]
Run = Callable[..., tuple[int, str]]

AGENTS = """
import operator
from datetime import timedelta
from typing import Annotated, TypedDict

import perdure
from langgraph.graph import START, StateGraph

class Log(TypedDict, total=False):
    log: Annotated[list, operator.add]

def note(state):
    return {"log": ["noted"]}

builder = StateGraph(Log).add_sequence([note]).add_edge(START, "note")
rt = perdure.Runtime()
rt.register(builder, name="notes")

def nap(state):
    perdure.sleep(timedelta(days=3))

naps = StateGraph(Log).add_sequence([nap]).add_edge(START, "nap")
rt.register(naps, name="naps")

def factory(config):
    return builder
"""
AUTH = """
from langgraph_sdk import Auth

auth = Auth()

@auth.authenticate
async def who(authorization):
    if authorization != "Bearer ada":
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who?")
    return "ada"
"""
OWN = """
from contextlib import asynccontextmanager
from fastapi import FastAPI

@asynccontextmanager
async def lifespan(app):
    print("own lifespan begun", flush=True)
    yield
    print("own lifespan ended", flush=True)

app = FastAPI(lifespan=lifespan)

@app.get("/hello")
async def hello():
    return "hello"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    (found / "agents.py").write_text(AGENTS)
    (found / "auth.py").write_text(AUTH)
    (found / "own.py").write_text(OWN)
    return found


@pytest.fixture
def command(folder: Path, fork_server: ForkServer) -> Command:
    """A command that is killed at the end of the block; `fresh`, in a new interpreter."""

    def begin(url: str, *arguments: str, fresh: bool = False) -> AbstractContextManager[CliProcess]:
        server = None if fresh else fork_server
        return cli_process(server, folder, *arguments, PERDURE_URL=url, PYTHONUNBUFFERED="1")

    return begin


@pytest.fixture
def run(command: Command) -> Run:
    """A command to its end."""

    def to_its_end(url: str, *arguments: str) -> tuple[int, str]:
        with command(url, *arguments) as running:
            return running.ends(), running.text

    return to_its_end


def project(folder: Path, **keys: Any) -> None:
    said = {"graphs": {"notes": "./agents.py:factory"}, **keys}
    (folder / "langgraph.json").write_text(json.dumps(said))


def serves(running: CliProcess) -> str:
    return running.says(r"serving .+ at (http://\S+)")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_runtime_is_served_and_its_runs_are_driven_until_a_signal(
    url: str, how: signal.Signals, command: Command
) -> None:
    arguments = ("serve", "agents:rt", "--port", "0", "--access-log")
    with perdure.Client(url) as client:
        with command(url, *arguments, fresh=True) as running:
            place = serves(running)
            assert httpx.get(f"{place}/ok?token=hunter2").json() == {"ok": True}
            assert "perdure_" in httpx.get(f"{place}/metrics").text
            started = client.blocking.start("notes", {})
            assert client.blocking.join(started.id).state is State.DONE
            assert running.stop(how) == 0
        assert "GET /ok" in running.text
        assert "hunter2" not in running.text
        assert "Traceback" not in running.text


@pytest.mark.slow
def test_it_stops_while_a_stream_is_open_and_a_run_is_waited_for(
    url: str, command: Command
) -> None:
    with command(url, "serve", "agents:rt", "--port", "0") as running:
        place, asked = serves(running), threading.Event()
        ended: list[str] = []

        def follow(path: str) -> None:
            body = {"assistant_id": "naps", "input": {}, "if_not_exists": "create"}
            try:
                with httpx.stream("POST", f"{place}{path}", json=body, timeout=60) as answer:
                    for _ in answer.iter_raw():
                        asked.set()
            except httpx.HTTPError as error:
                ended.append(type(error).__name__)
            ended.append(path)

        paths = ("/runs/stream", "/runs/wait")
        followers = [threading.Thread(target=follow, args=(path,)) for path in paths]
        for one in followers:
            one.start()
        assert asked.wait(60)
        with perdure.Client(url) as client:
            until(lambda: len(client.blocking.runs(graph="naps")) == 2, "both runs")
        assert running.stop() == 0
        for one in followers:
            one.join(60)
        assert {*paths} <= {*ended}
    assert "Traceback" not in running.text


@pytest.mark.slow
def test_without_a_worker_it_drives_nothing(sqlite_url: str, command: Command) -> None:
    arguments = ("serve", "agents:rt", "--port", "0", "--no-worker")
    with perdure.Client(sqlite_url) as client, command(sqlite_url, *arguments) as running:
        place = serves(running)
        started = client.blocking.start("notes", {})
        assert httpx.get(f"{place}/ok").status_code == 200
        assert client.blocking.get(started.id).state is State.PENDING
        assert running.stop() == 0
        assert client.blocking.get(started.id).state is State.PENDING


@pytest.mark.slow
def test_another_address_needs_a_token_an_auth_or_insecure(
    sqlite_url: str, command: Command, run: Run
) -> None:
    open_to_all = ("serve", "agents:rt", "--host", "0.0.0.0", "--port", "0")
    code, said = run(sqlite_url, *open_to_all)
    assert code == 2
    assert "perdure tokens create NAME --scope admin --at agents:rt." in said
    with command(sqlite_url, *open_to_all, "--insecure") as running:
        serves(running)
    code, said = run(sqlite_url, "tokens", "create", "ci", "--scope", "read")
    token = said.splitlines()[-1]
    assert (code, token[:8]) == (0, "perdure_")
    with command(sqlite_url, *open_to_all) as running:
        serves(running)


@pytest.mark.slow
def test_a_project_is_served_with_its_own_application_and_its_auth(
    folder: Path, sqlite_url: str, command: Command
) -> None:
    http = {"app": "./own.py:app", "cors": {"allow_origins": ["https://ui.example"]}}
    project(folder, auth={"path": "./auth.py:auth"}, http=http)
    with command(sqlite_url, "serve", ".", "--port", "0") as running:
        place = serves(running)
        running.says("own lifespan begun")
        assert httpx.get(f"{place}/hello").json() == "hello"
        assert httpx.get(f"{place}/ok").json() == {"ok": True}
        assert "/ok" in httpx.get(f"{place}/openapi.json").json()["paths"]
        assert running.stop() == 0
        assert "own lifespan ended" in running.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"auth": {"path": "./auth.py:nothing"}}, 'auth.path" .* has no'),
        ({"auth": {"path": "./agents.py:builder"}}, "langgraph_sdk.Auth"),
        ({"http": {"app": "./agents.py:builder"}}, '"http.app" is StateGraph'),
    ],
)
def test_a_missing_part_of_a_langgraph_json_is_reported(
    folder: Path, sqlite_url: str, keys: Any, said: str, run: Run
) -> None:
    project(folder, **keys)
    code, text = run(sqlite_url, "serve", ".", "--port", "0")
    assert code == 2
    assert re.search(said, text), text


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"http": ["app"]}, '"http" is'),
        ({"store": "memory"}, '"store" is'),
        ({"http": {"app": "own.py"}}, '"http.app" must be a place'),
        ({"auth": {"path": 7}}, '"auth.path" must be a place'),
        ({"http": {"configurable_headers": {"includes": "x"}}}, "list of texts"),
        ({"http": {"cors": {"allow_origins": "*"}}}, "list of texts"),
    ],
)
def test_an_invalid_value_in_a_langgraph_json_is_named(folder: Path, keys: Any, said: str) -> None:
    project(folder, **keys)
    with pytest.raises(BadArgument, match=said):
        find_project(folder)


def test_the_server_settings_of_a_langgraph_json_are_read(folder: Path) -> None:
    headers = {"includes": ["x-my-*"], "excludes": ["x-my-key"]}
    http: dict[str, Any] = {"app": "./own.py:app", "configurable_headers": headers}
    http["cors"] = {"allow_origins": ["https://ui.example"]}
    project(folder, auth={"path": "./auth.py:auth"}, http=http, store={"index": {"dims": 3}})
    found = find_project(folder)
    assert found is not None
    assert (found.auth, found.app) == ("./auth.py:auth", "./own.py:app")
    assert found.configurable_headers == ["x-my-*", "!x-my-key"]
    assert found.cors == ["https://ui.example"]
    assert found.store == {"index": {"dims": 3}}
    assert found.notes == []


@pytest.mark.slow
def test_dev_serves_on_the_next_free_port_and_restarts_behind_it(
    folder: Path, sqlite_url: str, command: Command
) -> None:
    project(folder)
    with command(sqlite_url, "serve", "agents:rt", "--port", "0") as other:
        taken = serves(other).rpartition(":")[2]
        arguments = ("dev", "langgraph.json", "--port", taken, "--no-browser")
        with command(sqlite_url, *arguments) as running:
            running.says(f"port {taken} is taken; using")
            place = running.says(r"api +(http://\S+)")
            assert httpx.get(f"{place}/ok", timeout=60).json() == {"ok": True}
            pid = int(running.says(r"pid (\d+);"))
            os.kill(pid, signal.SIGKILL)
            assert httpx.get(f"{place}/info", timeout=60).status_code == 200
            running.says("driving notes")
            with perdure.Client(sqlite_url) as client:
                started = client.blocking.start("notes", {})
                assert client.blocking.join(started.id).state is State.DONE
            assert running.stop() == 0


@pytest.mark.slow
def test_a_change_restarts_dev_while_a_stream_is_open(
    folder: Path, sqlite_url: str, command: Command
) -> None:
    said = {"graphs": {"naps": "./agents.py:naps"}}
    (folder / "langgraph.json").write_text(json.dumps(said))
    with command(sqlite_url, "dev", "--port", "0") as running:
        place = running.says(r"api +(http://\S+)")
        body = {"assistant_id": "naps", "input": {}}
        with httpx.stream("POST", f"{place}/runs/stream", json=body, timeout=60) as answer:
            parts = answer.iter_raw()
            assert b"metadata" in next(parts)
            (folder / "agents.py").write_text(AGENTS + "\n# changed\n")
            assert httpx.get(f"{place}/ok", timeout=60).json() == {"ok": True}
            running.says("driving naps")
            with contextlib.suppress(httpx.RemoteProtocolError):  # cut off, so that clients return
                for _ in parts:
                    pass
        assert running.stop() == 0
    assert "Traceback" not in running.text


def test_tokens_are_created_listed_and_revoked(sqlite_url: str, run: Run) -> None:
    def tokens(*arguments: str) -> tuple[int, str]:
        return run(sqlite_url, "tokens", *arguments)

    assert "There is no token" in tokens("list")[1]
    code, made = tokens("create", "ci", "--scope", "start", "--expires", "90d", "--json")
    assert code == 0
    note, line = made.splitlines()
    assert "no token has the scope admin" in note
    token = json.loads(line)["token"]
    listed = tokens("list")[1]
    assert "ci" in listed
    assert "start" in listed
    assert token not in listed
    [line] = tokens("list", "--json")[1].splitlines()
    assert json.loads(line)["scopes"] == ["start"]
    assert tokens("create", "ci", "--scope", "read")[0] == 2
    assert tokens("create", "bo")[0] == 2
    assert tokens("create", "root", "--scope", "admin")[1].startswith("perdure_")
    assert "note" not in tokens("create", "bo", "--scope", "answer")[1]
    assert tokens("revoke", "ci") == (0, "ci is revoked.\n")
    assert tokens("revoke", "ci")[0] == 2
