"""The runtime over HTTP: health, who may tick, and what happens to a tick whose caller or server
goes away."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import perdure
from perdure.errors import BadArgument
from perdure.runtime import Runtime
from perdure.server.lifespan import SharedLifespan
from perdure.types import Counts, State
from tests.support.agents import Calls, chain, gate, opened, reaches
from tests.support.polling import auntil, until

SECRET = "a secret of a cron, long enough"
KNOWN = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture(autouse=True)
def no_secret_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_CRON_SECRET", raising=False)


@asynccontextmanager
async def asking(app: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, whose lifespan does not run."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://perdure", timeout=60, **options
    ) as http:
        yield http


@asynccontextmanager
async def ticking(url: str, *nodes: Any) -> AsyncIterator[tuple[Runtime, httpx.AsyncClient]]:
    """A runtime with one graph, and somebody who knows its secret."""
    async with opened(url) as rt:
        rt.register(chain(*nodes), name="g")
        async with asking(rt.asgi(secret=SECRET, worker=False), headers=KNOWN) as http:
            yield rt, http


# -- /ok


async def test_a_journal_that_answers_is_ok(url: str) -> None:
    rt = perdure.Runtime(url)
    with closing(rt):
        async with asking(rt.asgi()) as http:
            answer = await http.get("/ok")
    assert (answer.status_code, answer.json()) == (200, {"ok": True})


@pytest.mark.parametrize(
    "nobody",
    [
        "postgresql://ana:pass%2Fword7@127.0.0.1:1/agents",
        "postgresql://127.0.0.1:1/agents?user=ana&password=pass%2Fword7",
    ],
)
async def test_why_the_journal_is_down_is_logged_and_shown_only_with_the_secret(
    nobody: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.journal.PAUSE", 60.0)  # it is not tried again
    rt = perdure.Runtime(nobody)
    rt.register(chain(Calls().node("a")), name="g")
    async with asking(rt.asgi(secret=SECRET, worker=False)) as http:
        strangers = await asyncio.gather(*(http.get("/ok") for _ in range(3)))
        known = await http.get("/ok", headers=KNOWN)
        tick = await http.post("/cron/tick", headers=KNOWN)
    for answer in strangers:
        assert answer.status_code == 503
        assert answer.json() == {"ok": False, "detail": "The journal does not answer."}
    for told in (known.json()["detail"], tick.json()["detail"], caplog.text):
        assert "127.0.0.1" in told
        assert "word7" not in told
    assert caplog.text.count("GET /ok") == 1


async def test_a_password_is_removed_from_every_error_message() -> None:
    client = perdure.Client("postgresql://ana:pass%2Fword7@localhost/agents?password=other8")
    told = client.redact("no pass/word7, no pass%2Fword7, no other8")
    assert told == "no ***, no ***, no ***"


# -- who may tick


async def test_ticks_are_off_until_there_is_a_secret(url: str) -> None:
    async with opened(url) as rt, asking(rt.asgi()) as http:
        answer = await http.post("/cron/tick", headers={"Authorization": "Bearer "})
    assert answer.status_code == 404
    assert "PERDURE_CRON_SECRET" in answer.json()["detail"]


async def test_the_secret_may_come_from_the_environment(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CRON_SECRET", SECRET)
    async with opened(sqlite_url) as rt:
        rt.register(chain(Calls().node("a")), name="g")
        async with asking(rt.asgi(), headers=KNOWN) as http:
            assert (await http.post("/cron/tick")).status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer " + SECRET.encode()[:-1],
        b"Bearer " + SECRET.upper().encode(),
        b"Basic " + SECRET.encode(),
        SECRET.encode(),
        b"Bearer \xff\xfe\xc3\xbc",
        "Bearer größer als das Geheimnis".encode(),
    ],
    ids=range(10),
)
async def test_a_caller_without_the_secret_is_refused_and_nothing_is_driven(
    sqlite_url: str, given: bytes | None
) -> None:
    calls = Calls()
    async with ticking(sqlite_url, calls.node("a")) as (rt, http):
        await rt.start("g", {})
        del http.headers["Authorization"]
        headers = [] if given is None else [(b"authorization", given)]
        answer = await http.post("/cron/tick", headers=headers, content=b"no JSON")
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert SECRET not in answer.text
    assert calls == []


@pytest.mark.parametrize("short", ["", "fifteen letters"])
def test_a_secret_that_can_be_guessed_is_refused(sqlite_url: str, short: str) -> None:
    with pytest.raises(BadArgument, match="at least 16"):
        perdure.Runtime(sqlite_url).asgi(secret=short)


def test_without_the_extra_the_error_names_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.startswith("perdure.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    wanted = r"asgi\(\) needs more packages: (uv )?pip install .*'fastapi"
    with pytest.raises(perdure.Error, match=wanted):
        perdure.Runtime(sqlite_url).asgi()


# -- what a tick takes


@pytest.mark.parametrize(
    ("query", "body", "named"),
    [
        ("limit=0", "", "limit"),
        ("limit=1001", "", "limit"),
        ("limit=many", "", "limit"),
        ("limit=2.5", "", "limit"),
        ("concurrency=0", "", "concurrency"),
        ("budget=-1", "", "budget"),
        ("budget=nan", "", "budget"),
        ("budget=inf", "", "budget"),
        ("limits=3", "", "limits"),
        ("", '{"limit": [1]}', "limit"),
        ("", '{"budget": {}}', "budget"),
        ("", "[1]", "object"),
        ("", "{", "JSON"),
        ("", f'{{"limit": {"9" * 5_000}}}', "JSON"),
        ("", '{"budget": -Infinity}', "JSON"),
        ("%ff%00=1", "", "Extra inputs"),
    ],
    ids=range(16),
)
async def test_invalid_parameters_are_refused_with_a_clear_message(
    sqlite_url: str, query: str, body: str, named: str
) -> None:
    calls = Calls()
    async with ticking(sqlite_url, calls.node("a")) as (rt, http):
        await rt.start("g", {})
        answer = await http.post(f"/cron/tick?{query}", content=body.encode("latin-1"))
        assert answer.status_code == 422
        assert named in answer.json()["detail"]
        assert len(answer.text) < 300
    assert calls == []


@pytest.mark.parametrize("mount", ["", "/agents"])
async def test_each_route_has_its_methods_with_and_without_a_slash_and_nothing_else_is_there(
    sqlite_url: str, mount: str
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(Calls().node("a")), name="g")
        app = rt.asgi(secret=SECRET, worker=False)
        outer = Starlette(routes=[Mount(mount, app=app)]) if mount else app
        async with asking(outer, headers=KNOWN) as http:
            for method, path, status in [
                ("POST", "/cron/tick", 200),
                ("POST", "/cron/tick/", 200),
                ("GET", "/ok/", 200),
                ("HEAD", "/ok", 200),
                ("HEAD", "/ok/", 200),
                ("GET", "/metrics/", 404),
                ("GET", "/cron/tick", 405),
                ("GET", "/cron/tick/", 405),
                ("POST", "/ok", 405),
                ("DELETE", "/metrics/", 405),
                ("POST", "/cron/tick//", 404),
                ("POST", "/cron//tick", 404),
                ("GET", "/%ED%A0%80%00", 404),
            ]:
                answer = await http.request(method, mount + path)
                assert answer.status_code == status, (method, path)
                if status >= 400:
                    assert answer.json()["detail"].endswith(".")
                if status == 405:
                    assert answer.headers["Allow"] in answer.json()["detail"]


async def test_a_tick_drives_25_and_returns_its_counts(url: str) -> None:
    async with ticking(url, Calls().node("a")) as (rt, http):
        for _ in range(30):
            await rt.start("g", {})
        first, second = [(await http.post("/cron/tick")).json() for _ in range(2)]
    assert first == asdict(Counts(claimed=25, done=25))
    assert second == asdict(Counts(claimed=5, done=5))


@pytest.mark.parametrize("how", ["query", "body"])
async def test_the_limit_is_in_the_query_or_in_the_body(sqlite_url: str, how: str) -> None:
    given: Any = {"params" if how == "query" else "json": {"limit": 2, "budget": 7.5}}
    async with ticking(sqlite_url, Calls().node("a")) as (rt, http):
        for _ in range(3):
            await rt.start("g", {})
        assert (await http.post("/cron/tick", **given)).json()["claimed"] == 2


async def test_at_its_budget_a_tick_releases_its_runs(sqlite_url: str) -> None:
    calls = Calls()

    async def pause(state: Any) -> None:
        await asyncio.sleep(0.05)

    nodes = [calls.coroutine(f"n{i}", pause) for i in range(200)]
    async with ticking(sqlite_url, *nodes) as (rt, http):
        run = await rt.start("g", {}, config={"recursion_limit": 500})
        counts = (await http.post("/cron/tick", params={"budget": 1})).json()
        assert counts["released"] == 1
        assert (await rt.get(run.id)).state is State.PENDING
    assert 0 < len(calls) < 200


# -- callers that leave, servers that stop


async def test_a_caller_that_leaves_does_not_stop_the_tick(url: str) -> None:
    with gate() as door:
        async with ticking(url, ("a", door.wait), Calls().node("b")) as (rt, http):
            run = await rt.start("g", {})
            asked = asyncio.create_task(http.post("/cron/tick"))
            await door.reached()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            door.open()
            await reaches(rt, run, State.DONE)
            await auntil(lambda: not rt.engine.is_driving)


def test_the_last_of_overlapping_lifespans_closes_the_runtime(sqlite_url: str) -> None:
    rt = perdure.Runtime(sqlite_url)
    rt.register(chain(Calls().node("a")), name="g")
    app = rt.asgi(secret=SECRET, worker=False)
    first, second = (TestClient(app, headers=KNOWN) for _ in range(2))
    with second:
        with first:
            assert first.post("/cron/tick").status_code == 200
        assert second.get("/ok").status_code == 200
        assert second.post("/cron/tick").status_code == 200
    assert not rt.is_open


async def test_a_lifespan_that_is_cancelled_while_it_drains_closes_the_runtime(
    sqlite_url: str,
) -> None:
    rt, draining = perdure.Runtime(sqlite_url), asyncio.Event()

    async def drain() -> None:
        draining.set()
        await asyncio.Event().wait()

    async def live() -> None:
        async with SharedLifespan(rt, drain).run(None):
            assert rt.is_open

    living = asyncio.create_task(live())
    await draining.wait()
    living.cancel()
    with pytest.raises(asyncio.CancelledError):
        await living
    assert not rt.is_open


# -- a real server

AGENTS = """
import asyncio, operator, os, time
from pathlib import Path
from typing import Annotated, TypedDict

import perdure
from contextlib import asynccontextmanager
from datetime import timedelta
from langgraph.graph import START, StateGraph
from starlette.applications import Starlette
from starlette.routing import Mount

class Log(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]

@perdure.effect
def send(n):
    with open("sent", "a") as sent:
        sent.write(f"{n}\\n")

def first(state):
    send(state["n"])
    return {"log": ["first"]}

def second(state):
    if state["n"] == 3:
        Path("there").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    return {"log": ["second"]}

def third(state):
    return {"log": ["third"]}

rt = perdure.Runtime(os.environ["JOURNAL"], lease=timedelta(minutes=10))
rt.register(StateGraph(Log).add_sequence([first, second, third]).add_edge(START, "first"), name="g")

async def hang(state):
    Path("there").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return {"log": ["hung"]}

rt.register(StateGraph(Log).add_sequence([hang, third]).add_edge(START, "hang"), name="hanging")
app = rt.asgi(worker=False)
patient, hasty = rt.asgi(), rt.asgi(grace=0.1)
mounted = Starlette(routes=[Mount("/agents", app=app)])

@asynccontextmanager
async def lifespan(_):
    async with rt:
        yield

kept = Starlette(routes=[Mount("/agents", app=app)], lifespan=lifespan)
"""


class Server:
    """A server of its own on loopback: where it is, and what it says."""

    def __init__(self, folder: Path, url: str, *options: str, app: str = "app") -> None:
        environment = {**os.environ, "JOURNAL": url, "PERDURE_CRON_SECRET": SECRET}
        command = [sys.executable, "-m", "uvicorn", f"agents:{app}", "--host", "127.0.0.1"]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *options],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        path = "/agents" if app in ("mounted", "kept") else ""
        self.place = self.says(r"running on (http://\S+)") + path

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self._lines.extend(lines)

    def says(self, pattern: str) -> str:
        found: list[str] = []

        def look() -> bool:
            found[:] = re.findall(pattern, self.text)
            return bool(found) or not self._reader.is_alive()

        until(look, pattern)
        assert found, self.text
        return found[0]

    @property
    def text(self) -> str:
        return "".join(self._lines)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(30)
        self._reader.join(30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    (found / "agents.py").write_text(AGENTS)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database", "how", "app"),
    [
        ("sqlite", signal.SIGKILL, "app"),
        pytest.param("postgres", signal.SIGKILL, "app", marks=pytest.mark.postgres),
        pytest.param("d1", signal.SIGKILL, "app", marks=pytest.mark.d1),
        ("sqlite", signal.SIGTERM, "app"),
        ("sqlite", signal.SIGTERM, "kept"),
    ],
    ids=["sqlite-SIGKILL", "postgres-SIGKILL", "d1-SIGKILL", "sqlite-SIGTERM", "mounted-SIGTERM"],
)
def test_the_next_server_goes_on_where_one_was_stopped_in_the_middle_of_a_tick(
    request: pytest.FixtureRequest, folder: Path, database: str, how: signal.Signals, app: str
) -> None:
    url: str = request.getfixturevalue(f"{database}_url")
    with perdure.Client(url) as client:
        runs = [client.blocking.start("g", {"n": n}) for n in range(6)]
        with Server(folder, url, "--timeout-graceful-shutdown", "1", app=app) as server:

            def tick() -> None:
                place = f"{server.place}/cron/tick"
                with pytest.raises(httpx.HTTPError):
                    httpx.post(place, headers=KNOWN, timeout=60).raise_for_status()

            asked = threading.Thread(target=tick)
            asked.start()
            until((folder / "there").exists, "the node")
            server.process.send_signal(how)
            if how == signal.SIGTERM:
                server.says("(timeout graceful shutdown exceeded)")
                (folder / "go").touch()
            server.process.wait(60)
            asked.join(60)
        states = [client.blocking.get(run.id).state for run in runs]
        assert states[:3] == [State.DONE] * 3
        if how == signal.SIGTERM:  # released: the lease is not waited for, on any host
            assert states[3:] == [State.PENDING] * 3
        else:
            assert states[3:] == [State.RUNNING, State.PENDING, State.PENDING]
        (folder / "go").touch()
        with Server(folder, url) as server:
            counts = httpx.post(f"{server.place}/cron/tick", headers=KNOWN, timeout=60).json()
            assert counts["done"] == states.count(State.PENDING) + states.count(State.RUNNING)
            assert httpx.get(f"{server.place}/ok").json() == {"ok": True}
        ended = [client.blocking.get(run.id) for run in runs]
        assert [run.state for run in ended] == [State.DONE] * 6
        assert {tuple(run.output["log"]) for run in ended} == {("first", "second", "third")}
    assert sorted((folder / "sent").read_text().split()) == [str(n) for n in range(6)]


@pytest.mark.slow
def test_a_tick_of_a_mounted_application_drains_at_sigterm_and_answers(
    sqlite_url: str, folder: Path
) -> None:
    with perdure.Client(sqlite_url) as client:
        runs = [client.blocking.start("g", {"n": n}) for n in range(6)]
        with Server(folder, sqlite_url, app="mounted") as server:
            answers: list[httpx.Response] = []

            def tick() -> None:
                answers.append(httpx.post(f"{server.place}/cron/tick", headers=KNOWN, timeout=60))

            asked = threading.Thread(target=tick)
            asked.start()
            until((folder / "there").exists, "the node")
            server.process.send_signal(signal.SIGTERM)
            server.says("Waiting for")
            (folder / "go").touch()
            asked.join(60)
            server.process.wait(60)
        [answer] = answers
        assert answer.json() == asdict(Counts(claimed=4, done=3, released=1))
        ended = [client.blocking.get(run.id) for run in runs]
        assert [run.state for run in ended] == [State.DONE] * 3 + [State.PENDING] * 3
        assert [run.attempts for run in ended[3:]] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["patient", "hasty"])
def test_a_server_that_stops_lets_a_step_end_or_gives_its_run_back_and_logs_no_error(
    sqlite_url: str, folder: Path, how: str
) -> None:
    with perdure.Client(sqlite_url) as client, Server(folder, sqlite_url, app=how) as server:
        body = {"assistant_id": "hanging", "input": {"n": 1}, "stream_mode": ["values"]}
        with httpx.stream("POST", f"{server.place}/runs/stream", json=body, timeout=60) as reply:
            lines = reply.iter_lines()
            until((folder / "there").exists, "the node")
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        server.says("Waiting for application shutdown")
        if how == "patient":
            (folder / "go").touch()
        server.process.wait(60)
        [run] = client.blocking.runs()
        assert run.state is State.PENDING
        steps = [event.kind for event in client.blocking.events(run.id)].count("step")
        assert steps == (3 if how == "patient" else 2)  # two before its first node
        assert not re.search("Traceback|ERROR", server.text), server.text


@pytest.mark.slow
def test_who_waits_for_a_run_when_the_server_stops_goes_on_at_its_location(
    sqlite_url: str, folder: Path
) -> None:
    with Server(folder, sqlite_url, app="hasty") as server:
        body = {"assistant_id": "hanging", "input": {"n": 1}}
        asked: list[httpx.Response] = []

        def wait() -> None:
            with httpx.stream("POST", f"{server.place}/runs/wait", json=body, timeout=60) as reply:
                asked.append(reply)
                with pytest.raises(httpx.RemoteProtocolError):
                    reply.read()

        waiting = threading.Thread(target=wait)
        waiting.start()
        until((folder / "there").exists, "the node")
        server.process.send_signal(signal.SIGTERM)
        waiting.join(60)
        server.process.wait(60)
        assert not re.search("Traceback|ERROR", server.text), server.text
    (folder / "go").touch()
    with Server(folder, sqlite_url, app="hasty") as server:
        found = httpx.get(server.place + asked[0].headers["Location"], timeout=60)
        assert found.json() == {"n": 1, "log": ["hung", "third"]}
