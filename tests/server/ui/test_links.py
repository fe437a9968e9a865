"""The page behind a signed link: from a mail to a decision, without sign-in, once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import perdure
import perdure.testing
from perdure import Runtime
from perdure.commands import tokens
from perdure.testing import TemporaryRuntime
from perdure.types import Retry
from tests.contract.test_links import link, mailer
from tests.contract.test_links import runtime as runtime
from tests.server.ui.html_judge import faults
from tests.support.mail_server import receiving_mail
from tests.support.reviewed_agents import asking, begin, reviewed_agent
from tests.support.ui import Page, Person, ui_server

ANA = "ana@example.com"
BASE = "https://agents.example.com"
HOSTILE = "</textarea></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


@contextmanager
def served(runtime: Runtime) -> Iterator[Person]:
    """Somebody with a browser who is not signed in, at a server that requires it."""
    runtime.journal.run(tokens.create(runtime.engine, "op", ["admin"]))
    with ui_server(runtime, worker=False) as person:
        yield person.stranger()


def answers(runtime: Runtime, wait: Any) -> list[dict[str, Any]]:
    events = runtime.blocking.events(wait.run_id)
    return [dict(one.data) for one in events if one.kind == "answer"]


def has_no_way_out(page: Page) -> bool:
    """Whether nothing on a page leads to another one."""
    links = re.findall(r'<a [^>]*href="([^"]*)"', page.html)
    return links == ["#content"] and "<nav" not in page.html


# -- deciding


def test_a_person_who_is_not_signed_in_decides_through_a_link(runtime: TemporaryRuntime) -> None:
    wait, sent = mailer(runtime)
    with served(runtime) as ana:
        page = ana.get(link(runtime, wait))
        assert page.status == 200
        order = [page.text.index(part) for part in ("Runs if you approve", "Hello", "own words")]
        assert order == sorted(order)
        assert ANA in page.text
        assert has_no_way_out(page)
        done = page.submit("/link", {"decision.0": "approve"})
        assert (done.status, done.path.startswith("/ui/link?t=")) == (200, True)
        assert "Your answer was sent" in done.text
        assert "You approved: send_mail." in done.text
        assert has_no_way_out(done)
    runtime.blocking.tick()
    assert [name for name, _ in sent] == ["send_mail"]
    [event] = answers(runtime, wait)
    assert event == {"wait": wait.id, "by": ANA, "via": "link", "from": "127.0.0.1"}


def test_from_mail_to_decision_takes_two_clicks(sqlite_url: str) -> None:
    """The link, then Approve: what the mail of a real server says, opened in a browser."""
    with receiving_mail() as server:
        mail = perdure.Mail(server.url, "agents@example.com", [ANA])
        runtime = perdure.testing.runtime(sqlite_url, public_url=BASE, mail=mail)
        wait, sent = mailer(runtime)
        runtime.blocking.tick()
        [got] = server.got
        with served(runtime) as ana:
            url = urlsplit(got.url)
            page = ana.get(f"{url.path}?{url.query}")
            page.submit("/link", {"decision.0": "approve"})
        runtime.blocking.tick()
        assert len(sent) == 1
        assert answers(runtime, wait)[0]["by"] == ANA
        runtime.close()


def test_the_difference_of_an_edit_is_shown_while_it_is_typed(runtime: TemporaryRuntime) -> None:
    wait, _ = mailer(runtime)
    with served(runtime) as ana:
        page = ana.get(link(runtime, wait))
        [compare] = set(re.findall(r'hx-post="([^"]+)"', page.html))
        form = page.form("/link", {"decision.0": "edit"})
        fields = [(name, "Goodbye" if text == "Hello" else text) for name, text in form.fields]
        assert "Goodbye" in ana.post(compare.replace("&amp;", "&"), fields).html
        assert answers(runtime, wait) == []


# -- once


def test_an_answer_by_someone_else_is_shown_with_who_and_when(runtime: TemporaryRuntime) -> None:
    wait, _ = mailer(runtime)
    with served(runtime) as ana:
        address = link(runtime, wait)
        page = ana.get(address)
        runtime.blocking.answer(
            wait.id, {"decisions": [{"type": "reject", "message": "no!"}]}, by="bo"
        )
        late = page.submit("/link", {"decision.0": "approve"})
        assert late.status == 409
        for page in (late, ana.get(address)):
            assert "bo answered" in page.text
            assert re.search(r"on [^.]*20\d\d", page.text)
            assert "no!" not in page.text  # what others wrote is not for this link
            assert has_no_way_out(page)
            assert not page.forms
    assert [one["by"] for one in answers(runtime, wait)] == ["bo"]


def test_a_link_is_spent_after_its_answer_was_withdrawn(runtime: TemporaryRuntime) -> None:
    runtime.register(
        asking(lambda: 1 // perdure.ask("By?")), name="divide", retry=Retry(attempts=1)
    )
    _, wait = begin(runtime, "divide", None)
    with served(runtime) as ana:
        address = link(runtime, wait)
        page = ana.get(address)
        page.submit("/link", {"how": "json"}, json="0")
        runtime.blocking.tick()
        runtime.blocking.withdraw(wait.id, by="op")
        for used in (ana.get(address), page.submit("/link", {"how": "json"}, json="1")):
            assert (used.status, "This link has been used" in used.text) == (410, True)
            assert "By?" not in used.text
            assert has_no_way_out(used)
        fresh = ana.get(link(runtime, wait))
        assert fresh.status == 200
    assert len(answers(runtime, wait)) == 1


# -- too late, or not at all


def test_an_expired_link_says_so_and_shows_nothing(runtime: TemporaryRuntime) -> None:
    wait, _ = mailer(runtime)
    with served(runtime) as ana:
        address = link(runtime, wait, expires=timedelta(hours=1))
        page = ana.get(address)
        runtime.clock.advance(timedelta(hours=1))
        for late in (ana.get(address), page.submit("/link", {"decision.0": "approve"})):
            assert (late.status, "This link has expired" in late.text) == (410, True)
            assert "Hello" not in late.text
            assert has_no_way_out(late)
    assert answers(runtime, wait) == []


def test_a_question_that_changed_is_not_answered_through_its_link(
    runtime: TemporaryRuntime,
) -> None:
    drafts = ["Dear Bo", "Dear Eve"]
    graph = asking(lambda: perdure.ask({"draft": drafts[0]}))
    bound = runtime.register(graph, name="draft")
    run, wait = begin(runtime, "draft", graph)
    with served(runtime) as ana:
        address = link(runtime, wait)
        page = ana.get(address)
        drafts.pop(0)
        place: Any = {"configurable": {"thread_id": run.thread_id}}
        bound.update_state(place, {"answer": None}, as_node="__start__")
        runtime.blocking.tick()
        for late in (page.submit("/link", {"how": "text"}, text="yes"), ana.get(address)):
            assert "This question has changed" in late.text
            assert "Dear Eve" not in late.text
            assert has_no_way_out(late)
    assert answers(runtime, wait) == []


def test_a_question_whose_run_ended_or_was_deleted_says_so(runtime: TemporaryRuntime) -> None:
    wait, _ = mailer(runtime)
    with served(runtime) as ana:
        address = link(runtime, wait)
        runtime.blocking.cancel(wait.run_id)
        assert "The run is cancelled" in ana.get(address).text
        runtime.blocking.erase(wait.thread_id)
        gone = ana.get(address)
        assert (gone.status, "The question is gone" in gone.text) == (404, True)


@pytest.mark.parametrize("forged", ["", "x", "changed", "x" * 5000, "\u00e4", "%00", "cut off"])
def test_a_forged_link_says_nothing(runtime: TemporaryRuntime, forged: str) -> None:
    wait, _ = mailer(runtime)
    with served(runtime) as eve:
        address = link(runtime, wait)
        real = eve.get(address)
        path, _, token = address.partition("?t=")
        bad = {"changed": f"A{token[1:]}", "cut off": token[:-3]}.get(forged, forged)
        for page in (
            eve.get(f"{path}?t={bad}"),
            eve.post(f"{path}?t={bad}", real.form("/link", {"decision.0": "approve"}).fields),
        ):
            assert (page.status, "This link is not valid" in page.text) == (403, True)
            for word in (wait.id, wait.thread_id, "mailer", "Hello", ANA):
                assert word not in page.html.replace(token, "")
            assert has_no_way_out(page)
    assert answers(runtime, wait) == []


def test_a_link_opens_nothing_but_its_question(runtime: TemporaryRuntime) -> None:
    wait, _ = mailer(runtime)
    with served(runtime) as ana:
        ana.get(link(runtime, wait))
        for path in (f"/questions/{wait.id}", f"/runs/{wait.run_id}", "/inbox"):
            assert ana.get(path).path.startswith("/ui/sign-in")


def test_a_form_of_another_site_answers_nothing(runtime: TemporaryRuntime) -> None:
    wait, _ = mailer(runtime)
    with served(runtime) as ana:
        address = link(runtime, wait)
        fields = dict(ana.get(address).form("/link", {"decision.0": "approve"}).fields)
        other: dict[str, str] = {"origin": "https://evil.example"}
        for sent, headers in (
            ({**fields, "csrf": "x"}, {}),
            ({key: one for key, one in fields.items() if key != "csrf"}, {}),
            (fields, other),
            (fields, {"sec-fetch-site": "cross-site"}),
        ):
            refused = ana.http.post(address, data=sent, headers=headers)
            assert refused.status_code == 403
        assert ana.stranger().post(address, [*fields.items()]).status == 403
    assert answers(runtime, wait) == []


# -- privacy


def test_no_copy_of_the_page_is_kept_and_its_address_is_passed_to_no_other_site(
    runtime: TemporaryRuntime,
) -> None:
    wait, _ = mailer(runtime)
    with served(runtime) as ana:
        for response in _responses(ana, link(runtime, wait)):
            assert response.headers["referrer-policy"] in ("same-origin", "no-referrer")
            assert response.headers["cache-control"] == "no-store"
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert response.headers["x-frame-options"] == "DENY"


def _responses(ana: Person, address: str) -> list[httpx.Response]:
    page = ana.get(address)
    done = page.submit("/link", {"decision.0": "approve"})
    return [page.response, *done.response.history, done.response, ana.get("/link?t=x").response]


def test_hostile_text_is_only_text(runtime: TemporaryRuntime) -> None:
    agent, _ = reviewed_agent({"to": HOSTILE, "body": HOSTILE}, says=HOSTILE)
    _, wait = begin(runtime, "mailer", agent)
    with served(runtime) as ana:
        page = ana.get(link(runtime, wait, to=HOSTILE[:80]))
        assert faults(page.html) == []
        assert "<script>alert" not in page.html
        done = page.submit("/link", {"decision.0": "reject"}, **{"reason.0": HOSTILE})
        assert faults(done.html) == []
        assert "<script>alert" not in done.html
