"""A question of any dialect shows what will run, and takes the answer that its code can use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain.agents.middleware.human_in_the_loop import _decision_schema
from langchain_core.tools import tool
from pydantic import BaseModel, TypeAdapter

from perdure.commands.answer_dialects import check_fits
from perdure.types import Kind, Wait
from perdure.views.answer_difference import differences, edited_calls
from perdure.views.answer_form import AnswerForm, Verdict, empty_form, filled_form, quick_answers
from perdure.views.question import Decision, Dialect, Question, headline, question_of
from tests.commands.forms import posted_edit

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def wait(value: Any, schema: Any = None, **more: Any) -> Wait:
    fields: dict[str, Any] = {"wake_at": None, "name": None, "expires_at": None}
    return Wait(
        id="w1",
        run_id="r1",
        thread_id="t1",
        kind=Kind.HUMAN,
        value=value,
        created_at=NOON,
        response_schema=schema,
        **{**fields, **more},
    )


def item(action: str = "pay", args: Any = None, words: Any = None, **allow: bool) -> dict[str, Any]:
    names = ("allow_accept", "allow_ignore", "allow_respond", "allow_edit")
    return {
        "action_request": {"action": action, "args": args or {"n": 1, "to": "bo"}},
        "config": {name: allow.get(name, False) for name in names},
        "description": words,
    }


def review(
    *actions: dict[str, Any], allowed: Any = ("approve", "edit", "reject")
) -> dict[str, Any]:
    return {
        "action_requests": list(actions),
        "review_configs": [
            {"action_name": one["name"], "allowed_decisions": list(allowed)} for one in actions
        ],
    }


PAY = {"name": "pay", "args": {"invoice": "A-17", "amount": 20.5}, "description": "Rent is due."}
BOOK = {"name": "book", "args": {"seats": ["1A", "1B"], "note": "Two\r\nlines\x00"}}


def send(question: Wait, **texts: str) -> AnswerForm:
    """The form of a question after it was sent with these texts; `__` is a dot."""
    sent = {name.replace("__", "."): [text] for name, text in texts.items()}
    form = filled_form(question_of(question), question.value, sent)
    if form.is_good:
        check_fits("w1", question.value, question.response_schema, form.answer)
    return form


def decide(question: Wait, **texts: str) -> Any:
    form = send(question, how="decisions", **texts)
    assert form.is_good, form
    return form.answer


# -- HumanInTheLoopMiddleware


def test_a_review_shows_the_real_calls_and_the_agents_words_apart() -> None:
    question = question_of(wait(review(PAY, BOOK)))
    assert question.dialect is Dialect.REVIEW
    pay, book = question.actions
    assert (pay.tool, pay.arguments, pay.words) == ("pay", PAY["args"], "Rent is due.")
    assert pay.allowed == (Decision.APPROVE, Decision.EDIT, Decision.REJECT)
    assert (book.words, question.words, question.shown) == ("", "", None)


def test_what_the_middleware_says_by_itself_is_not_the_agents_word() -> None:
    said = "Tool execution requires approval\n\nTool: pay\nArgs: {'invoice': 'A-17'}"
    action = {"name": "pay", "args": {"invoice": "A-17"}, "description": said}
    assert question_of(wait(review(action))).actions[0].words == ""
    lies = {**action, "description": said.replace("A-17", "A-18")}
    assert "A-18" in question_of(wait(review(lies))).actions[0].words


def test_a_response_needs_words() -> None:
    question = wait(review(PAY, allowed=["respond"]))
    assert decide(question, decision__0="respond", message__0="Ask Bo") == {
        "decisions": [{"type": "respond", "message": "Ask Bo"}]
    }
    assert send(question, how="decisions", decision__0="respond").actions[0].error


def test_what_is_stored_without_its_secret_is_not_edited() -> None:
    question = question_of(wait(review({"name": "login", "args": {"password": "***"}})))
    [action] = question.actions
    assert action.allowed == (Decision.APPROVE, Decision.REJECT)
    assert "secret" in action.note
    inbox = wait(item(args={"key": "***"}, allow_accept=True, allow_edit=True))
    assert decide(inbox, decision__0="approve") == [{"type": "accept", "args": None}]


# -- one call at a time


class Line(BaseModel):
    text: str
    n: int = 3


@tool
def order(invoice: str, amount: float, lines: list[Line], urgent: bool = False) -> str:
    """Order something."""
    return invoice


def call(*allowed: Any, args: Any = None) -> Wait:
    schema = TypeAdapter(_decision_schema(allowed, "order", order)).json_schema()
    value = {
        "type": "tool_approval",
        "tool_call_id": "c1",
        "name": "order",
        "args": args or {"invoice": "A-17", "amount": 2, "lines": [{"text": "x"}]},
        "description": "I need it.",
    }
    return wait(value, schema)


def test_an_edit_keeps_arguments_that_the_tool_does_not_declare() -> None:
    args = {"invoice": 17, "amount": 2, "lines": [], "more": "x"}
    question = call("edit", args=args)
    shown = question_of(question)
    form = empty_form(shown)
    assert {one.label for one in form.actions[0].edit.fields} >= {"More"}  # type: ignore[union-attr]
    made = filled_form(shown, question.value, posted_edit(form, more="y", invoice='"A-18"'))
    edited = made.answer["edited_action"]["args"]
    assert (edited["more"], edited["invoice"]) == ("y", "A-18")


def test_one_decision_has_a_plain_schema() -> None:
    assert question_of(call("approve")).actions[0].allowed == (Decision.APPROVE,)


def test_a_call_with_a_schema_of_its_own_is_a_form() -> None:
    question = wait({"type": "tool_approval", "name": "x", "args": {}}, {"type": "boolean"})
    assert question_of(question).dialect is Dialect.FORM


# -- the Agent Inbox


def test_arguments_without_names_are_shown_and_not_edited() -> None:
    question = question_of(wait(item(args=["a", "b"], allow_edit=True, allow_accept=True)))
    assert question.actions[0].arguments == {"arguments": ["a", "b"]}
    assert question.actions[0].allowed == (Decision.APPROVE,)


def test_nothing_that_an_item_says_is_hidden() -> None:
    question = question_of(wait([{**item(allow_accept=True), "ticket": 7}]))
    assert question.shown == {"ticket": 7}


# -- forms and plain values


def test_the_agents_words_are_apart_from_what_is_decided() -> None:
    question = question_of(wait({"question": "Send it?", "draft": "Dear Bo"}, {"type": "boolean"}))
    assert (question.words, question.shown) == ("Send it?", {"draft": "Dear Bo"})


def test_a_form_can_be_answered_with_json_too() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    question = wait("How many?", schema)
    assert send(question, how="form", answer__n="3").answer == {"n": 3}
    assert send(question, how="json", json='{"n": 3}').answer == {"n": 3}
    wrong = send(question, how="json", json='{"n": "three"}')
    assert '"three" is not of type "integer"' in wrong.error
    assert not send(question, how="text", text="3").is_good


def test_a_changed_text_of_a_form_is_a_difference() -> None:
    schema = {
        "properties": {"verdict": {"enum": ["send", "drop"]}, "draft": {"type": "string"}},
        "required": ["verdict"],
    }
    question = wait({"draft": "Dear Bo"}, schema)
    form = send(question, how="form", answer__verdict='"send"', answer__draft="Dear Ana")
    [change] = differences(form)
    assert (change.tool, change.name) == ("", "draft")
    assert change.html == "<pre>Dear <del>Bo</del><ins>Ana</ins></pre>"


def test_any_answer_continues_a_breakpoint() -> None:
    question = wait({"breakpoint": ["send"]})
    assert question_of(question).dialect is Dialect.BREAKPOINT
    assert send(question, how="quick", quick="0").answer is True


QUICK: list[tuple[Wait, list[tuple[str, Verdict | None]]]] = [
    (wait(review(PAY)), [("Approve", Verdict.APPROVED), ("Reject", Verdict.REJECTED)]),
    (
        wait(review(PAY, BOOK)),
        [("Approve all", Verdict.APPROVED), ("Reject all", Verdict.REJECTED)],
    ),
    (wait(review(PAY, allowed=["edit"])), []),
    (
        wait([item(allow_accept=True, allow_ignore=True)]),
        [("Approve", Verdict.APPROVED), ("Skip", Verdict.REJECTED)],
    ),
    (wait("?", {"type": "boolean"}), [("Yes", None), ("No", None)]),
    (
        wait("?", {"enum": ["approve", "reject", "later"]}),
        [("approve", Verdict.APPROVED), ("reject", Verdict.REJECTED), ("later", None)],
    ),
    (
        wait(
            "?",
            {
                "properties": {"ok": {"type": "boolean"}, "why": {"type": "string"}},
                "required": ["ok"],
            },
        ),
        [("Yes", Verdict.APPROVED), ("No", Verdict.REJECTED)],
    ),
    (wait("?", {"properties": {"n": {"type": "integer"}}, "required": ["n"]}), []),
    (wait("?"), []),
]


@pytest.mark.parametrize(("question", "labels"), QUICK)
def test_answers_without_text_take_one_click(question: Wait, labels: Any) -> None:
    found = quick_answers(question_of(question))
    assert [(one.label, one.verdict) for one in found] == labels
    for n, one in enumerate(found):
        assert send(question, how="quick", quick=str(n)).answer == one.answer
    assert not send(question, how="quick", quick=str(len(found))).is_good
    assert not send(question, how="quick", quick="x").is_good


def test_a_choice_that_needs_more_is_no_quick_answer() -> None:
    schema = {
        "properties": {"action": {"enum": ["send", "edit"]}, "body": {"type": "string"}},
        "required": ["action"],
        "if": {"properties": {"action": {"const": "edit"}}},
        "then": {"required": ["body"]},
    }
    assert [one.label for one in quick_answers(question_of(wait("?", schema)))] == ["send"]


# -- time, damage


def test_a_question_that_expires_soon_stands_out() -> None:
    def question(expires: timedelta | None) -> Question:
        return question_of(wait("?", expires_at=None if expires is None else NOON + expires))

    assert not question(None).expires_soon(NOON)
    assert not question(timedelta(days=2)).expires_soon(NOON)
    assert question(timedelta(hours=3)).expires_soon(NOON)
    assert question(timedelta(0)).is_expired(NOON)


# -- what a question is about, in a line


@pytest.mark.parametrize(
    ("value", "schema", "line"),
    [
        (review(PAY), None, "pay"),
        ("Which warehouse?\nHamburg or Lyon", None, "Which warehouse?"),
        ({"subject": "An offer", "body": "..."}, None, "An offer"),
        ({"invoice": "A-17"}, {"description": "How it is paid.\n\nMore."}, "How it is paid."),
        ({"lines": [1], "invoice": "A-17", "total": 3}, {"type": "object"}, "invoice: A-17"),
        ({"lines": [1]}, None, ""),
    ],
)
def test_a_headline_says_what_a_question_is_about(value: Any, schema: Any, line: str) -> None:
    assert headline(question_of(wait(value, schema))) == line


@pytest.mark.parametrize("answer", [None, "yes", {}, {"decisions": []}, [3], {"type": "edit"}])
def test_an_answer_of_another_shape_has_no_edited_calls(answer: Any) -> None:
    assert edited_calls(question_of(wait(review(PAY))), answer) == []


def test_the_edited_calls_of_an_answer_are_those_that_run() -> None:
    edited = {"name": "pay", "args": {"invoice": "A-17", "amount": 10}}
    answer = {
        "decisions": [{"type": "approve"}, {"type": "edit", "edited_action": edited}],
    }
    [call] = edited_calls(question_of(wait(review(PAY, PAY))), answer)
    assert (call.tool, call.arguments) == ("pay", edited["args"])
