"""`perdure reflections`: what it lists, retries and cancels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.config import get_store
from langgraph.store.memory import InMemoryStore

from perdure.langmem import ReflectionExecutor
from perdure.types import Retry
from tests.support.agents import Gate, gate
from tests.support.commands import Command, commands_at
from tests.support.memory import talk, who
from tests.support.polling import until


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], url: str) -> Command:
    run = commands_at(capsys, url)
    return lambda *arguments: run("reflections", *arguments)


@dataclass
class Scene:
    """One reflection that is pending, one that is worked on, and one that is held."""

    url: str
    executor: ReflectionExecutor
    place: Gate
    ids: dict[str, str]
    store: InMemoryStore
    broken: list[str]


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    store, broken = InMemoryStore(), ["broken"]
    with gate() as place:

        def reflect(payload: Any) -> None:
            text = payload["messages"][0].content
            if "fact-stop" in text:
                place.block()
            if "fact-fail" in text and broken:
                raise ConnectionError("the model is away")
            get_store().put(("notes",), text, {"text": text})

        executor = ReflectionExecutor(
            reflect,
            ("memories", "{user}"),
            store=store,
            journal=url,
            name="r",
            retry=Retry(attempts=1),
            concurrency=4,
        )
        made = {
            "pending": executor.submit(talk("fact-later"), who("ann", "t"), after_seconds=600),
            "held": executor.submit(talk("fact-fail"), who("bo", "t")),
            "running": executor.submit(talk("fact-stop"), who("cy")),
        }
        made["held"].exception(20)
        until(lambda: place.entered)
        ids = {state: one.id for state, one in made.items()}
        try:
            yield Scene(url, executor, place, ids, store, broken)
        finally:
            place.open()
            executor.shutdown()


def test_it_lists_what_is_pending_running_and_held(scene: Scene, command: Command) -> None:
    out = command().done.out
    for state, id in scene.ids.items():
        assert f"{state:8} {id}  r: memories/" in out
    assert "memories/ann, thread t\n         submitted " in out
    assert ", due " in out
    assert "memories/cy\n" in out
    assert "         ConnectionError: the model is away\n" in out
    assert f"perdure reflections --retry {scene.ids['held']} --at {shlex.quote(scene.url)}" in out
    found = {one["state"]: one for one in command("--json").done.json}
    assert {state: one["id"] for state, one in found.items()} == scene.ids
    pending, held = found["pending"], found["held"]
    assert (pending["executor"], pending["namespace"]) == ("r", ["memories", "ann"])
    assert (pending["thread_id"], pending["attempts"], pending["error"]) == ("t", 0, None)
    assert (held["attempts"], held["reason"]) == (1, "ConnectionError: the model is away")
    assert held["error"]["message"] == "the model is away"
    for options, wanted in (
        (("--state", "held"), [scene.ids["held"]]),
        (("--executor", "r", "--state", "pending"), [scene.ids["pending"]]),
        (("--executor", "other"), []),
    ):
        assert [one["id"] for one in command("--json", *options).done.json] == wanted
    assert len(command("--json", "--limit", "2").done.json) == 2


def test_one_that_is_held_is_retried(scene: Scene, command: Command) -> None:
    scene.broken.clear()
    id = scene.ids["held"]
    assert "There is no reflection" in command("--retry", id, "--executor", "other").refused
    assert "There is no reflection 'no-such-id'" in command("--retry", "no-such-id").refused
    assert command("--retry", id).done.out == f"{id} is retried.\n"
    until(lambda: scene.store.get(("notes",), "I tell you fact-fail."))
    until(lambda: id not in [one.id for one in scene.executor.pending()])
    for other in (id, scene.ids["pending"]):
        assert "only a held reflection can" in command("--retry", other).refused


def test_one_that_is_pending_or_worked_on_is_cancelled(scene: Scene, command: Command) -> None:
    for state in ("pending", "running"):
        id = scene.ids[state]
        assert command("--cancel", id).done.out == f"{id} is cancelled.\n"
    scene.place.open()  # the one that is worked on comes to its end, and keeps nothing
    until(lambda: [one.id for one in scene.executor.pending()] == [scene.ids["held"]])
    assert "it has ended" in command("--cancel", scene.ids["pending"]).refused
    states = {id: scene.executor._runtime.blocking.get(id).state for id in scene.ids.values()}
    assert states[scene.ids["running"]] == states[scene.ids["pending"]] == "cancelled"
    assert scene.store.search(("notes",)) == []
