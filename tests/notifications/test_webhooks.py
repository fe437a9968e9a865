"""Outgoing webhooks: stored with the change they report, signed, repeated for days with one id, and
never sent to an address that is not public."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks

import perdure
from perdure import RunWebhooks, Webhook
from perdure.commands.webhooks import BadSignature, check_url, secrets_of, sign, verify
from perdure.errors import BadArgument
from perdure.execution.duties import Undelivered
from perdure.notifications.posting import post
from tests.contract.test_webhook_deliveries import approve, told, work
from tests.contract.test_webhook_deliveries import receiver as receiver
from tests.notifications.test_mail import Certificates
from tests.support.agent_server import served
from tests.support.agents import Log, chain, driving, opened
from tests.support.polling import auntil, until
from tests.support.webhook_receiver import WebhookReceiver, receiving

SECRET = "whsec_" + "c2VjcmV0IG9mIGEgd2ViaG9vaywgbG9uZyBlbm91Z2g="
OTHER = "whsec_" + "YW5vdGhlciBzZWNyZXQgb2YgYSB3ZWJob29rLCBsb25n"
LONG = timedelta(days=2)


def events(receiver: WebhookReceiver) -> list[str]:
    return [one.json["type"] for one in receiver.got]


# -- a run's own webhook


async def test_a_run_that_is_done_calls_its_webhook(url: str, receiver: WebhookReceiver) -> None:
    async with told(url, receiver) as rt:
        hook = f"{receiver.url}/hook?token=x"
        run = await rt.start(
            "work", {"log": ["in"]}, thread_id="t", metadata={"to": "ada"}, webhook=hook
        )
        counts = await rt.tick()
        assert counts.delivered == 1
        [got] = receiver.got
        assert got.path == "/hook?token=x"
        assert got.headers["content-type"] == "application/json"
        assert "webhook-signature" not in got.headers
        body = got.json
        assert (body["run_id"], body["thread_id"], body["status"]) == (run.id, "t", "success")
        assert body["values"] == {"log": ["in", "worked"]}
        assert body["metadata"]["to"] == "ada"
        assert body["kwargs"]["input"] == {"log": ["in"]}
        assert "error" not in body
        assert body["run_started_at"] <= body["run_ended_at"]
        assert {"created_at", "updated_at", "webhook_sent_at"} <= body.keys()
        assert await rt.messages() == []


async def test_a_run_calls_its_webhook_when_it_waits_for_a_person_and_when_it_is_done(
    url: str, receiver: WebhookReceiver
) -> None:
    async with told(url, receiver) as rt:
        await rt.start("approve", {"log": []}, thread_id="t", webhook=receiver.url)
        await rt.tick()
        [waits] = receiver.got
        assert waits.json["status"] == "success"
        assert waits.json["values"] == {"log": ["worked"]}
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        await rt.tick()
        [_, done] = receiver.got
        assert done.json["values"] == {"log": ["worked", "yes"]}
        assert done.id != waits.id


@pytest.mark.parametrize(
    ("graph", "error"), [("fail", "ValueError"), ("hold", "Held")], ids=["failed", "held"]
)
async def test_a_webhook_says_why_a_run_did_not_succeed(
    sqlite_url: str, receiver: WebhookReceiver, graph: str, error: str
) -> None:
    async with told(sqlite_url, receiver) as rt:
        await rt.start(graph, {"log": []}, webhook=receiver.url)
        await rt.tick()
        [got] = receiver.got
        assert got.json["status"] == "error"
        assert got.json["error"]["error"] == error
        assert "no such mailbox" in got.json["error"]["message"]


async def test_a_cancelled_run_calls_its_webhook_however_it_was_cancelled(
    url: str, receiver: WebhookReceiver
) -> None:
    async with told(url, receiver) as rt:
        asked = await rt.start("approve", {"log": []}, thread_id="a", webhook=receiver.url)
        taken = await rt.start("approve", {"log": []}, thread_id="b", webhook=receiver.url)
        await rt.tick()
        receiver.got.clear()
        await rt.cancel(asked.id)
        await rt.start("work", {"log": []}, thread_id="b", multitask_strategy="interrupt")
        await rt.tick()
        assert sorted((one.json["run_id"], one.json["status"]) for one in receiver.got) == sorted(
            [(asked.id, "interrupted"), (taken.id, "interrupted")]
        )


async def test_a_webhook_of_a_run_that_was_deleted_is_given_up(
    sqlite_url: str, receiver: WebhookReceiver
) -> None:
    async with told(sqlite_url, receiver) as rt:
        receiver.answers = [500]
        run = await rt.start("work", {"log": []}, webhook=receiver.url)
        await rt.tick()
        await rt.prune(older_than=timedelta(0))
        rt.clock.advance(LONG)
        await rt.tick()
        [message] = await rt.messages()
        assert (message.due_at, message.error) == (None, f"run {run.id} was deleted")
        assert len(receiver.got) == 1


# -- endpoints of the runtime


def ops(receiver: WebhookReceiver, *events: str, **options: Any) -> Webhook:
    chosen = {"events": events} if events else {}
    return Webhook(receiver.url, SECRET, allow_private=True, **{**chosen, **options})


async def test_an_endpoint_is_notified_of_questions_and_of_runs_that_need_a_person(
    url: str, receiver: WebhookReceiver
) -> None:
    async with told(url, receiver, webhooks=[ops(receiver, name="ops")]) as rt:
        runs = {}
        for graph in ("work", "approve", "fail", "hold"):
            runs[graph] = await rt.start(graph, {"log": []}, metadata={"of": graph})
        await rt.tick()
        got = {one.json["type"]: one for one in receiver.got}
        assert sorted(events(receiver)) == ["question.waiting", "run.failed", "run.held"]
        [wait] = await rt.waits()
        asked = got["question.waiting"]
        assert asked.id == f"{wait.id}-ops"
        assert asked.json["data"]["wait_id"] == wait.id
        assert asked.json["data"]["value"] == {"draft": "Dear Ada, a secret offer"}
        failed = got["run.failed"].json["data"]
        assert failed["run_id"] == runs["fail"].id
        assert failed["error"] == {"error": "ValueError", "message": "no such mailbox"}
        assert failed["metadata"]["of"] == "fail"
        assert got["run.held"].json["data"]["state"] == "held"


async def test_an_endpoint_chooses_its_events_and_each_gets_its_own_message(
    sqlite_url: str, receiver: WebhookReceiver
) -> None:
    hooks = [ops(receiver, "run.done", name="a"), ops(receiver, "run.done", name="b")]
    async with told(sqlite_url, receiver, webhooks=hooks) as rt:
        await rt.start("fail", {"log": []})
        run = await rt.start("work", {"log": []}, webhook=f"{receiver.url}/own")
        await rt.tick()
        assert len({one.id for one in receiver.got}) == 3
        assert {one.json.get("type", "own") for one in receiver.got} == {"run.done", "own"}
        assert all(one.id.startswith(run.id) for one in receiver.got)


async def test_a_python_handler_is_called_for_a_question_beside_the_endpoints(
    sqlite_url: str, receiver: WebhookReceiver
) -> None:
    heard: list[Any] = []
    hooks = [ops(receiver)]
    async with told(sqlite_url, receiver, webhooks=hooks, on_question=heard.append) as rt:
        await rt.start("approve", {"log": []})
        await rt.tick()
        [wait] = await rt.waits()
        assert [one.id for one in heard] == [wait.id]
        assert events(receiver) == ["question.waiting"]


@pytest.mark.parametrize(
    "options",
    [
        {"events": ["run.lost"]},
        {"events": "run.done"},
        {"secret": "whsec_short"},
        {"secret": "not base64 at all, is it?"},
        {"name": "a name"},
        {"url": "https://localhost/x"},
        {"url": "http://example.com/x"},
    ],
)
def test_an_invalid_endpoint_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        Webhook(**{"url": "https://example.com/hook", **options})


async def test_the_environment_names_an_endpoint_and_a_secret(
    sqlite_url: str, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_WEBHOOK_URL", f"{receiver.url}/ops")
    monkeypatch.setenv("PERDURE_WEBHOOK_SECRET", f"{OTHER} {SECRET}")
    monkeypatch.setenv("PERDURE_WEBHOOK_PRIVATE", "1")
    async with opened(sqlite_url) as rt:
        rt.register(chain(approve), name="approve")
        await rt.start("approve", {"log": []}, webhook=f"{receiver.url}/own")
        await rt.tick()
        assert {one.path for one in receiver.got} == {"/ops", "/own"}
        for got in receiver.got:
            standardwebhooks.Webhook(SECRET).verify(got.body, got.headers)


# -- over HTTP


@contextmanager
def client_of(url: str, *, allow_private: bool) -> Iterator[Any]:
    """LangGraph's own client of a server with one agent."""
    with perdure.Runtime(url, run_webhooks=RunWebhooks(SECRET, allow_private)) as rt:
        rt.register(chain(work, approve), name="agent")
        with served(rt) as server:
            yield server.sync_client()


def test_langgraphs_client_sets_a_webhook(url: str, receiver: WebhookReceiver) -> None:
    with client_of(url, allow_private=True) as client:
        thread = client.threads.create()["thread_id"]
        given = {"input": {"log": []}, "webhook": receiver.url}
        run = client.runs.create(thread, "agent", **given)
        until(lambda: receiver.got, "a webhook")
        asked = client.runs.get(thread, run["run_id"])
        [got] = receiver.got
        standardwebhooks.Webhook(SECRET).verify(got.body, got.headers)
        for name in ("run_id", "thread_id", "assistant_id", "status", "metadata", "kwargs"):
            assert got.json[name] == asked[name]
        assert got.json["values"] == {"log": ["worked"]}
        client.runs.wait(thread, "agent", command={"resume": "yes"})
        until(lambda: len(receiver.got) == 2, "the second webhook")
        assert receiver.got[1].json["values"] == {"log": ["worked", "yes"]}


async def test_with_encryption_neither_the_url_nor_the_question_is_in_the_journal(
    sqlite_url: str, receiver: WebhookReceiver
) -> None:
    keys = {"a": b"k" * 32}
    async with told(sqlite_url, receiver, webhooks=[ops(receiver)], encryption_keys=keys) as rt:
        receiver.answers = [500, 500]
        await rt.start("approve", {"log": []}, webhook=f"{receiver.url}/a-secret-path")
        await rt.tick()
        await rt.journal.aflush()
        path = Path(sqlite_url.removeprefix("sqlite:///"))
        stored = b"".join(one.read_bytes() for one in path.parent.glob(f"{path.name}*"))
        assert b"a-secret-path" not in stored
        assert b"Dear Ada" not in stored
        rt.clock.advance(timedelta(minutes=1))
        await rt.tick()
        assert len(receiver.got) == 4
        assert {one.path for one in receiver.got} == {"/", "/a-secret-path"}


# -- signatures


async def test_the_standard_library_of_receivers_accepts_the_signature(
    sqlite_url: str, receiver: WebhookReceiver
) -> None:
    async with told(sqlite_url, receiver, secret=[OTHER, SECRET]) as rt:
        await rt.start("work", {"log": []}, webhook=receiver.url)
        await rt.tick()
        [got] = receiver.got
        for secret in (SECRET, OTHER):  # both, while one replaces the other
            hook = standardwebhooks.Webhook(secret)
            assert hook.verify(got.body, got.headers)["status"] == "success"
        changed = got.body.replace(b"success", b"failure")
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(SECRET).verify(changed, got.headers)


def test_what_the_standard_library_signs_is_verified_here() -> None:
    now = datetime.now(UTC)
    signature = standardwebhooks.Webhook(SECRET).sign("msg_1", now, "{}")
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": f"v1,AAAA {signature} v1a,BBBB",
    }
    keys = secrets_of([OTHER, SECRET])
    assert verify(keys, headers, b"{}", time.time()) == "msg_1"


@pytest.mark.parametrize(
    ("changes", "body", "now", "why"),
    [
        ({}, b"[]", 0, "matches"),
        ({"webhook-id": "msg_2"}, b"{}", 0, "matches"),
        ({"webhook-id": ""}, b"{}", 0, "needed"),
        ({"webhook-signature": ""}, b"{}", 0, "needed"),
        ({"webhook-signature": "v1,\xfc"}, b"{}", 0, "matches"),
        ({"webhook-timestamp": "soon"}, b"{}", 0, "number"),
        ({"webhook-timestamp": "9" * 40}, b"{}", 0, "number"),
        ({}, b"{}", 301, "300 seconds"),
        ({}, b"{}", -301, "300 seconds"),
    ],
)
def test_an_invalid_signature_is_refused(
    changes: dict[str, str], body: bytes, now: int, why: str
) -> None:
    keys = secrets_of(SECRET)
    headers = sign(keys, "msg_1", 1_000_000, b"{}") | changes
    with pytest.raises(BadSignature, match=why):
        verify(keys, headers, body, 1_000_000 + now)


# -- again, for days


async def test_an_endpoint_that_is_gone_is_not_tried_again(
    sqlite_url: str, receiver: WebhookReceiver
) -> None:
    async with told(sqlite_url, receiver) as rt:
        receiver.answers = [410]
        await rt.start("work", {"log": []}, webhook=receiver.url)
        await rt.tick()
        rt.clock.advance(LONG)
        await rt.tick()
        [message] = await rt.messages()
        assert message.due_at is None
        assert "410" in (message.error or "")
        assert len(receiver.got) == 1


async def test_a_slow_receiver_does_not_hold_back_the_others(
    sqlite_url: str, receiver: WebhookReceiver
) -> None:
    heard: list[Any] = []
    hooks = [
        Webhook(receiver.url, events=["run.done"], name="slow", allow_private=True),
    ]
    with receiving() as fast:
        hooks.append(Webhook(fast.url, events=["run.done"], name="fast", allow_private=True))
        async with told(sqlite_url, receiver, webhooks=hooks) as rt:
            rt.deliver("mail", heard.append)

            def mails(state: Log) -> Log:
                return {"log": [perdure.outbox("mail", "hello")]}

            rt.register(chain(mails), name="mails")
            receiver.may_answer.clear()
            async with driving(rt):
                for _ in range(30):
                    await rt.start("mails", {"log": []})
                await auntil(lambda: len(fast.got) == 30 and len(heard) == 30)
                assert len(receiver.got) == 4  # its slots
                receiver.may_answer.set()
                await auntil(lambda: len(receiver.got) == 30)


async def test_a_receiver_that_is_down_is_tried_again(sqlite_url: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = RunWebhooks(allow_private=True)
        async with opened(sqlite_url, run_webhooks=own) as rt:
            rt.register(chain(work), name="work")
            hook = f"http://127.0.0.1:{free.getsockname()[1]}/"
            await rt.start("work", {"log": []}, webhook=hook)
            await rt.tick()
            [message] = await rt.messages()
            assert message.due_at is not None
            assert message.error == "127.0.0.1 was not reached: ConnectError"


# -- killed


# -- where they may lead


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hook",
        "//example.com/hook",
        "http://example.com/hook",
        "ftp://example.com/hook",
        "file:///etc/passwd",
        "gopher://example.com/",
        "https://",
        "https:///hook",
        "https://user:word@example.com/",
        "https://example.com:99999/",
        "https://example.com:x/",
        "https://exa mple.com/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/\r\nx: y",
        "https://exämple.com/",
        "https://[::1/",
        "https://a..example.com/",
        f"https://{'a' * 64}.example.com/",
        "https://example.com/" + "x" * 3000,
        None,
        7,
    ],
)
def test_an_invalid_url_is_refused(url: Any) -> None:
    with pytest.raises(BadArgument):
        check_url(url, allow_private=False)


async def test_the_certificate_must_match_the_name(
    tmp_path: Path,
) -> None:
    names: list[str | None] = []

    def note(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        names.append(name)

    context = Certificates(tmp_path).server("hooks.example")  # of an authority nobody trusts
    context.sni_callback = note

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"https://hooks.example:{port}/"
        with pytest.raises(Undelivered, match="not reached: ConnectError"):
            await post(url, {}, b"{}", allow_private=True, resolve=resolve)
    assert names == ["hooks.example"]


# -- what is logged


async def test_logs_contain_neither_payload_nor_url_nor_response(
    sqlite_url: str, receiver: WebhookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.body = b"the answer is a secret"
    hooks = [ops(receiver)]
    with caplog.at_level(logging.DEBUG):
        async with told(sqlite_url, receiver, webhooks=hooks, secret=SECRET) as rt:
            receiver.answers = [500, 500, 302, 200]
            hook = f"{receiver.url}/a-secret-path"
            await rt.start("approve", {"log": ["a secret input"]}, webhook=hook)
            await rt.tick()
            rt.clock.advance(timedelta(minutes=10))
            await rt.tick()
            assert len(receiver.got) == 4
    told_about = "\n".join(record.getMessage() for record in caplog.records)
    assert "was not delivered" in told_about
    for secret in ("secret", SECRET[6:], "Dear Ada"):
        assert secret not in told_about
