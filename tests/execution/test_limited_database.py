"""On a database with limits, what is too large is refused before it is queued, by name and size.
Only the run or the call that it belongs to fails; all others go on.

The database is a real SQLite that claims the limits of a smaller one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels import UntrackedValue
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

import perdure
from perdure.errors import TooLarge
from perdure.journal import Capabilities
from perdure.journal.sqlite import SQLite
from perdure.types import EffectState, Run, State
from tests.support.agents import Calls, chain, opened

LIMITED = Capabilities(
    interactive=True,
    statements_per_batch=100,
    bytes_per_batch=250_000,
    largest_text=50_000,
    largest_blob=100_000,
    blob_piece=40_000,
    rows_per_delete=5,
)
LARGE = "x" * 120_000
SAYS = r"12\d,\d{3} bytes.* over the limit of 100,000 of this journal's database"


@pytest.fixture
async def rt(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[perdure.Runtime]:
    monkeypatch.setattr(SQLite, "capabilities", LIMITED)
    async with opened(sqlite_url) as rt:
        yield rt


async def driven(rt: perdure.Runtime, graph: Any, input: Any = None, **options: Any) -> Run:
    rt.register(graph, name="g")
    run = await rt.start("g", {"log": []} if input is None else input, **options)
    await rt.tick()
    return await rt.get(run.id)


def check_failed(run: Run, says: str) -> None:
    assert run.state == State.FAILED, run
    assert run.error is not None
    assert run.error.kind == "perdure.errors.TooLarge"
    assert re.search(says, run.error.message), run.error.message
    assert re.search(SAYS, run.error.message), run.error.message


async def test_a_state_that_is_too_large_fails_its_run_once_and_names_channel_and_size(
    rt: Any,
) -> None:
    calls = Calls()
    agent = chain(calls.node("one"), calls.node("two", lambda state: {"value": LARGE}))
    run = await driven(rt, agent)
    check_failed(run, r"channel 'value'")
    assert calls == ["one", "two"]
    assert run.attempts == 1


async def test_on_d1_a_state_over_its_limit_fails_its_run_and_no_other(d1_url: str) -> None:
    async with opened(d1_url) as rt:
        nodes = chain(("one", lambda state: {"value": "x" * int(state["log"][0])}))
        rt.register(nodes, name="g", timeout=timedelta(minutes=5))
        sizes = [8_000_001, 3_000_000, 10]
        started = [await rt.start("g", {"log": [str(size)]}) for size in sizes]
        await rt.tick()
        failed, *others = [await rt.get(run.id) for run in started]
        assert failed.state == State.FAILED
        assert failed.error is not None
        says = r"channel 'value'.*over the limit of 8,000,000 of this journal's database"
        assert re.search(says, failed.error.message), failed.error.message
        assert [run.state for run in others] == [State.DONE, State.DONE]
        assert [len(run.output["value"]) for run in others] == sizes[1:]


async def test_a_step_whose_writes_are_too_large_together_is_not_stored_at_all(rt: Any) -> None:
    calls = Calls()
    update = {"value": "x" * 70_000, "log": ["x" * 60_000]}

    def two(state: Any) -> Any:
        calls.append("two")
        return update

    run = await driven(rt, chain(calls.node("one"), ("two", two)))
    says = r"write \d+ of task \S+ at .*: 13\d,\d{3} bytes \(70,\d{3} of them for channel 'value'\)"
    assert run.state == State.FAILED
    assert run.error is not None
    assert re.search(says, run.error.message), run.error.message
    update["value"] = "small"
    await rt.retry(run.id)
    await rt.tick()
    assert (await rt.get(run.id)).output["value"] == "small"
    assert calls == ["one", "two", "two"]


async def test_the_other_runs_of_the_same_batches_go_on(rt: Any) -> None:
    def node(state: Any) -> Any:
        return {"log": ["done"], "value": "y" * int(state["log"][0])}

    rt.register(chain(("one", node), ("two", node)), name="g")
    sizes = [10, 120_000, 30_000, 10, 120_000, 10]
    started = [await rt.start("g", {"log": [str(size)]}) for size in sizes]
    await rt.tick()
    runs = [await rt.get(run.id) for run in started]
    assert [run.state.value for run in runs] == ["failed" if n > 100_000 else "done" for n in sizes]
    assert [run.attempts for run in runs if run.state == State.FAILED] == [1, 1]


async def test_a_channel_that_grows_over_the_limit_is_refused_where_it_does(rt: Any) -> None:
    """Each step stores only what is new, so the rows would fit. But the channel would not if it had
    to be stored whole, as after a fork."""
    calls = Calls()
    nodes = [calls.node(f"n{n}", lambda state: {"log": ["x" * 30_000]}) for n in range(5)]
    run = await driven(rt, chain(*nodes))
    check_failed_growing = r"channel 'log' \(row .* of thread .*: 12\d,\d{3} bytes"
    assert run.state == State.FAILED
    assert run.error is not None
    assert re.search(check_failed_growing, run.error.message), run.error.message
    assert calls == ["n0", "n1", "n2", "n3"]


async def test_a_state_of_several_channels_is_refused_when_one_transaction_cannot_hold_it(
    rt: Any,
) -> None:
    builder = StateGraph(Three)
    for last, name in zip([START, "na", "nb"], "abc", strict=True):
        builder.add_node(f"n{name}", lambda state, name=name: {name: "x" * (90_000 + ord(name))})
        builder.add_edge(last, f"n{name}")
    run = await driven(rt, builder, {"a": ""})
    assert run.state == State.FAILED
    assert run.error is not None
    says = r"checkpoint .*: 27\d,\d{3} bytes \(90,\d{3} of them for channel 'c'\).*limit of 250,000"
    assert re.search(says, run.error.message), run.error.message


async def test_the_input_of_a_run_is_refused_by_its_channel_and_nothing_is_started(rt: Any) -> None:
    rt.register(chain(Calls().node("one")), name="g")
    says = r"start: .*\(120,\d{3} of them for \['input'\]\['value'\]\)"
    with pytest.raises(TooLarge, match=f"{says}.*{SAYS[-40:]}") as caught:
        await rt.start("g", {"log": [], "value": LARGE}, thread_id="t")
    assert caught.value.largest is not None
    assert caught.value.largest[0] == "['input']['value']"
    with pytest.raises(TooLarge, match=r"start: .*for \['metadata'\]\['note'\]"):
        await rt.start("g", {"log": []}, metadata={"note": LARGE})
    assert await rt.runs() == []


async def test_an_argument_of_an_effect_is_refused_by_name_before_it_is_called(rt: Any) -> None:
    called = []

    @perdure.effect
    def send(to: str, text: str) -> None:
        called.append(to)

    run = await driven(rt, chain(("one", lambda state: send("a", LARGE))))
    check_failed(run, r"the arguments of effect '.*send': .*for \['text'\]\)")
    assert called == []
    assert await rt.effects(run_id=run.id) == []


async def test_a_result_of_an_effect_that_is_too_large_fails_it_and_it_is_not_called_again(
    rt: Any,
) -> None:
    called = []

    @perdure.effect
    def fetch() -> dict[str, str]:
        called.append(1)
        return {"page": LARGE}

    run = await driven(rt, chain(("one", lambda state: {"value": fetch()})))
    check_failed(run, r"the result of effect '.*fetch'")
    await rt.retry(run.id)
    await rt.tick()
    [record] = await rt.effects(run_id=run.id)
    assert record.state == EffectState.FAILED
    assert called == [1]


async def test_a_signal_an_answer_and_a_schedule_are_refused_by_name_and_can_be_sent_smaller(
    rt: Any,
) -> None:
    def node(state: Any) -> Any:
        return {"log": [perdure.ask("well?"), perdure.wait_for("s")]}

    run = await driven(rt, chain(("one", node)), thread_id="t")
    [wait] = await rt.waits()
    with pytest.raises(TooLarge, match=r"the answer: .*for \['text'\]\)"):
        await rt.answer(wait.id, {"text": LARGE})
    with pytest.raises(TooLarge, match=r"signal 's': .*"):
        await rt.signal("t", "s", LARGE)
    with pytest.raises(TooLarge, match=r"schedule: .*for \['input'\]\['value'\]\)"):
        await rt.schedule("daily", "g", input={"value": LARGE}, cron="0 0 * * *")
    assert await rt.schedules() == []
    await rt.answer(wait.id, "fine")
    await rt.signal("t", "s", "small")
    await rt.tick()
    await rt.tick()
    assert (await rt.get(run.id)).output["log"] == ["fine", "small"]


@pytest.mark.parametrize("size", [120_000, 90_000], ids=["alone", "with its wait"])
async def test_a_question_that_is_too_large_fails_its_run(rt: Any, size: int) -> None:
    calls = Calls()
    node = calls.node("one", lambda state: {"value": perdure.ask({"text": "x" * size, "n": 1})})
    run = await driven(rt, chain(node))
    assert run.state == (State.FAILED if size > 100_000 else State.WAITING)
    assert calls == ["one"]
    if size > 100_000:
        check_failed(run, r"the value of an interrupt")
        assert await rt.waits() == []


class Three(TypedDict, total=False):
    a: str
    b: str
    c: str


class Untracked(TypedDict, total=False):
    log: list[str]
    kept: Annotated[Any, UntrackedValue]


async def test_an_output_that_is_in_no_checkpoint_and_too_large_fails_its_run(rt: Any) -> None:
    calls = []

    def node(state: Any) -> Any:
        calls.append(1)
        return {"log": [], "kept": LARGE}

    builder = StateGraph(Untracked)
    builder.add_node("one", node).add_edge(START, "one")
    run = await driven(rt, builder)
    check_failed(run, r"the output")
    assert calls == [1]


async def test_an_output_that_its_checkpoint_holds_may_be_larger_than_a_blob(rt: Any) -> None:
    nodes: list[Any] = [("one", lambda state: {"value": "x" * 90_000})]
    nodes.append(("two", lambda state: {"log": ["x" * 90_000]}))
    run = await driven(rt, chain(*nodes))
    assert run.state == State.DONE
    assert len(run.output["value"]) == len(run.output["log"][0]) == 90_000


async def test_a_command_to_a_bound_graph_is_refused_and_its_question_stays_open(rt: Any) -> None:
    calls = Calls()
    node = calls.node("one", lambda state: perdure.ask("well?") and None)
    graph = rt.register(chain(node), name="g")
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"log": []}, config)
    with pytest.raises(TooLarge, match=r"the command: .*for .*\.update\['value'\]\)"):
        await graph.ainvoke(Command(resume="yes", update={"value": LARGE}), config)
    assert len(await rt.waits()) == 1
    found = await graph.ainvoke(Command(resume="yes", update={"value": "small"}), config)
    assert (found["log"], found["value"]) == (["one"], "small")
