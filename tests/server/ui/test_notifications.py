"""The stream of new questions for the browser's notifications: each that the viewer may see, once
it is stored; and after a pause those that were missed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import perdure
import perdure.testing
from perdure.runtime import Runtime
from perdure.testing import TemporaryRuntime
from tests.support.reviewed_agents import asking, reviewed_agent
from tests.support.ui import Person, ui_server

LIVE = "/ui/notifications/live"


@pytest.fixture
def runtime(sqlite_url: str) -> Iterator[TemporaryRuntime]:
    found = perdure.testing.runtime(sqlite_url)
    words = iter(["May I?", "And now?"])
    found.register(asking(lambda: perdure.ask(next(words))), name="plain")
    agent, _ = reviewed_agent({"to": "bo", "body": "Hello"})
    found.register(agent, name="mailer")
    yield found
    found.close()


class Events:
    """What a stream sends."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def next(self) -> tuple[str, str, Any]:
        """The name, the id and the data of the next event."""
        found: dict[str, str] = {}
        for line in self._lines:
            name, _, value = line.partition(": ")
            if line and name:
                found[name] = value
            elif "event" in found:
                break
            else:
                found = {}
        return found["event"], found.get("id", ""), json.loads(found["data"])


@contextmanager
def listening(person: Person, **options: Any) -> Iterator[Events]:
    with person.http.stream("GET", LIVE, **options) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Events(response.iter_lines())


def ask(runtime: Runtime, graph: str = "plain") -> Any:
    messages = {"messages": [("human", "Go")]} if graph == "mailer" else {}
    run = runtime.blocking.start(graph, messages)
    runtime.blocking.tick()
    [wait] = runtime.blocking.waits(run_id=run.id)
    return wait


def test_a_new_question_is_sent_with_its_page(runtime: TemporaryRuntime) -> None:
    with ui_server(runtime, worker=False) as person, listening(person) as events:
        assert events.next()[0] == "ready"
        for graph, title in (("plain", "May I?"), ("mailer", "send_mail")):
            wait = ask(runtime, graph)
            name, _, data = events.next()
            assert name == "asked"
            assert data == {
                "id": wait.id,
                "graph": graph,
                "title": title,
                "url": f"/ui/questions/{wait.id}",
            }
            assert person.get(data["url"]).status == 200


@pytest.mark.parametrize("how", ["header", "query"])
def test_after_a_pause_missed_open_questions_are_sent(runtime: TemporaryRuntime, how: str) -> None:
    with ui_server(runtime, worker=False) as person:
        with listening(person) as events:
            last = events.next()[1]
        answered, missed = ask(runtime), ask(runtime)
        runtime.blocking.answer(answered.id, "yes")
        given = {"last-event-id": last} if how == "header" else {}
        asked = {"since": last} if how == "query" else {}
        with listening(person, headers=given, params=asked) as events:
            assert events.next()[0] == "ready"
            assert events.next()[2]["id"] == missed.id


@pytest.mark.parametrize("since", ["1", "99999999999999999", "9" * 5000, "-5", "x", "\u0663"])
def test_an_invalid_time_sends_only_new_questions(runtime: TemporaryRuntime, since: str) -> None:
    ask(runtime)
    given = {"params": {"since": since}}
    with ui_server(runtime, worker=False) as person, listening(person, **given) as events:
        assert events.next()[0] == "ready"
        wait = ask(runtime)
        assert events.next()[2]["id"] == wait.id
