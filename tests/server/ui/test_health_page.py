"""Health in the browser: the verdict at a glance, and the doctor on demand."""

from __future__ import annotations

from typing import Any

import perdure
from perdure.runtime import Runtime
from tests.server.ui.html_judge import faults
from tests.support.agents import Log, chain
from tests.support.raw import execute
from tests.support.ui import Person


def ask(state: Log) -> Any:
    return {"log": [perdure.ask("?")]}


GRAPHS = {"ask": chain(ask)}


def test_an_empty_journal_has_signs_that_are_good(person: Person) -> None:
    page = person.get("/health")
    for text in ("Due runs on time", "Questions none", "Unknown effects none", "Outbox empty"):
        assert text in page.text
    assert faults(page.html) == []


def test_a_question_and_a_late_run_are_seen(rt: Runtime, person: Person) -> None:
    rt.blocking.start("ask", {"log": []})
    rt.blocking.tick()
    with perdure.Client(rt.url) as client:  # knows no graphs
        late = client.blocking.start("<late>", {"log": []})
    execute(rt.url, f"UPDATE perdure_runs SET due_at = due_at - 90000 WHERE id = '{late.id}'")
    page = person.get("/health")
    assert "Questions 1 open; the oldest was asked" in page.text
    assert "late: 1 run of <late>" in page.text
    assert "ue runs" in page.text.partition("need")[0]
    assert faults(page.html) == []


def test_the_signs_are_refreshed_alone(person: Person) -> None:
    part = person.get("/health/signs")
    assert "Due runs on time" in part.text
    assert "<html" not in part.html


def test_the_doctor_says_what_it_found(rt: Runtime, person: Person) -> None:
    page = person.get("/health").submit("/health/doctor")
    assert "invariants hold." in page.text
    run = rt.blocking.start("ask", {"log": []}, thread_id="<b>t</b>")
    execute(rt.url, f"UPDATE perdure_runs SET due_at = NULL WHERE id = '{run.id}'")
    page = person.get("/health").submit("/health/doctor")
    assert "1 finding" in page.text
    assert "<b>t</b>" in page.text
    assert faults(page.html) == []
