"""What a request may cost: its body, its depth, its time; and how many streams may be open."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import StreamingResponse

import perdure
from perdure.server import http_server
from perdure.server.agent_api import sse
from perdure.server.agent_api.sse import WaitingResponse
from perdure.server.routes import ApiDep
from tests.support.agents import opened
from tests.support.http import app_with, client_of, listening

declared = APIRouter()


class Body(BaseModel):
    limit: int = 10
    inner: Any = None


@declared.post("/body")
async def take(body: Body) -> int:
    return body.limit


@declared.post("/raw")
async def raw(request: Request) -> Any:
    return await request.json()


@declared.post("/fail")
async def fail(body: Body) -> None:
    raise ValueError(f"a message of {body.inner}")


@declared.get("/wait", response_model=None)
async def wait(api: ApiDep, seconds: float) -> WaitingResponse:
    async def value() -> Any:
        await asyncio.sleep(seconds)
        raise perdure.errors.Unavailable("the host db.example.com is away")

    return WaitingResponse(api.open_stream(counts=False), value)


@declared.get("/stream")
async def stream(api: ApiDep) -> StreamingResponse:
    opened = api.open_stream()
    stream = opened.__enter__()

    async def parts() -> Any:
        try:
            yield b"first\n"
            await stream.stopping.wait()
            yield b"last\n"
        finally:
            opened.__exit__(None, None, None)

    return StreamingResponse(parts())


@pytest.mark.parametrize("path", ["/body", "/raw"])
@pytest.mark.parametrize("declares", [True, False])
async def test_a_body_over_the_limit_is_not_read(
    sqlite_url: str, path: str, declares: bool
) -> None:
    sent = 0

    async def parts() -> Any:
        nonlocal sent
        for _ in range(1000):
            sent += 1000
            yield b" " * 1000

    headers = {"Content-Type": "application/json"}
    if declares:
        headers["Content-Length"] = "1000000"
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared, max_body=10_000)) as http:
        answer = await http.post(path, content=parts(), headers=headers)
        fits = await http.post(path, json={"limit": 3, "inner": "x" * 9_000})
    assert answer.status_code == 413
    assert answer.json() == {"detail": "The body is larger than 10000 bytes."}
    assert sent <= 11_000 or declares
    assert fits.status_code == 200


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b'{"inner": ' + b"[" * 101 + b"]" * 101 + b"}", "deeper"),
        (b"[" * 1_000_000, "deeper"),
        (b'{"limit": NaN}', "JSON"),
        (b'{"inner": 1e400}', "infinity"),
        (b'{"inner": [-1e999]}', "infinity"),
        (b'{"inner": "\\ud800"}', "surrogate"),
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (b'{"limit": "x"}', "body.limit"),
        (b"[]", "body"),
        (b"", "body"),
    ],
    ids=range(11),
)
async def test_a_body_that_is_not_strict_json_is_refused_with_a_clear_message(
    sqlite_url: str, content: bytes, named: str
) -> None:
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared)) as http:
        headers = {"Content-Type": "application/json"}
        answer = await http.post("/body", content=content, headers=headers)
    assert answer.status_code == 422
    assert list(answer.json()) == ["detail"]
    assert named in answer.json()["detail"]
    assert len(answer.text) < 300


async def test_a_body_without_a_json_content_type_is_refused(sqlite_url: str) -> None:
    """A page can send such a body without asking the browser first."""
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared)) as http:
        for kind in ({}, {"Content-Type": "text/plain"}):
            answer = await http.post("/body", content=b'{"limit": 3}', headers=kind)
            assert answer.status_code == 422
            assert "send Content-Type: application/json" in answer.json()["detail"]


async def test_a_value_that_is_none_of_those_a_field_takes_is_refused_by_the_fields_name(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as rt, client_of(rt.asgi()) as http:
        body = {"assistant_id": "g", "input": {}, "stream_mode": "sideways"}
        said = (await http.post("/runs/stream", json=body)).json()["detail"]
    assert said.startswith("body.stream_mode: Input should be 'values', 'updates'")


async def test_an_internal_error_is_not_shown_and_its_message_is_not_logged(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared)) as http:
        answer = await http.post("/fail", json={"inner": "hunter2"})
    assert answer.json() == {"detail": "The server failed; its log says why."}
    assert answer.status_code == 500
    assert "ValueError" in caplog.text
    assert "test_limits.py" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_body_that_does_not_arrive_ends_the_request(sqlite_url: str) -> None:
    async def slowly() -> Any:
        yield b'{"limit":'
        await asyncio.Event().wait()

    async with (
        opened(sqlite_url) as rt,
        client_of(app_with(rt, declared, body_timeout=0.1)) as http,
    ):
        headers = {"Content-Type": "application/json"}
        answer = await http.post("/body", content=slowly(), headers=headers)
    assert answer.status_code == 408


# -- streams


async def test_a_wait_is_cut_while_the_journal_is_down_and_logs_no_traceback(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT", 0.1)
    async with opened(sqlite_url) as rt:
        with listening(app_with(rt, declared, worker=False)) as (host, port):
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as http:
                for seconds in (0, 0.5):
                    with pytest.raises(httpx.RemoteProtocolError):
                        await http.get(f"/wait?seconds={seconds}")
    assert caplog.text.count("db.example.com") == 2
    assert "Traceback" not in caplog.text


async def test_streams_end_when_the_server_is_signalled_to_stop_also_those_opened_just_after(
    sqlite_url: str,
) -> None:
    before = (
        signal.signal(signal.SIGTERM, lambda *_: None),
        signal.signal(signal.SIGINT, lambda *_: None),
    )
    try:
        async with opened(sqlite_url) as rt:
            app = app_with(rt, declared, worker=False)
            async with client_of(app) as http:
                asked = asyncio.create_task(http.get("/stream"))
                await asyncio.sleep(0.2)
                assert not asked.done()
                signal.raise_signal(signal.SIGTERM)
                answer = await asyncio.wait_for(asked, 10)
                late = await asyncio.wait_for(http.get("/stream"), 10)
        assert answer.text == late.text == "first\nlast\n"
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


# -- ports


def test_a_taken_port_is_reported_and_the_next_one_can_be_used() -> None:
    with http_server.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(perdure.errors.BadArgument, match=f"{port} .* taken"):
            http_server.listen("127.0.0.1", port)
        with http_server.listen("127.0.0.1", port, search=True) as second:
            assert second.getsockname()[1] > port
            assert http_server.address(second) == f"http://127.0.0.1:{second.getsockname()[1]}"


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70000), ("no host", 0)])
def test_an_address_that_is_not_here_is_refused(host: str, port: int) -> None:
    with pytest.raises(perdure.errors.BadArgument):
        http_server.listen(host, port)
