"""What is said of a run while it goes on and after its end: labels, tags of who drives it, scores.

A question can be taken back by a signal, whichever of the two is there first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.config import get_config

import perdure
from perdure import errors
from perdure.types import Kind, Run, State
from tests.support.agents import Log, chain, opened

DAY = timedelta(days=1)


def at_step(number: int, then: Any = None) -> Any:
    def node(state: Log) -> Log:
        perdure.label(step=number)
        if then is not None:
            then()
        return {"log": [str(number)]}

    return f"step{number}", node


async def begin(rt: Any, *nodes: Any, **start: Any) -> Run:
    rt.register(chain(*nodes), name="g")
    run: Run = await rt.start("g", {"log": []}, thread_id="t", **start)
    await rt.tick()
    return await rt.get(run.id)  # type: ignore[no-any-return]


# -- labels


async def test_a_label_joins_the_metadata_once_its_step_is_on_disk(url: str) -> None:
    async with opened(url) as rt:
        nap = at_step(2, lambda: perdure.sleep(DAY))
        run = await begin(rt, at_step(1), nap, metadata={"campaign": 7, "step": 0})
        assert run.state is State.WAITING
        assert run.metadata == {"campaign": 7, "step": 1}, "step 2 has not ended yet"
        rt.clock.advance(DAY)
        await rt.tick()
        assert (await rt.get(run.id)).metadata == {"campaign": 7, "step": 2}


async def test_the_history_tells_with_which_step_a_label_came(url: str) -> None:
    async with opened(url) as rt:
        run = await begin(rt, at_step(1), ("pure", lambda state: {}), at_step(2), at_step(3))
        found = [
            (event.data.get("nodes"), event.data["labels"])
            for event in await rt.events(run.id)
            if "labels" in event.data
        ]
        assert [labels for _, labels in found] == [{"step": 1}, {"step": 2}, {"step": 3}]


async def test_later_segments_find_the_labels_and_who_drives_in_their_config(url: str) -> None:
    seen: list[Any] = []

    def look(state: Log) -> Log:
        perdure.sleep(DAY)
        config = get_config()
        seen.append((config["metadata"]["step"], sorted(config["tags"])))
        return {}

    async with opened(url) as rt:
        run = await begin(rt, at_step(1), look, tags=["mine"])
        assert run.tags == ("mine", "runtime:cron")
        rt.clock.advance(DAY)
        await rt.work(until_idle=True)
        run = await rt.get(run.id)
        assert run.tags == ("mine", "runtime:worker"), "who drove it last"
        assert seen == [(1, ["mine", "runtime:worker"])]
        by = [event.data["driven"] for event in await rt.events(run.id) if "driven" in event.data]
        assert by == ["cron", "worker"]


async def test_a_caller_who_drives_a_run_himself_is_told_apart(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        graph = rt.register(chain(at_step(1)), name="g")
        await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})
        [run] = await rt.runs()
        assert run.tags == ("runtime:call",)
        assert run.metadata["step"] == 1


def test_a_label_outside_of_a_run_does_nothing() -> None:
    perdure.label(step=1)


# -- scores


async def test_the_last_word_of_a_score_counts(url: str) -> None:
    async with opened(url) as rt:
        run = await begin(rt, at_step(1))
        for value in (0.0, 0.0, 1.0):
            await rt.score(run.id, "reply", value, about="touch 1")
        await rt.score(run.id, "reply", 0.5, about="touch 2")
        await rt.score(run.id, "reply", -3)
        found = {one.about: one.value for one in await rt.scores(run.id)}
        assert found == {"touch 1": 1.0, "touch 2": 0.5, "": -3.0}


# -- a question that a signal takes back


def asks(**options: Any) -> Any:
    def ask(state: Log) -> Log:
        return {"value": perdure.ask("Send it?", unless="reply", **options)}

    return ask


async def test_a_signal_takes_a_question_back(url: str) -> None:
    async with opened(url) as rt:
        run = await begin(rt, asks(default="never mind"))
        [wait] = await rt.waits(kind="human")
        assert (wait.kind, wait.name) == (Kind.HUMAN, "reply")
        await rt.signal("t", "reply", {"text": "stop"})
        await rt.tick()
        assert (await rt.get(run.id)).output["value"] == "never mind"
        assert not await rt.waits()
        with pytest.raises(errors.AlreadyAnswered):
            await rt.answer(wait.id, "yes")


async def test_a_question_whose_signal_came_before_it_is_not_left_open(url: str) -> None:
    async with opened(url) as rt:
        await rt.signal("t", "reply")
        run = await begin(rt, asks(default="never mind"))
        assert (run.state, run.output["value"]) == (State.DONE, "never mind")


async def test_an_answer_after_the_signal_is_refused(url: str) -> None:
    async with opened(url) as rt:
        run = await begin(rt, asks(default="never mind"))
        [wait] = await rt.waits(kind="human")
        await rt.signal("t", "reply")
        with pytest.raises(errors.WaitClosed, match="'reply' withdrew the question"):
            await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(run.id)).output["value"] == "never mind"


@pytest.mark.parametrize(
    "value", [{"__perdure__": "time is up"}, {"__perdure_taken_back__": 1}], ids=["time", "taken"]
)
async def test_nobody_can_say_what_only_the_driver_says(sqlite_url: str, value: Any) -> None:
    async with opened(sqlite_url) as rt:
        run = await begin(rt, asks(default="never mind"))
        [wait] = await rt.waits(run_id=run.id)
        with pytest.raises(errors.BadAnswer):
            await rt.answer(wait.id, value)
        with pytest.raises(errors.BadArgument):
            await rt.signal("t", "another", value)
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(run.id)).output["value"] == "yes"


async def test_an_answer_that_was_first_counts_and_the_signal_is_kept(url: str) -> None:
    async with opened(url) as rt:

        def hears(state: Log) -> Log:
            return {"log": [perdure.wait_for("reply")]}

        run = await begin(rt, asks(default="never mind"), hears)
        [wait] = await rt.waits(kind="human")
        await rt.answer(wait.id, "yes")
        await rt.signal("t", "reply", "late")
        await rt.tick()
        output = (await rt.get(run.id)).output
        assert (output["value"], output["log"]) == ("yes", ["late"])


async def test_without_a_default_it_raises_with_what_came(url: str) -> None:
    caught: list[Any] = []

    def ask(state: Log) -> Log:
        try:
            perdure.ask("Send it?", unless="reply")
        except errors.TakenBack as taken:
            caught.append((taken.name, taken.value))
        return {}

    async with opened(url) as rt:
        await begin(rt, ask)
        await rt.signal("t", "another")
        assert (await rt.tick()).claimed == 0, "a signal of another name is none of its business"
        await rt.signal("t", "reply", {"text": "stop"})
        await rt.tick()
        assert caught == [("reply", {"text": "stop"})]
