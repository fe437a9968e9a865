"""The routes embedded in another application: the lifespan runs a worker. Where it does not run,
requests that need a worker say so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.routing import Mount

import perdure
from perdure.server.app import add_to_app
from perdure.server.routes import ApiDep, add_routes
from tests.support.agents import Calls, chain, opened
from tests.support.http import client_of
from tests.support.polling import auntil

declared = APIRouter()


@declared.post("/start")
async def start(api: ApiDep) -> dict[str, str]:
    api.require_worker()
    run = await api.runtime.start("g", {})
    return {"state": (await api.runtime.join(run.id, timeout=timedelta(minutes=1))).state.value}


@declared.get("/count")
async def count(api: ApiDep) -> int:
    return len(await api.runtime.runs())


def runtime(url: str) -> perdure.Runtime:
    rt = perdure.Runtime(url)
    rt.register(chain(Calls().node("a")), name="g")
    return rt


def routes(rt: perdure.Runtime, **settings: Any) -> APIRouter:
    router = rt.router(**settings)
    add_routes(router, declared)
    return router


@asynccontextmanager
async def own_lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
    app.state.log.append("begun")
    yield {"mine": "kept"}
    app.state.log.append("ended")


def application(how: str, rt: perdure.Runtime) -> Any:
    router = routes(rt)
    if how == "fastapi":
        app = FastAPI(lifespan=own_lifespan)
        app.include_router(router)
    elif how == "prefix":
        app = FastAPI(lifespan=own_lifespan)
        app.include_router(router, prefix="/agents", tags=["agents"])
    elif how == "starlette":
        return Starlette(routes=router.routes, lifespan=router.lifespan_context)
    else:
        app = add_to_app(FastAPI(lifespan=own_lifespan), router)
    app.state.log = []
    return app


@pytest.mark.parametrize("how", ["fastapi", "prefix", "starlette", "added"])
async def test_the_worker_of_an_included_router_drives_runs(url: str, how: str) -> None:
    rt = runtime(url)
    app, prefix = application(how, rt), "/agents" if how == "prefix" else ""
    for _ in range(2):
        async with client_of(app, lifespan=True) as http:
            for slash in ("", "/"):
                answer = await http.post(f"{prefix}/start{slash}")
                assert (answer.status_code, answer.json()) == (200, {"state": "done"})
            assert (await http.get(f"{prefix}/ok")).json() == {"ok": True}
        assert not rt.engine.is_driving
        assert not rt.is_open
    if how != "starlette":
        assert app.state.log == ["begun", "ended"] * 2
        async with app.router.lifespan_context(app) as state:
            assert state == {"mine": "kept"}


@pytest.mark.parametrize("outer", [FastAPI, Starlette])
async def test_when_mounted_reads_work_and_other_requests_say_what_to_do(
    url: str, outer: Any
) -> None:
    rt = runtime(url)
    inner = FastAPI()
    inner.include_router(routes(rt))
    app = outer()
    app.router.routes.append(Mount("/agents", app=inner))
    try:
        async with client_of(app, lifespan=True) as http:
            assert (await http.get("/agents/count")).json() == 0
            answer = await http.post("/agents/start")
            assert answer.status_code == 503
            assert "include_router" in answer.json()["detail"]
            assert "worker=False" in answer.json()["detail"]
            assert (await http.get("/agents/count")).json() == 0
            working = asyncio.create_task(rt.work(handle_signals=False))
            await auntil(lambda: rt.engine.is_driving)
            answer = await http.post("/agents/start")
            assert answer.json() == {"state": "done"}
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    finally:
        await asyncio.to_thread(rt.close)


async def begun(rt: perdure.Runtime) -> None:
    while not await rt.runs():  # noqa: ASYNC110  the endpoint starts it
        await asyncio.sleep(0.01)


async def test_without_a_worker_another_process_drives(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(Calls().node("a")), name="g")
        app = add_to_app(FastAPI(), routes(rt, worker=False))
        async with client_of(app, lifespan=True) as http:
            asked = asyncio.create_task(http.post("/start"))
            await begun(rt)
            assert not rt.engine.is_driving
            await rt.tick()
            assert (await asked).json() == {"state": "done"}


async def test_a_worker_that_fails_is_started_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("perdure.server.lifespan.RESTART_AFTER", 0.01)
    rt, failed = runtime(sqlite_url), 0
    drive = rt.engine.drive

    async def fail_first(**options: Any) -> Any:
        nonlocal failed
        failed += 1
        if failed < 3:
            raise perdure.Error("no worker today")
        return await drive(**options)

    monkeypatch.setattr(rt.engine, "drive", fail_first)
    async with client_of(application("fastapi", rt), lifespan=True) as http:
        assert (await http.post("/start")).json() == {"state": "done"}
    assert failed == 3
    assert caplog.text.count("The worker failed and will be retried: no worker today") == 1


async def test_a_runtime_without_graphs_is_served_without_a_worker(sqlite_url: str) -> None:
    async with client_of(perdure.Runtime(sqlite_url).asgi(), lifespan=True) as http:
        assert (await http.get("/ok")).status_code == 200


# -- what it says about itself


async def test_info_shows_versions_and_openapi_describes_every_operation(
    sqlite_url: str,
) -> None:
    rt = perdure.Runtime(sqlite_url)
    async with client_of(rt.asgi()) as http:
        info = (await http.get("/info")).json()
        assert info["version"] == perdure.__version__
        assert info["langgraph_py_version"].startswith("1.")
        assert {"flags", "host"} <= info.keys()
        document = (await http.get("/openapi.json")).json()
    assert document["paths"]["/ok"]["get"]["security"] == []
    assert document["openapi"].startswith("3.1")
    assert "HTTPValidationError" not in json.dumps(document)
    assert {"/threads", "/perdure/waits", "/cron/tick"} <= document["paths"].keys()


async def test_the_openapi_document_of_the_application_has_the_routes(sqlite_url: str) -> None:
    app = application("prefix", perdure.Runtime(sqlite_url))
    async with client_of(app) as http:
        document = (await http.get("/openapi.json")).json()
    assert {"/agents/ok", "/agents/start", "/agents/cron/tick"} <= document["paths"].keys()


def refuse_everyone() -> None:
    raise HTTPException(418, "not today")


@pytest.mark.parametrize("path", ["/count", "/ok", "/threads/x/state"])
async def test_what_an_application_depends_on_holds_for_routes_it_includes(
    sqlite_url: str, path: str
) -> None:
    async with runtime(sqlite_url) as rt:
        app = FastAPI()
        app.include_router(routes(rt, worker=False), dependencies=[Depends(refuse_everyone)])
        async with client_of(app) as http:
            answer = await http.get(path)
            assert (answer.status_code, answer.json()) == (418, {"detail": "not today"})
