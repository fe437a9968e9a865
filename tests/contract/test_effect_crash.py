"""Effects whose process is killed at any named point settle."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.testing import points
from perdure.types import EffectState, Run, State
from tests.contract import effect_stories
from tests.contract.effect_stories import TABLE, Line, calls, worker_process, worker_runtime
from tests.support.agents import chain, history, opened
from tests.support.fork_server import Child, Ended, ForkServer
from tests.support.polling import auntil, until
from tests.support.proxy import Proxy
from tests.support.raw import execute
from tests.support.runtime_child import Ledger
from tests.support.sweep import sample
from tests.support.waiters import named, side_by_side

pytestmark = pytest.mark.slow


BY_THE_CLOCK = ("workers.", "renew.", "leases.", "expire.")
"""Statements of a thread that looks around four times a second: how often they come is chance."""


AGAIN = 4
"""Every how-manieth process that goes on is killed as well."""


HOLD = ("wire", "awire")


class Judge:
    """Has one story played on one journal, and killed."""

    def __init__(
        self,
        fork_server: ForkServer,
        url: str,
        folder: Path,
        story: str,
        saver: bool,
        **options: Any,
    ) -> None:
        self._server, self._folder = fork_server, folder
        self._order = {"url": url, "story": story, "saver": saver, **options}
        self.url, self.story = url, story
        execute(url, TABLE)

    def ledger(self, thread: str) -> str:
        return str(self._folder / f"{thread}.ledger")

    def calls(self, thread: str) -> list[Line]:
        return calls(Ledger(self.ledger(thread)))

    def bookings(self, thread: str) -> list[str]:
        found = execute(self.url, "SELECT thread, label, pid FROM bookings")
        return [f"{label} by {pid}" for one, label, pid in found if one == self.ledger(thread)]

    def run(self, thread: str, nth: int = 0, kill: tuple[str, int] | None = None) -> Ended:
        ended = self._server.run(
            effect_stories.crash,
            thread=thread,
            ledger=self.ledger(thread),
            nth=nth,
            kill=kill,
            **self._order,
        )
        assert ended.status in (0, -signal.SIGKILL), f"{thread}: a child ended by itself"
        return ended


def kills(reached: list[str]) -> list[tuple[str, int]]:
    """Every time around an effect and a commit; of a statement the first and the last; of what
    only reads, one side of one is enough."""
    writing, wanted = set(points(writes_only=True)), []
    for point, count in sorted(Counter(reached).items()):
        times = {1, count}
        if point.startswith(BY_THE_CLOCK):
            times = {1}
        elif point.startswith(("effect ", "commit.")):
            times = set(range(1, count + 1))
        elif point not in writing:
            times = set() if point.endswith(".after") else {count}
        wanted += [(point, n) for n in sorted(times)]
    return wanted


def labels(results: list[str] | None) -> list[str]:
    return [result.partition(" by ")[0] for result in results or ()]


def check(judge: Judge) -> None:
    """Kill at the points, and go on in another process; sometimes kill that too.

    PostgreSQL writes what SQLite writes: there it is every third point.
    """
    whole = judge.run("whole")
    end = whole.one("ended")
    chosen = kills([point for [point] in whole.all("point")])
    assert {"commit.before", "commit.after"} <= {point for point, _ in chosen}
    assert any(point.startswith("effect ") for point, _ in chosen)
    is_postgres = judge.url.startswith("postgresql")
    chosen = chosen[:: 3 if is_postgres else 1]
    chosen = sample(chosen, 6 if is_postgres else 9, lambda point: point[0])
    rng = random.Random(judge.story)
    unreached = 0
    for number, kill in enumerate(chosen):
        thread, told = f"{number}", f"killed at {kill}"
        killed = judge.run(thread, kill=kill)
        unreached += killed.status == 0
        attempts: list[tuple[list[Line], Ended]] = []
        if number % AGAIN == 0:
            second = rng.choice(chosen)
            told += f", then at {second}"
            attempts.append((judge.calls(thread), judge.run(thread, 1, second)))
        attempts.append((judge.calls(thread), judge.run(thread, 2)))
        try:
            assert attempts[-1][1].status == 0
            judge_story(judge, thread, end, attempts)
        except AssertionError as error:
            raise AssertionError(f"{judge.story} {told}: {error}") from error
    # When two statements go into one commit is chance at the edges.
    assert unreached <= len(chosen) // 4, f"{unreached} of {len(chosen)} points were not reached"


def judge_story(
    judge: Judge, thread: str, end: list[Any], attempts: list[tuple[list[Line], Ended]]
) -> None:
    made = judge.calls(thread)
    ended = attempts[-1][1].one("ended")
    assert ended[0] == end[0], f"it ended {ended[0]}"
    assert labels(ended[1]) == labels(end[1]), f"another result: {ended[1]}"
    results = ended[1] or []
    nothing_recorded_is_done_again(made, results, attempts)
    every_call_has_its_own_key(made)
    outcomes = {line.result for line in made} | set(judge.bookings(thread))
    assert set(results) <= outcomes, f"an outcome that nobody had: {set(results) - outcomes}"
    what_holds_was_never_guessed(made, attempts)
    booked = Counter(labels(judge.bookings(thread)))
    wanted = [label for label in labels(end[1]) if label.startswith("book")]
    assert booked == Counter(wanted), f"written with the journal: {booked}"
    done = {line.label for line in made}
    assert {label for label in labels(results) if label not in wanted} <= done, "lost"
    if judge.story == "cancelled":
        everything_is_undone(made, attempts[-1][1].one("undone"))


def nothing_recorded_is_done_again(
    made: list[Line], results: list[str], attempts: list[tuple[list[Line], Ended]]
) -> None:
    after = Counter(line.key for line in made)
    for before, ended in attempts:
        if not ended.all("on disk"):
            continue
        states = {key: (name, state, result) for key, name, state, result in ended.one("on disk")}
        counts = Counter(line.key for line in before)
        for line in before:
            assert line.key in states, f"{line} was done without an intent"
        for key, (name, state, result) in states.items():
            if state != "done":
                continue
            assert counts[key] == after[key], f"{name} {result!r} was recorded, and done again"
            undone = name.startswith("undo") or not results
            assert undone or result in results, f"{result!r} was recorded, and is not the outcome"


def every_call_has_its_own_key(made: list[Line]) -> None:
    by_key: dict[str, set[tuple[str, str]]] = {}
    by_label: dict[tuple[str, str], set[str]] = {}
    for line in made:
        by_key.setdefault(line.key, set()).add((line.name, line.label))
        by_label.setdefault((line.name, line.label), set()).add(line.key)
    swapped = {key: found for key, found in by_key.items() if len(found) > 1}
    assert not swapped, f"one key for two calls: {swapped}"
    twice = {label: keys for label, keys in by_label.items() if len(keys) > 1}
    assert not twice, f"done twice, with two keys: {twice}"


def what_holds_was_never_guessed(
    made: list[Line], attempts: list[tuple[list[Line], Ended]]
) -> None:
    times = Counter(line.label for line in made if line.name in HOLD)
    assert all(n == 1 for n in times.values()), f"an effect that holds: {times}"
    for _, ended in attempts:
        held = {key for _, key, _ in ended.all("held")}
        for [name, *_] in ended.all("held"):
            assert name in HOLD, f"{name} is held"
        if not ended.all("on disk"):
            continue
        on_disk = ended.one("on disk")
        begun = {key for key, name, state, _ in on_disk if name in HOLD and state != "done"}
        assert held <= begun, "held, although it was never begun"
        left = {key for key, name, state, _ in on_disk if name in HOLD and state == "open"}
        if ended.status == 0:
            assert left <= held, "it was left in the middle, and nobody was asked"


def everything_is_undone(made: list[Line], told: dict[str, list[str]]) -> None:
    assert told == {"undone": ["buy in a crash"] * 2, "kept": ["act"]}
    undone = list(dict.fromkeys(line.label for line in made if line.name == "undo buy"))
    assert labels(undone) == ["undo a lamp", "undo a bed"], undone
    bought = {line.result for line in made if line.name == "buy"}
    assert {label.removeprefix("undo ") for label in undone} <= bought


STORIES = ("branches", "inside", "policies", "functional")


@pytest.mark.parametrize("story", [*STORIES, "cancelled"])
def test_effects_of_a_run_killed_at_any_point_settle(
    fork_server: ForkServer, url: str, tmp_path: Path, story: str
) -> None:
    check(Judge(fork_server, url, tmp_path, story, saver=False))


@pytest.mark.parametrize("story", STORIES)
def test_effects_with_only_the_saver_killed_at_any_point_settle(
    fork_server: ForkServer, url: str, tmp_path: Path, story: str
) -> None:
    check(Judge(fork_server, url, tmp_path, story, saver=True))


class Standing:
    """An effect in the middle of which its worker is stopped, and what became of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def calls(self) -> list[Line]:
        return calls(Ledger(self._folder / "ledger"))

    def stop(self, worker: Child) -> None:
        """In the middle of the effect, and not in the middle of a commit."""
        until(self.calls, "the effect")
        stops = self._folder / "stop"
        stops.touch()
        until(lambda: not stops.exists(), "a commit")
        until(worker.is_stopped, "a worker that is stopped")

    def wake(self, worker: Child) -> None:
        """Let the effect return, and its worker do all it still does."""
        (self._folder / "go").touch()
        worker.send(signal.SIGCONT)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


async def taken_over(
    fork_server: ForkServer, url: str, folder: Path, graph: str, *rest: State
) -> tuple[Run, Standing, int, int]:
    """A run whose worker was stopped in its effect, and woken when another had brought it to rest.
    Also the process of the one and of the other."""
    standing = Standing(folder)
    async with worker_runtime(url) as rt:
        run = await rt.start(graph, {"folder": str(folder), "log": []})
        with worker_process(fork_server, url, stops=str(folder)) as first:
            standing.stop(first)
            other = folder / "another host"
            other.mkdir()
            with worker_process(fork_server, url, host=str(other)) as second:

                async def rests() -> Run | None:
                    found = await rt.get(run.id)
                    return found if found.state in rest else None

                await auntil(rests, f"a run that is {rest}")
                before, effects = await rt.get(run.id), await rt.effects(run.id)
                standing.wake(first)
                # Nothing that the first one still had to say was heard.
                assert await rt.effects(run.id) == effects
                assert await rt.get(run.id) == before
                if before.state is State.HELD:
                    [unknown] = await rt.effects(run.id, state=EffectState.UNKNOWN)
                    [made] = standing.calls()
                    await rt.settle(unknown.key, "done", made.result)
                    rest = (State.DONE,)
                    await auntil(rests, "a run that is done")
                await history(rt, run)
                return await rt.get(run.id), standing, first.pid, second.pid


async def test_a_worker_stopped_in_an_effect_that_holds_leaves_it_to_a_person(
    fork_server: ForkServer, url: str, tmp_path: Path
) -> None:
    run, standing, first, second = await taken_over(
        fork_server, url, tmp_path, "holding", State.HELD
    )
    assert [(line.name, line.pid) for line in standing.calls()] == [
        ("stand_and_hold", first),
        ("after", second),
    ]
    assert run.output["log"] == [f"stand_and_hold by {first}", f"after by {second}"]


async def both(
    fork_server: ForkServer, url: str, folder: Path, hold: bool
) -> tuple[list[Line], Any]:
    """Two processes invoke one thread, the second while the first one is in the effect."""
    order: dict[str, Any] = {"url": url, "folder": str(folder), "hold": hold}
    standing, ended = Standing(folder), Ledger(folder / "ended")
    first = fork_server.start(effect_stories.alone, **order, begins=True)
    try:
        until(standing.calls, "the effect")
        second = fork_server.start(effect_stories.alone, **order, begins=False)
        try:
            until(ended.lines, "the end of the second")
        finally:
            second.kill()
        (folder / "go").touch()
        until(lambda: len(ended.lines()) == 2, "the end of the first")
    finally:
        first.kill()
    async with perdure.Client(url) as client:
        [effect] = await client.effects(thread_id="t")
    return standing.calls(), effect


async def test_two_processes_with_only_the_saver_call_an_effect_with_one_key(
    fork_server: ForkServer, url: str, tmp_path: Path
) -> None:
    made, effect = await both(fork_server, url, tmp_path, hold=False)
    assert [line.key for line in made] == [effect.key] * 2
    assert (effect.state, effect.result) == ("done", made[1].result), "the last who took it"


async def test_a_worker_stopped_in_an_effect_writes_nothing_when_another_has_called_it_again(
    fork_server: ForkServer, url: str, tmp_path: Path
) -> None:
    run, standing, first, second = await taken_over(
        fork_server, url, tmp_path, "standing", State.DONE
    )
    assert [(line.name, line.pid) for line in standing.calls()] == [
        ("stand", first),
        ("stand", second),
        ("after", second),
    ]
    assert standing.calls()[0].key == standing.calls()[1].key
    assert run.output["log"] == [f"stand by {second}", f"after by {second}"]


async def test_a_worker_stopped_in_an_effect_that_can_be_verified_is_not_called_again(
    fork_server: ForkServer, url: str, tmp_path: Path
) -> None:
    run, standing, first, second = await taken_over(
        fork_server, url, tmp_path, "verifying", State.DONE
    )
    assert [(line.name, line.pid) for line in standing.calls()] == [
        ("stand_and_verify", first),
        ("after", second),
    ]
    assert run.output["log"] == [f"stand_and_verify by {first}", f"after by {second}"]


@pytest.mark.parametrize("graph", ["standing", "verifying"])
async def test_a_worker_stopped_right_before_a_call_does_not_make_it_when_it_lost_the_run(
    fork_server: ForkServer, url: str, tmp_path: Path, graph: str
) -> None:
    (tmp_path / "go").touch()
    standing = Standing(tmp_path)
    async with worker_runtime(url) as rt:
        run = await rt.start(graph, {"folder": str(tmp_path), "log": []})
        with worker_process(fork_server, url, stops_before_the_call=True) as first:
            until(first.is_stopped, "a worker that is stopped")
            other = tmp_path / "another host"
            other.mkdir()
            with worker_process(fork_server, url, host=str(other)) as second:

                async def done() -> bool:
                    return (await rt.get(run.id)).state is State.DONE

                await auntil(done, "a run that is done")
                standing.wake(first)
                assert [line.pid for line in standing.calls()] == [second.pid] * 2


@pytest.mark.parametrize("unknown", ["retry", "hold"])
@pytest.mark.parametrize("cut", ["all", "reply"])
async def test_an_outcome_survives_a_connection_that_is_cut_during_the_call(
    postgres_url: str, unknown: Any, cut: str
) -> None:
    proxy = Proxy(postgres_url)
    made: list[str] = []

    @perdure.effect(unknown=unknown, name=f"cut {unknown} {cut}")
    async def send() -> str:
        made.append(perdure.key())
        if cut == "all":
            proxy._hang_up(*proxy._sockets)
        else:
            proxy.cut("reply")
        return "sent"

    async def node(state: Any) -> Any:
        return {"log": [await send()]}

    try:
        async with opened(proxy.url) as rt:
            rt.register(chain(node), name="g")
            run = await rt.start("g", {"log": []})
            await rt.tick()
            run = await rt.get(run.id)
            assert (run.state, run.output) == (State.DONE, {"log": ["sent"]})
            [effect] = await rt.effects(run.id)
            assert (effect.state, effect.key, effect.result) == ("done", made[0], "sent")
            assert len(made) == 1
            assert cut == "all" or proxy.cut_count == 1
            await history(rt, run)
    finally:
        proxy.close()


async def test_two_processes_with_only_the_saver_never_call_twice_what_holds(
    fork_server: ForkServer, url: str, tmp_path: Path
) -> None:
    made, effect = await both(fork_server, url, tmp_path, hold=True)
    assert [line.key for line in made] == [effect.key]
    assert effect.state == "unknown", "the second asks for a person, though the first is alive"


async def test_a_task_cut_short_beside_an_effect_that_is_held_runs_again_whole(url: str) -> None:
    """LangGraph stores what a cancelled task wrote so far. Taken for all of it, where to go next
    would be missing, and the run would end early in silence."""
    cut_short = asyncio.Event()

    @perdure.effect(unknown="hold", name="held beside")
    async def send() -> str:
        await asyncio.wait_for(cut_short.wait(), 30)
        raise OSError("no answer")

    async def holds(state: Any) -> Any:
        return {"log": [await send()]}

    async def where(state: Any) -> str:
        if not cut_short.is_set():
            cut_short.set()
            await asyncio.Event().wait()  # until it is cancelled, with its update written
        return "last"

    graph = side_by_side(holds, named("beside", lambda state: {"log": ["beside"]}))
    graph.add_node("last", lambda state: {"log": ["last"]})
    graph.add_conditional_edges("beside", where, ["last"])
    async with opened(url) as rt:
        rt.register(graph, name="g")
        run = await rt.start("g", {"log": []})
        await rt.tick()
        [unknown] = await rt.effects(run.id, state=EffectState.UNKNOWN)
        assert (await rt.get(run.id)).state is State.HELD
        await rt.settle(unknown.key, "done", "sent")
        await rt.tick()
        run = await rt.get(run.id)
        assert (run.state, run.output["log"]) == (State.DONE, ["beside", "sent", "last"])


async def test_a_run_with_something_unknown_is_held_though_something_else_is_tried_later(
    url: str,
) -> None:
    later = perdure.Retry(first=timedelta(hours=1))
    failed = asyncio.Event()

    @perdure.effect(unknown="hold", name="unknown beside")
    async def doubt() -> str:
        failed.set()
        raise OSError("no answer")

    @perdure.effect(retry=later, name="later beside")
    async def late() -> str:
        await asyncio.wait_for(failed.wait(), 30)
        if not made:
            made.append("tried")
            raise OSError("busy")
        return "late"

    made: list[str] = []

    async def node(state: Any) -> Any:
        return {"log": await asyncio.gather(late(), doubt())}

    async with opened(url) as rt:
        rt.register(chain(node), name="g")
        run = await rt.start("g", {"log": []})
        await rt.tick()
        assert (await rt.get(run.id)).state is State.HELD
        [unknown] = await rt.effects(run.id, state=EffectState.UNKNOWN)
        await rt.settle(unknown.key, "done", "sent")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.WAITING
        rt.clock.advance(timedelta(hours=1))
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["late", "sent"]
