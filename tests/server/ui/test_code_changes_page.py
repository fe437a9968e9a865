"""Code changes in the browser: which sleeping runs the registered graphs would hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import perdure
from perdure.runtime import Runtime
from tests.server.ui.html_judge import faults
from tests.support.agents import Log, chain
from tests.support.ui import ui_server


def ask(state: Log) -> Any:
    return {"log": [perdure.ask("?")]}


def last(state: Log) -> Any:
    return {"log": ["last"]}


@contextmanager
def deployed(url: str, node: str, *, name: str = "letter", **options: Any) -> Iterator[Runtime]:
    rt = perdure.Runtime(url)
    rt.register(chain((node, ask), last), name=name, **options)
    with rt:
        yield rt


@pytest.fixture
def run_id(sqlite_url: str) -> str:
    """A run that waits in the node `nap`."""
    with deployed(sqlite_url, "nap") as rt:
        run = rt.blocking.start("letter", {"log": []}, thread_id="<b>ada</b>")
        rt.blocking.tick()
        return run.id


def opened_page(url: str, node: str, **options: Any) -> str:
    with deployed(url, node, **options) as rt, ui_server(rt, worker=False) as person:
        page = person.get("/code-changes")
        assert page.status == 200, page.text
        assert faults(page.html) == []
        return page.text


def test_an_unchanged_graph_can_go_on_with_every_run(sqlite_url: str, run_id: str) -> None:
    text = opened_page(sqlite_url, "nap")
    assert "Every unfinished run can continue." in text
    assert "1 unfinished run of 1 registered graph checked." in text


def test_runs_that_would_be_held_are_listed_with_what_to_do(sqlite_url: str, run_id: str) -> None:
    text = opened_page(sqlite_url, "snooze")
    assert "1 unfinished run: 1 would be held." in text
    assert "letter: 1 run would be held" in text
    assert "missing: nap" in text
    assert "register(renamed={'nap': 'snooze'})" in text
    assert f"{run_id} waiting <b>ada</b>" in text


def test_a_rename_that_is_declared_holds_nothing(sqlite_url: str, run_id: str) -> None:
    text = opened_page(sqlite_url, "snooze", renamed={"nap": "snooze"})
    assert "Every unfinished run can continue." in text


def test_a_graph_that_is_not_registered_is_named(sqlite_url: str, run_id: str) -> None:
    text = opened_page(sqlite_url, "nap", name="letters")
    assert "letter: 1 run would not be driven" in text
    assert "Did you mean 'letters'?" in text


def test_without_graphs_there_is_nothing_to_compare_with(sqlite_url: str) -> None:
    with perdure.Runtime(sqlite_url) as rt, ui_server(rt, worker=False) as person:
        assert "No graph is registered in this process" in person.get("/code-changes").text


def test_many_runs_are_checked_when_a_person_asks(
    sqlite_url: str, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.server.ui import operate

    monkeypatch.setattr(operate, "LOOKED_AT", 1)
    with deployed(sqlite_url, "snooze") as rt, ui_server(rt, worker=False) as person:
        assert "would be held" not in _said(person.get("/code-changes").text)
        assert "1 would be held" in _said(person.get("/code-changes?check=now").text)


def _said(text: str) -> str:
    """What is below the explanation."""
    return text.partition("before a deploy.")[2]
