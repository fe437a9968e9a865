"""The thread that gives a sink what is due: long histories, and what a sink or the fold refuses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from perdure.client import Client
from perdure.commands.events import Trace
from perdure.errors import BadArgument
from perdure.observe import Metrics, OpenTelemetry, trace_exporter
from perdure.observe.trace_exporter import TraceSink
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import State
from tests.observe import traced
from tests.observe.otlp_receiver import Collector
from tests.observe.trace_judge import TraceJudge
from tests.observe.traced import MARK
from tests.support.agents import NOON


def opened(url: str, collector: Collector) -> tuple[TemporaryRuntime, OpenTelemetry]:
    traces = OpenTelemetry(collector)
    rt = TemporaryRuntime(url, clock=Clock(NOON), observe=traces)
    traced.register(rt)
    return rt, traces


def findings(rt: TemporaryRuntime, collector: Collector) -> list[str]:
    runs = {
        run.id: (run.thread_id, rt.blocking.events(run.id, limit=1000))
        for run in rt.blocking.runs(limit=100)
    }
    return TraceJudge(collector.spans, runs).findings()


def test_a_long_history_is_exported_in_pages_at_once_with_each_score_where_it_was_earned(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_exporter, "EVENTS", 4)
    collector = Collector()
    collector.is_down = True
    rt, traces = opened(sqlite_url, collector)
    with rt:
        run = rt.blocking.start("errand", {"log": [MARK]}, thread_id="t")
        for _ in range(5):
            rt.blocking.tick()
            rt.clock.advance(timedelta(minutes=20))
            for wait in rt.blocking.waits(kind="human"):
                rt.blocking.answer(wait.id, "approve")
        effects = rt.blocking.effects(run_id=run.id)
        for n in range(3):
            for effect in effects:
                rt.blocking.score(run.id, f"score {n}", n, effect=effect.key)
            rt.blocking.score(run.id, f"score {n}", n)
        collector.is_down = False
        rt.clock.advance(timedelta(minutes=2))
        traces.flush()
        assert findings(rt, collector) == []
        spans = {span.id: span for span in collector.spans}
        above = [spans[one.parent] for one in collector.spans if one.name == "score score 0"]
        assert {one.name.partition(" ")[0] for one in above} == {"execute_tool", "invoke_agent"}


class Picky(Collector):
    """Refuses every request that has a span of one run."""

    run_id = ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if any((span.attributes or {}).get("perdure.run.id") == self.run_id for span in spans):
            return SpanExportResult.FAILURE
        return super().export(spans)


def test_a_run_that_cannot_be_given_or_made_a_trace_of_does_not_keep_the_others_back(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Picky()
    collector.is_down = True
    rt, traces = opened(sqlite_url, collector)
    with rt:
        runs = [rt.blocking.start("thinks", {}, thread_id=f"t{n}") for n in range(8)]
        rt.blocking.tick()
        refused, damaged = runs[0].id, runs[1].id
        collector.run_id, collector.is_down = refused, False
        make = TraceSink._ready

        def ready(self: Any, trace: Trace, unexported: list[Any], count: int) -> Any:
            odd: list[Any] = [None]
            return make(self, trace, odd if trace.run_id == damaged else unexported, count)

        monkeypatch.setattr(TraceSink, "_ready", ready)
        with caplog.at_level(logging.CRITICAL):
            for _ in range(5):
                rt.clock.advance(timedelta(minutes=1))
                traces.flush()
        given = {span.attributes.get("perdure.run.id") for span in collector.spans} - {None}
        assert given == {run.id for run in runs} - {refused, damaged}
        monkeypatch.undo()
        collector.run_id = ""
        rt.clock.advance(timedelta(hours=2))
        traces.flush()
        assert findings(rt, collector) == []


@pytest.mark.parametrize("kind", [OpenTelemetry, Metrics])
def test_an_observer_is_of_one_client_or_runtime(kind: Any, sqlite_url: str) -> None:
    observer = kind()
    client = Client(sqlite_url, observe=observer)
    with pytest.raises(BadArgument, match="make one for each"):
        Client(sqlite_url, observe=observer)
    client.close()
    client.close()


class Broken:
    """An observer that fails wherever it is called."""

    def attach(self, engine: Any) -> None:
        pass

    def nudge(self) -> None:
        raise RuntimeError("can't start new thread")

    def around(self, drive: Any) -> Any:
        raise ValueError("no context")

    def on_event(self, *event: Any) -> None:
        raise ValueError("no event")

    close = nudge


def test_an_observer_that_raises_fails_no_run(caplog: pytest.LogCaptureFixture) -> None:
    with TemporaryRuntime(observe=Broken()) as rt:
        traced.register(rt)
        run = rt.blocking.start("thinks", {"log": []})
        rt.blocking.tick()
        assert rt.blocking.get(run.id).state is State.DONE
    for method in ("in nudge", "in around", "event", "in close"):
        assert method in caplog.text
