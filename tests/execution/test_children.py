"""Child runs: a node starts them, joins them, and is cancelled with them.

What each crash, or race, leaves behind, and the statement that decides:

    killed in the start, before its commit      nothing; the effect is open, and called again
    killed after it                             the child has the effect's key: insert_run finds it
    the child ends before the wait is stored    insert_join: end_segment sees it, the parent is due
    the wait is stored before the child ends    wake_joiners: the end makes the parent due
    the child ends while the parent is driven   poked, so that end_segment does not let it rest
    two children end at once                    lock_joiners: the second sees the end of the first
    killed between the child's end and ours     one batch: there is no between
    cancelled while it starts a child           fence: stop_descendants finds the child, or
                                                insert_run finds that its parent is to be cancelled
    killed while it is cancelled                one batch: the whole tree is asked, or none of it
"""

from __future__ import annotations

from datetime import timedelta

import pytest

import perdure
from perdure.errors import Expired, JoinFailed, NotInRun
from perdure.testing import Clock
from perdure.types import Retry, State
from tests.contract.test_children import children, nap, parent
from tests.support.agents import (
    NOON,
    Log,
    chain,
    driven,
    driving,
    gate,
    history,
    opened,
    reaches,
    told_to_stop,
)
from tests.support.effects import AT_ONCE, Boom, Times

HOUR = timedelta(hours=1)
ONCE = Retry(attempts=1)


def work(state: Log) -> Log:
    return {"log": ["worked"], "value": f"result of {state.get('value')}"}


def approve(state: Log) -> Log:
    return {"value": perdure.ask("ok?")}


def fail(state: Log) -> Log:
    raise Boom("no luck")


async def test_a_parent_waits_for_its_children_without_a_process(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(work), name="quick")
        rt.register(chain(nap), name="slow")
        run = await driven(rt, parent(rt, "quick", "slow"), {"log": []}, name="parent")
        run = await rt.get(run.id)
        quick, slow = await children(rt, run)
        assert (run.state, run.due_at) == (State.WAITING, None)
        assert (quick.state, slow.state) == (State.DONE, State.WAITING)
        [wait] = await rt.waits(kind="run")
        assert (wait.run_id, wait.value) == (run.id, {"join": [quick.id, slow.id]})
        rt.clock.advance(HOUR)
        await rt.tick()
        run = await rt.get(run.id)
        assert (run.state, run.output["value"]) == (State.DONE, ["result of 0", "result of 1"])
        assert (await history(rt, run)).count("joined") == 1


@pytest.mark.parametrize("end", ["failed", "cancelled", "unknown"])
async def test_join_raises_an_error_that_names_the_run_that_is_not_done(url: str, end: str) -> None:
    told: list[JoinFailed] = []

    async def starts(state: Log) -> Log:
        if end == "unknown":
            return {"log": ["nobody"]}
        child = await rt.start("fails" if end == "failed" else "asks", {})
        return {"log": [child.id]}

    def joins(state: Log) -> Log:
        try:
            perdure.join(state["log"][0])
        except JoinFailed as error:
            told.append(error)
        return {}

    async with opened(url) as rt:
        rt.register(chain(fail), name="fails", retry=ONCE)
        rt.register(chain(approve), name="asks")
        run = await driven(rt, chain(starts, joins), {"log": []}, name="parent")
        if end == "cancelled":
            [child] = await children(rt, run)
            await rt.cancel(child.id, reason="not needed")
            await rt.tick()
        assert (await rt.get(run.id)).state is State.DONE
        [error] = told
        id = "nobody" if end == "unknown" else (await children(rt, run))[0].id
        assert error.run_id == id
        assert id in str(error)
        assert error.state == ("" if end == "unknown" else end)
        if end != "unknown":
            assert ("no luck" if end == "failed" else "not needed") in str(error)
        else:
            assert str(error).endswith(
                "is not in this journal: it was started in another one, or was deleted. Catch "
                "this, or join a run of this journal."
            )
        assert ".." not in str(JoinFailed(id, error.state, "A sentence."))


async def test_a_join_that_takes_too_long_gives_up_and_the_child_goes_on(url: str) -> None:
    def joins(state: Log) -> Log:
        first = perdure.join(state["log"][0], timeout=HOUR / 4, default="late")
        try:
            perdure.join(state["log"], timeout=HOUR / 4)
        except Expired:
            return {"value": first}
        return {}

    async def starts(state: Log) -> Log:
        return {"log": [(await rt.start("slow", {})).id]}

    async with opened(url) as rt:
        rt.register(chain(nap), name="slow")
        rt.register(chain(starts, joins), name="parent")
        run = await rt.start("parent", {"log": []})
        for _ in range(3):
            await rt.tick()
            rt.clock.advance(HOUR / 4)
        assert (await rt.get(run.id)).output["value"] == "late"
        [child] = await children(rt, run)
        assert child.state is State.WAITING


async def test_retry_of_a_parent_looks_at_its_children_again(url: str) -> None:
    fails = Times(1)

    def unlucky(state: Log) -> Log:
        fails("no luck")
        return work(state)

    async with opened(url) as rt:
        rt.register(chain(unlucky, ("pauses", approve)), name="child", retry=ONCE)
        run = await driven(rt, parent(rt, "child"), {"log": []}, name="parent")
        run = await rt.get(run.id)
        assert (run.state, run.error and run.error.kind) == (
            State.FAILED,
            "perdure.errors.JoinFailed",
        )
        await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).state is State.FAILED
        [child] = await children(rt, run)
        await rt.retry(child.id)
        await rt.tick()
        await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).state is State.WAITING  # for the child, which asks
        [wait] = await rt.waits(kind="human")
        await rt.answer(wait.id, "yes")
        await rt.tick()
        run = await rt.get(run.id)
        assert (run.state, run.output["value"]) == (State.DONE, ["yes"])
        assert [one.id for one in await children(rt, run)] == [child.id]


async def test_a_run_cannot_join_itself_or_one_that_waits_for_its_end(sqlite_url: str) -> None:
    async def queues(state: Log) -> Log:
        child = await rt.start("work", {}, thread_id="one")
        perdure.join(child)
        return {}

    def itself(state: Log) -> Log:
        perdure.join(str(state["value"]))
        return {}

    async with opened(sqlite_url) as rt:
        rt.register(chain(work), name="work")
        rt.register(chain(queues), name="queues")
        rt.register(chain(itself), name="itself")
        run = await rt.start("queues", {}, thread_id="one")
        await rt.tick()
        error = (await rt.get(run.id)).error
        assert error is not None
        assert "begins only when this one has ended" in error.message
        with pytest.raises(NotInRun):
            perdure.join(run)


# -- cancelling


async def test_a_driven_child_is_stopped_with_its_parent(url: str) -> None:
    with gate() as standing:

        async def stands(state: Log) -> Log:
            await standing.wait()
            return {}

        async with opened(url) as rt:
            rt.register(chain(("stands", stands), work), name="child")
            rt.register(parent(rt, "child"), name="parent")
            run = await rt.start("parent", {"log": []})
            async with driving(rt):
                await standing.reached()
                await reaches(rt, run, State.WAITING)
                await rt.cancel(run.id)
                [child] = await children(rt, run)
                assert child.state is State.RUNNING
                await told_to_stop(rt, child)
                standing.open()
                await reaches(rt, child, State.CANCELLED)


async def test_the_children_of_a_run_whose_thread_is_taken_over_are_cancelled(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="asks")
        rt.register(parent(rt, "asks"), name="parent")
        rt.register(chain(work), name="other")
        run = await rt.start("parent", {"log": []}, thread_id="one")
        await rt.tick()
        await rt.start("other", {}, thread_id="one", multitask_strategy="interrupt")
        await rt.tick()
        [child] = await children(rt, run)
        assert child.state is State.CANCELLED


async def test_children_go_on_when_their_parent_fails(url: str) -> None:
    async def starts(state: Log) -> Log:
        await rt.start("asks", {})
        raise Boom("the parent fails")

    async with opened(url) as rt:
        rt.register(chain(approve), name="asks")
        run = await driven(rt, chain(starts), {"log": []}, name="parent", retry=AT_ONCE)
        [child] = await children(rt, run)
        assert ((await rt.get(run.id)).state, child.state) == (State.FAILED, State.WAITING)


async def test_a_tree_that_grows_without_end_is_stopped(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.commands.starting.DEEPEST", 3)

    async def again(state: Log) -> Log:
        await rt.start("again", {})
        return {}

    async with opened(sqlite_url) as rt:
        rt.register(chain(again), name="again", retry=ONCE)
        await rt.start("again", {})
        await rt.tick()
        ends = [one.state for one in await rt.runs()]
        assert ends == [State.FAILED, *[State.DONE] * 3]
        [deepest, *_] = await rt.runs()
        assert deepest.error is not None
        assert "start each other endlessly" in deepest.error.message


# -- prune, fork


async def test_a_child_is_kept_until_its_parent_has_ended(url: str) -> None:
    async with opened(url, Clock(NOON)) as rt:
        rt.register(chain(work), name="quick")
        rt.register(chain(approve), name="asks")
        run = await driven(rt, parent(rt, "quick", "asks"), {"log": []}, name="parent")
        rt.clock.advance(HOUR)
        assert await rt.prune(older_than=timedelta(0)) == 0
        [wait] = await rt.waits(kind="human")
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(run.id)).output["value"] == ["result of 0", "yes"]
        rt.clock.advance(HOUR)
        assert await rt.prune(older_than=timedelta(0)) == 3


async def test_a_fork_of_a_parent_joins_the_children_of_the_original(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="asks")
        run = await driven(rt, parent(rt, "asks"), {"log": []}, name="parent")
        forked = await rt.fork(run.id)
        await rt.tick()
        [wait] = await rt.waits(kind="human")
        await rt.answer(wait.id, "yes")
        await rt.tick()
        for one in (run, forked):
            assert (await rt.get(one.id)).output["value"] == ["yes"]
        assert len(await rt.runs(graph="asks")) == 1
