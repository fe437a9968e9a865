"""`resume_pending_reflections(executor, store)`: what a process does at start-up to continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langmem import ReflectionExecutor as LangMemExecutor

from perdure.errors import BadArgument
from perdure.langmem import ReflectionExecutor, resume_pending_reflections
from perdure.runtime import Runtime
from perdure.testing import Clock
from tests.support.memory import manager, opened_store, remembered, talk, who
from tests.support.pages import blocks
from tests.support.polling import until

ROOT = Path(__file__).parents[2]
HOUR = 3600.0


@pytest.fixture
def store(url: str) -> Iterator[BaseStore]:
    with opened_store(url) as opened:
        yield opened


def leave_pending(url: str, store: BaseStore, count: int = 2) -> None:
    """Submit reflections, due in an hour, and end the executor."""
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        for n in range(count):
            executor.submit(talk(f"fact-{n}"), who(f"user-{n}", str(n)), after_seconds=HOUR)


def test_pending_reflections_are_returned_and_run_when_they_are_due(
    url: str, store: BaseStore
) -> None:
    leave_pending(url, store)
    with ReflectionExecutor(manager(), journal=url) as executor:
        resumed = resume_pending_reflections(executor, store)
        assert [one.thread_id for one in resumed] == ["0", "1"]
        assert remembered(store, "user-0") == []
    clock = Clock(datetime.now(UTC) + timedelta(hours=2))
    with (
        Runtime(url, clock=clock) as runtime,
        ReflectionExecutor(manager(), journal=runtime) as executor,
    ):
        assert len(resume_pending_reflections(executor, store)) == 2
        until(lambda: not executor.pending(), "the overdue reflections")
    assert (remembered(store, "user-0"), remembered(store, "user-1")) == (["fact-0"], ["fact-1"])


def test_more_reflections_than_fit_on_a_page_are_all_returned(
    sqlite_url: str,
) -> None:
    store = InMemoryStore()
    leave_pending(sqlite_url, store, count=101)
    with ReflectionExecutor(manager(), journal=sqlite_url) as executor:
        assert len(resume_pending_reflections(executor, store)) == 101


def test_an_executor_that_keeps_its_queue_in_memory_is_refused_with_what_to_use() -> None:
    store = InMemoryStore()
    stock: Any = LangMemExecutor(manager(), store=store)
    try:
        with pytest.raises(BadArgument, match=r"perdure\.langmem\.ReflectionExecutor"):
            resume_pending_reflections(stock, store)
    finally:
        stock.shutdown()


def test_what_is_not_a_store_is_refused(sqlite_url: str) -> None:
    not_a_store: Any = {}
    with (
        ReflectionExecutor(manager(), journal=sqlite_url) as executor,
        pytest.raises(BadArgument, match="BaseStore"),
    ):
        resume_pending_reflections(executor, not_a_store)


MODEL = '"anthropic:claude-sonnet-4-5"'
BEFORE = """
import logging, os, signal, time, warnings
logging.basicConfig(level=logging.WARNING)
import langmem  # imports what is deprecated
from examples.memory_chat.model import ScriptedModel
warnings.simplefilter("error")
"""
SUBMIT = """
def say(text, user):
    config = {"configurable": {"user_id": user, "thread_id": "t"}}
    executor.submit({"messages": [("user", text)]}, config, after_seconds=0.5 * (user == "ana"))
"""
KILLED = """
say("I like tea.", "ana")
os.kill(os.getpid(), signal.SIGKILL)
"""
RESUMES = """
while executor.pending():
    time.sleep(0.02)
print(executor.search(namespace=("memories", "ana"))[0]["value"]["content"]["content"])
for n in range(5):
    say("I like tea.", f"user-{n}")
"""


@pytest.mark.slow
def test_the_first_example_of_the_guide_resumes_what_a_kill_left_and_prints_nothing(
    tmp_path: Path,
) -> None:
    """The second process exits in the middle of its work; that counts as no attempt."""
    page = ROOT / "docs" / "guides" / "memory.md"
    example = next(one for one in blocks(page) if one.language == "python").text
    assert MODEL in example
    example = example.replace(MODEL, "ScriptedModel()")
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    ends = []
    for last in (KILLED, RESUMES):
        ended = subprocess.run(
            [sys.executable, "-c", BEFORE + example + SUBMIT + last],
            cwd=tmp_path,
            env={**os.environ, "PERDURE_URL": url, "PYTHONPATH": str(ROOT)},
            text=True,
            capture_output=True,
            timeout=120,
        )
        ends.append((ended.returncode, ended.stdout, ended.stderr))
    assert ends == [(-signal.SIGKILL, "", ""), (0, "The user likes tea.\n", "")]
    name = "MemoryStoreManager(memories/{user_id})"
    with ReflectionExecutor(manager(), name=name, journal=url) as executor:
        assert {(one.attempts, one.error) for one in executor.pending()} <= {(0, None)}
