"""Workers in the browser: who is alive, what each drives, drain one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import perdure
from perdure.runtime import Runtime
from perdure.types import State, WorkerInfo, WorkerState
from tests.server.ui.html_judge import faults
from tests.support.agents import Gate, chain
from tests.support.polling import until
from tests.support.raw import execute
from tests.support.ui import Person, ui_account, ui_server


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


@pytest.fixture
def rt(sqlite_url: str, gate: Gate) -> Iterator[Runtime]:
    found = perdure.Runtime(sqlite_url)
    found.register(chain(("stand", gate.wait)), name="letter")
    with found:
        yield found


@contextmanager
def working(rt: Runtime, **options: Any) -> Iterator[tuple[Person, WorkerInfo]]:
    """The pages of a server whose worker has announced itself."""
    with ui_server(rt, **options) as person:
        [worker] = until(rt.blocking.workers)
        yield person, worker


def test_without_workers_the_page_says_how_to_start_one(rt: Runtime) -> None:
    with ui_server(rt, worker=False) as person:
        page = person.get("/workers")
        assert "There are no workers" in page.text
        assert "perdure worker PLACE" in page.text
        health = person.get("/health").text
        assert "Workers 0 no worker is alive" in health


def test_a_worker_is_listed_with_what_it_drives(rt: Runtime, gate: Gate) -> None:
    with working(rt) as (person, worker):
        run = rt.blocking.start("letter", {"log": []}, thread_id="<b>ada</b>")
        until(lambda: rt.blocking.get(run.id).state is State.RUNNING)
        page = person.get("/workers")
        for text in (f"process {worker.pid}", "alive", "Drives 1 run", "letter", "<b>ada</b>"):
            assert text in page.text
        assert f"/ui/runs/{run.id}" in page.html
        assert faults(page.html) == []
        part = person.get("/workers/list")
        assert ("Drives 1 run" in part.text, "<html" in part.html) == (True, False)
        assert "Workers 1 alive" in person.get("/health").text


def test_a_worker_is_drained_after_the_consequence_was_shown(rt: Runtime) -> None:
    with working(rt) as (person, worker):
        asked = person.get("/workers/drain", params={"id": worker.id})
        assert "The worker claims no more runs." in asked.text
        assert "No other worker is alive." in asked.text
        assert rt.blocking.workers()[0].state is WorkerState.ALIVE
        done = asked.submit("/workers/drain")
        assert "Drain requested" in done.text
        until(lambda: not rt.blocking.workers())
        assert person.get("/workers").status == 200  # the server goes on
        assert person.get("/workers/drain", params={"id": worker.id}).status == 404


def test_a_worker_that_is_silent_stands_out(rt: Runtime) -> None:
    with working(rt) as (person, _):
        execute(
            rt.url, "UPDATE perdure_workers SET seen_at = seen_at - 600000, host = '<i>far</i>'"
        )
        page = person.get("/workers")
        assert faults(page.html) == []
        assert "<i>far</i>" in page.text


def test_an_approver_may_look_but_not_drain(rt: Runtime) -> None:
    with ui_account(rt, "answer") as ana:
        [worker] = until(rt.blocking.workers)
        assert "Drain" not in ana.get("/workers").text
        assert ana.get("/workers/drain", params={"id": worker.id}).status == 403
