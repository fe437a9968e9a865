"""Answers fit the dialect of their question, and are withdrawn until the run goes on with them."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from langgraph.types import interrupt

from perdure.errors import BadAnswer, NotFound, NotWithdrawn
from perdure.types import Run, State
from tests.support.agents import Log, chain, opened
from tests.support.commands import main
from tests.support.controls import ONCE, said


async def asked(rt: Any, graph: Any, input: Any) -> tuple[Run, Any]:
    """A run of this graph that asks one question, and the question."""
    rt.register(graph, name="g", retry=ONCE)
    run = await rt.start("g", input, thread_id="t")
    await rt.tick()
    [wait] = await rt.waits(kind="human")
    return run, wait


def request(*allowed: str) -> dict[str, Any]:
    return {
        "action_requests": [{"name": "pay", "args": {"n": 1}}],
        "review_configs": [{"action_name": "pay", "allowed_decisions": list(allowed)}],
    }


def inbox_item(**config: bool) -> dict[str, Any]:
    names = ("allow_accept", "allow_ignore", "allow_respond", "allow_edit")
    return {
        "action_request": {"action": "pay", "args": {"n": 1}},
        "config": {name: config.get(name, False) for name in names},
        "description": None,
    }


EDIT = {"type": "edit", "edited_action": {"name": "pay", "args": {"n": 2}}}


OTHER_TOOL = {"type": "edit", "edited_action": {"name": "refund", "args": {}}}


EXAMPLE = re.compile(r"perdure answer \S+ '(.*)'")

FITS: list[tuple[Any, list[Any], list[Any]]] = [
    (
        request("approve", "reject"),
        [
            {"decisions": [{"type": "approve"}]},
            {"decisions": [{"type": "reject", "message": "no"}]},
        ],
        [
            True,
            None,
            "approve",
            {"type": "approve"},
            [{"type": "approve"}],
            {"decisions": []},
            {"decisions": [{"type": "approve"}] * 2},
            {"decisions": [{"type": "respond", "message": "x"}]},
            {"decisions": [EDIT]},
            {"decisions": "approve"},
        ],
    ),
    (
        request("edit"),
        [{"decisions": [EDIT]}, {"decisions": [OTHER_TOOL]}],
        [{"decisions": [{"type": "edit"}]}],
    ),
    (
        request("respond"),
        [{"decisions": [{"type": "respond", "message": "x"}]}],
        [{"decisions": [{"type": "respond"}]}],
    ),
    (
        [inbox_item(allow_accept=True, allow_respond=True)],
        [[{"type": "accept", "args": None}], [{"type": "response", "args": "later"}]],
        [True, {"type": "accept"}, [], [{"type": "ignore"}], [{"type": "response"}]],
    ),
    (
        inbox_item(allow_edit=True),
        [{"type": "edit", "args": {"action": "pay", "args": {}}}, [{"type": "edit", "args": {}}]],
        [True, {"type": "accept"}],
    ),
    ("ok?", [True, None, {"decisions": 1}], []),
    ({"breakpoint": ["node"]}, [True, None], []),
    ([], [True], []),
    ({"action_requests": 1, "review_configs": 2}, [True], []),
]


@pytest.mark.parametrize(("value", "good", "bad"), FITS)
async def test_an_answer_fits_its_dialect(
    sqlite_url: str, value: Any, good: list[Any], bad: list[Any]
) -> None:
    def ask(state: Log) -> Any:
        return {"value": [interrupt(value)]}

    async with opened(sqlite_url) as rt:
        rt.register(chain(ask), name="g", retry=ONCE)

        async def begin() -> tuple[Run, Any]:
            run = await rt.start("g", said())
            await rt.tick()
            [wait] = await rt.waits(run_id=run.id)
            return run, wait

        run, wait = await begin()
        examples: list[Any] = []
        for answer in bad:
            with pytest.raises(BadAnswer, match=f"perdure answer {wait.id} ") as refused:
                await rt.answer(wait.id, answer)
            examples = [json.loads(text) for text in EXAMPLE.findall(str(refused.value))]
        assert [event.kind for event in await rt.events(run.id)][-1] == "waiting"
        assert bool(examples) == bool(bad), "the error shows an answer that fits"
        good = [*good, *examples]
        for answer in good:
            await rt.answer(wait.id, answer)
            await rt.tick()
            assert (await rt.get(run.id)).output["value"] == [answer]
            run, wait = await begin()


def fragile(state: Log) -> Any:
    return said("kept", str(10 // interrupt("by what?")))


async def test_what_the_run_has_gone_on_with_is_not_withdrawn_but_forked(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(state: Log) -> Any:
        raise ValueError("later")

    async with opened(url) as rt:
        run, wait = await asked(rt, chain(fragile, fails), said("a"))
        with pytest.raises(NotWithdrawn, match="no answer"):
            await rt.withdraw(wait.id)
        await rt.answer(wait.id, 5)
        await rt.tick()
        assert (await rt.get(run.id)).state is State.FAILED
        before = await rt.events(run.id)
        with pytest.raises(NotWithdrawn, match=f"fork run {run.id} from checkpoint") as refused:
            await rt.withdraw(wait.id)
        assert await asyncio.to_thread(main, ["show", run.id, "--at", url]) == 0
        shown = capsys.readouterr().out
        assert "perdure withdraw" not in shown
        [(source, place)] = re.findall(r"perdure fork (\S+) --checkpoint (\S+) --at M", shown)
        assert source == run.id
        assert f"from checkpoint {place} instead" in str(refused.value)
        with pytest.raises(NotFound):
            await rt.withdraw("nothing")
        assert await rt.events(run.id) == before
        forked = await rt.fork(run.id, at=place)
        await rt.tick()
        [again] = await rt.waits(run_id=forked.id)
        assert again.value == "by what?"
