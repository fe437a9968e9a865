"""Threads in the browser: the list by last activity, one thread as a chat, signals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.runtime import Runtime
from perdure.server.ui import threads
from perdure.service import thread_search
from perdure.types import State
from perdure.views import conversation
from tests.support.polling import until
from tests.support.ui import Page, ui_server
from tests.support.ui_live import Stream
from tests.support.ui_owners import by_header, owned, person_named
from tests.support.waiters import asking, chain, listening

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}"


def answers(state: MessagesState) -> Any:
    """Looks up what it is asked, with a tool, and answers in Markdown."""
    asked = state["messages"][-1].content
    call = {"name": "look_up", "args": {"what": asked}, "id": f"call-{len(state['messages'])}"}
    return {
        "messages": [
            AIMessage("One moment.", tool_calls=[call]),
            ToolMessage("it is **rain**", tool_call_id=call["id"], name="look_up"),
            AIMessage(f"**Answer** to {asked}"),
        ]
    }


def opened(url: str) -> Runtime:
    made = perdure.Runtime(url)
    graph = StateGraph(MessagesState)
    graph.add_node("answers", answers).add_edge(START, "answers")
    made.register(graph, "assistant")
    made.register(chain(asking("Go?")), "asks")
    made.register(chain(listening("reply")), "hears")
    return made


@pytest.fixture
def runtime(sqlite_url: str) -> Iterator[Runtime]:
    with opened(sqlite_url) as made:
        yield made


@pytest.fixture
def anywhere(url: str) -> Iterator[Runtime]:
    """The same on each database, for what depends on it."""
    with opened(url) as made:
        yield made


def say(runtime: Runtime, text: str, thread_id: str = "t", *, drive: bool = True) -> str:
    given = {"messages": [{"role": "user", "content": text}]}
    run = runtime.blocking.start("assistant", given, thread_id=thread_id)
    if drive:
        runtime.blocking.tick(100)
    return run.id


def listed(page: Page) -> list[str]:
    """The threads on a page, in their order."""
    return re.findall(r'class="strong clip" title="([^"]+)"', page.html)


# -- the list


def test_threads_are_listed_by_their_last_activity(anywhere: Runtime) -> None:
    for name in ("a", "b", "c"):
        anywhere.blocking.start("asks", {"log": []}, thread_id=name, metadata={"team": name})
    anywhere.blocking.tick(100)
    anywhere.blocking.start("asks", {"log": []}, thread_id="a")
    with ui_server(anywhere, worker=False) as person:
        page = person.get("/threads")
        assert listed(page) == ["a", "c", "b"]
        assert "a person, to answer “Go?”" in page.text
        assert "team= c" in page.text
        assert listed(person.get("/threads?graph=assistant")) == []
        assert listed(person.get("/threads?graph=asks&text=b")) == ["b"]
        assert listed(person.get("/threads?status=interrupted")) == ["a", "c", "b"]
        assert listed(person.get("/threads?status=idle")) == []
        assert person.get("/threads?text=b").path == "/ui/threads/one?id=b"
        assert person.get("/threads?status=nothing").status == 422
        assert person.get("/threads?before=x").status == 422


def test_pages_of_threads_neither_repeat_nor_skip(
    anywhere: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "PAGE", 3)
    made = [f"thread-{number}" for number in range(10)]
    for name in made:
        anywhere.blocking.start("asks", {"log": []}, thread_id=name)
    with ui_server(anywhere, worker=False) as person:
        for query in ("", "?text=thread"):
            page = person.get(f"/threads{query}")
            seen = listed(page)
            while older := re.search(r'href="([^"]+)" rel="next"', page.html):
                page = person.get(older[1].replace("&amp;", "&"))
                seen += listed(page)
            assert seen == made[::-1]


def test_a_viewer_sees_only_their_own_threads(
    anywhere: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_search, "MOST_READ", 4)
    monkeypatch.setattr(thread_search, "CHUNK", 2)
    for number in range(11):
        name = "ana" if number in (0, 5) else "bo"
        owned(anywhere, f"{name}-{number}", name)
    with ui_server(anywhere, worker=False, auth=by_header()) as person:
        ana = person_named(person, "ana")
        page, seen = ana.get("/threads"), []
        while True:
            assert "bo-" not in page.html
            seen += listed(page)
            older = re.search(r'href="([^"]+)" rel="next"', page.html)
            if older is None:
                break
            page = ana.get(older[1].replace("&amp;", "&"))
        assert seen == ["ana-5", "ana-0"]
        assert ana.get("/threads/one?id=ana-0").status == 200
        for page in (ana.get("/threads/one?id=bo-1"), ana.get("/conversation/live?id=bo-1")):
            assert page.status == 404
        assert "bo-1" not in listed(ana.get("/threads?text=bo-1"))
        form = ana.get("/threads/one?id=ana-0").form("/signals")
        fields = [(name, one) for name, one in form.fields if name not in ("thread", "name")]
        refused = ana.post(form.action, [*fields, ("thread", "bo-1"), ("name", "reply")])
        assert refused.status == 404


# -- one thread


def test_a_thread_is_a_chat_with_calls_results_and_runs(runtime: Runtime) -> None:
    first = say(runtime, "the weather in Porto?")
    second = say(runtime, "and **tomorrow**?")
    with ui_server(runtime, worker=False) as person:
        page = person.get("/threads/one?id=t")
        assert page.status == 200
        order = [
            page.text.index(said)
            for said in (
                "the weather in Porto?",
                "One moment.",
                "look_up",
                "it is **rain**",
                "Answer to the weather",
                "and **tomorrow**?",
            )
        ]
        assert order == sorted(order)
        assert "<strong>Answer</strong>" in page.html  # the model's words are Markdown
        assert "<strong>tomorrow</strong>?" in page.html  # in the model's echo
        assert "<strong>rain</strong>" not in page.html  # a result is shown as it is
        for run in (first, second):
            assert f"/ui/runs/{run}" in page.html


@pytest.mark.parametrize(
    "thread_id", ["a/b c", "ü?x#y", "100%", "%41", "a&b=c;d", "..", "a\n b", "x" * 200]
)
def test_any_thread_has_an_address(runtime: Runtime, thread_id: str) -> None:
    say(runtime, "hello there", thread_id)
    with ui_server(runtime, worker=False) as person:
        page = person.get("/threads")
        address = re.search(r'data-href="([^"]+)"', page.html)
        assert address
        shown = person.get(address[1].replace("&amp;", "&"))
        assert shown.status == 200, shown.path
        assert "hello there" in shown.text


def test_a_thread_that_does_not_exist_is_a_page_that_says_so(runtime: Runtime) -> None:
    with ui_server(runtime, worker=False) as person:
        assert person.get("/threads/one?id=none").status == 404


def test_a_thread_without_messages_shows_its_state_and_what_it_waits_for(runtime: Runtime) -> None:
    runtime.blocking.start("hears", {"log": ["first line"]}, thread_id="t")
    runtime.blocking.tick()
    with ui_server(runtime, worker=False) as person:
        page = person.get("/threads/one?id=t")
        assert "first line" in page.text
        assert "the signal reply" in page.text
        assert dict(page.form("/signals").fields)["name"] == "reply"


def test_what_was_said_to_a_run_that_has_not_begun_is_queued(runtime: Runtime) -> None:
    say(runtime, "wait for me", drive=False)
    with ui_server(runtime, worker=False) as person:
        assert "Queued" in person.get("/threads/one?id=t").text
        assert "wait for me" in person.get("/threads/one?id=t").text


def test_a_long_conversation_is_read_page_by_page(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation.conversation, "__kwdefaults__", {"until": None, "most": 4})
    for number in range(4):
        say(runtime, f"question {number}")
    with ui_server(runtime, worker=False) as person:
        page = person.get("/threads/one?id=t")
        assert "question 3" in page.text
        assert "question 0" not in page.text
        for _ in range(2):
            earlier = re.search(r'href="([^"]+)">\s*\d+ earlier message', page.html)
            assert earlier
            page = person.get(earlier[1].replace("&amp;", "&"))
        assert "question 0" in page.text
        assert "Show the latest" in page.text


def test_text_of_threads_is_escaped_wherever_it_is_shown(runtime: Runtime) -> None:
    say(runtime, HOSTILE, HOSTILE)
    runtime.blocking.start(
        "hears", {"log": [HOSTILE]}, thread_id=f"{HOSTILE}2", metadata={HOSTILE: HOSTILE}
    )
    runtime.blocking.tick()
    with ui_server(runtime, worker=False) as person:
        page = person.get("/threads")
        addresses = re.findall(r'data-href="([^"]+)"', page.html)
        pages = [page, *(person.get(one.replace("&amp;", "&")) for one in addresses)]
        pages.append(person.get("/threads", params={"text": f"{HOSTILE} x", "graph": HOSTILE}))
        pages.append(pages[1].submit("/signals", name=HOSTILE, value="{" + HOSTILE))
        assert len(pages) == 5
        for page in pages:
            assert page.status in (200, 422)
            assert "<script>alert" not in page.html
            assert "<img src=x" not in page.html
            assert "{{7*7}}" in page.html


# -- signals


@pytest.mark.parametrize(
    ("written", "value"),
    [("", None), ('{"ok": true}', {"ok": True}), ("7", 7), ("just words", "just words")],
)
def test_a_signal_wakes_the_run_that_waits_for_it(
    runtime: Runtime, written: str, value: Any
) -> None:
    run = runtime.blocking.start("hears", {"log": []}, thread_id="t/1")
    runtime.blocking.tick()
    with ui_server(runtime, worker=False) as person:
        done = person.get("/threads/one?id=t/1").submit("/signals", value=written)
        assert "The signal reply was sent." in done.text
        assert done.path == "/ui/threads/one?id=t%2F1"
    runtime.blocking.tick()
    found = runtime.blocking.get(run.id)
    assert (found.state, found.output["log"]) == (State.DONE, [("reply", value)])


def test_a_form_that_is_sent_twice_sends_one_signal(anywhere: Runtime) -> None:
    anywhere.blocking.start("hears", {"log": []}, thread_id="t")
    anywhere.blocking.tick()
    with ui_server(anywhere, worker=False) as person:
        page = person.get("/threads/one?id=t")
        page.submit("/signals", value="1")
        assert "had already been sent" in page.submit("/signals", value="1").text
        page = page.submit("/signals", name="", value="")
        assert (page.status, "Give the signal a name." in page.text) == (422, True)
        page = person.get("/threads/one?id=t").submit("/signals", name="x", value="{broken")
        assert page.status == 422
        assert dict(page.form("/signals").fields)["value"] == "{broken"
    anywhere.blocking.start("hears", {"log": []}, thread_id="t")
    anywhere.blocking.tick(10)
    later, first = anywhere.blocking.runs()
    assert (first.state, later.state) == (State.DONE, State.WAITING)  # there was no second signal


def test_an_approver_reads_threads_but_sends_no_signal(runtime: Runtime) -> None:
    runtime.blocking.start("asks", {"log": []}, thread_id="t")
    runtime.blocking.tick()
    token = runtime.journal.run(runtime.services.tokens.create("ana", ["answer"]))
    with ui_server(runtime, worker=False) as person:
        ana = person.with_token(token)
        page = ana.get("/threads/one?id=t")
        assert page.status == 200
        assert "/signals" not in page.html
        [wait] = runtime.blocking.waits()
        csrf = dict(ana.get(f"/questions/{wait.id}").form("/answer").fields)["csrf"]
        fields = [("csrf", csrf), ("thread", "t"), ("name", "reply")]
        assert ana.post("/ui/signals", fields).status == 403


# -- live


def test_new_messages_are_appended_while_a_run_goes_on(anywhere: Runtime) -> None:
    say(anywhere, "the weather?")
    with ui_server(anywhere, worker=False) as person:
        stream = Stream(person, person.get("/threads/one?id=t"))
        until(lambda: stream.is_open, "an open stream")
        say(anywhere, "and tomorrow?")
        until(lambda: "more" in stream.events, "new messages")
        until(lambda: any("Answer" in line for line in stream.lines), "the answer")
        assert not any("the weather?" in line for line in stream.lines)  # it was there before
        until(lambda: "thread-runs" in stream.events, "the runs beside it")


def test_a_tab_is_told_that_its_thread_was_erased_and_shows_nothing_of_it(
    anywhere: Runtime,
) -> None:
    say(anywhere, "the weather?")
    with ui_server(anywhere, worker=False) as person:
        stream = Stream(person, person.get("/threads/one?id=t"))
        until(lambda: stream.is_open, "an open stream")
        anywhere.blocking.erase("t")
        until(lambda: "end" in stream.events, "the end of the stream")
        assert any("This thread was deleted." in line for line in stream.lines)
        assert {"chat", "thread-runs", "thread-values"} <= {*stream.events}
