"""Commands over HTTP: answers to a run that asks, updates and jumps, breakpoints, checkpoints."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

import perdure
from perdure.types import Retry
from tests.commands.test_dialects import reviewed
from tests.support.agent_server import AgentServer, refused, served

NEW: Any = {"if_not_exists": "create"}


def asked(client: Any, graph: str) -> tuple[str, list[Any]]:
    """A thread whose run asks, and what it asks."""
    t = str(uuid4())
    values: Any = client.runs.wait(t, graph, input={"said": []}, **NEW)
    return t, values["__interrupt__"]


# -- answers


def test_an_answer_continues_the_same_run(client: Any) -> None:
    t, _ = asked(client, "gate")
    [before] = client.runs.list(t)
    run = client.runs.create(t, "gate", command={"resume": "yes"})
    assert run["run_id"] == before["run_id"]
    assert client.runs.join(t, run["run_id"]) == {"said": ["yes", "end"]}
    [after] = client.runs.list(t)
    assert after["status"] == "success"


def test_a_run_that_asks_again_is_answered_again(client: Any) -> None:
    t, [first] = asked(client, "twice")
    values: Any = client.runs.wait(t, "twice", command={"resume": 1})
    assert (first["value"], values["__interrupt__"][0]["value"]) == ("first", "second")
    assert client.runs.wait(t, "twice", command={"resume": 2}) == {"said": [1, 2, "end"]}


def test_several_questions_are_answered_by_their_ids(client: Any) -> None:
    t, questions = asked(client, "both")
    ids = {one["value"]: one["id"] for one in questions}
    assert "interrupt id" in refused(422, client.runs.wait, t, "both", command={"resume": 1})
    values: Any = client.runs.wait(t, "both", command={"resume": {ids["left"]: "l"}})
    assert [one["value"] for one in values["__interrupt__"]] == ["right"]
    refused(409, client.runs.wait, t, "both", command={"resume": {ids["left"]: "again"}})
    values = client.runs.wait(t, "both", command={"resume": {ids["right"]: "r"}})
    assert values == {"said": ["l", "r"]}


def test_a_second_answer_is_refused(client: Any) -> None:
    t, _ = asked(client, "gate")
    client.runs.create(t, "gate", command={"resume": "first"})
    assert "waits for an answer" in refused(
        409, client.runs.create, t, "gate", command={"resume": "second"}
    )
    [run] = client.runs.list(t)
    assert client.runs.join(t, run["run_id"]) == {"said": ["first", "end"]}


async def test_the_first_of_two_answers_at_once_wins(server: AgentServer) -> None:
    async with server.client() as client:
        t = str(uuid4())
        await client.runs.wait(t, "gate", input={"said": []}, **NEW)
        calls = [client.runs.create(t, "gate", command={"resume": n}) for n in range(8)]
        made = await asyncio.gather(*calls, return_exceptions=True)
        [run] = [one for one in made if isinstance(one, dict)]
        codes = {getattr(one, "status_code", None) for one in made if not isinstance(one, dict)}
        assert codes == {409}
        values: Any = await client.runs.join(t, run["run_id"])
        assert values["said"][1:] == ["end"]


def test_an_answer_to_a_thread_without_a_question_is_refused(client: Any) -> None:
    t = str(uuid4())
    refused(404, client.runs.create, t, "gate", command={"resume": 1})
    client.runs.wait(t, "numbers", input={"n": 1}, **NEW)
    refused(409, client.runs.create, t, "numbers", command={"resume": 1})
    refused(422, client.runs.create, None, "gate", command={"resume": 1})


# -- questions of a known shape


def test_an_answer_that_the_middleware_would_raise_on_is_refused(
    client: Any,
) -> None:
    t, _ = asked(client, "review")
    told = refused(422, client.runs.create, t, "review", command={"resume": "yes"})
    assert "decisions" in told
    assert "send_mail" in told
    values: Any = client.runs.wait(
        t, "review", command={"resume": {"decisions": [{"type": "approve"}]}}
    )
    assert values["said"] == [{"decisions": [{"type": "approve"}]}, "end"]


@pytest.mark.parametrize(
    ("response", "decision"),
    [
        (
            {"type": "accept", "args": {"action": "send_mail", "args": {"to": "ada"}}},
            {"type": "approve"},
        ),
        (
            {"type": "edit", "args": {"action": "send_mail", "args": {"to": "bob"}}},
            {"type": "edit", "edited_action": {"name": "send_mail", "args": {"to": "bob"}}},
        ),
        ({"type": "response", "args": "no"}, {"type": "reject", "message": "no"}),
        ({"type": "ignore", "args": None}, {"type": "reject"}),
    ],
)
def test_agent_inbox_answers_the_middleware(client: Any, response: Any, decision: Any) -> None:
    t, _ = asked(client, "review")
    values: Any = client.runs.wait(t, "review", command={"resume": [response]})
    assert values["said"] == [{"decisions": [decision]}, "end"]


def test_the_middleware_itself_accepts_the_answers_of_agent_inbox(url: str) -> None:
    agent, paid = reviewed({"invoice": "R-1"})
    with closing(perdure.Runtime(url)) as runtime:
        runtime.register(agent, name="payments", retry=Retry(attempts=1))
        with served(runtime) as server:
            client: Any = server.sync_client()
            t = str(uuid4())
            pay = {"messages": [{"role": "user", "content": "Pay"}]}
            values = client.runs.wait(t, "payments", input=pay, **NEW)
            assert values["__interrupt__"][0]["value"]["action_requests"][0]["name"] == "pay"
            edited = {"type": "edit", "args": {"action": "pay", "args": {"invoice": "R-2"}}}
            values = client.runs.wait(t, "payments", command={"resume": [edited]})
    assert paid == ["R-2"]
    assert [one["type"] for one in values["messages"]] == ["human", "ai", "tool", "ai"]


# -- updates, jumps and breakpoints


def test_a_command_may_answer_update_and_jump(client: Any) -> None:
    t, _ = asked(client, "gate")
    values = client.runs.wait(t, "gate", command={"resume": "yes", "update": {"said": ["more"]}})
    assert sorted(values["said"]) == ["end", "more", "yes"]
    values = client.runs.wait(t, "gate", command={"goto": "end", "update": [["said", ["again"]]]})
    assert values["said"][-2:] == ["again", "end"]
    values = client.runs.wait(t, "gate", command={"goto": [{"node": "end", "input": {"said": []}}]})
    assert values["said"][-2:] == ["end", "end"]


@pytest.mark.parametrize("update", [None, {"said": ["never mind"]}])
def test_a_jump_to_the_end_ends_a_run_that_asks(client: Any, update: Any) -> None:
    t, _ = asked(client, "gate")
    run = client.runs.create(t, "gate", command={"goto": "__end__", "update": update})
    said = [] if update is None else ["never mind"]
    assert client.runs.join(t, run["run_id"]) == {"said": said}
    [only] = client.runs.list(t)
    assert (only["run_id"], only["status"]) == (run["run_id"], "success")


def test_a_run_stops_at_breakpoints_and_goes_on_without_an_input(
    client: Any,
) -> None:
    t = str(uuid4())
    values = client.runs.wait(t, "numbers", input={"n": 1}, interrupt_before=["double"], **NEW)
    assert values == {"n": 2, "log": ["add"]}
    [run] = client.runs.list(t)
    assert run["status"] == "success"
    assert client.runs.wait(t, "numbers", input=None) == {"n": 4, "log": ["add", "double"]}
    assert len(client.runs.list(t)) == 1
    values = client.runs.wait(t, "numbers", input={"n": 1}, interrupt_after="*")
    assert values["n"] == 2


def test_without_an_input_the_node_that_asks_runs_again(client: Any) -> None:
    t, [first] = asked(client, "gate")
    values: Any = client.runs.wait(t, "gate", input=None)
    assert values["__interrupt__"][0]["value"] == first["value"]
    assert client.runs.wait(t, "gate", command={"resume": "yes"}) == {"said": ["yes", "end"]}


def test_a_run_may_begin_at_an_old_checkpoint(client: Any, server: AgentServer, url: str) -> None:
    t = str(uuid4())
    client.runs.wait(t, "numbers", input={"n": 1}, **NEW)
    history = client.threads.get_history(t)
    [after_add] = [one for one in history if one["next"] == ["double"]]
    values: Any = client.runs.wait(t, "numbers", input=None, checkpoint=after_add["checkpoint"])
    assert values == {"n": 4, "log": ["add", "double"]}
    by_id = after_add["checkpoint"]["checkpoint_id"]
    values = client.runs.wait(t, "numbers", input={"n": 10}, checkpoint_id=by_id)
    assert values == {"n": 22, "log": ["add", "add", "double"]}
