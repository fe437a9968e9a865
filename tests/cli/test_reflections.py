"""`perdure reflections` in a process of its own: what it lists, retries and cancels.

Exit codes: 0 if it did what it was told, 2 for wrong use.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from langgraph.config import get_store
from langgraph.store.memory import InMemoryStore

from perdure.cli import main
from perdure.langmem import ReflectionExecutor
from perdure.types import Retry
from tests.support.agents import Gate, gate
from tests.support.cli_process import loaded_after
from tests.support.memory import manager, opened_store, talk, who
from tests.support.polling import until


def cli(*arguments: str, environment: str | None = None) -> tuple[int, str, str]:
    """`perdure reflections` with these arguments: exit code, stdout, stderr."""
    given = {k: v for k, v in os.environ.items() if k != "PERDURE_URL"}
    if environment is not None:
        given["PERDURE_URL"] = environment
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "reflections", *arguments],
        env=given,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def told(*arguments: str) -> list[dict[str, Any]]:
    code, out, err = cli(*arguments, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


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


def test_it_lists_what_is_pending_running_and_held(scene: Scene) -> None:
    code, out, err = cli("--at", scene.url)
    assert (code, err) == (0, "")
    for state, id in scene.ids.items():
        assert f"{state:8} {id}  r: memories/" in out
    assert "memories/ann, thread t\n         submitted " in out
    assert ", due " in out
    assert "memories/cy\n" in out
    assert "         ConnectionError: the model is away\n" in out
    assert f"perdure reflections --retry {scene.ids['held']} --at {shlex.quote(scene.url)}" in out


def test_as_json_it_tells_all_it_knows(scene: Scene) -> None:
    found = {one["state"]: one for one in told("--at", scene.url)}
    assert {state: one["id"] for state, one in found.items()} == scene.ids
    pending, held = found["pending"], found["held"]
    assert (pending["executor"], pending["namespace"]) == ("r", ["memories", "ann"])
    assert (pending["thread_id"], pending["attempts"], pending["error"]) == ("t", 0, None)
    waits = datetime.fromisoformat(pending["due_at"]) - datetime.fromisoformat(
        pending["submitted_at"]
    )
    assert waits.total_seconds() == pytest.approx(600, abs=1)
    assert (held["attempts"], held["reason"]) == (1, "ConnectionError: the model is away")
    assert held["error"]["message"] == "the model is away"
    assert found["running"]["thread_id"] is None


@pytest.mark.slow
def test_it_can_be_narrowed_down(scene: Scene) -> None:
    for state in ("pending", "held"):
        assert [one["id"] for one in told("--at", scene.url, "--state", state)] == [
            scene.ids[state]
        ]
    assert len(told("--at", scene.url, "--limit", "2")) == 2
    assert len(told("--at", scene.url, "--executor", "r")) == 3
    code, out, _ = cli("--at", scene.url, "--executor", "other")
    assert (code, out) == (0, "No reflection is pending, running or held.\n")


def test_one_that_is_held_is_retried(scene: Scene) -> None:
    scene.broken.clear()
    id = scene.ids["held"]
    assert cli("--at", scene.url, "--retry", id) == (0, f"{id} is retried.\n", "")
    until(lambda: scene.store.get(("notes",), "I tell you fact-fail."))
    until(lambda: id not in [one.id for one in scene.executor.pending()])
    code, out, err = cli("--at", scene.url, "--retry", id)
    assert (code, out) == (2, "")
    assert "only a held reflection can" in err


def test_one_that_is_pending_or_worked_on_is_cancelled(scene: Scene) -> None:
    for state in ("pending", "running"):
        id = scene.ids[state]
        assert cli("--at", scene.url, "--cancel", id) == (0, f"{id} is cancelled.\n", "")
    scene.place.open()  # the one that is worked on comes to its end, and keeps nothing
    until(lambda: [one.id for one in scene.executor.pending()] == [scene.ids["held"]])
    code, out, err = cli("--at", scene.url, "--cancel", scene.ids["pending"])
    assert (code, out) == (2, "")
    assert "it has ended" in err
    states = {id: scene.executor._runtime.blocking.get(id).state for id in scene.ids.values()}
    assert states[scene.ids["running"]] == states[scene.ids["pending"]] == "cancelled"
    assert scene.store.search(("notes",)) == []


@pytest.mark.slow
def test_wrong_use_is_told_and_changes_nothing(scene: Scene, tmp_path: Path) -> None:
    for verb in ("--retry", "--cancel"):
        code, out, err = cli("--at", scene.url, verb, "no-such-id")
        assert (code, out) == (2, "")
        assert "There is no reflection 'no-such-id'" in err
        code, out, err = cli("--at", scene.url, verb, scene.ids["held"], "--executor", "other")
        assert (code, out) == (2, "")
        assert "There is no reflection" in err
    code, _, err = cli("--at", scene.url, "--retry", scene.ids["pending"])
    assert code == 2
    assert "only a held reflection can" in err
    code, _, err = cli("--at", scene.url, "--state", "done")
    assert code == 2
    assert "is not one of 'pending', 'waiting', 'running', 'held'" in err
    assert len(told("--at", scene.url)) == 3


def test_the_journal_is_by_default_that_of_the_environment(sqlite_url: str) -> None:
    with ReflectionExecutor(
        lambda payload: None, store=InMemoryStore(), journal=sqlite_url, name="r"
    ) as executor:
        made = executor.submit({}, after_seconds=600)
        code, out, _ = cli(environment=sqlite_url)
        assert code == 0
        assert made.id in out
        assert "no namespace" in out


def test_without_a_journal_it_says_so_and_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    code, out, err = cli("--at", f"sqlite:///{path}")
    assert (code, out) == (2, "")
    assert "There is no journal at" in err
    assert not path.exists()
    code, out, err = cli()
    assert (code, out) == (2, "")
    assert err.startswith("perdure: ")


@pytest.mark.parametrize(
    ("payload", "heavy"),
    [
        pytest.param({"n": 1}, {"langgraph", "langmem", "langchain_core"}, id="plain"),
        pytest.param(talk("fact-tea"), {"langgraph", "langmem"}, id="messages"),
    ],
)
def test_it_imports_neither_langgraph_nor_langmem(
    sqlite_url: str, payload: Any, heavy: set[str]
) -> None:
    with ReflectionExecutor(
        lambda payload: None, store=InMemoryStore(), journal=sqlite_url, name="r"
    ) as executor:
        executor.submit(payload, after_seconds=600)
        code = f"from perdure.cli import main; main(['reflections', '--at', {sqlite_url!r}])"
        found = loaded_after(code)
    assert "r:" in found  # it listed it
    assert found.isdisjoint(heavy)


def test_what_a_user_calls_himself_cannot_look_like_a_line_of_ours(
    capsys: pytest.CaptureFixture[str], sqlite_url: str
) -> None:
    forged = "ana\nheld     1  x: y\x1b[31m"
    with (
        opened_store(sqlite_url) as store,
        ReflectionExecutor(manager(), store=store, journal=sqlite_url) as executor,
    ):
        executor.submit(talk("fact-a"), who(forged, forged), after_seconds=600)
    assert main(["reflections", "--at", sqlite_url]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert not any(line.startswith("held") for line in shown.splitlines())
