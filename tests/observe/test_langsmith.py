"""LangSmith has every segment of a run once, whatever dies or is down; feedback is on the run
that earned it; and nothing is sent that is hidden, or if LangSmith is not configured."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langsmith.run_trees import configure, get_cached_client
from langsmith.utils import get_env_var

from perdure import Client
from perdure.observe import LangSmith, from_env, langsmith_run_ids, trace_exporter
from perdure.observe.trace_exporter import RunSpans
from perdure.observe.trace_fold import TraceFold
from perdure.testing import Clock
from perdure.types import Event, EventKind
from tests.observe import langsmith_child
from tests.observe.langsmith_child import ask, both, exported, sink, write
from tests.observe.langsmith_server import PROJECT, Store, langsmith_server
from tests.support.agents import NOON, Log, chain, opened
from tests.support.fork_server import ForkServer


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trace_exporter, "GATHER", 0.0)
    monkeypatch.setattr(trace_exporter, "PAUSE", 0)
    get_env_var.cache_clear()  # type: ignore[attr-defined]
    yield
    get_env_var.cache_clear()  # type: ignore[attr-defined]


@pytest.fixture
def store() -> Iterator[Store]:
    with langsmith_server() as made:
        yield made


def named(store: Store, **metadata: Any) -> dict[str, dict[str, Any]]:
    """Runs by name."""
    return {run["name"]: run for run in store.ordered(**metadata)}


async def test_each_segment_is_a_trace_of_its_thread_with_steps_effects_and_waits(
    url: str, store: Store
) -> None:
    async with opened(url, observe=sink(store.url)) as rt:
        rt.register(chain(write, ask), name="g", version="2")
        run = await rt.start("g", {"log": []}, thread_id="t")
        await rt.tick()
        [wait] = await rt.waits()
        rt.clock.advance(timedelta(minutes=1))
        await rt.answer(wait.id, "yes", by="ada")
        await rt.tick()
        await exported(rt, url)
        ids = langsmith_run_ids(run.id, await rt.events(run.id))
    store.check()
    first, second = store.roots(thread_id="t")
    assert [first["id"], second["id"]] == [str(ids[1]), str(ids[2])]
    for one in store.runs.values():
        metadata = one["extra"]["metadata"]
        assert metadata["perdure_run_id"] == run.id
        assert (metadata["perdure_graph"], metadata["perdure_version"]) == ("g", "2")
        assert one["session_name"] == "agents"
    assert (first["name"], first["run_type"]) == ("g", "chain")
    assert first["extra"]["metadata"]["perdure_driven"] == "cron"
    below = named(store, perdure_span="effect") | named(store, perdure_span="wait")
    mail, question = below["send_mail"], below["wait human"]
    assert (mail["run_type"], mail["outputs"]) == ("tool", {"output": "sent to ada@example.com"})
    assert mail["parent_run_id"] == named(store)["step write"]["id"]
    assert question["parent_run_id"] == first["id"]


@pytest.mark.slow
async def test_nothing_is_lost_and_nothing_is_there_twice_when_workers_die_and_langsmith_is_down(
    sqlite_url: str, fork_server: ForkServer
) -> None:
    with langsmith_server(trouble=0.5, seed=3) as store:
        async with opened(sqlite_url) as rt:
            run = await rt.start("g", {"log": []}, thread_id="t")
            minutes = itertools.count()

            def drive(dies: str) -> int:
                return fork_server.run(
                    langsmith_child.drive,
                    url=sqlite_url,
                    langsmith=store.url,
                    dies=dies,
                    minutes=next(minutes),
                ).status

            assert drive("effect send_mail.after") == -signal.SIGKILL
            assert drive("given") == -signal.SIGKILL
            assert drive("") == 0
            [wait] = await rt.waits()
            await rt.answer(wait.id, "yes")
            assert drive("given") == -signal.SIGKILL
            assert drive("") == 0
            ids = langsmith_run_ids(run.id, await rt.events(run.id))
    store.check()
    assert [one["id"] for one in store.roots()] == [str(id) for id in ids.values()]
    assert len(store.requests) > len(store.runs) / 2
    assert store.repeats > 0
    first, second, third = store.roots()
    assert "died" in first["error"]
    assert not second.get("error")
    assert not third.get("error")
    mails = [one for one in store.ordered() if one["name"] == "send_mail"]
    assert [one["extra"]["metadata"]["perdure_effect_state"] for one in mails] == ["open", "done"]
    assert [one["trace_id"] for one in mails] == [first["id"], second["id"]]


async def test_a_score_is_feedback_on_what_earned_it_though_another_process_gave_it(
    sqlite_url: str,
) -> None:
    with langsmith_server(trouble=0.5, seed=1) as store:
        async with opened(sqlite_url, observe=sink(store.url)) as rt:
            rt.register(chain(both), name="g")
            run = await rt.start("g", {"log": []})
            await rt.tick()
            [wait] = await rt.waits()
            rt.clock.advance(timedelta(minutes=1))
            await rt.answer(wait.id, "yes")
            await rt.tick()
            await exported(rt, sqlite_url)
            [mail] = await rt.effects()
            events = await rt.events(run.id)
            steps = [event.data["checkpoint"] for event in events if event.kind == "step"]
        async with Client(sqlite_url) as client:
            await client.score(run.id, "replied", 1, effect=mail.key, comment="within an hour")
            await client.score(run.id, "tone", "friendly", step=steps[-1])
            await client.score(run.id, "overall", 0.25)
            await client.score(run.id, "overall", 0.5)
        async with opened(sqlite_url, observe=sink(store.url)) as rt:
            rt.register(chain(both), name="g")
            await rt.tick()
            await exported(rt, sqlite_url)
    store.check()
    found = {one["key"]: one for one in store.feedback.values()}
    assert len(found) == len(store.feedback)
    about = {key: store.runs[one["run_id"]]["name"] for key, one in found.items()}
    assert about == {"replied": "send_mail", "tone": "step both", "overall": "g"}
    first, second = store.roots()
    assert store.runs[found["replied"]["run_id"]]["trace_id"] == first["id"]
    [replayed] = store.ordered(perdure_replayed=True)
    assert (replayed["name"], replayed["trace_id"]) == ("send_mail", second["id"])
    assert found["overall"]["run_id"] == second["id"]
    assert (found["replied"]["score"], found["replied"]["comment"]) == (1.0, "within an hour")
    assert found["tone"]["value"] == "friendly"
    assert found["overall"]["score"] == 0.5
    assert {one["feedback_source"]["metadata"]["perdure_run_id"] for one in found.values()} == {
        run.id
    }
    assert {one["session_id"] for one in found.values()} == {PROJECT}


@pytest.mark.parametrize("way", ["environment", "anonymizer"])
async def test_what_is_hidden_is_not_sent(
    sqlite_url: str, store: Store, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "environment":
        for name in ("INPUTS", "OUTPUTS", "METADATA"):
            monkeypatch.setenv(f"LANGSMITH_HIDE_{name}", "true")
        monkeypatch.setenv("LANGSMITH_ENDPOINT", store.url)
        monkeypatch.setenv("LANGSMITH_API_KEY", "key")
        monkeypatch.setenv("LANGSMITH_WORKSPACE_ID", "w1")
        monkeypatch.setenv("LANGSMITH_PROJECT", "agents")
        observer = LangSmith()
    else:

        def anonymizer(value: Any) -> Any:
            if value == {"text": "an odd secret"}:
                raise ValueError(value)
            return json.loads(json.dumps(value).replace("secret", "***"))

        observer = sink(store.url, anonymizer=anonymizer)
    async with opened(sqlite_url, observe=observer) as rt:
        rt.register(chain(write, ask), name="g")
        run = await rt.start("g", {"log": ["secret"]}, metadata={"who": "secret"})
        await rt.tick()
        await rt.score(run.id, "good", 1, comment="the secret was kept")
        await rt.score(run.id, "odd", 1, comment="an odd secret")
        await exported(rt, sqlite_url)
    assert len(store.feedback) == 2
    sent = json.dumps([[path, given] for _, path, _, given in store.requests])
    assert "secret" not in sent
    assert ("***" in sent) == (way == "anonymizer")
    if way == "environment":
        assert {one["session_name"] for one in store.runs.values()} == {"agents"}
        assert all(headers["x-tenant-id"] == "w1" for _, _, headers, _ in store.requests)


async def test_what_langchain_reports_is_below_the_segment(
    sqlite_url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    monkeypatch.setenv("LANGSMITH_ENDPOINT", store.url)
    monkeypatch.setenv("LANGSMITH_API_KEY", "key")
    monkeypatch.setenv("LANGSMITH_PROJECT", "agents")
    configure(client=None)

    def chat(state: Log) -> Log:
        model = GenericFakeChatModel(messages=iter([AIMessage("hello")]))
        return {"log": [str(model.invoke("hi").content)]}

    [observer] = from_env()
    clock = Clock(datetime.now(UTC) - timedelta(seconds=1))
    async with opened(sqlite_url, clock, observe=observer) as rt:
        rt.register(chain(chat), name="g")
        run = await rt.start("g", {"log": []}, thread_id="t", tags=["spring"])
        await rt.tick()
        await exported(rt, sqlite_url)
        get_cached_client().flush()
        configure(client=None)
    store.check()
    [root] = store.roots()
    live = {
        one["name"]: one
        for one in store.ordered()
        if "perdure_span" not in one["extra"]["metadata"]
    }
    assert live["g"]["parent_run_id"] == root["id"]
    assert {one["trace_id"] for one in store.runs.values()} == {root["id"]}
    model = live["GenericFakeChatModel"]
    assert (model["run_type"], model["parent_run_id"]) == ("llm", live["chat"]["id"])
    for one in live.values():
        metadata = one["extra"]["metadata"]
        assert (metadata["thread_id"], metadata["perdure_run_id"]) == ("t", run.id)
        assert {"spring", "runtime:cron"} <= {*live["g"]["tags"]}


async def test_a_trace_that_is_not_sampled_is_not_sent_and_has_no_feedback(
    sqlite_url: str, store: Store
) -> None:
    async with opened(sqlite_url, observe=sink(store.url, tracing_sampling_rate=0.0)) as rt:
        rt.register(chain(write, ask), name="g")
        run = await rt.start("g", {"log": []})
        await rt.tick()
        await rt.score(run.id, "good", 1)
        await exported(rt, sqlite_url)
    assert store.requests == []


@pytest.mark.parametrize("live", [False, True])
async def test_tokens_of_a_recorded_model_call_count_once(
    sqlite_url: str, store: Store, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    usage = {"model": "m-1", "input_tokens": 5, "output_tokens": 7}
    effect = {"name": "model", "key": "k", "attempt": 1, "state": "done", "usage": usage}
    history: list[tuple[str, dict[str, Any]]]
    history = [("started", {"graph": "g"}), ("claimed", {"driven": "worker"}), ("effect", effect)]
    events = [Event(n, NOON, EventKind(kind), data) for n, (kind, data) in enumerate(history, 1)]
    fold = TraceFold()
    spans = fold.spans(events)
    if live:
        monkeypatch.setenv("LANGSMITH_TRACING", "true")
    observer = sink(store.url)
    async with opened(sqlite_url, observe=observer):
        assert observer.give([RunSpans("r", "t", fold, spans)])
    [made] = store.runs.values()
    assert made["name"] == "chat m-1"
    if live:  # LangChain reports the call, with its usage
        assert (made["run_type"], made["usage"]) == ("tool", {})
    else:
        assert (made["run_type"], made["usage"]) == ("llm", {"input_tokens": 5, "output_tokens": 7})


def test_nothing_is_imported_if_langsmith_is_not_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "LANGSMITH_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert from_env() == []
    code = "import sys, perdure.observe as o; o.from_env(); print('langsmith' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
