"""The chat of the examples: killed before it has made its memories, it remembers.

The judge is outside of what is killed: the store is read by the test itself.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from langgraph.store.sqlite import SqliteStore

from examples.memory_chat.agent import open_chat, say
from examples.memory_chat.model import ScriptedModel, facts_in
from examples.memory_chat.play import MONDAY, TUESDAY, USER, Process, Setting
from perdure.types import State

ROOT = Path(__file__).parents[2]
REST = 3.0
FACTS = sorted(fact for text in MONDAY for fact in facts_in(text))


def remembered(path: Path, user: str) -> list[str]:
    """What is in the store of a file."""
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        found = store.search(("memories", user), limit=100)
        return sorted(item.value["content"]["content"] for item in found)


@contextmanager
def chatting(setting: Setting) -> Iterator[Process]:
    process = Process(setting)
    try:
        yield process
    finally:
        process.kill()


def killed_on_monday(setting: Setting) -> float:
    """A conversation whose process is killed; gives when it would have been reflected on."""
    with chatting(setting) as process:
        for text in MONDAY:
            process.say("monday", text)
        due = time.monotonic() + setting.rest
        assert process.memories() == []
        assert process.kill() == -signal.SIGKILL
    assert remembered(Path(setting.path), USER) == []
    return due


# -- the agent


def test_a_user_is_remembered_in_the_next_conversation_and_another_one_is_not_told(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "chat.db")
    with open_chat(path, ScriptedModel(), rest=0.0) as (chat, _):
        say(chat, "ana", "monday", "I am allergic to peanuts.")
    assert remembered(Path(path), "ana") == ["The user is allergic to peanuts."]
    with open_chat(path, ScriptedModel(), rest=3600.0) as (chat, _):
        assert "allergic to peanuts" in say(chat, "ana", "tuesday", TUESDAY)
        assert "I know nothing" in say(chat, "bo", "tuesday", TUESDAY)


def test_the_messages_of_a_conversation_are_one_reflection(tmp_path: Path) -> None:
    with open_chat(str(tmp_path / "chat.db"), ScriptedModel(), rest=3600.0) as (chat, executor):
        for text in MONDAY:
            say(chat, "ana", "monday", text)
        [pending] = executor.pending()
    assert pending.state is State.PENDING
    assert (pending.namespace, pending.thread_id) == (("memories", "ana"), "monday")


def test_what_is_known_already_is_not_remembered_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "chat.db")
    for conversation in ("monday", "tuesday"):
        with open_chat(path, ScriptedModel(), rest=0.0) as (chat, _):
            say(chat, "ana", conversation, "I moved to Lisbon.")
    assert remembered(Path(path), "ana") == ["The user lives in Lisbon."]


# -- killed


@pytest.mark.slow
def test_killed_before_it_has_made_its_memories_the_agent_remembers(tmp_path: Path) -> None:
    setting = Setting(str(tmp_path / "chat.db"), REST)
    due = killed_on_monday(setting)
    with chatting(setting) as process:
        assert process.pending == 1
        process.wait_until_rested(due)
        assert process.memories() == FACTS
        answer = process.say("tuesday", TUESDAY)
    assert all(word in answer for word in ("Ana", "peanuts", "Lisbon"))
    assert remembered(Path(setting.path), USER) == FACTS


@pytest.mark.slow
def test_killed_the_same_way_it_forgets_with_langmems_own_executor(tmp_path: Path) -> None:
    setting = Setting(str(tmp_path / "chat.db"), REST, stock=True)
    due = killed_on_monday(setting)
    with chatting(setting) as process:
        assert process.pending == 0
        process.wait_until_rested(due + 1)
        assert process.memories() == []
        assert "I know nothing" in process.say("tuesday", TUESDAY)


@pytest.mark.slow
def test_with_langmems_own_executor_it_remembers_if_nobody_kills_it(tmp_path: Path) -> None:
    """Else what the example shows beside ours would be worth nothing."""
    setting = Setting(str(tmp_path / "chat.db"), 0.5, stock=True)
    with chatting(setting) as process:
        for text in MONDAY:
            process.say("monday", text)
        process.wait_until_rested(0.0)
        assert process.memories() == FACTS


# -- on the screen


@pytest.mark.slow
def test_the_example_ends_right_and_tells_what_happened(tmp_path: Path) -> None:
    played = subprocess.run(
        [sys.executable, "-m", "examples.memory_chat", f"--folder={tmp_path}", f"--rest={REST}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert (played.returncode, played.stderr) == (0, ""), played.stdout
    lines = [" ".join(line.split()) for line in played.stdout.splitlines()]
    assert "found by the next process 0 1" in lines
    assert "Memories made of them 0 3" in lines
    assert "On Tuesday the agent has forgotten remembers" in lines
    assert remembered(tmp_path / "perdure.db", USER) == FACTS


def test_what_the_readme_shows_of_the_agent_is_its_code() -> None:
    page = (ROOT / "examples" / "memory_chat" / "README.md").read_text()
    code = (ROOT / "examples" / "memory_chat" / "agent.py").read_text()
    excerpts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert excerpts
    assert [excerpt for excerpt in excerpts if excerpt not in code] == []
