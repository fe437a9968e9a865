"""A question in the browser: what is shown is what runs, and it is decided once, in any dialect.

The pages are used as without JavaScript: links, and forms that are posted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from typing import Any, Literal

import pytest
from langgraph.types import interrupt
from pydantic import BaseModel

import perdure
import perdure.testing
from perdure.commands import tokens
from perdure.runtime import Runtime
from perdure.testing import TemporaryRuntime
from tests.support.reviewed_agents import asking, begin, reviewed_agent
from tests.support.ui import Page, Person, form_token, ui_server

HOSTILE = "</textarea></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


@pytest.fixture
def runtime(sqlite_url: str) -> Iterator[TemporaryRuntime]:
    found = perdure.testing.runtime(sqlite_url)
    yield found
    found.close()


@contextmanager
def pages(runtime: Runtime, *names: str) -> Iterator[list[Person]]:
    """The pages for people with these names, who may answer, or have the scope behind a colon; the
    runs are driven by the test."""
    created = []
    for name in names:
        who, _, scope = name.partition(":")
        create = tokens.create(runtime.engine, who, [scope or "answer"])
        created.append(runtime.journal.run(create))
    with ui_server(runtime, worker=False) as person:
        yield [person.with_token(token) for token in created] or [person]


def question(person: Person, wait: Any) -> Page:
    page = person.get(f"/questions/{wait.id}")
    assert page.status == 200, page.text
    return page


def answered(runtime: Runtime, run: Any) -> Any:
    """What a run that was answered got."""
    runtime.blocking.tick()
    return runtime.blocking.get(run.id).output["answer"]


# -- HumanInTheLoopMiddleware


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_the_real_call_is_on_top_and_what_is_approved_runs(
    runtime: TemporaryRuntime, mode: str
) -> None:
    agent, sent = reviewed_agent(
        {"to": "bo", "body": "Hello"}, mode=mode, says="It is only a test."
    )
    _, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        order = [page.text.index(part) for part in ("Runs if you approve", "Hello", "own words")]
        assert order == sorted(order)
        assert "It is only a test." in page.text.partition("own words")[2]
        done = page.submit("/answer", {"decision.0": "approve"})
        assert done.path.startswith("/ui/inbox")
        assert "You approved: send_mail." in done.text
    runtime.blocking.tick()
    assert sent == [("send_mail", {"to": "bo", "body": "Hello", "copies": 1})]
    [event] = [one for one in runtime.blocking.events(wait.run_id) if one.kind == "answer"]
    assert event.data["by"] == "ana"
    assert event.data["via"] == "browser"
    assert event.data["from"] == "127.0.0.1"


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_an_edit_is_shown_before_it_is_sent(runtime: TemporaryRuntime, mode: str) -> None:
    agent, sent = reviewed_agent({"to": "bo", "body": "Hello Bo\n\nbye", "copies": 2}, mode=mode)
    _, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        edited = {"edit.0.body": "Hello Ana\r\n\r\nbye", "edit.0.copies": "3"}
        preview = question(ana, wait).submit("/answer", {"decision.0": "edit"}, **edited)
        assert "Nothing has been sent yet." in preview.text
        assert "Hello <del>Bo</del><ins>Ana</ins>" in preview.html
        assert runtime.blocking.waits(kind="human")
        back = preview.submit("/answer", step="edit")
        assert "Hello Ana" in back.html
        again = back.submit("/answer", {"decision.0": "edit"})
        assert "<ins>Ana</ins>" in again.html
        assert "You edited: send_mail." in again.submit("/answer", step="send").text
    runtime.blocking.tick()
    assert sent == [("send_mail", {"to": "bo", "body": "Hello Ana\n\nbye", "copies": 3})]


def test_an_edit_that_does_not_fit_is_refused_at_its_field(runtime: TemporaryRuntime) -> None:
    agent, _ = reviewed_agent({"to": "bo", "body": "Hello", "copies": 2}, mode="per_call")
    _, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        edited = {"edit.0.copies": "many", "edit.0.body": "Kept"}
        page = question(ana, wait).submit("/answer", {"decision.0": "edit"}, **edited)
        assert page.status == 422
        assert "This must be a whole number, such as 12." in page.text
        fields = dict(page.form("/answer", {"decision.0": "edit"}).fields)
        assert (fields["edit.0.copies"], fields["edit.0.body"]) == ("many", "Kept")
    assert runtime.blocking.waits(kind="human")


def test_a_rejection_tells_the_agent_why(runtime: TemporaryRuntime) -> None:
    agent, sent = reviewed_agent({"to": "bo", "body": "Hello"})
    run, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        reason = {"reason.0": "Not on a Sunday"}
        done = question(ana, wait).submit("/answer", {"decision.0": "reject"}, **reason)
        assert "You rejected: send_mail." in done.text
    runtime.blocking.tick()
    assert sent == []
    messages = runtime.blocking.get(run.id).output["messages"]
    assert any("Not on a Sunday" in str(one.content) for one in messages)


def test_each_call_of_several_is_decided(runtime: TemporaryRuntime) -> None:
    agent, sent = reviewed_agent({"to": "bo", "body": "1"}, {"to": "cy", "body": "2"})
    _, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        assert "Call 1 of 2" in page.text
        missing = page.submit("/answer", {"how": "decisions"}, **{"decision.0": "approve"})
        assert (missing.status, missing.text.count("Choose one.")) == (422, 1)
        both = {"decision.0": "approve", "decision.1": "edit", "edit.1.body": "22"}
        preview = missing.submit("/answer", {"how": "decisions"}, **both)
        assert "send_mail: approve" in preview.text
        preview.submit("/answer", step="send")
    runtime.blocking.tick()
    assert sorted(args["body"] for _, args in sent) == ["1", "22"]  # called in parallel


# -- the Agent Inbox


def test_an_item_of_the_agent_inbox_takes_each_response(runtime: TemporaryRuntime) -> None:
    request = {"action": "tweet", "args": {"text": "Hello"}}
    flags = ("allow_accept", "allow_edit", "allow_respond", "allow_ignore")
    item = {"action_request": request, "config": dict.fromkeys(flags, True), "description": "Hm."}
    ways: dict[str, tuple[dict[str, str], Any]] = {
        "approve": ({}, {"type": "accept", "args": request}),
        "edit": (
            {"edit.0.text": "Hi", "step": "send"},
            {"type": "edit", "args": {"action": "tweet", "args": {"text": "Hi"}}},
        ),
        "respond": ({"message.0": "Later"}, {"type": "response", "args": "Later"}),
        "skip": ({}, {"type": "ignore", "args": None}),
    }
    with pages(runtime, "ana") as [ana]:
        for decision, (fields, answer) in ways.items():
            run, wait = begin(runtime, f"tweets-{decision}", asking(lambda: interrupt([item])))
            question(ana, wait).submit("/answer", {"decision.0": decision}, **fields)
            assert answered(runtime, run) == [answer]


# -- forms, plain questions, breakpoints


class Refund(BaseModel):
    verdict: Literal["refund", "decline"]
    amount: float = 0
    note: str | None = None


def test_a_form_is_made_from_the_response_schema(runtime: TemporaryRuntime) -> None:
    def ask() -> Any:
        return perdure.ask({"order": 17}, response_schema=Refund).model_dump()

    run, wait = begin(runtime, "refunds", asking(ask))
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        wrong = page.submit("/answer", {"how": "form"}, **{"answer.amount": "much"})
        assert wrong.status == 422
        assert "Choose one." in wrong.text
        assert dict(wrong.form("/answer", {"how": "form"}).fields)["answer.amount"] == "much"
        good = {"answer.verdict": '"refund"', "answer.amount": "12.5"}
        assert "/inbox" in wrong.submit("/answer", {"how": "form"}, **good).path
    assert answered(runtime, run) == {"verdict": "refund", "amount": 12.5, "note": None}


def test_a_plain_question_takes_a_text_or_a_value(runtime: TemporaryRuntime) -> None:
    with pages(runtime, "ana") as [ana]:
        run, wait = begin(runtime, "plain", asking(lambda: interrupt("Which one?")))
        page = question(ana, wait)
        assert "The agent gets your text exactly as you write it." in page.text
        assert "Approve" not in page.text
        page.submit("/answer", {"how": "text"}, text="The\r\nred one")
        assert answered(runtime, run) == "The\nred one"
        run, wait = begin(runtime, "value", asking(lambda: interrupt({"draft": "x"})))
        wrong = question(ana, wait).submit("/answer", {"how": "json"}, json="yes")
        assert "This is not JSON" in wrong.text
        wrong.submit("/answer", {"how": "json"}, json='{"ok": true}')
        assert answered(runtime, run) == {"ok": True}


def test_any_value_has_a_page(runtime: TemporaryRuntime) -> None:
    values: list[Any] = [None, 0, [], {}, [1, {"a": None}], True, "", 1.5]
    values += [{"a": [{(1, "two"): 3}]}, [{b"key": 1}], {None: [{date(2027, 1, 1): 1}]}]
    east, west = (timezone(timedelta(hours=hours)) for hours in (14, -12))
    values += [[datetime(1, 1, 1, tzinfo=east)], {"until": datetime(9999, 12, 31, 23, tzinfo=west)}]
    with pages(runtime, "ana") as [ana]:
        for n, value in enumerate(values):
            run, wait = begin(runtime, f"any-{n}", asking(lambda shown=value: interrupt(shown)))
            assert ana.get("/inbox").status == 200, value
            assert ana.get(f"/runs/{run.id}").status == 200, value
            assert runtime.blocking.inbox()
            question(ana, wait).submit("/answer", {"how": "json"}, json="null")
            runtime.blocking.tick()
            assert runtime.blocking.get(run.id).state == "done"


# -- people who are late


def test_the_first_of_two_people_decides_and_the_second_sees_who(
    runtime: TemporaryRuntime,
) -> None:
    agent, sent = reviewed_agent({"to": "bo", "body": "Hello"})
    _, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana", "bo") as [ana, bo]:
        seen_by_ana, seen_by_bo = question(ana, wait), question(bo, wait)
        seen_by_ana.submit("/answer", {"decision.0": "reject"})
        late = seen_by_bo.submit("/answer", {"decision.0": "approve"})
        assert late.status == 409
        assert "Your answer was not sent." in late.text
        assert "ana answered this question" in late.text
        same = seen_by_bo.submit("/answer", {"decision.0": "reject"})
        assert same.status == 409  # it is ana's decision, not bo's
    runtime.blocking.tick()
    assert sent == []


def test_a_second_click_is_no_error(runtime: TemporaryRuntime) -> None:
    agent, sent = reviewed_agent({"to": "bo", "body": "Hello"})
    _, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        for _ in range(2):
            done = page.submit("/answer", {"decision.0": "approve"})
            assert "You approved: send_mail." in done.text
        runtime.blocking.tick()
        assert "You approved" in page.submit("/answer", {"decision.0": "approve"}).text
        assert page.submit("/answer", {"decision.0": "reject"}).status == 409
    assert len(sent) == 1
    assert sum(one.kind == "answer" for one in runtime.blocking.events(wait.run_id)) == 1


def test_a_question_that_changed_is_refused_and_the_new_one_is_a_link_away(
    runtime: TemporaryRuntime,
) -> None:
    shown = ["Dear Bo"]
    graph = asking(lambda: perdure.ask({"draft": shown[-1]}, response_schema={"type": "boolean"}))
    bound = runtime.register(graph, name="drafts")
    run, wait = begin(runtime, "drafts", graph)
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        shown.append("Dear Ana")
        place: Any = {"configurable": {"thread_id": "drafts-1"}}
        bound.update_state(place, {}, as_node="__start__")
        runtime.blocking.tick()
        refused = page.submit("/answer", {"how": "form"}, answer="true")
        assert refused.status == 409
        assert "This question has changed" in refused.text
        [new] = runtime.blocking.waits(run_id=run.id, kind="human")
        assert f"/ui/questions/{new.id}" in refused.html
        assert "Dear Ana" in question(ana, new).text
        assert "Dear Bo" in ana.get(f"/questions/{wait.id}").text


def test_an_answer_after_the_end_is_refused(runtime: TemporaryRuntime) -> None:
    run, wait = begin(runtime, "ended", asking(lambda: interrupt("Go?")))
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        runtime.blocking.cancel(run.id)
        refused = page.submit("/answer", {"how": "text"}, text="yes")
        assert refused.status == 409
        assert "The run is cancelled" in refused.text


@pytest.mark.parametrize("driven", [True, False])
def test_an_answer_after_the_expiry_is_refused(runtime: TemporaryRuntime, driven: bool) -> None:
    def ask() -> Any:
        return perdure.ask("Go?", expires=timedelta(days=3), default="late")

    run, wait = begin(runtime, "expiring", asking(ask))
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        assert "expires in 3d" in page.text or "expires in 2d 23h" in page.text
        runtime.clock.advance(timedelta(days=4))
        if driven:
            runtime.blocking.tick()
        refused = page.submit("/answer", {"how": "text"}, text="yes")
        assert refused.status == 409
        assert "This question has expired" in refused.text
        assert "This question has expired" in ana.get(f"/questions/{wait.id}").text
    assert answered(runtime, run) == "late"


def test_a_question_that_a_signal_took_back_says_so(runtime: TemporaryRuntime) -> None:
    run, wait = begin(
        runtime, "unless", asking(lambda: perdure.ask("Go?", unless="reply", default="none"))
    )
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        runtime.blocking.signal("unless-1", "reply")
        refused = page.submit("/answer", {"how": "text"}, text="yes")
        assert refused.status == 409
        runtime.blocking.tick()
        assert "withdrew this question" in ana.get(f"/questions/{wait.id}").text
    assert answered(runtime, run) == "none"


def test_an_answer_is_taken_back_while_no_task_has_it(runtime: TemporaryRuntime) -> None:
    agent, sent = reviewed_agent({"to": "bo", "body": "Hello"})
    _, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        done = question(ana, wait).submit("/answer", {"decision.0": "approve"})
        back = done.submit("/withdraw")
        assert "Answer withdrawn." in back.text
        assert back.path == f"/ui/questions/{wait.id}"
        assert "answer withdrawn by ana" in back.text
        back.submit("/answer", {"decision.0": "reject"})
        runtime.blocking.tick()
        assert "Withdraw answer" not in ana.get(f"/questions/{wait.id}").text
    assert sent == []


# -- who may


def test_a_reader_sees_the_question_and_cannot_decide(runtime: TemporaryRuntime) -> None:
    _, wait = begin(runtime, "plain", asking(lambda: interrupt("Which one?")))
    with pages(runtime, "cy:read") as [cy]:
        page = question(cy, wait)
        assert "Which one?" in page.text
        assert not [one for one in page.forms if one.action.endswith("/answer")]
        for action in ("answer", "withdraw", "take", "release", "hand-over", "comment"):
            fields = [("csrf", form_token(runtime, cy, "cy")), ("how", "text"), ("text", "x")]
            refused = cy.post(f"/ui/questions/{wait.id}/{action}", fields)
            assert refused.status == 403
            assert "it requires the scope 'answer'" in refused.text
    assert runtime.blocking.waits(kind="human")


def test_what_is_not_a_question_has_no_page(runtime: TemporaryRuntime) -> None:
    runtime.register(asking(lambda: perdure.wait_for("signal")), name="waits")
    runtime.blocking.start("waits", {})
    runtime.blocking.tick()
    [wait] = runtime.blocking.waits()
    with pages(runtime, "ana") as [ana]:
        assert ana.get(f"/questions/{wait.id}").status == 404
        assert ana.get("/questions/nothing").status == 404


# -- hostile texts, damage, encryption


def test_a_text_that_disguises_itself_is_shown_as_it_is(runtime: TemporaryRuntime) -> None:
    agent, _ = reviewed_agent({"to": "bo", "body": "pay \u202e001 euro\u200b"})
    _, wait = begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        shown = question(ana, wait).text
        assert "U+202E" in shown
        assert "U+200B" in shown


def test_a_damaged_question_is_shown_and_asked_again(runtime: TemporaryRuntime) -> None:
    run, wait = begin(runtime, "plain", asking(lambda: interrupt("Which one?")))
    damage(runtime, wait.id)
    with pages(runtime, "ana") as [ana]:
        page = question(ana, wait)
        assert "cannot be read" in page.text
        assert "damaged" in page.text
        done = page.submit("/ask-again")
        assert "The run asks again." in done.text
        runtime.blocking.tick()
        question(ana, wait).submit("/answer", {"how": "text"}, text="red")
    assert answered(runtime, run) == "red"


def damage(runtime: Runtime, wait_id: str) -> None:
    import sqlite3

    with sqlite3.connect(runtime.url.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE perdure_waits SET body = x'00' WHERE id = ?", (wait_id,))


def test_an_encrypted_question_is_shown_and_answered(sqlite_url: str) -> None:
    with perdure.testing.runtime(sqlite_url, encryption_keys={"a": b"k" * 32}) as runtime:
        agent, sent = reviewed_agent({"to": "bo", "body": "Hello"})
        _, wait = begin(runtime, "mailer", agent)
        with pages(runtime, "ana") as [ana]:
            page = question(ana, wait)
            assert "Hello" in page.text
            page.submit("/answer", {"decision.0": "approve"})
        runtime.blocking.tick()
        assert len(sent) == 1
