"""Questions of LangChain's middleware and the Agent Inbox take only the answers their code can use.

An answer that made a run fail all the same can be withdrawn, and the question answered anew.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import Any
from urllib.parse import urlsplit

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.types import interrupt

import perdure
from perdure.commands.answer_dialects import check_fits
from perdure.errors import BadAnswer, NotWithdrawn
from perdure.types import Run, State
from tests.contract.test_dialects import asked, inbox_item, request
from tests.support.agents import Log, chain, history, opened
from tests.support.commands import main
from tests.support.controls import echo, said


class Scripted(FakeMessagesListChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.i = sum(message.type == "ai" for message in messages)
        return super()._generate(messages, *args, **options)


def reviewed(*calls: dict[str, Any], mode: str = "batch") -> tuple[Any, list[str]]:
    """An agent whose payments a person reviews, and what it paid."""
    paid: list[str] = []

    @tool
    def pay(invoice: str) -> str:
        """Pay an invoice."""
        paid.append(invoice)
        return f"{invoice} is paid"

    orders = [{"name": "pay", "args": args, "id": f"call-{n}"} for n, args in enumerate(calls)]
    model = Scripted(responses=[AIMessage("", tool_calls=orders), AIMessage("All paid.")])
    allowed: Any = {"pay": {"allowed_decisions": ["approve", "edit", "reject"]}}
    options: dict[str, Any] = {} if mode == "batch" else {"interrupt_mode": mode}
    review = HumanInTheLoopMiddleware(interrupt_on=allowed, **options)
    return create_agent(model, [pay], middleware=[review]), paid


PAY: Any = {"messages": [("human", "Pay")]}


async def test_an_agent_with_the_middleware_takes_the_answer_that_the_inbox_prints(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, paid = reviewed({"invoice": "A-17"}, {"invoice": "A-18"})
    async with opened(url) as rt:
        run, wait = await asked(rt, agent, PAY)
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["inbox", "--at", url]) == 0
        told = capsys.readouterr().out
        assert "approve | edit | reject" in told
        [command] = [line for line in told.splitlines() if "perdure answer" in line]
        assert await asyncio.to_thread(main, ["answer", wait.id, "true", "--at", url]) == 2
        refused = capsys.readouterr().err
        assert "HumanInTheLoopMiddleware" in refused
        assert f"perdure answer {wait.id}" in refused
        assert [one.id for one in await rt.waits()] == [wait.id]
        words = shlex.split(command.replace("***", urlsplit(url).password or ""))[1:]
        assert await asyncio.to_thread(main, words) == 0
        await rt.tick()
        assert (await rt.get(run.id)).state is State.DONE
        assert sorted(paid) == ["A-17", "A-18"]


EDIT = {"type": "edit", "edited_action": {"name": "pay", "args": {"n": 2}}}


TWO = {
    "action_requests": [{"name": "pay", "args": {}}, {"name": "book", "args": {}}],
    "review_configs": [
        {"action_name": "pay", "allowed_decisions": ["approve", "reject"]},
        {"action_name": "book", "allowed_decisions": ["edit"]},
    ],
}
APPROVED: Any = {"type": "approve"}
PROBLEMS: list[tuple[Any, Any, str]] = [
    (TWO, True, 'it is true, not an object with "decisions".'),
    (TWO, [APPROVED], 'it is [{"type": "approve"}], not an object with "decisions".'),
    (TWO, {"decisions": "approve"}, '"decisions" is "approve", not a list of decisions.'),
    (TWO, {"decisions": []}, "it has 0 decisions for 2 actions."),
    (request("approve"), {"decisions": [APPROVED] * 2}, "it has 2 decisions for 1 action."),
    (
        TWO,
        {"decisions": [{"type": "ok"}, APPROVED]},
        (
            'decision 1 (pay) has the type "ok", not "approve" or "reject"; '
            'decision 2 (book) has the type "approve", not "edit".'
        ),
    ),
    (TWO, {"decisions": [True, EDIT]}, 'decision 1 (pay) is true, not an object with a "type".'),
    (
        TWO,
        {"decisions": [APPROVED, {"type": "edit", "edited_action": {"name": "book"}}]},
        'decision 2 (book) does not fit its type: edited_action: "args" is a required property.',
    ),
    ([inbox_item(allow_accept=True)], APPROVED, "not a list of responses."),
    (inbox_item(allow_accept=True), [], "it has 0 responses for 1 action."),
    (
        inbox_item(allow_accept=True),
        {"type": "ignore"},
        'response 1 (pay) has the type "ignore", not "accept".',
    ),
    (TWO, "x" * 1000, 'xxx…, not an object with "decisions".'),
]


@pytest.mark.parametrize(("value", "answer", "words"), PROBLEMS)
def test_the_error_says_what_is_wrong_with_an_answer(value: Any, answer: Any, words: str) -> None:
    with pytest.raises(BadAnswer) as caught:
        check_fits("w", value, None, answer)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 600


# -- withdrawing


def fragile(state: Log) -> Any:
    return said("kept", str(10 // interrupt("by what?")))


async def failed(rt: Any, *nodes: Any) -> tuple[Run, Any]:
    """A run that failed because of its answer, and the question."""
    run, wait = await asked(rt, chain(*nodes), said("a"))
    await rt.answer(wait.id, 0, by="bo")
    await rt.tick()
    found = await rt.get(run.id)
    assert found.state is State.FAILED
    return found, wait


@pytest.mark.parametrize("through", ["python", "cli"])
async def test_an_answer_that_made_its_run_fail_is_withdrawn_and_given_anew(
    url: str, through: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(url) as rt:
        run, wait = await failed(rt, echo, fragile)
        await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).state is State.FAILED  # the answer is stored
        if through == "python":
            await rt.withdraw(wait.id, by="ana", reason="a slip")
        else:
            assert await asyncio.to_thread(main, ["show", run.id, "--at", url]) == 0
            assert f"perdure withdraw {wait.id}" in capsys.readouterr().out
            who = ["--by", "ana", "--reason", "a slip"]
            assert await asyncio.to_thread(main, ["withdraw", wait.id, "--at", url, *who]) == 0
        [event] = [one for one in await rt.events(run.id) if one.kind == "withdrawn"]
        via = {"via": "command line"} if through == "cli" else {}
        assert event.data == {"wait": wait.id, "by": "ana", "reason": "a slip", **via}
        await rt.tick()
        assert (await rt.get(run.id)).state is State.WAITING
        [again] = await rt.waits()
        assert (again.id, again.value) == (wait.id, "by what?")
        assert await asyncio.to_thread(main, ["show", run.id, "--at", url]) == 0
        assert "asleep" not in capsys.readouterr().out
        [record] = await rt.wait_history(run.id)
        assert (record.state, record.answer, record.answered_at) == ("open", None, None)
        await rt.answer(again.id, 5, by="ana")
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "echo", "kept", "2")
        await history(rt, run)


async def test_an_answer_can_be_given_before_the_run_has_asked_again(url: str) -> None:
    async with opened(url) as rt:
        run, wait = await failed(rt, fragile)
        await rt.withdraw(wait.id)
        await rt.answer(wait.id, 5)
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "kept", "2")


async def test_earlier_answers_of_the_node_are_kept(url: str) -> None:
    def two(state: Log) -> Any:
        first = perdure.ask("first?")
        return said(first, str(10 // perdure.ask("second?")))

    async with opened(url) as rt:
        run, wait = await asked(rt, chain(two), said("a"))
        await rt.answer(wait.id, "one")
        await rt.tick()
        [second] = await rt.waits()
        await rt.answer(second.id, 0)
        await rt.tick()
        await rt.withdraw(second.id)
        await rt.tick()
        [again] = await rt.waits()
        assert again.id == second.id
        with pytest.raises(NotWithdrawn):
            await rt.withdraw(wait.id)
        await rt.answer(again.id, 5)
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "one", "2")


async def test_an_answer_of_a_run_whose_thread_has_gone_on_is_not_withdrawn(url: str) -> None:
    async with opened(url) as rt:
        run, wait = await failed(rt, fragile)
        later = await rt.start("g", said("b"), thread_id="t")
        await rt.tick()
        with pytest.raises(NotWithdrawn):
            await rt.withdraw(wait.id)
        assert (await rt.get(run.id)).state is State.FAILED
        assert (await rt.get(later.id)).state is State.WAITING
