"""Webhooks, outgoing and incoming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import standardwebhooks

import perdure
from perdure import Runtime
from perdure.types import Retry
from tests.support.agent_server import AgentServer, served
from tests.support.agents import Log, chain
from tests.support.polling import until

SECRET = "whsec_" + "c2VjcmV0IG9mIGEgd2ViaG9vaywgbG9uZyBlbm91Z2g="


def work(state: Log) -> Log:
    return {"log": ["worked"]}


def approve(state: Log) -> Log:
    schema = {"type": "object", "required": ["ok"]}
    return {"value": perdure.ask({"draft": "Dear Ada"}, response_schema=schema)}


def listen(state: Log) -> Log:
    return {"value": perdure.wait_for("reply")}


def nap(state: Log) -> Log:
    perdure.sleep(timedelta(days=1))
    return {"log": ["napped"]}


def fail(state: Log) -> Log:
    raise ValueError("no such mailbox")


class Own:
    """A runtime, a server of it, and a client."""

    def __init__(self, rt: Runtime, server: AgentServer) -> None:
        self.rt, self.server, self.http = rt, server, server.http()

    def start(self, graph: str, **options: Any) -> perdure.Run:
        run = self.rt.blocking.start(graph, {"log": []}, **options)
        return run

    def get(self, path: str, **params: Any) -> Any:
        found = self.http.get(f"/perdure{path}", params=params)
        assert found.status_code == 200, found.text
        return found.json()

    def post(self, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        found = self.http.post(f"/perdure{path}", json=body, **options)
        assert found.status_code == status, found.text
        return found.json() if found.content else None

    def until(self, run: perdure.Run, state: str) -> None:
        until(lambda: self.get(f"/runs/{run.id}")["state"] == state, state)

    def question(self, run: perdure.Run) -> Any:
        return until(
            lambda: self.get("/waits", run_id=run.id, kind="human")["items"], "a question"
        )[0]


@contextmanager
def serving(url: str, **options: Any) -> Iterator[Own]:
    rt = Runtime(url)
    with rt:
        for node in (work, approve, listen, nap):
            rt.register(chain(work, ("then", node)), name=node.__name__)
        rt.register(chain(fail), name="fail", retry=Retry(attempts=1))
        with served(rt, **options) as server:
            yield Own(rt, server)


@pytest.fixture
def own(url: str) -> Iterator[Own]:
    with serving(url) as made:
        yield made


def test_a_webhook_from_another_service_is_a_signal_if_its_signature_is_valid(url: str) -> None:
    with serving(url, hook_secrets={"reply": SECRET}, hook_headers=["X-Event-*"]) as own:
        run = own.start("listen", thread_id="t")
        own.until(run, "waiting")
        body, now = '{"text": "yes"}', datetime.now(UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": "msg_1",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": standardwebhooks.Webhook(SECRET).sign("msg_1", now, body),
            "x-event-kind": "mail",
            "x-other": "not kept",
            "authorization": "Bearer not kept",
        }
        path = "/perdure/hooks/t/reply"

        def send(content: str = body, **changes: str) -> int:
            sent = {**headers, **changes}
            return own.http.post(path, content=content, headers=sent).status_code

        assert send('{"text": "no"}') == 401
        assert send(**{"webhook-id": "msg_2"}) == 401
        assert send(**{"webhook-signature": ""}) == 401
        old = str(int(now.timestamp()) - 600)
        assert send(**{"webhook-timestamp": old}) == 401
        assert own.http.post("/perdure/hooks/t/other", headers=headers).status_code == 404
        assert [send() for _ in range(3)] == [200, 200, 200]
        value = own.get(f"/runs/{run.id}/join", timeout=30)["output"]["value"]
        assert value["body"] == {"text": "yes"}
        kept = value["headers"]
        assert kept["webhook-id"] == "msg_1"
        assert kept["x-event-kind"] == "mail"
        assert not {"x-other", "authorization", "webhook-signature"} & kept.keys()
        signals = own.get(f"/runs/{run.id}/waits")
        assert [one["answered_by"] for one in signals] == ["signal"]
