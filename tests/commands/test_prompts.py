"""Prompt versions: named by the events of the steps and effects that read them, and by scores."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.types import Event, EventKind, Prompt, PromptVersion, Run, State
from tests.support.agents import Log, chain, opened
from tests.support.effects import AT_ONCE, Times

ONE = Prompt("writer", "Write.").version
CRITIC = Prompt("critic", "Judge.").version


@perdure.effect(name="prompts.send")
def send(text: str) -> str:
    return text


@perdure.effect(name="prompts.judge")
def judge(text: str) -> str:
    return f"{perdure.prompt('critic', 'Judge.')} {text}"


async def driven(rt: Any, graph: Any, *, state: State = State.DONE, thread: str = "t") -> Run:
    rt.register(graph, name="g", retry=AT_ONCE)
    run = await rt.start("g", {"log": []}, thread_id=thread)
    await rt.tick()
    found: Run = await rt.get(run.id)
    assert found.state is state
    return found


async def noted(rt: Any, run: Run, kind: EventKind) -> list[Any]:
    """What each event of a kind says of prompts."""
    found: list[Event] = await rt.events(run.id)
    return [
        [tuple(one) for one in event.data.get("prompts", [])]
        for event in found
        if event.kind == kind and (kind != EventKind.STEP or event.data.get("nodes"))
    ]


def test_outside_a_run_a_prompt_is_just_its_text() -> None:
    text = perdure.prompt("writer", "Write.")
    assert (text, text.name, text.version) == ("Write.", "writer", ONE)
    assert isinstance(text, str)
    assert len(ONE) == 12
    with pytest.raises(perdure.BadArgument):
        perdure.prompt("", "Write.")


async def test_a_prompt_is_noted_on_what_it_touched_and_not_on_what_it_did_not(url: str) -> None:
    def plain(state: Log) -> Log:
        send("no prompt")
        return {}

    def write(state: Log) -> Log:
        send("before")
        text = perdure.prompt("writer", "Write.")
        judge("draft")
        send("after")
        return {"log": [text], "value": {"prompt": text}}

    async with opened(url) as rt:
        run = await driven(rt, chain(plain, write, ("last", plain)))
        writer, critic = ("writer", ONE), ("critic", CRITIC)
        both = [critic, writer]
        effects = await noted(rt, run, EventKind.EFFECT)
        assert effects == [[], [], both, [writer], []]
        assert await noted(rt, run, EventKind.STEP) == [[], [writer], []]
        assert run.output["value"] == {"prompt": "Write."}
        assert type(run.output["value"]["prompt"]) is str

        keys = {one.key: one for one in await rt.effects(run.id)}
        after = [one for one in keys.values() if one.arguments.get("text") == "after"]
        await rt.score(run.id, "reply", 1.0)
        await rt.score(run.id, "reply", 0.0, effect=after[0].key)
        steps = [one for one in await rt.events(run.id) if one.kind == EventKind.STEP]
        first = next(one for one in steps if one.data.get("nodes") == ["plain"])
        await rt.score(run.id, "reply", 0.5, step=first.data["checkpoint"])
        versions = {one.about: one.prompts for one in await rt.scores(run.id)}
        assert versions[""] == (PromptVersion(*critic), PromptVersion(*writer))
        assert versions[after[0].key] == (PromptVersion(*writer),)
        assert versions[first.data["checkpoint"]] == ()
        assert await noted(rt, run, EventKind.SCORED) == [both, [writer], []]


class Fan(TypedDict, total=False):
    a: str
    b: str


async def test_parallel_branches_do_not_mix_their_prompts(sqlite_url: str) -> None:
    here = asyncio.Barrier(2)

    def branch(name: Literal["a", "b"]) -> Any:
        async def node(state: Fan) -> Fan:
            await here.wait()
            perdure.prompt(f"prompt {name}", name)
            await here.wait()
            await asyncio.to_thread(send, name)
            return {name: "done"}  # type: ignore[misc]

        return node

    builder: StateGraph[Any] = StateGraph(Fan)
    for name in ("a", "b"):
        builder.add_node(name, branch(name))
        builder.add_edge(START, name)
    async with opened(sqlite_url) as rt:
        run = await driven(rt, builder)
        effects = await rt.effects(run.id)
        for name in ("a", "b"):
            [key] = [one.key for one in effects if one.arguments["text"] == name]
            await rt.score(run.id, name, 1.0, effect=key)
        told = {
            one.name: [prompt.name for prompt in one.prompts] for one in await rt.scores(run.id)
        }
        assert told == {"a": ["prompt a"], "b": ["prompt b"]}
        [step] = await noted(rt, run, EventKind.STEP)
        assert [name for name, _ in step] == ["prompt a", "prompt b"]


async def test_a_subgraphs_prompts_are_noted_on_its_steps_and_on_the_step_outside(
    sqlite_url: str,
) -> None:
    def inner(state: Log) -> Log:
        perdure.prompt("writer", "Write.")
        return {"log": ["inner"]}

    def second(state: Log) -> Log:
        perdure.prompt("critic", "Judge.")
        return {"log": ["second"]}

    def outer(state: Log) -> Log:
        return {"log": ["outer"]}

    async with opened(sqlite_url) as rt:
        inside = chain(inner, second).compile()
        run = await driven(rt, chain(("sub", inside), outer))
        found = [one for one in await rt.events(run.id) if one.kind == EventKind.STEP]
        told = [
            (one.data["nodes"], [name for name, _ in one.data.get("prompts", [])])
            for one in found
            if one.data.get("nodes")
        ]
        assert (["inner"], ["writer"]) in told
        assert (["second"], ["critic"]) in told
        assert (["sub"], ["critic", "writer"]) in told
        assert (["outer"], []) in told


async def test_a_node_that_runs_again_records_the_same_versions(sqlite_url: str) -> None:
    fails = Times(1)

    def write(state: Log) -> Log:
        perdure.prompt("writer", "Write.")
        judge("draft")  # reads its prompt inside: not called again
        fails("here")
        send("after")
        return {}

    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(write))
        writer, critic = ("writer", ONE), ("critic", CRITIC)
        assert await noted(rt, run, EventKind.EFFECT) == [[critic, writer], [writer]]
        assert await noted(rt, run, EventKind.STEP) == [[writer]]
