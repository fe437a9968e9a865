"""One trace per run, across processes, kills and a collector that is down.

What each crash leaves behind is in `perdure/commands/events.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

import perdure
from perdure.langchain import Durable
from perdure.observe import OpenTelemetry
from perdure.observe.trace_fold import CRASHED
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import State
from tests.observe import traced
from tests.observe.otlp_receiver import Collector, Receiver, Span
from tests.observe.trace_judge import TraceJudge
from tests.observe.traced import MARK
from tests.support.agents import NOON
from tests.support.fork_server import ForkServer
from tests.support.langchain_child import Script, calls, says
from tests.support.polling import until
from tests.support.raw import execute


def traced_runtime(
    url: str, *collectors: Collector, clock: Clock | None = None
) -> TemporaryRuntime:
    rt = TemporaryRuntime(
        url, clock=clock or Clock(NOON), observe=[OpenTelemetry(one) for one in collectors]
    )
    traced.register(rt)
    return rt


def judged(rt: perdure.Client, spans: list[Span]) -> TraceJudge:
    """Nothing is wrong with these traces, and none has content."""
    runs = {
        run.id: (run.thread_id, rt.blocking.events(run.id, limit=1000))
        for run in rt.blocking.runs(limit=100)
    }
    judge = TraceJudge(spans, runs)
    assert judge.findings() == []
    assert [span for span in spans if MARK.encode() in span.encoded] == []
    return judge


def to_the_end(rt: TemporaryRuntime) -> None:
    """Do all that is left to do."""
    for _ in range(20):
        rt.blocking.tick()
        for effect in rt.blocking.effects(state="unknown"):
            rt.blocking.settle(effect.key, "retry")
        for wait in rt.blocking.waits(kind="human"):
            rt.blocking.answer(wait.id, MARK)
        if all(run.ended for run in rt.blocking.runs(limit=100)):
            return
        rt.clock.advance(timedelta(minutes=20))
    raise AssertionError("it does not end")


@pytest.fixture
def receiver(fork_server: ForkServer, tmp_path: Path) -> Iterator[Receiver]:
    (tmp_path / "collector").mkdir()
    with Receiver(fork_server, tmp_path / "collector") as made:
        yield made


def otlp(receiver: Receiver) -> OpenTelemetry:
    return OpenTelemetry(OTLPSpanExporter(f"{receiver.url}/v1/traces"))


@pytest.mark.slow
def test_a_run_is_one_trace_although_its_workers_are_killed_in_an_effect_and_after_an_export(
    fork_server: ForkServer, receiver: Receiver, url: str
) -> None:
    order: Any = {"url": url, "thread": "t", "environment": receiver.environment}
    killed: Any = {"point": "effect send.before", "graph": "errand", "minutes": 0}
    assert fork_server.run(traced.die, **order, **killed).status == -9
    assert receiver.spans() == []
    killed = {"point": "note_trace.before", "minutes": 1}
    assert fork_server.run(traced.die, **order, **killed).status == -9
    noted = receiver.spans()
    assert {span.attributes["perdure.segment"] for span in noted if span.what == "segment"} == {
        1,
        2,
    }
    clock = Clock(NOON + timedelta(minutes=5))
    with TemporaryRuntime(url, clock=clock, observe=otlp(receiver)) as rt:
        traced.register(rt)
        to_the_end(rt)
    with perdure.Client(url) as client:
        judge = judged(client, receiver.spans())
    assert judge.redelivered >= len(noted)
    sent = [span for span in judge.spans.values() if span.name == "execute_tool send"]
    attempts = {one.attributes["perdure.effect.attempt"]: one for one in sent}
    assert [attempts[n].error for n in (1, 2)] == ["its outcome is unknown", None]
    segments = [span for span in judge.spans.values() if span.what == "segment"]
    assert [one.error for one in segments if one.attributes.get("perdure.crashed")] == [CRASHED]


def test_what_a_collector_missed_while_down_two_processes_give_it_once(url: str) -> None:
    collector, clock = Collector(), Clock(NOON)
    collector.is_down = True
    with traced_runtime(url, collector, clock=clock) as rt:
        for n in range(6):
            rt.blocking.start("thinks", {"log": [MARK]}, thread_id=f"t{n}")
        rt.blocking.tick()
    assert collector.spans == []
    collector.is_down = False
    clock.advance(timedelta(minutes=2))
    with (
        traced_runtime(url, collector, clock=clock) as one,
        traced_runtime(url, collector, clock=clock) as other,
    ):
        one.setup()
        other.setup()
        together = threading.Barrier(2)

        def export(rt: TemporaryRuntime) -> None:
            together.wait(30)
            rt.blocking.tick()

        threads = [threading.Thread(target=export, args=[rt]) for rt in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: len({span.trace for span in collector.spans}) == 6, "six traces")
    with perdure.Client(url) as client:
        assert judged(client, collector.spans).redelivered == 0


def test_a_run_that_was_first_driven_without_tracing_and_then_cancelled_by_a_client_is_closed(
    sqlite_url: str,
) -> None:
    clock, collector = Clock(NOON), Collector()
    with traced_runtime(sqlite_url, clock=clock) as rt:
        run = rt.blocking.start("errand", {"log": [MARK]}, thread_id="t")
        rt.blocking.tick()
    clock.advance(timedelta(minutes=11))
    with traced_runtime(sqlite_url, collector, clock=clock) as rt:
        rt.blocking.tick()
    assert {span.attributes.get("perdure.segment") for span in collector.spans} >= {1, 2}
    with perdure.Client(sqlite_url) as client:
        client.blocking.cancel(run.id, reason=MARK, by="eva")
    with traced_runtime(sqlite_url, collector, clock=clock) as rt:
        assert rt.blocking.tick().claimed == 0
    clock.advance(timedelta(days=1))
    with traced_runtime(sqlite_url, clock=clock) as rt:
        assert judged(rt, collector.spans).redelivered == 0
        assert rt.blocking.prune(older_than=timedelta(0)) == 1
    assert execute(sqlite_url, "SELECT count(*) FROM perdure_traces") == [(0,)]


def test_a_process_that_drives_and_ends_at_once_exports(
    fork_server: ForkServer, receiver: Receiver, sqlite_url: str
) -> None:
    order: Any = {
        "url": sqlite_url,
        "thread": "t",
        "minutes": 0,
        "environment": receiver.environment,
    }
    assert fork_server.run(traced.tick, exits=True, graph="thinks", **order).status == 0
    with perdure.Client(sqlite_url) as client:
        assert judged(client, receiver.spans()).redelivered == 0


# -- the spans of others


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openinference", "openllmetry"])
def test_the_spans_of_other_instrumentations_are_in_ours(
    fork_server: ForkServer, sqlite_url: str, which: str
) -> None:
    """Of models called in plain nodes and coroutines, side by side, and inside an effect."""
    ended = fork_server.run("tests.observe.instrumented:trace", url=sqlite_url, which=which)
    assert ended.status == 0
    assert ended.one("chats") >= 3
    assert ended.all("orphan") == []
    assert ended.one("traces") == 1


def test_model_calls_that_are_effects_have_their_cost_and_are_not_told_twice(
    sqlite_url: str,
) -> None:
    collector = Collector()

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        return f"sent {MARK}"

    script = Script(answers=[calls(("send", {"to": MARK}, "c1")), says(MARK)])
    agent = create_agent(script, [send], middleware=[Durable()])
    with traced_runtime(sqlite_url, collector) as rt:
        rt.register(agent, name="agent")
        run = rt.blocking.start("agent", {"messages": [("user", MARK)]}, thread_id="t")
        rt.blocking.tick()
        assert rt.blocking.get(run.id).state is State.DONE
    with perdure.Client(sqlite_url) as client:
        judge = judged(client, collector.spans)
    chats = [span for span in judge.spans.values() if span.name.startswith("chat ")]
    assert [span.name for span in chats] == ["chat script-1"] * 2
    for span in chats:
        about = span.attributes
        assert (about["gen_ai.usage.input_tokens"], about["gen_ai.usage.output_tokens"]) == (5, 2)
        assert about["gen_ai.request.model"] == "script-1"
        assert about["gen_ai.operation.name"] == "chat"
        assert about["gen_ai.conversation.id"] == "t"
    names = [span.name for span in judge.spans.values()]
    assert [name for name in names if name.startswith("execute_tool")] == ["execute_tool send"]
