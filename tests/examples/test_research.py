"""The research agent of the examples: killed at any moment, it repeats nothing that was recorded,
and it stops when its plan was changed behind its back.

The judges are outside of what is killed: the website counts requests by page and key, the model's
bill has a line for each call.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from examples.research import chaos
from examples.research.agent import PlanChanged, Step, approve, approved_plan, ticks
from examples.research.chaos import Setting, Story
from examples.research.site import PAGES, Site, serve
from perdure import failpoints
from perdure.runtime import Runtime
from perdure.testing import runtime
from perdure.types import Run, State

ROOT = Path(__file__).parents[2]
LIGHTHOUSES = [path for path in PAGES if not path.startswith("/other/")]
MODEL_CALLS = 2 + len(LIGHTHOUSES) + 4
"""Search and plan, a summary for each page, a chapter for each coast."""
THREAD: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as made:
        yield made


@pytest.fixture
def setting(site: Site, tmp_path: Path, sqlite_url: str) -> Setting:
    return Setting(sqlite_url, site.url, f"{tmp_path}/bill")


def question(folder: Path) -> dict[str, str]:
    return {"question": chaos.QUESTION, "folder": str(folder)}


async def finish(rt: Runtime, run: Run) -> Run:
    await rt.tick()
    return await rt.get(run.id)


def reports(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("report-*"))


# -- without a kill


async def test_the_agent_reads_every_page_of_its_plan_once_and_publishes_one_report(
    setting: Setting, site: Site, tmp_path: Path
) -> None:
    async with runtime(setting.journal) as rt:
        graph = setting.register(rt)
        run = await finish(rt, await rt.start("research", question(tmp_path), thread_id="t"))
        assert run.state is State.DONE, run.error
        settled = ticks(await graph.aget_state(THREAD))
    assert sorted(site.keys) == sorted(LIGHTHOUSES)
    assert {len(keys) for keys in site.keys.values()} == {1}
    assert set(setting.calls().values()) == {1}
    assert len(setting.calls()) == MODEL_CALLS
    assert list(settled.values()) == [True] * len(LIGHTHOUSES)
    assert reports(tmp_path) == [Path(run.output["report"]).name]
    text = Path(run.output["report"]).read_text()
    assert text.count("\n## ") == 4
    assert text.count("\n- ") == len(LIGHTHOUSES)


# -- a plan that was changed

PLAN: list[Step] = [
    {"id": "01", "chapter": "North coast", "url": "http://example.com/1"},
    {"id": "02", "chapter": "East coast", "url": "http://example.com/2"},
]


def without_last(plan: list[Step]) -> list[Step]:
    return plan[:-1]


def reversed_(plan: list[Step]) -> list[Step]:
    return plan[::-1]


def with_one_more(plan: list[Step]) -> list[Step]:
    return [*plan, {"id": "99", "chapter": "North coast", "url": "http://example.com/9"}]


def at_another_address(plan: list[Step]) -> list[Step]:
    changed = copy.deepcopy(plan)
    changed[0]["url"] += "/elsewhere"
    return changed


CHANGES: list[Callable[[list[Step]], list[Step]]] = [
    without_last,
    reversed_,
    with_one_more,
    at_another_address,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_any_change_of_a_plan_is_noticed(change: Callable[[list[Step]], list[Step]]) -> None:
    state = approve(PLAN)
    assert approved_plan(state) == PLAN
    with pytest.raises(PlanChanged, match="was changed after it was approved"):
        approved_plan({**state, "plan": change(PLAN)})


async def test_a_plan_changed_after_reading_fails_the_run_at_once_and_nothing_is_written(
    setting: Setting, tmp_path: Path
) -> None:
    async with runtime(setting.journal) as rt:
        graph = setting.register(rt)
        await graph.ainvoke(question(tmp_path), THREAD, interrupt_before=["write"])
        [run] = await rt.runs()
        assert run.state is State.WAITING
        before = setting.calls().total()
        plan = (await graph.aget_state(THREAD)).values["plan"]
        await graph.aupdate_state(THREAD, {"plan": without_last(plan)}, as_node="read")
        [wait] = await rt.waits()
        await rt.answer(wait.id, None)
        run = await finish(rt, run)
        assert run.state is State.FAILED
        assert run.error is not None
        assert run.error.kind == "examples.research.agent.PlanChanged"
        assert run.attempts == 1
    assert setting.calls().total() == before
    assert reports(tmp_path) == []


async def test_a_plan_changed_before_reading_is_refused_and_no_page_is_asked_for(
    setting: Setting, site: Site, tmp_path: Path
) -> None:
    async with runtime(setting.journal) as rt:
        graph = setting.register(rt)
        await graph.ainvoke(question(tmp_path), THREAD, interrupt_before=["read"])
        plan = (await graph.aget_state(THREAD)).values["plan"]
        with pytest.raises(PlanChanged):
            await graph.aupdate_state(THREAD, {"plan": with_one_more(plan)})
        assert (await graph.aget_state(THREAD)).values["plan"] == plan
    assert site.keys == {}


async def test_a_fork_with_a_changed_plan_fails_and_one_with_an_approved_plan_goes_on(
    setting: Setting, site: Site, tmp_path: Path
) -> None:
    async with runtime(setting.journal) as rt:
        graph = setting.register(rt)
        first = await finish(rt, await rt.start("research", question(tmp_path), thread_id="t"))
        asked = sum(map(len, site.keys.values()))
        plan: list[Step] = first.output["plan"]

        forked = await rt.fork(first.id, update={"plan": reversed_(plan)}, as_node="read")
        forked = await finish(rt, forked)
        assert forked.state is State.FAILED
        assert "was changed after it was approved" in str(forked.error)
        assert reports(tmp_path) == [Path(first.output["report"]).name]

        history = [found async for found in graph.aget_state_history(THREAD)]
        [at] = [found for found in history if found.next and set(found.next) == {"read"}]
        checkpoint = at.config["configurable"]["checkpoint_id"]
        shorter = await rt.fork(first.id, at=checkpoint, update=approve(plan[:3]))
        shorter = await finish(rt, shorter)
        assert shorter.state is State.DONE, shorter.error
        assert list(shorter.output["findings"]) == ["01", "02", "03"]
    assert sum(map(len, site.keys.values())) == asked + 3


# -- killed


def die_at(setting: Setting, point: str, n: int) -> None:
    """A worker that is killed when it comes to a point for the n-th time."""
    left = n

    def hook(reached: str) -> None:
        nonlocal left
        left -= reached == point
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = hook
    chaos.work(setting)


def killed_at(setting: Setting, point: str, n: int) -> None:
    process = chaos.processes().Process(target=die_at, args=(setting, point, n))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


# Where a worker dies, and at which of those calls, counted over the whole run.
POINTS = [
    ("effect model.after", 2),
    ("effect fetch.before", 5),
    ("effect fetch.after", 7),
    ("effect model.after", 20),
    ("effect model.after", 2 + len(LIGHTHOUSES) + 3),
    ("effect save.before", 1),
    ("effect save.after", 1),
]


@pytest.mark.slow
def test_killed_around_each_of_its_effects_in_turn_it_writes_one_report_once(
    setting: Setting, site: Site, tmp_path: Path
) -> None:
    """One run, a worker killed at each point, and then one that ends it."""
    with perdure.Runtime(setting.journal) as rt:
        setting.register(rt)
        run = rt.blocking.start("research", question(tmp_path), thread_id="t")
        story = Story(setting, site, run)
        for point, n in POINTS:
            kind = point.removeprefix("effect ").partition(".")[0]
            done = sum(one.name == kind and one.state == "done" for one in story.effects)
            killed_at(setting, point, max(1, n - done))
            story.effects = rt.blocking.effects(run.id, limit=1000)
            story.note_recorded()
        [written] = tmp_path.glob("report-*.md")
        inode = written.stat().st_ino
        rt.blocking.tick()
        run = rt.blocking.get(run.id)
        assert run.state is State.DONE, run.error
    assert story.repeated == []
    assert run.saved["model_calls"], "a chapter was recorded when another was cut off"
    assert run.output["report"] == str(written)
    assert written.stat().st_ino == inode, "the report was there, and was written again"
    assert written.read_text().count("\n- ") == len(LIGHTHOUSES)


@pytest.mark.slow
def test_the_example_ends_right_and_tells_what_happened(tmp_path: Path) -> None:
    options = ["--kills", "3", "--seed", "7", "--seconds", "0.1"]
    played = subprocess.run(
        [sys.executable, "-m", "examples.research", *options, "--folder", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stderr == ""
    lines = [" ".join(line.split()) for line in played.stdout.splitlines()]
    assert sum("killed with" in line and "✗" in line for line in lines) == 3
    assert "Recorded, yet repeated: 0" in lines
    [path] = tmp_path.glob("report-*.md")
    assert f"Report {path}" in lines
