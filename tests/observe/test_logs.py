"""One line per event, with where it happened, and nothing that a person or a model wrote."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure.cli.logs import JsonLines
from perdure.commands.events import SEGMENT_ENDS
from perdure.errors import Unavailable
from perdure.observe.logs import LOGGER, Logs
from perdure.types import Event, EventKind, Retry, State
from perdure.views import event_wording
from tests.support.agents import Log, chain, opened

SECRET = "hunter2"
AT = datetime(2030, 1, 1, tzinfo=UTC)


def test_what_may_be_logged_is_decided_for_every_kind_of_event() -> None:
    assert set(event_wording.FIELDS) == set(EventKind)
    named = {name for names in event_wording.FIELDS.values() for name in names}
    assert named == set(event_wording.TYPES)


@pytest.mark.parametrize("kind", EventKind)
def test_only_names_and_ids_are_logged_if_every_field_of_an_event_is_a_secret(
    kind: EventKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Names and ids come from the code. No other text passes, whatever field it is in."""
    content = ("message", "traceback", "labels", "by", "reason", "why", "value", "comment", "error")
    data: dict[str, Any] = dict.fromkeys(content, SECRET)
    data |= {"error": f"ValueError: {SECRET}", "labels": {SECRET: SECRET}, "runs": {"r": SECRET}}
    data |= {"attempt": SECRET, "wake_at": SECRET, "early": SECRET, "saved": {"effects": SECRET}}
    caplog.set_level(logging.INFO, LOGGER)
    for as_json in (False, True):
        Logs(json=as_json).on_event(kind, "r", "t", data, AT)
    assert SECRET not in caplog.text
    assert len(caplog.records) == 2


async def test_a_run_is_logged_line_by_line_without_its_content(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @perdure.effect(retry=Retry(attempts=2, first=timedelta(0)))
    def call(what: str) -> str:
        raise ValueError(SECRET)

    def work(state: Log) -> Log:
        perdure.label(note=SECRET)
        answer = perdure.ask({"question": SECRET})
        perdure.wait_for("reply")
        call(answer)
        return {"log": []}

    caplog.set_level(logging.INFO, LOGGER)
    async with opened(sqlite_url, observe=Both()) as rt:
        rt.register(chain(work), name="g", retry=Retry(attempts=1))
        run = await rt.start("g", {"log": [SECRET]}, thread_id="a thread\n", key=SECRET)
        await rt.tick()
        [wait] = await rt.waits()
        await rt.answer(wait.id, SECRET, by=SECRET)
        await rt.tick()
        await rt.signal("a thread\n", "reply", SECRET)
        await rt.tick()
        assert (await rt.get(run.id)).state is State.FAILED
        await rt.retry(run.id)
        await rt.cancel(run.id, reason=SECRET, by=SECRET)
        events = await rt.events(run.id)
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert SECRET not in "".join(lines)
    texts, objects = lines[::2], [json.loads(line) for line in lines[1::2]]
    assert [line["event"] for line in objects] == [event.kind for event in events]
    assert all(line.count("\n") == 0 for line in texts)
    assert {(line["run"], line["thread"], line["graph"]) for line in objects} == {
        (run.id, "a thread\n", "g")
    }
    assert [line.get("segment") for line in objects] == _segments(events)
    driven = [line for line in objects if "segment" in line]
    assert all(line["worker"] for line in driven)
    [failed] = [line for line in objects if line["event"] == "failed"]
    assert failed["error_kind"] == "ValueError"
    assert failed["ms"] >= 0
    tried = [line for line in objects if line["event"] == "effect"]
    assert [(one["name"], one["state"], one["attempt"], one["error_kind"]) for one in tried] == [
        ("call", "open", 1, "ValueError"),
        ("call", "failed", 2, "ValueError"),
    ]
    assert texts[0] == f'{objects[0]["time"]} started run={run.id} thread="a thread\\n" graph=g'


def test_json_lines_of_other_records_have_no_exception_message() -> None:
    def line(message: str, *arguments: Any, **more: Any) -> dict[str, Any]:
        made = logging.makeLogRecord({"msg": message, "args": arguments, "name": "perdure", **more})
        found: dict[str, Any] = json.loads(JsonLines().format(made))
        return found

    error = ValueError(SECRET)
    plain = line("run %s: %s", "r", error, exc_info=(ValueError, error, None))
    assert (plain["message"], plain["error_kind"]) == ("run r: ValueError", "ValueError")
    assert SECRET not in json.dumps(plain)
    assert line("not reached: %s", Unavailable("no host"))["message"] == "not reached: no host"
    assert line(SECRET, without_content="not delivered")["message"] == "not delivered"


class Both:
    """Text and JSON, in turn."""

    def __init__(self) -> None:
        self._logs = [Logs(), Logs(json=True)]

    def on_event(self, *event: Any) -> None:
        for one in self._logs:
            one.on_event(*event)


def _segments(events: list[Event]) -> list[int | None]:
    """The segment that each event is in: the number of its claim."""
    found, number, driven = [], 0, False
    for event in events:
        if event.kind in (EventKind.CLAIMED, EventKind.RECOVERED):
            number, driven = number + 1, True
        found.append(number if driven else None)
        driven = driven and event.kind not in SEGMENT_ENDS
    return found
