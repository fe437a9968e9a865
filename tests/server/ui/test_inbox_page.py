"""The inbox in the browser: everything that needs a person, decided in the list or one by one."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from langgraph.types import interrupt
from langgraph_sdk import Auth

import perdure
import perdure.testing
from perdure.commands import threads
from perdure.commands.threads import ThreadContent
from perdure.server.ui import inbox
from perdure.server.ui.inbox_items import dom_id
from perdure.testing import TemporaryRuntime
from tests.server.ui.test_question_page import HOSTILE, answered, damage, pages
from tests.server.ui.test_question_page import runtime as runtime
from tests.server.ui.ui_live import Stream
from tests.support.agent_server import served
from tests.support.polling import until
from tests.support.reviewed_agents import asking, begin, reviewed_agent
from tests.support.ui import Person, form_token

ONCE = perdure.Retry(attempts=1)


@perdure.effect(unknown="hold")
def charge(amount: int) -> str:
    raise ConnectionResetError("lost")


def breaks() -> Any:
    raise ValueError("The warehouse is away.")


def start(runtime: TemporaryRuntime, name: str, **options: Any) -> Any:
    run = runtime.blocking.start(name, {}, **options)
    runtime.blocking.tick()
    runtime.clock.advance(timedelta(seconds=1))
    return run


def test_a_call_is_decided_in_the_list_with_one_click(runtime: TemporaryRuntime) -> None:
    agent, sent = reviewed_agent({"to": "bo", "body": "Hello"}, says="Please.")
    begin(runtime, "mailer", agent, metadata={"customer": "bo"})
    with pages(runtime, "ana") as [ana]:
        page = ana.get("/inbox")
        for part in ("send_mail", "Hello", "Please.", "customer=bo", "Approve", "Reject"):
            assert part in page.text
        done = page.submit("/answer", {"how": "quick"}, quick="0")
        assert done.path.startswith("/ui/inbox?")
        assert "You approved: send_mail." in done.text
        assert "Nothing needs a person." in done.text
        taken = done.submit("/withdraw")
        assert "Answer withdrawn." in taken.text
    runtime.blocking.tick()
    assert sent == []


def test_a_question_too_long_for_the_list_must_be_opened(runtime: TemporaryRuntime) -> None:
    agent, _ = reviewed_agent({"to": "bo", "body": "Hello\n" * 200})
    begin(runtime, "mailer", agent)
    with pages(runtime, "ana") as [ana]:
        page = ana.get("/inbox")
        assert "Review and decide" in page.text
        assert not [
            form for form in page.forms if form.action.partition("?")[0].endswith("/answer")
        ]


def test_questions_are_answered_one_after_the_other(runtime: TemporaryRuntime) -> None:
    runtime.register(asking(lambda: interrupt("Go?")), name="plain")
    for n in range(3):
        start(runtime, "plain", thread_id=f"t{n}")
    first, second, third = runtime.blocking.waits(kind="human")
    with pages(runtime, "ana") as [ana]:
        page = ana.get(f"/questions/{second.id}?graph=plain")
        page = page.submit("/answer", {"how": "text"}, text="yes")
        assert page.path.startswith(f"/ui/questions/{third.id}?")
        assert "graph=plain" in page.path
        assert "You answered: Go?" in page.text
        page = page.submit("/answer", {"how": "text"}, text="yes")
        assert page.path.startswith(f"/ui/questions/{first.id}?")
        page = page.submit("/answer", {"how": "text"}, text="yes")
        assert page.path.startswith("/ui/inbox?")


def test_the_list_is_filtered_and_paged_by_its_address(runtime: TemporaryRuntime) -> None:
    runtime.register(asking(lambda: interrupt("Go?")), name="plain")
    runtime.register(asking(lambda: perdure.ask("Soon?", expires=timedelta(hours=3))), name="soon")
    for n in range(30):
        runtime.blocking.start("plain", {}, thread_id=f"t{n}", metadata={"n": n})
    runtime.blocking.start("soon", {}, thread_id="soon")
    for _ in range(2):  # one tick drives 25 runs
        runtime.blocking.tick()
    with pages(runtime, "ana") as [ana]:
        one = ana.get("/inbox")
        assert one.html.count("data-item") == 25
        following = re.findall(r'href="([^"]*)" rel="next"', one.html)
        two = ana.get(html.unescape(following[0]))
        assert two.html.count("data-item") == 6
        assert ana.get("/inbox?label=n=17").html.count("data-item") == 1
        assert ana.get("/inbox?graph=soon").html.count("data-item") == 1
        assert ana.get("/inbox?graph=nothing").html.count("data-item") == 0
        assert ana.get("/inbox?expires=soon").html.count("data-item") == 1
        assert ana.get("/inbox?age=1d").html.count("data-item") == 0
        assert ana.get("/inbox?kind=held").html.count("data-item") == 0
        assert ana.get("/inbox?assignee=me").html.count("data-item") == 0
        [soon] = runtime.blocking.waits(graph="soon")
        ana.get(f"/questions/{soon.id}").submit("/take")
        assert ana.get("/inbox?assignee=me").html.count("data-item") == 1
        assert ana.get("/inbox?assignee=unassigned&graph=soon").html.count("data-item") == 0
        for bad in (
            "after=x",
            "after=[1]",
            f"after=[{'9' * 40},%22x%22]",
            "after=[1,%22%5Cu0000%22]",
        ):
            assert ana.get(f"/inbox?{bad}").status == 422
        assert ana.get("/inbox?kind=x&age=y&expires=z&label=x").status == 200


# -- several at once


def test_several_questions_are_previewed_and_decided(runtime: TemporaryRuntime) -> None:
    agent, sent = reviewed_agent({"to": "bo", "body": "Hello"})
    _, mail = begin(runtime, "mailer", agent)
    other, sent_too = reviewed_agent({"to": "cy", "body": "Bye"}, mode="per_call")
    _, call = begin(runtime, "caller", other)
    run, choice = begin(
        runtime,
        "choice",
        asking(lambda: perdure.ask("?", response_schema={"enum": ["approve", "reject"]})),
    )
    _, plain = begin(runtime, "plain", asking(lambda: interrupt("Which?")))
    _, late = begin(
        runtime, "late", asking(lambda: perdure.ask("?", response_schema={"enum": ["approve"]}))
    )
    with pages(runtime, "ana", "bo") as [ana, bo]:
        ids = [one.id for one in (mail, call, choice, plain, late)]
        preview = ana.get("/inbox").submit("/inbox/several", id=ids, decision="approve")
        assert "Nothing has been sent yet. 3 of 5" in preview.text
        assert "Open it and answer it" in preview.text
        bo.get(f"/questions/{choice.id}").submit("/answer", {"how": "form"}, answer='"reject"')
        result = preview.submit("/several/send")
        assert "2 of 3 questions decided" in result.text
        assert "bo answered this question" in result.text
        again = preview.submit("/several/send")
        assert "2 of 3 questions decided" in again.text  # what was sent is no error
        assert bo.get("/inbox").submit("/inbox/several", decision="approve").status == 422
    runtime.blocking.tick()
    assert (len(sent), len(sent_too)) == (1, 1)
    assert runtime.blocking.get(run.id).output == {"answer": "reject"}


def test_several_rejections_share_a_reason(runtime: TemporaryRuntime) -> None:
    runs = []
    for name in ("one", "two"):
        agent, _ = reviewed_agent({"to": "bo", "body": name})
        runs.append(begin(runtime, name, agent))
    with pages(runtime, "ana") as [ana]:
        ids = [wait.id for _, wait in runs]
        preview = ana.get("/inbox").submit("/inbox/several", id=ids, decision="reject")
        assert "2 of 2" in preview.submit("/several/send", reason="Not today").text
    runtime.blocking.tick()
    for run, _ in runs:
        messages = runtime.blocking.get(run.id).output["messages"]
        assert any("Not today" in str(one.content) for one in messages)


# -- assignees


def test_a_question_is_claimed_released_and_assigned(runtime: TemporaryRuntime) -> None:
    _, wait = begin(runtime, "plain", asking(lambda: interrupt("Which?")))
    with pages(runtime, "ana", "bo") as [ana, bo]:
        seen_by_bo = bo.get(f"/questions/{wait.id}")
        mine = ana.get(f"/questions/{wait.id}").submit("/take")
        assert "Assigned to you." in mine.text
        assert "You." in mine.text
        late = seen_by_bo.submit("/take")
        assert "Already assigned to ana." in late.text
        assert "assigned to ana" in bo.get("/inbox").text
        assert "assigned to you" in ana.get("/inbox").text
        over = late.submit("/take")
        assert "You." in over.text
        given = over.submit("/hand-over", to="cy")
        assert "Assigned to cy." in given.text
        told = given.submit("/comment", text=f"Ask {HOSTILE}")
        assert "assigned to ana by ana" in told.text
        assert "<script>alert" not in told.html
        free = ana.get(f"/questions/{wait.id}").submit("/take").submit("/release")
        assert "Unassigned." in free.text
        free.submit("/answer", {"how": "text"}, text="red")
        after = ana.get(f"/questions/{wait.id}")
        assert "answered by ana" in after.text
    kinds = [one.kind for one in runtime.blocking.events(wait.run_id)]
    assert kinds.count("assigned") == 5
    assert kinds.count("comment") == 1


# -- effects and held runs


def test_an_unknown_effect_is_listed_and_an_operator_settles_it(runtime: TemporaryRuntime) -> None:
    runtime.register(asking(lambda: charge(20)), name="pay")
    run = start(runtime, "pay")
    [effect] = runtime.blocking.effects(state="unknown")
    with pages(runtime, "ana", "olga:admin") as [ana, olga]:
        for person in (ana, olga):
            page = person.get("/inbox")
            assert "charge unknown outcome" in page.text
            assert "held" not in page.text.partition("charge unknown outcome")[2]
            assert f"/ui/effects/one?key={effect.key}" in page.html
        assert "An operator decides this." in ana.get("/inbox").text
        assert "Only operators" in ana.get(f"/effects/one?key={effect.key}").text
        settle = olga.get(f"/effects/one?key={effect.key}")
        settle.submit("/effects/settle", how="done", result='"paid"')
        assert "Nothing needs a person." in olga.get("/inbox").text
    assert answered(runtime, run) == "paid"
    assert "settled" in [one.kind for one in runtime.blocking.events(run.id)]


def test_a_held_run_is_retried_or_cancelled_by_an_operator(runtime: TemporaryRuntime) -> None:
    runtime.register(asking(breaks), name="stock", hold=True, retry=ONCE)
    runtime.register(asking(breaks), name="reflection:memory", hold=True, retry=ONCE)
    held, other = start(runtime, "stock"), start(runtime, "reflection:memory")
    with pages(runtime, "ana", "olga:admin") as [ana, olga]:
        page = ana.get("/inbox")
        assert "The warehouse is away." in page.text
        assert "Reflection of memory failed" in page.text
        assert f"/ui/runs/{held.id}" in page.html
        assert "/retry" not in ana.get(f"/runs/{held.id}").html
        olga.get(f"/runs/{held.id}").submit("/retry")
        olga.get(f"/runs/{other.id}").submit("/cancel", reason="Useless")
        assert "The warehouse is away." not in olga.get("/inbox").text
    assert runtime.blocking.get(other.id).state == "cancelled"
    events = [one for one in runtime.blocking.events(held.id) if one.kind == "retried"]
    assert [one.data["by"] for one in events] == ["olga"]


# -- live


def test_decisions_by_others_appear_at_once(runtime: TemporaryRuntime) -> None:
    _, wait = begin(runtime, "plain", asking(lambda: interrupt("Which?")))
    with pages(runtime, "ana", "bo") as [ana, bo]:
        page = ana.get("/inbox")
        address = page.html.partition('sse-connect="')[2].partition('"')[0].replace("&amp;", "&")
        with ana.http.stream("GET", address, timeout=30) as stream:
            lines = stream.iter_lines()
            bo.get(f"/questions/{wait.id}").submit("/take")
            assert "assigned to bo" in event(lines, dom_id("question", wait.id))
            bo.get(f"/questions/{wait.id}").submit("/answer", {"how": "text"}, text="red")
            assert "bo answered this question" in event(lines, dom_id("question", wait.id))
            _, new = begin(runtime, "other", asking(lambda: interrupt("And this?")))
            shown = event(lines, "new")
            assert "And this?" in shown
            assert f"/ui/questions/{new.id}" in shown
            assert 'name="csrf"' not in shown or "value=" in shown
            runtime.blocking.cancel(new.run_id)
            assert "The run is cancelled" in event(lines, dom_id("question", new.id))


def test_decisions_made_before_the_stream_connects_are_sent(runtime: TemporaryRuntime) -> None:
    _, wait = begin(runtime, "plain", asking(lambda: interrupt("Which?")))
    with pages(runtime, "ana") as [ana]:
        page = ana.get("/inbox")
        address = page.html.partition('sse-connect="')[2].partition('"')[0].replace("&amp;", "&")
        runtime.blocking.answer(wait.id, "red", by="python")
        with ana.http.stream("GET", address, timeout=30) as stream:
            assert "python answered" in event(stream.iter_lines(), dom_id("question", wait.id))


def test_what_was_asked_before_the_stream_began_is_told(
    runtime: TemporaryRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tab is open, so the live feed has seen the question already."""
    monkeypatch.setattr(inbox, "LOOK", 3600.0)
    with pages(runtime, "ana") as [ana]:
        page = ana.get("/inbox")
        other = Stream(ana, page)
        until(lambda: other.is_open, "an open stream")
        begin(runtime, "plain", asking(lambda: interrupt("Which?")))
        until(lambda: "new" in other.events, "the question in the other tab")
        late = Stream(ana, page)
        until(lambda: any("Which?" in line for line in late.lines), "the question", 15)
        until(lambda: other.lines.count("event: new") == 1)


def test_a_held_run_is_told_however_busy_the_journal_is_and_however_old_it_is(
    runtime: TemporaryRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LOOK", 2.0)

    def late() -> Any:
        perdure.sleep(timedelta(hours=1))
        return breaks()

    runtime.register(asking(late), name="late", retry=ONCE, hold=True)
    held = start(runtime, "late")
    _, wait = begin(runtime, "plain", asking(lambda: interrupt("Which?")))
    with pages(runtime, "ana") as [ana]:
        stream = Stream(ana, ana.get("/inbox"))
        until(lambda: stream.is_open, "an open stream")
        runtime.clock.advance(timedelta(hours=1))
        runtime.blocking.tick()

        def is_told() -> bool:
            runtime.blocking.start("plain", {})
            return any(dom_id("held", held.id) in line for line in stream.lines)

        until(is_told, "the held run", 20)
        assert not any(dom_id("question", wait.id) in line for line in stream.lines)


def event(lines: Iterator[str], name: str, never: str = "\0") -> str:
    """The data of the next event of this name. What is `never` said is in none before it."""
    found: list[str] = []
    current = ""
    try:
        for line in lines:
            assert never not in line
            if line.startswith("event: "):
                current = line.removeprefix("event: ")
            elif line.startswith("data: ") and current == name:
                found.append(line.removeprefix("data: "))
            elif not line and found:
                return "\n".join(found)
    except httpx.ReadTimeout:
        pass
    raise AssertionError(f"no event {name}")


# -- damage


def test_damaged_items_are_listed(runtime: TemporaryRuntime) -> None:
    _, wait = begin(runtime, "plain", asking(lambda: interrupt("Which?")))
    damage(runtime, wait.id)
    with pages(runtime, "ana") as [ana]:
        page = ana.get("/inbox")
        assert "A question that cannot be read" in page.text
        fields = [("csrf", form_token(runtime, ana, "ana")), ("id", wait.id)]
        preview = ana.post("/ui/inbox/several", [*fields, ("decision", "approve")])
        assert "Open it and answer it" in preview.text


# -- threads of others


def owners() -> Auth:
    """Ada may do everything, on threads of her own."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": "ada", "permissions": ["perdure:admin"]}

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        return {"owner": ctx.user.identity}

    return auth


def test_items_on_threads_of_others_are_hidden(runtime: TemporaryRuntime) -> None:
    waits = {}
    for name in ("ada", "bo"):
        content = ThreadContent(metadata={"owner": name})
        runtime.journal.run(threads.create(runtime.engine, name, content))
        _, waits[name] = begin(
            runtime, f"of {name}", asking(lambda: interrupt("Which?")), thread_id=name
        )
        runtime.blocking.assign(waits[name].id, name, by=name)
    with served(runtime, ui=True, worker=False, auth=owners()) as server:
        ada = Person(server.http(follow_redirects=True), server)
        hers, other = waits["ada"], waits["bo"]
        page = ada.get("/inbox").html
        assert hers.id in page
        assert other.id not in page
        assert 'id="question-count" hidden' in page, "a count would tell of others"
        assert ada.get(f"/questions/{hers.id}").status == 200
        assert ada.get(f"/questions/{other.id}").status == 404
        assert ada.get(f"/runs/{other.run_id}").status == 404
        token = form_token(runtime, ada, "ada")
        several = [("csrf", token), ("id", other.id), ("decision", "approve")]
        assert "A deleted question" in ada.post("/ui/inbox/several", several).text
        for action in ("answer", "take", "comment"):
            fields = [("csrf", token), ("how", "text"), ("text", "red")]
            assert ada.post(f"/ui/questions/{other.id}/{action}", fields).status == 404
        named = [f"question:{one.run_id}:old:{one.id}" for one in (other, hers)]
        address = f"/ui/inbox/live?{urlencode([('item', one) for one in named])}"
        with ada.http.stream("GET", address, timeout=30) as stream:
            assert hers.id in event(stream.iter_lines(), dom_id("question", hers.id), other.id)
