"""Metrics say what this process did and what is in the journal, and cost the journal little."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import perdure
from perdure.commands import claims
from perdure.commands.claims import LeaseTimes
from perdure.errors import BadArgument
from perdure.observe import Metrics
from perdure.observe.metrics import BILLED_ROWS, MOST_SERIES, pause_after
from perdure.testing import Clock
from perdure.types import Retry
from tests.support.agents import NOON, Log, chain, opened
from tests.support.entries import faulty

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def samples(text: str) -> Samples:
    """Every sample of a scrape, by name and labels, as Prometheus' own parser reads it."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = tuple(sorted(one.labels.items()))
            assert labels not in found.setdefault(one.name, {}), (
                f"{one.name}{labels} is there twice"
            )
            found[one.name][labels] = one.value
    return found


@asynccontextmanager
async def scraping(rt: Any) -> AsyncIterator[Any]:
    """A function that gives the samples at `/metrics` now."""
    transport = httpx.ASGITransport(app=rt.asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://perdure") as http:

        async def scrape() -> Samples:
            await asyncio.to_thread(rt.journal.drain)
            answer = await http.get("/metrics")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            return samples(answer.text)

        yield scrape


def often() -> Metrics:
    """Metrics that count the journal at each scrape."""
    return Metrics(count_every=timedelta(0))


def ask(state: Log) -> Log:
    return {"log": [perdure.ask("go on?")]}


def work(state: Log) -> Log:
    return {"log": ["worked"]}


async def test_a_scrape_says_what_happened_and_what_is_in_the_journal(url: str) -> None:
    tries: list[int] = []

    @perdure.effect(name="mail", retry=Retry(attempts=2, first=timedelta(0)))
    def mail() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("busy")
        return "sent"

    @perdure.effect(name="pay", unknown="hold", retry=None)
    def pay() -> str:
        raise ConnectionError("no reply")

    def send(state: Log) -> Log:
        return {"log": [mail()]}

    def paid(state: Log) -> Log:
        return {"log": [pay()]}

    clock = Clock(NOON)
    async with opened(url, clock, observe=often()) as rt, scraping(rt) as scrape:
        rt.register(chain(send, ask), name="g")
        rt.register(chain(paid), name="h")
        asks = await rt.start("g", {"log": []})
        held = await rt.start("h", {"log": []})
        clock.advance(timedelta(seconds=3))
        found = await scrape()
        g, h = ("graph", "g"), ("graph", "h")
        assert found["perdure_runs"] == {(g, ("state", "pending")): 1, (h, ("state", "pending")): 1}
        assert found["perdure_runs_due"] == {(g,): 1, (h,): 1}
        assert found["perdure_due_lag_seconds"] == {(): 3}
        await rt.tick()
        assert (await rt.get(held.id)).state == "held"
        clock.advance(timedelta(minutes=1))
        found = await scrape()
        assert found["perdure_runs"] == {(g, ("state", "waiting")): 1, (h, ("state", "held")): 1}
        assert found["perdure_due_lag_seconds"] == {(): 0}
        assert found["perdure_claim_latency_seconds_sum"] == {(): 3}
        assert found["perdure_effects_unknown"] == {(("effect", "pay"),): 1}
        assert found["perdure_questions_open"] == {(): 1}
        assert found["perdure_question_oldest_seconds"] == {(): 60}
        assert found["perdure_effect_retries_total"] == {(("effect", "mail"),): 1}
        assert found["perdure_effects_total"] == {
            (("effect", "mail"), ("state", "done")): 1,
            (("effect", "pay"), ("state", "unknown")): 1,
        }
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        await rt.tick()
        await rt.cancel(held.id)
        found = await scrape()
        assert "perdure_runs" not in found
        assert found["perdure_runs_started_total"] == {(g,): 1, (h,): 1}
        assert found["perdure_runs_ended_total"][(g, ("state", "done"))] == 1
        assert found["perdure_claims_total"] == {(g,): 2, (h,): 1}
        assert found["perdure_step_seconds_count"][(g,)] == 2
        stored = await rt.events(asks.id) + await rt.events(held.id)
        assert sum(found["perdure_events_total"].values()) == len(stored)
        assert found["perdure_journal_commit_seconds_count"][()] > 0
        assert found["perdure_journal_batch_operations_sum"][()] >= 10
        assert found["perdure_journal_queue_depth"] == {(): 0}
        if not url.startswith("d1:"):
            assert found["perdure_database_bytes"][()] > 10_000


async def test_a_recovery_is_counted(sqlite_url: str) -> None:
    clock = Clock(NOON)
    async with opened(sqlite_url, clock, observe=often()) as rt, scraping(rt) as scrape:
        rt.register(chain(work), name="g")
        run = await rt.start("g", {"log": []})
        times = LeaseTimes(clock.now(), clock.now() + 3000)
        rt.journal.do(claims.claim(rt.saver.serializer, "gone:1:x", times, ["g@"], 1))
        clock.advance(timedelta(seconds=42))
        await rt.tick()
        assert (await rt.get(run.id)).state == "done"
        found = await scrape()
    labels = (("graph", "g"),)
    assert found["perdure_takeovers_total"] == {labels: 1}
    assert found["perdure_claims_total"] == {labels: 2}


async def test_replayed_work_is_counted_as_saved_and_a_retried_run_as_a_retry(
    sqlite_url: str,
) -> None:
    tries: list[int] = []

    @perdure.effect(name="mail")
    def mail() -> str:
        return "sent"

    def send(state: Log) -> Log:
        found = mail()
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("after the effect")
        return {"log": [found]}

    async with opened(sqlite_url, observe=often()) as rt, scraping(rt) as scrape:
        rt.register(chain(send), name="g", retry=Retry(attempts=2, first=timedelta(0)))
        await rt.start("g", {"log": []})
        await rt.tick()
        await rt.tick()
        found = await scrape()
    labels = (("graph", "g"),)
    assert found["perdure_saved_effects_total"] == {labels: 1}
    assert found["perdure_run_retries_total"] == {labels: 1}
    assert found["perdure_runs_ended_total"] == {(*labels, ("state", "done")): 1}


async def test_without_metrics_the_page_says_how_to_turn_them_on(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        transport = httpx.ASGITransport(app=rt.asgi())
        async with httpx.AsyncClient(transport=transport, base_url="http://perdure") as http:
            answer = await http.get("/metrics")
    assert answer.status_code == 404
    assert "Metrics()" in answer.json()["detail"]


def test_a_process_without_a_web_server_is_scraped_at_its_own_port(sqlite_url: str) -> None:
    metrics = Metrics(listen="127.0.0.1:0")
    with perdure.Client(sqlite_url, observe=metrics) as client:
        client.blocking.start("g")
        client.journal.drain()
        port = metrics.port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            found = samples(answer.read().decode())
        assert found["perdure_runs_started_total"] == {(("graph", "g"),): 1}
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")
    with pytest.raises(BadArgument, match="host:port"):
        perdure.Client(sqlite_url, observe=Metrics(listen="nowhere"))


async def test_a_journal_that_is_down_leaves_its_gauges_out_of_the_scrape(sqlite_url: str) -> None:
    async with opened(sqlite_url, observe=often()) as rt, scraping(rt) as scrape:
        await rt.start("g")
        assert "perdure_runs" in await scrape()
        faulty(rt.journal).unreadable = [perdure.errors.Unavailable("gone")]
        found = await scrape()
    assert "perdure_runs" not in found
    assert found["perdure_runs_started_total"] == {(("graph", "g"),): 1}


# -- what a scrape costs


def test_the_journal_is_counted_for_a_hundredth_of_the_time_and_on_d1_for_few_rows() -> None:
    assert pause_after(10, 0.001, 15.0, bills_rows=False) == 15.0
    assert pause_after(1_000_000, 2.0, 15.0, bills_rows=False) == 200.0
    assert pause_after(1_000_000, 2.0, 15.0, bills_rows=True) == 1_000_000 / BILLED_ROWS


async def test_scrapes_in_between_do_not_count_again(sqlite_url: str) -> None:
    metrics = Metrics()
    async with opened(sqlite_url, observe=metrics) as rt:
        await rt.start("g")
        first = samples(metrics.scrape().decode())
        await rt.start("g")
        assert samples(metrics.scrape().decode())["perdure_runs"] == first["perdure_runs"]


# -- the text


async def test_labels_are_escaped_and_a_counter_has_a_bounded_number_of_series(
    sqlite_url: str,
) -> None:
    metrics = Metrics()
    odd = 'quote " back \\ line \n end'
    async with opened(sqlite_url, observe=metrics):
        for graph in [odd, odd, *(str(n) for n in range(MOST_SERIES + 6))]:
            metrics.on_event("started", graph, "t", {"graph": graph}, NOON)
        found = samples(metrics.scrape().decode())["perdure_runs_started_total"]
    assert found[(("graph", odd),)] == 2
    assert found[(("graph", "other"),)] == 7
    assert len(found) == MOST_SERIES + 1
