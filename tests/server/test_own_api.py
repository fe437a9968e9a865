"""`/perdure/...` over real HTTP: questions and answers, controls, signals, events, effects,
schedules and scores."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from langgraph_sdk import Auth

import perdure
from perdure import Runtime
from perdure.types import Retry
from tests.support.agent_server import AgentServer, served
from tests.support.agents import Log, chain
from tests.support.effects import Cut, Times
from tests.support.polling import until

OFF = "0" * 32


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


@pytest.fixture
def quick(sqlite_url: str) -> Iterator[Own]:
    """The same on SQLite only, for what the database does not decide."""
    with serving(sqlite_url) as made:
        yield made


# -- waits


def test_a_question_is_found_and_answered_and_the_run_goes_on(own: Own) -> None:
    run = own.start("approve", thread_id="t")
    wait = own.question(run)
    assert (wait["kind"], wait["thread_id"], wait["value"]) == ("human", "t", {"draft": "Dear Ada"})
    assert own.get(f"/waits/{wait['id']}")["state"] == "open"
    given = own.post(f"/waits/{wait['id']}/answer", {"value": {"ok": True}, "by": "ada"})
    assert (given["answer"], given["answered_by"]) == ({"ok": True}, "ada")
    done = own.get(f"/runs/{run.id}/join", timeout=30)
    assert (done["state"], done["output"]["value"]) == ("done", {"ok": True})
    assert own.get("/waits")["items"] == []
    [history] = own.get(f"/runs/{run.id}/waits")
    assert history["answered_by"] == "ada"


def test_a_second_answer_is_refused_and_says_who_was_first_and_when(own: Own) -> None:
    wait = own.question(own.start("approve"))
    path = f"/waits/{wait['id']}/answer"
    answers = [{"value": {"ok": n}, "by": f"person {n}"} for n in range(8)]
    codes: list[int] = []
    threads = [
        threading.Thread(
            target=lambda one: codes.append(own.http.post(f"/perdure{path}", json=one).status_code),
            args=(one,),
        )
        for one in answers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200, *[409] * 7]
    refused = own.post(path, {"value": {"ok": False}, "by": "late"}, 409)
    first = own.get(f"/waits/{wait['id']}")
    assert refused["answered_by"] == first["answered_by"] != "late"
    assert refused["answered_at"] == first["answered_at"]
    assert first["answered_by"] in refused["detail"]


def test_an_answer_that_does_not_fit_is_refused_and_changes_nothing(quick: Own) -> None:
    wait = quick.question(quick.start("approve"))
    refused = quick.post(f"/waits/{wait['id']}/answer", {"value": {}}, 422)
    assert "ok" in refused["detail"]
    assert quick.get(f"/waits/{wait['id']}")["state"] == "open"
    quick.post(f"/waits/{wait['id']}/answer", {"valeu": {"ok": 1}}, 422)
    quick.post(f"/waits/{OFF}/answer", {"value": 1}, 404)


def test_an_answer_can_be_withdrawn_until_the_run_uses_it(sqlite_url: str) -> None:
    with serving(sqlite_url, worker=False) as own:
        run = own.start("approve")
        own.rt.blocking.tick()
        wait = own.question(run)
        own.post(f"/waits/{wait['id']}/withdraw", {}, 409)
        own.post(f"/waits/{wait['id']}/answer", {"value": {"ok": 1}, "by": "ada"})
        back = own.post(f"/waits/{wait['id']}/withdraw", {"by": "ada", "reason": "a slip"})
        assert (back["state"], back["answer"]) == ("open", None)
        kinds = [one["kind"] for one in own.get(f"/runs/{run.id}/events")]
        assert kinds[-2:] == ["answer", "withdrawn"]


def test_lists_are_read_page_by_page_and_filtered(own: Own) -> None:
    runs = [own.start("approve", thread_id=f"t{n}") for n in range(5)]
    for run in runs:
        own.question(run)
    for path, ids in (("/waits", None), ("/runs", [one.id for one in reversed(runs)])):
        found, after = [], None
        for size in (2, 2, 1):
            params = {"limit": 2} | ({} if after is None else {"after": after})
            page = own.get(path, **params)
            assert len(page["items"]) == size
            found += page["items"]
            after = page["next"]
        assert after is None
        assert len({one["id"] for one in found}) == 5
        if ids is not None:
            assert [one["id"] for one in found] == ids
    assert len(own.get("/waits", thread_id="t3")["items"]) == 1
    assert own.get("/waits", kind="signal")["items"] == []
    assert len(own.get("/runs", state=["waiting", "done"])["items"]) == 5
    assert own.get("/runs", state="held")["items"] == []
    for params in ({"after": "x"}, {"limit": 0}, {"limit": 5000}, {"kind": "cat"}):
        assert own.http.get("/perdure/waits", params=params).status_code == 422
    assert own.http.get("/perdure/runs", params={"thread_id": "\x00"}).status_code == 422


# -- runs


def test_a_run_is_paused_resumed_woken_and_cancelled(own: Own) -> None:
    run = own.start("nap", thread_id="t")
    own.until(run, "waiting")
    assert own.post(f"/runs/{run.id}/pause", {"by": "ops"})["state"] == "paused"
    own.post(f"/runs/{run.id}/pause", {"by": "ops"})
    assert own.post(f"/runs/{run.id}/resume")["state"] in ("pending", "running", "waiting")
    own.until(run, "waiting")
    own.post(f"/runs/{run.id}/wake", {"by": "ops"})
    assert own.get(f"/runs/{run.id}/join", timeout=30)["state"] == "done"
    own.post(f"/runs/{run.id}/cancel", None, 409)
    other = own.start("nap", thread_id="u")
    own.until(other, "waiting")
    gone = own.post(f"/runs/{other.id}/cancel", {"reason": "not needed", "by": "ops"})
    assert (gone["state"], gone["reason"]) == ("cancelled", "not needed")
    own.post(f"/runs/{OFF}/cancel", None, 404)


def test_a_failed_run_is_retried_and_a_run_is_forked(own: Own) -> None:
    run = own.start("fail")
    own.until(run, "failed")
    assert own.get(f"/runs/{run.id}")["error"]["message"] == "no such mailbox"
    own.post(f"/runs/{run.id}/retry", {"by": "ops"})
    [retried] = [one for one in own.rt.blocking.events(run.id) if one.kind == "retried"]
    assert retried.data == {"by": "ops", "via": "api", "from": "127.0.0.1"}
    until(lambda: [e["kind"] for e in own.get(f"/runs/{run.id}/events")].count("failed") == 2)
    own.post(f"/runs/{run.id}/resume", None, 409)
    asked = own.start("approve", thread_id="t")
    own.question(asked)
    forked = own.post(f"/runs/{asked.id}/fork", {"thread_id": "forked"}, 201)
    assert forked["thread_id"] == "forked"
    until(lambda: len(own.get("/waits")["items"]) == 2, "the question of the fork")


def test_join_returns_the_current_run_after_its_timeout(quick: Own) -> None:
    run = quick.start("nap")
    quick.until(run, "waiting")
    begun = time.monotonic()
    assert quick.get(f"/runs/{run.id}/join", timeout=0.2)["state"] == "waiting"
    assert time.monotonic() - begun < 20


# -- events


def read_events(own: Own, path: str, **options: Any) -> list[tuple[str, str, Any]]:
    """The events of a stream, to its end: id, name, data."""
    found, event = [], {}
    with own.http.stream("GET", f"/perdure{path}", **options) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                event[name] = value
            elif "data" in event:
                found.append((event.get("id", ""), event["event"], json.loads(event["data"])))
                if event["event"] == options.get("extensions", {}).get("until"):
                    break
                event = {}
    return found


def test_the_events_of_a_run_are_read_live_and_again_from_a_number(own: Own) -> None:
    run = own.start("approve", thread_id="t")
    wait = own.question(run)
    answer = threading.Timer(
        0.3, lambda: own.rt.blocking.answer(wait["id"], {"ok": True}, by="ada")
    )
    answer.start()
    found = read_events(own, f"/runs/{run.id}/events/stream")
    answer.join()
    assert found[-1][1] == "end"
    numbers = [int(id) for id, name, _ in found[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    kinds = [name for _, name, _ in found]
    assert kinds[0] == "started"
    assert kinds[-2] == "done"
    assert "answer" in kinds
    assert {data["run_id"] for *_, data in found} == {run.id}
    headers = {"Last-Event-ID": "3"}
    again = read_events(own, f"/runs/{run.id}/events/stream", headers=headers)
    assert again == found[3:]
    assert read_events(own, f"/runs/{run.id}/events/stream?after=3") == found[3:]
    pages = own.get(f"/runs/{run.id}/events", after=1, limit=3)
    assert [one["n"] for one in pages] == [2, 3, 4]
    bad = own.http.get(f"/perdure/runs/{run.id}/events/stream", headers={"Last-Event-ID": "x"})
    assert bad.status_code == 422


def test_the_events_of_all_runs_are_read_live(own: Own) -> None:
    seen: list[tuple[str, str, Any]] = []

    def read() -> None:
        seen.extend(read_events(own, "/events/stream", extensions={"until": "done"}))

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)
    run = own.start("work", thread_id="t")
    reader.join(60)
    mine = [(data["n"], name) for _, name, data in seen if data["run_id"] == run.id]
    assert [n for n, _ in mine] == list(range(1, len(mine) + 1))
    assert mine[-1][1] == "done"


# -- signals


def test_a_signal_is_stored_once_per_key_and_wakes_its_run(own: Own) -> None:
    run = own.start("listen", thread_id="t")
    own.until(run, "waiting")
    path = "/threads/t/signals/reply"
    key = {"Idempotency-Key": "mail-1"}
    assert own.post(path, {"value": {"text": "yes"}}, headers=key) == {"stored": True}
    assert own.post(path, {"value": {"text": "yes"}, "key": "mail-1"}) == {"stored": False}
    assert own.get(f"/runs/{run.id}/join", timeout=30)["output"]["value"] == {"text": "yes"}
    assert own.post(path, {"value": 1, "key": "mail-1"}, headers=key) == {"stored": False}
    own.post(path, {"value": 1, "key": "mail-2"}, 422, headers=key)
    assert own.post(path) == {"stored": True}
    assert own.post(path) == {"stored": True}  # without a key each is one of its own


@pytest.mark.parametrize(
    ("kind", "body", "stored"),
    [
        ("text/plain", b"hello", "hello"),
        ("application/x-www-form-urlencoded", b"a=1&b=2", "a=1&b=2"),
        ("application/octet-stream", b"\xff\x00", "/wA="),
        ("application/cloudevents+json", b'{"a": [1]}', {"a": [1]}),
        ("", b"", ""),
    ],
)
def test_a_signal_may_be_of_any_content_type(
    quick: Own, kind: str, body: bytes, stored: Any
) -> None:
    run = quick.start("listen", thread_id="t")
    path = "/perdure/threads/t/signals/reply/raw"
    headers = {"content-type": kind, "webhook-id": "one"} if kind else {"webhook-id": "one"}
    assert quick.http.post(path, content=body, headers=headers).json() == {"stored": True}
    assert quick.http.post(path, content=body, headers=headers).json() == {"stored": False}
    value = quick.get(f"/runs/{run.id}/join", timeout=30)["output"]["value"]
    assert value["body"] == stored
    if not kind:
        bad = quick.http.post(path, content=b"{", headers={"content-type": "application/json"})
        assert bad.status_code in (400, 422)


# -- effects


def test_an_effect_with_an_unknown_outcome_is_settled(own: Own) -> None:
    cuts = Times(1, Cut)

    @perdure.effect(name="book of test_own_api", unknown="hold")
    def book(seat: str) -> str:
        cuts()
        return "booked by itself"

    def node(state: Log) -> Log:
        return {"value": book("12A")}

    own.rt.register(chain(node), name="book")
    run = own.start("book", thread_id="t")
    own.until(run, "held")
    [unknown] = own.get("/effects", state="unknown")["items"]
    assert (unknown["run_id"], unknown["arguments"]) == (run.id, {"seat": "12A"})
    assert own.get(f"/effects/{unknown['key']}") == unknown
    assert own.get("/effects", run_id=run.id)["items"] == [unknown]
    path = f"/effects/{unknown['key']}/settle"
    own.post(path, {"how": "perhaps"}, 422)
    own.post("/effects/nothing/settle", {"how": "retry"}, 404)
    settled = own.post(path, {"how": "done", "result": "booked", "by": "ops"})
    assert (settled["state"], settled["result"]) == ("done", "booked")
    assert own.get(f"/runs/{run.id}/join", timeout=30)["output"]["value"] == "booked"
    own.post(path, {"how": "retry"}, 409)


# -- schedules, scores, the outbox, the journal


def test_a_schedule_is_created_changed_listed_and_deleted(own: Own) -> None:
    body = {"graph": "work", "cron": "0 9 * * 1", "timezone": "Europe/Rome", "input": {"log": []}}
    made = own.http.put("/perdure/schedules/digest", json=body)
    assert (made.status_code, made.json()["graph"]) == (200, "work")
    changed = own.http.put("/perdure/schedules/digest", json={**body, "cron": "0 8 * * 1"})
    assert changed.json()["cron"] == "0 8 * * 1"
    assert [one["name"] for one in own.get("/schedules")] == ["digest"]
    for wrong in ({"cron": "every day"}, {"graph": "nothing"}, {"timezone": "Mars"}, {"x": 1}):
        refused = own.http.put("/perdure/schedules/digest", json={**body, **wrong})
        assert refused.status_code == 422, wrong
    assert own.http.delete("/perdure/schedules/digest").status_code == 204
    assert own.http.delete("/perdure/schedules/digest").status_code == 404


def test_a_run_is_scored(own: Own) -> None:
    run = own.start("work")
    own.post(f"/runs/{run.id}/scores", {"name": "replied", "value": True, "about": "touch-2"})
    found = own.post(f"/runs/{run.id}/scores", {"name": "tone", "value": "formal", "by": "ana"})
    assert [(one["name"], one["value"]) for one in found] == [("replied", 1.0), ("tone", None)]
    assert own.get(f"/runs/{run.id}/scores") == found
    own.post(f"/runs/{run.id}/scores", {"name": "x", "step": "nothing", "value": 1}, 404)
    own.post(f"/runs/{OFF}/scores", {"name": "x", "value": 1}, 404)


def test_an_operator_sees_the_outbox_and_the_health_of_the_journal(own: Own) -> None:
    assert own.get("/doctor")["ok"] is True
    assert own.get("/messages") == []
    own.post("/messages/nothing/redeliver", None, 404)


# -- who may


def test_an_answer_is_recorded_as_the_authenticated_users(sqlite_url: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def who(headers: dict[bytes, bytes]) -> str:
        return headers[b"x-user"].decode()

    @auth.on.threads
    async def own_only(ctx: Any, value: Any) -> dict[str, str]:
        return {"owner": ctx.user.identity}

    with serving(sqlite_url, auth=auth) as own:
        ada, bob = {"x-user": "ada"}, {"x-user": "bob"}
        made = own.http.post("/threads", json={"metadata": {"owner": "ada"}}, headers=ada)
        thread_id = made.json()["thread_id"]
        run = own.start("approve", thread_id=thread_id)
        wait = until(lambda: own.rt.blocking.waits(run_id=run.id))[0]
        for path in (f"/runs/{run.id}", f"/waits/{wait.id}", f"/runs/{run.id}/events"):
            assert own.http.get(f"/perdure{path}", headers=bob).status_code == 404
            assert own.http.get(f"/perdure{path}", headers=ada).status_code == 200
        for path in ("/waits", "/runs"):
            assert own.http.get(f"/perdure{path}", headers=bob).json()["items"] == []
            assert len(own.http.get(f"/perdure{path}", headers=ada).json()["items"]) == 1
        answer = {"value": {"ok": 1}, "by": "the boss"}
        path = f"/perdure/waits/{wait.id}/answer"
        assert own.http.post(path, headers=bob, json=answer).status_code == 404
        signal = f"/perdure/threads/{thread_id}/signals/x"
        assert own.http.post(signal, headers=bob).status_code == 404
        assert own.http.post(path, headers=ada, json=answer).json()["answered_by"] == "ada"
        for denied in ("/doctor", "/schedules", "/messages"):
            assert own.http.get(f"/perdure{denied}", headers=ada).status_code == 403
        assert own.http.post(f"/perdure/runs/{run.id}/cancel", headers=ada).status_code == 403
