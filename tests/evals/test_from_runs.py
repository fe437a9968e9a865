"""What a person approved or edited in a real run becomes an example that can be evaluated."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.evals import Dataset, Example, evaluate, from_runs
from perdure.runtime import Runtime


class Mail(TypedDict, total=False):
    name: str
    draft: str
    sent: str


def write(state: Mail) -> Mail:
    return {"draft": f"Dear {state['name']},"}


def review(state: Mail) -> Mail:
    answer = perdure.ask({"draft": state["draft"]})
    return {"sent": answer.get("draft", state["draft"]) if answer["approved"] else ""}


def mails(url: str) -> Runtime:
    rt = Runtime(url)
    builder = StateGraph(Mail).add_node(write).add_node(review)
    rt.register(builder.add_edge(START, "write").add_edge("write", "review"), name="mail")
    return rt


async def answered(rt: Runtime, name: str, answer: Any) -> str:
    run = await rt.start("mail", {"name": name})
    await rt.tick()
    [wait] = await rt.waits(run_id=run.id)
    await rt.answer(wait.id, answer, by="ana")
    await rt.tick()
    return run.id


def same(outputs: Mail, reference_outputs: str) -> bool:
    return outputs["sent"] == reference_outputs


async def test_an_approval_and_an_edit_make_examples_and_a_rejection_none(sqlite_url: str) -> None:
    async with mails(sqlite_url) as rt:
        yes = await answered(rt, "Ada", {"approved": True})
        other = await answered(rt, "Bo", {"approved": True, "draft": "Hello Bo,"})
        no = await answered(rt, "Cy", {"approved": False})
        examples = await from_runs(rt, [yes, await rt.get(other), no])
        graph = {"graph": "mail"}
        assert examples == [
            Example(
                {"name": "Ada"},
                "Dear Ada,",
                yes,
                {**graph, "run": yes, "decision": "approved"},
                ({"approved": True},),
                run_id=yes,
            ),
            Example(
                {"name": "Bo"},
                "Hello Bo,",
                other,
                {**graph, "run": other, "decision": "edited"},
                ({"approved": True},),  # without the edit: what the target writes is judged
                run_id=other,
            ),
        ]
        dataset = await Dataset.create(rt, "mails", examples)
        assert await dataset.add(*await from_runs(rt, [yes, other])) == 1  # nothing new
        experiment = await evaluate("mail", dataset, [same], experiment="e", runtime=rt)
        assert [one.scores["same"].value for one in experiment.results] == [1, 0]


async def test_the_output_of_a_run_can_be_what_is_expected(sqlite_url: str) -> None:
    async with mails(sqlite_url) as rt:
        done = await answered(rt, "Ada", {"approved": True, "draft": "Hello Ada,"})
        waiting = await rt.start("mail", {"name": "Bo"})
        await rt.tick()
        [one] = await from_runs(rt, [done, waiting.id], expected="output")
        assert one.expected == {"name": "Ada", "draft": "Dear Ada,", "sent": "Hello Ada,"}
        assert one.answers == ({"approved": True, "draft": "Hello Ada,"},)


class Recorded:
    """An answered question, as `wait_history` gives it."""

    def __init__(self, value: Any, answer: Any, schema: Any = None) -> None:
        self.id, self.value, self.answer, self.response_schema = "wait-1", value, answer, schema


REVIEW = {
    "action_requests": [{"name": "send", "args": {"text": "Hi", "to": "bo"}}],
    "review_configs": [{"action_name": "send", "allowed_decisions": ["approve", "edit", "reject"]}],
}
INBOX = {
    "action_request": {"action": "send", "args": {"text": "Hi"}},
    "config": {"allow_accept": True, "allow_edit": True, "allow_ignore": True},
}
EDIT = {"type": "edit", "edited_action": {"name": "send", "args": {"text": "Ho", "to": "bo"}}}
TEXT_NEEDED = {"type": "object", "required": ["text"]}


@pytest.mark.parametrize(
    ("value", "answer", "schema", "approved", "approving"),
    [
        (
            REVIEW,
            {"decisions": [{"type": "approve"}]},
            None,
            {"name": "send", "args": {"text": "Hi", "to": "bo"}},
            {"decisions": [{"type": "approve"}]},
        ),
        (
            REVIEW,
            {"decisions": [EDIT]},
            None,
            {"name": "send", "args": {"text": "Ho", "to": "bo"}},
            {"decisions": [{"type": "approve"}]},
        ),
        (
            INBOX,
            [{"type": "edit", "args": {"action": "send", "args": {"text": "Ho"}}}],
            None,
            {"name": "send", "args": {"text": "Ho"}},
            [{"type": "accept", "args": None}],
        ),
        ("Hi", {"decision": "edit", "text": "Ho"}, None, "Ho", {"decision": "approve"}),
        # The schema wants a text: there is no approval without one.
        ("Hi", {"decision": "edit", "text": "Ho"}, TEXT_NEEDED, "Ho", None),
        ({"draft": "Hi", "to": "bo"}, "approve", None, {"draft": "Hi", "to": "bo"}, "approve"),
    ],
)
def test_approvals_are_read_from_every_kind_of_question(
    value: Any, answer: Any, schema: Any, approved: Any, approving: Any
) -> None:
    from perdure.evals.from_runs import approval_in

    found = approval_in(Recorded(value, answer, schema))  # type: ignore[arg-type]
    assert found is not None
    assert (found.value, found.answer) == (approved, approving)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (REVIEW, {"decisions": [{"type": "reject"}]}),
        ("Hi", {"approved": False}),
        ("How many?", 3),
    ],
)
def test_an_answer_that_does_not_approve_makes_no_example(value: Any, answer: Any) -> None:
    from perdure.evals.from_runs import approval_in

    assert approval_in(Recorded(value, answer)) is None  # type: ignore[arg-type]
