"""Schemathesis calls every operation of /openapi.json: no 500, and no response violates its schema.

Many requests get existing ids, because made-up ones never get past 404. `SCHEMATHESIS_EXAMPLES`
sets how many requests each operation gets; `make test` sends few.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.clients.js_clients import agent_server

pytestmark = [
    pytest.mark.slow,
    # The server is in this process, and its worker draws numbers while Hypothesis makes a request.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),
]

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "5"))
SECRET = "a secret of a cron, long enough"
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PARTS = 4
"""Tests that share the operations, so that they run side by side."""
UNFINISHED = 0.5
"""Seconds that an answer which streams, or waits for a run, is read."""


@dataclass(frozen=True)
class Server:
    url: str
    schema: Any
    known: dict[str, list[Any]]
    """Values of parameters and of body keys that exist on this server."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a finished run, a question, a failed run and a store item."""
    folder = tmp_path_factory.mktemp("schemathesis")
    url = f"sqlite:///{folder}/journal.db"
    with agent_server(url, secret=SECRET) as address, httpx.Client(base_url=address) as http:
        threads = [http.post("/threads", json={}).json()["thread_id"] for _ in range(3)]
        runs = []
        for thread, graph in zip(threads, ("numbers", "gate", "chat"), strict=True):
            given = {"messages": [{"type": "human", "content": "hello"}], "n": 1}
            body = {"assistant_id": graph, "input": given, "stream_mode": ["values", "messages"]}
            run = http.post(f"/threads/{thread}/runs", json=body).json()
            http.get(f"/threads/{thread}/runs/{run['run_id']}/join")
            runs.append(run)
        item = {"namespace": ["a"], "key": "k", "value": {"n": 1}}
        assert http.put("/store/items", json=item).status_code == 204
        history = http.post(f"/threads/{threads[0]}/history", json={}).json()
        known = {
            "thread_id": threads,
            "run_id": [run["run_id"] for run in runs],
            "assistant_id": ["one", "numbers", runs[0]["assistant_id"]],
            "graph_id": ["one", "numbers"],
            "checkpoint_id": [state["checkpoint_id"] for state in history],
            "namespace": ["a", "sub"],
            "key": ["k"],
            "as_node": ["add"],
            "stream_mode": ["values", ["updates", "messages"]],
            "schedule": ["0 0 1 1 *"],
        }
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        yield Server(address, schema, known)


def operations(schema: Any) -> dict[str, Any]:
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


def test_every_described_operation_is_called(server: Server) -> None:
    found = operations(server.schema)
    assert len(found) > 60
    for label in ("POST /threads/{thread_id}/runs/stream", "GET /threads/{thread_id}/state"):
        assert label in found


@pytest.mark.timeout(60 + 60 * EXAMPLES)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_request_causes_a_server_error_or_violates_the_schema(server: Server, part: int) -> None:
    """The operations are known only once the server runs, so each test covers many."""
    faults: list[str] = []
    for label, operation in [*operations(server.schema).items()][part::PARTS]:
        try:
            _ask(server, operation)
        except (Exception, BaseExceptionGroup) as error:
            faults.append(f"{label}: {_short(error)}")
    assert not faults, f"{len(faults)} operations:\n" + "\n".join(faults)


def _ask(server: Server, operation: Any) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), choice=st.randoms(use_true_random=False))
    def ask(case: Any, choice: Any) -> None:
        _use_known(case, server.known, choice)
        answer = _answer(server, case)
        if answer is not None:
            case.validate_response(answer, checks=CHECKS)

    ask()


def _use_known(case: Any, known: dict[str, list[Any]], choice: Any) -> None:
    """Replace most made-up values by ones that exist."""
    bodies = case.body if isinstance(case.body, list) else [case.body]
    for place in (case.path_parameters, case.query, *bodies):
        if not isinstance(place, dict):
            continue
        for name in place:
            if name in known and choice.random() < 0.8:
                place[name] = choice.choice(known[name])
        if place in bodies and "assistant_id" in place:
            place.pop("webhook", None)  # which would be called
            place["after_seconds"] = None


def _answer(server: Server, case: Any) -> Any:
    """The whole answer, or None if it is still under way after a while and no error so far."""
    sent = case.as_transport_kwargs(base_url=server.url)
    with httpx.Client(timeout=httpx.Timeout(30, read=UNFINISHED)) as http:
        request = http.build_request(
            sent["method"],
            sent["url"],
            params=sent.get("params"),
            headers={**(sent.get("headers") or {}), "authorization": f"Bearer {SECRET}"},
            cookies=sent.get("cookies"),
            **_content(sent),
        )
        try:
            answer = http.send(request, stream=True)
        except httpx.ReadTimeout:  # it waits for a run before it says anything
            return None
        try:
            assert answer.status_code < 500 or answer.status_code in (501, 503), (
                f"{request.method} {request.url} {request.content!r}: "
                f"{answer.status_code} {answer.read()!r}"
            )
            if "text/event-stream" in answer.headers.get("content-type", ""):
                return None
            answer.read()
        except httpx.ReadTimeout:
            return None
        finally:
            answer.close()
    return answer


def _content(sent: dict[str, Any]) -> dict[str, Any]:
    if "json" in sent:
        return {"json": sent["json"]}
    data = sent.get("data")
    if isinstance(data, dict):
        return {"data": data}
    return {} if data is None else {"content": data}


def _short(error: BaseException) -> str:
    found = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
    return " ".join(str(found).split())[:700]
