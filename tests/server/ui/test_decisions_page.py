"""The record of decisions about all runs: who, what, when, how and from where."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from langgraph.types import interrupt

import perdure
import perdure.testing
from perdure.server.ui import decisions
from perdure.testing import TemporaryRuntime
from tests.server.ui.test_question_page import HOSTILE, pages, question
from tests.support.reviewed_agents import asking, begin, reviewed_agent


@pytest.fixture
def runtime(sqlite_url: str) -> Iterator[TemporaryRuntime]:
    found = perdure.testing.runtime(sqlite_url)
    yield found
    found.close()


def test_each_decision_says_who_what_through_what_and_from_where(
    runtime: TemporaryRuntime,
) -> None:
    agent, _ = reviewed_agent({"to": "bo", "body": "Hello"})
    _, mail = begin(runtime, "mailer", agent)
    run, plain = begin(runtime, "plain", asking(lambda: interrupt("Which?")))
    with pages(runtime, "ana", "bo") as [ana, bo]:
        question(ana, mail).submit("/answer", {"decision.0": "reject"}, **{"reason.0": HOSTILE})
        runtime.clock.advance(timedelta(seconds=1))
        question(bo, plain).submit("/take")
        runtime.clock.advance(timedelta(seconds=1))
        runtime.blocking.cancel(run.id, by="root", reason="Enough")
        page = ana.get("/decisions")
        rows = [row.partition("</tr>")[0] for row in page.html.split("<tr data-item>")[1:]]
        texts = [
            re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]*>", " ", row))).strip() for row in rows
        ]
        assert "root cancelled: Enough" in texts[0]
        assert texts[0].endswith("Python")
        assert "bo assigned to bo Which? plain" in texts[1]
        assert "ana rejected" in texts[2]
        assert "send_mail mailer mailer-1 browser 127.0.0.1" in texts[2]
        assert "<script>alert" not in page.html
        assert ana.get("/decisions?person=bo").html.count("data-item") == 1
        assert ana.get("/decisions?graph=plain").html.count("data-item") == 2
        assert ana.get("/decisions?person=nobody").html.count("data-item") == 0


def test_an_answer_that_was_taken_back_has_no_verdict(runtime: TemporaryRuntime) -> None:
    schema = {"enum": ["approve", "reject"]}
    _, wait = begin(runtime, "ask", asking(lambda: perdure.ask("Go?", response_schema=schema)))
    runtime.blocking.answer(wait.id, "approve", by="ana")
    runtime.clock.advance(timedelta(seconds=1))
    runtime.blocking.withdraw(wait.id, by="ana")
    runtime.clock.advance(timedelta(seconds=1))
    runtime.blocking.answer(wait.id, "reject", by="ana")
    with pages(runtime, "ana") as [ana]:
        text = ana.get("/decisions").text
        order = [text.index(part) for part in ("rejected", "answer withdrawn", "answered")]
        assert order == sorted(order)
        assert "approved" not in text


def test_the_record_is_read_by_pages(
    runtime: TemporaryRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "PAGE", 3)
    run, _ = begin(runtime, "plain", asking(lambda: interrupt("Which?")))
    for n in range(7):
        runtime.blocking.comment(run.id, f"say {n}", by=f"p{n % 2}")
    with pages(runtime, "ana") as [ana]:
        said, address = [], "/decisions"
        while True:
            page = ana.get(address)
            said += re.findall(r"say (\d)", page.html)
            following = re.findall(r'href="([^"]*)" rel="next"', page.html)
            if not following:
                break
            address = html.unescape(following[0])
        assert said == [str(n) for n in range(6, -1, -1)]
        monkeypatch.setattr(decisions, "MOST_READ", 2)
        monkeypatch.setattr(decisions, "CHUNK", 2)
        assert "Keep searching" in ana.get("/decisions?person=p9").text
        for bad in (
            "x",
            "[1]",
            "[1,1,1,1]",
            '[1,1,"%5Cu0000","b"]',
            f"[{'9' * 20},1,%22a%22,%22b%22]",
        ):
            assert ana.get(f"/decisions?after={bad}").status == 422
