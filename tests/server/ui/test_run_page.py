"""The page of one run: what it shows, what can be done there, and that nothing breaks it."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph, add_messages

import perdure
from perdure.commands import tokens as token_commands
from perdure.errors import BadArgument
from perdure.runtime import Runtime
from perdure.server.options import ServerOptions
from perdure.testing import runtime as temporary
from perdure.types import EventKind, Retry, Run, State
from tests.support import sealed_journal
from tests.support.polling import until
from tests.support.raw import execute, rewrite
from tests.support.ui import Page, Person, ui_server

HOSTILE = "<script>alert(1)</script>"
CALLS: list[str] = []


class Trip(TypedDict, total=False):
    city: str
    notes: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], add_messages]
    approved: bool


@perdure.effect(compensate=lambda result, **_: CALLS.append("refund"))
def book_hotel(city: str) -> str:
    CALLS.append("book")
    return f"hotel in {city}"


@perdure.effect(retry=Retry(attempts=1))
def broken(city: str) -> str:
    raise ValueError(f"no {city} {HOSTILE}")


def plan(state: Trip) -> Trip:
    said = AIMessage(f"I plan {state['city']}")
    return {"notes": [book_hotel(state["city"])], "messages": [said]}


def approve(state: Trip) -> Trip:
    answer = perdure.ask({"question": f"Go to {state['city']}?"})
    return {"approved": bool(answer)}


def rest(state: Trip) -> Trip:
    if state["city"] == "Nowhere":
        broken(state["city"])
    perdure.sleep(timedelta(days=3))
    return {"notes": ["slept"]}


def listen(state: Trip) -> Trip:
    return {"notes": [str(perdure.wait_for("reply", timeout=timedelta(days=7)))]}


def graph() -> Any:
    built = StateGraph(Trip)
    for node in (plan, approve, rest, listen):
        built.add_node(node.__name__, node)
    built.add_edge(START, "plan").add_edge("plan", "approve")
    return built.add_edge("approve", "rest").add_edge("rest", "listen")


GRAPHS = {"trip": graph()}


@pytest.fixture
def person(rt: Runtime) -> Iterator[Person]:
    with ui_server(rt) as found:
        yield found


def begin(rt: Runtime, city: str = "Lisbon", **options: Any) -> Run:
    """A run that waits for a person."""
    given = {"city": city, "messages": [("user", f"to {city}")]}
    run = rt.blocking.start("trip", given, thread_id=f"trip-{city}", **options)
    until(lambda: rt.blocking.waits(run_id=run.id))
    until(lambda: rt.blocking.get(run.id).state is State.WAITING)
    return run


def answer(rt: Runtime, run: Run, value: Any = True) -> None:
    [wait] = rt.blocking.waits(run_id=run.id, kind="human")
    rt.blocking.answer(wait.id, value, by="ana")


def asleep(rt: Runtime, run: Run) -> Run:
    answer(rt, run)
    until(lambda: rt.blocking.waits(run_id=run.id, kind="clock"))
    until(lambda: rt.blocking.get(run.id).state is State.WAITING)
    return run


def number_of(rt: Runtime, run: Run, kind: str, nth: int = -1) -> int:
    return [one.n for one in rt.blocking.events(run.id) if one.kind == kind][nth]


# -- what it shows


def test_the_page_says_what_the_run_waits_for_and_draws_its_life_and_graph(
    rt: Runtime, person: Person
) -> None:
    run = begin(rt, metadata={"team": HOSTILE}, tags=["blue"])
    page = person.get(f"/runs/{run.id}")
    assert page.status == 200
    assert "Asks a person" in page.text
    assert "Go to Lisbon?" in page.text
    [wait] = rt.blocking.waits(run_id=run.id)
    assert f'href="/ui/questions/{wait.id}"' in page.html
    assert "<title>Timeline of the run: 1 segment by 1 worker, 1 rest" in page.html
    assert "The run is at approve. It ran plan." in page.html
    assert "effect book_hotel done" in page.text
    assert "<script>alert" not in page.html
    assert ' style="' not in page.html
    assert f'sse-connect="/ui/runs/{run.id}/live?seen=' in page.html


def test_every_tab_is_a_page_of_its_own_address(rt: Runtime, person: Person) -> None:
    run = asleep(rt, begin(rt))
    rt.blocking.score(run.id, "quality", 0.5, comment=HOSTILE, by="ana")
    told = {
        "history": "answered by ana",
        "effects": "city='Lisbon'",
        "waits": "Go to Lisbon?",
        "children": "This run has started no other runs.",
        "scores": "quality 0.5",
        "state": "I plan Lisbon",
        "output": "to Lisbon",
        "nonsense": "answered by ana",
    }
    for tab, words in told.items():
        page = person.get(f"/runs/{run.id}?tab={tab}")
        assert page.status == 200
        assert words in page.text, tab
        assert "<script>alert" not in page.html


def test_the_details_of_every_event_of_many_kinds_open(rt: Runtime, person: Person) -> None:
    ask, run = rt.blocking, asleep(rt, begin(rt))
    ask.pause(run.id, by="ana")
    ask.resume(run.id, by="ana")
    ask.wake(run.id, by="ana")
    until(lambda: ask.waits(run_id=run.id, kind="signal"))
    ask.signal(run.thread_id, "reply", {"said": HOSTILE})
    ask.join(run.id)
    failed = begin(rt, "Nowhere")
    answer(rt, failed)
    until(lambda: ask.get(failed.id).state is State.FAILED)
    ask.retry(failed.id, by="ana")
    until(lambda: ask.get(failed.id).state is State.FAILED)
    stopped = begin(rt, "Rome")
    ask.cancel(stopped.id, by="ana", reason=HOSTILE)
    until(lambda: ask.get(stopped.id).ended)
    seen = set()
    for one in (run, failed, stopped):
        for event in ask.events(one.id):
            page = person.get(f"/runs/{one.id}?open={event.n}")
            assert page.status == 200
            assert f"event {event.n}, {event.kind} ," in page.text
            assert "<script>alert" not in page.html
            seen.add(event.kind)
    kinds = ("started", "claimed", "step", "wait", "waiting", "woke", "answer", "signal", "effect")
    more = ("failed", "paused", "resumed", "retried", "cancelled", "done")
    assert {*map(EventKind, (*kinds, *more))} <= seen


def test_a_step_shows_what_it_changed_in_the_state(rt: Runtime, person: Person) -> None:
    run = begin(rt)
    [step] = [one for one in rt.blocking.events(run.id) if one.data.get("nodes") == ["plan"]]
    page = person.get(f"/runs/{run.id}?open={step.n}")
    assert "notes" in page.text
    assert "hotel in Lisbon" in page.text
    assert "I plan Lisbon" in page.text
    assert f'/ui/runs/{run.id}/fork?at={step.data["checkpoint"]}"' in page.html


def test_an_effect_shows_arguments_result_error_and_traceback(rt: Runtime, person: Person) -> None:
    run = begin(rt, "Nowhere")
    done = person.get(f"/runs/{run.id}?open={number_of(rt, run, 'effect')}").text
    assert re.search("Arguments.* city Nowhere .*Result hotel in Nowhere", done)
    answer(rt, run)
    until(lambda: rt.blocking.get(run.id).state is State.FAILED)
    failed = person.get(f"/runs/{run.id}?open={number_of(rt, run, 'effect')}")
    assert "Traceback (most recent call last)" in failed.text
    assert HOSTILE in failed.text
    error = person.get(f"/runs/{run.id}?open={number_of(rt, run, 'failed')}").text
    assert "Traceback" in error


def test_an_answer_shows_who_when_through_what_and_from_where(rt: Runtime, person: Person) -> None:
    run = begin(rt)
    [wait] = rt.blocking.waits(run_id=run.id)
    by = perdure.Actor("ana", via="browser", address="10.0.0.7")
    rt.blocking.answer(wait.id, {"fine": HOSTILE}, by=by)
    page = person.get(f"/runs/{run.id}?open={number_of(rt, run, 'answer')}").text
    assert re.search("by ana through browser from 10.0.0.7", page)
    assert "Go to Lisbon?" in page
    assert HOSTILE in page


def test_a_part_of_the_page_is_sent_to_htmx_and_the_whole_page_to_others(
    rt: Runtime, person: Person
) -> None:
    run = begin(rt)
    path = f"/runs/{run.id}/events/2"
    part = person.get(path, headers={"HX-Request": "true"})
    assert "<html" not in part.html
    assert part.response.headers["hx-push-url"] == f"/ui/runs/{run.id}?open=2"
    for headers in ({}, {"HX-Request": "true", "HX-History-Restore-Request": "true"}):
        whole = person.get(path, headers=headers)
        assert "<html" in whole.html
        assert "event 2," in whole.text
    assert "No event 99" in person.get(f"/runs/{run.id}/events/99").text


def test_a_zoom_is_in_the_address(rt: Runtime, person: Person) -> None:
    run = asleep(rt, begin(rt))
    whole = person.get(f"/runs/{run.id}")
    address = re.findall(rf"/ui/runs/{run.id}\?from=\d+&amp;to=\d+", whole.html)[0]
    zoomed = person.get(address.replace("&amp;", "&"))
    assert "Whole run" in zoomed.text
    assert re.search("Timeline of the run: 1 segment by 1 worker", zoomed.html)
    assert "2 segments by" in whole.html
    for odd in ("?from=9&to=2", "?from=900&to=999", "?open=0"):
        assert person.get(f"/runs/{run.id}{odd}").status == 200
    assert person.get(f"/runs/{run.id}?from=x").status == 422


def test_a_run_whose_graph_is_not_registered_has_a_list_of_nodes(
    rt: Runtime, sqlite_url: str
) -> None:
    with ui_server(rt):
        run = begin(rt)
    with perdure.Runtime(sqlite_url) as other, ui_server(other, worker=False) as person:
        page = person.get(f"/runs/{run.id}")
        assert "This graph is not registered here." in page.text
        assert "plan ran 1 time" in page.text
        assert "/fork" not in page.html
        assert "not registered in this server" in person.get(f"/runs/{run.id}/fork").text


def test_a_run_that_does_not_exist_is_not_found(person: Person) -> None:
    for path in ("/runs/nothing", "/runs/nothing/events/1", "/runs/nothing/fork"):
        assert person.get(path).status == 404


def test_children_are_a_tree_of_links(sqlite_url: str) -> None:
    def parent(state: Trip) -> Trip:
        made = family.blocking.start("trip", {"city": "Oslo"}, thread_id="child")
        return {"notes": [made.id]}

    family = perdure.Runtime(sqlite_url)
    family.register(graph(), name="trip")
    family.register(StateGraph(Trip).add_node(parent).add_edge(START, "parent"), name="parent")
    with family, ui_server(family) as person:
        run = family.blocking.start("parent", {"city": "Oslo"})
        family.blocking.join(run.id)
        [child] = family.blocking.runs(parent_id=run.id)
        page = person.get(f"/runs/{run.id}?tab=children")
        assert f'href="/ui/runs/{child.id}"' in page.html
        assert f'href="/ui/runs/{run.id}"' in person.get(f"/runs/{child.id}").html


# -- what can be done


def test_a_run_is_paused_resumed_woken_and_cancelled_with_words_before(
    rt: Runtime, person: Person
) -> None:
    run = asleep(rt, begin(rt))
    page = person.get(f"/runs/{run.id}")
    assert "The run is paused at once." in page.text
    page = page.submit("/pause")
    assert "Paused." in page.text
    assert rt.blocking.get(run.id).state is State.PAUSED
    page = page.submit("/resume")
    assert "Resumed." in page.text
    until(lambda: "The run wakes now instead of at" in person.get(f"/runs/{run.id}").text)
    person.get(f"/runs/{run.id}").submit("/wake")
    until(lambda: rt.blocking.waits(run_id=run.id, kind="signal"))
    page = person.get(f"/runs/{run.id}")
    assert "It also undoes 1 effect: book_hotel." in page.text
    CALLS.clear()
    page.submit("/cancel", reason="changed my mind")
    until(lambda: rt.blocking.get(run.id).state is State.CANCELLED)
    assert CALLS == ["refund"]
    events = [one for one in rt.blocking.events(run.id) if "via" in one.data]
    assert {one.data["via"] for one in events} == {"browser"}
    assert {one.data["from"] for one in events} == {"127.0.0.1"}
    assert "changed my mind" in person.get(f"/runs/{run.id}").text


def test_a_failed_run_is_retried(rt: Runtime, person: Person) -> None:
    run = begin(rt, "Nowhere")
    answer(rt, run)
    until(lambda: rt.blocking.get(run.id).state is State.FAILED)
    page = person.get(f"/runs/{run.id}")
    assert "The run is retried from its last step. It also calls broken again." in page.text
    assert "Retried." in page.submit("/retry").text
    until(lambda: len([e for e in rt.blocking.events(run.id) if e.kind == "failed"]) == 2)


def test_a_signal_is_sent_once_from_the_page_of_the_run(rt: Runtime, person: Person) -> None:
    run = asleep(rt, begin(rt))
    rt.blocking.wake(run.id)
    until(lambda: rt.blocking.waits(run_id=run.id, kind="signal"))
    until(lambda: rt.blocking.get(run.id).state is State.WAITING)
    page = person.get(f"/runs/{run.id}")
    assert "The run is waiting for reply and continues with the value you send." in page.text
    wrong = page.submit("/signal", value="{" + HOSTILE)
    assert wrong.status == 422
    sent = wrong.submit("/signal", value='{"said": "yes"}')
    assert sent.path == f"/ui/runs/{run.id}"
    assert "The signal reply was sent." in sent.text
    assert "had already been sent" in wrong.submit("/signal", value='{"said": "yes"}').text
    until(lambda: rt.blocking.get(run.id).state is State.DONE)
    assert rt.blocking.get(run.id).output["notes"][-1] == "{'said': 'yes'}"


@pytest.mark.parametrize(("typed", "value"), [("", None), ("7", 7), ("just words", "just words")])
def test_the_value_of_a_signal_is_json_or_text(
    rt: Runtime, person: Person, typed: str, value: Any
) -> None:
    run = asleep(rt, begin(rt))
    rt.blocking.wake(run.id)
    until(lambda: rt.blocking.waits(run_id=run.id, kind="signal"))
    until(lambda: rt.blocking.get(run.id).state is State.WAITING)
    person.get(f"/runs/{run.id}").submit("/signal", value=typed)
    until(lambda: rt.blocking.get(run.id).state is State.DONE)
    assert rt.blocking.get(run.id).output["notes"][-1] == str(value)


def test_a_run_that_went_on_meanwhile_says_so(rt: Runtime, person: Person) -> None:
    run = asleep(rt, begin(rt))
    page = person.get(f"/runs/{run.id}")
    rt.blocking.cancel(run.id)
    until(lambda: rt.blocking.get(run.id).ended)
    late = page.submit("/pause")
    assert late.status == 409
    assert "cannot be paused" in late.text


def test_readers_and_approvers_cannot_control_runs(rt: Runtime) -> None:
    create = partial(token_commands.create, rt.engine)
    scopes = {"reader": ["read"], "approver": ["read", "answer"]}
    tokens = [rt.blocking.run(rt.journal.arun(create(*one))) for one in scopes.items()]
    with ui_server(rt) as person:
        run = begin(rt)
        for token in tokens:
            them = person.with_token(token)
            page = them.get(f"/runs/{run.id}")
            assert page.status == 200
            assert "/cancel" not in page.html
            assert "/fork" not in page.html
            assert them.get(f"/runs/{run.id}/fork").status == 403
            for action in ("pause", "resume", "retry", "wake", "cancel", "signal", "fork"):
                address = f"/ui/runs/{run.id}/{action}"
                assert them.post(address, [("csrf", _form_token(page))]).status == 403
        assert rt.blocking.get(run.id).state is State.WAITING


def _form_token(page: Page) -> str:
    """The token of the forms of who is signed in; a page without a form has it, too."""
    found = re.findall('name="csrf" value="([^"]+)"', page.html)
    return found[-1] if found else ""


# -- forks


def fork_page(rt: Runtime, person: Person, run: Run) -> Page:
    [step] = [one for one in rt.blocking.events(run.id) if one.data.get("nodes") == ["plan"]]
    return person.get(f"/runs/{run.id}/fork?at={step.data['checkpoint']}")


def forked(rt: Runtime, page: Page) -> Run:
    found = re.search(r"/ui/runs/([0-9a-f-]{36})", page.path)
    assert found, page.text
    assert "This is a fork of run" in page.text
    run = rt.blocking.get(found[1])
    until(lambda: rt.blocking.waits(run_id=run.id))
    return run


def test_a_fork_begins_with_the_state_that_was_edited(rt: Runtime, person: Person) -> None:
    run = begin(rt)
    page = fork_page(rt, person, run)
    assert "This run and its thread do not change." in page.text
    state = json.loads(dict(page.form("/fork").fields)["state"])
    assert state["city"] == "Lisbon"
    state |= {"city": "Porto", "notes": ["by hand"]}
    state["messages"][0]["content"] = "to Porto"
    made = forked(rt, page.submit("/fork", state=json.dumps(state), as_node="plan"))
    asked = rt.blocking.waits(run_id=made.id)[0].value
    assert asked == {"question": "Go to Porto?"}
    values = rt.saver.get_tuple({"configurable": {"thread_id": made.thread_id}})
    assert values is not None
    channels = values.checkpoint["channel_values"]
    assert channels["notes"] == ["by hand"], "a channel with a reducer is replaced too"
    assert [one.content for one in channels["messages"]] == ["to Porto", "I plan Lisbon"]
    assert rt.blocking.waits(run_id=run.id)[0].value == {"question": "Go to Lisbon?"}


def test_a_fork_of_an_unchanged_state_is_a_copy(rt: Runtime, person: Person) -> None:
    run = begin(rt)
    made = forked(rt, person.get(f"/runs/{run.id}/fork").submit("/fork"))
    assert rt.blocking.waits(run_id=made.id)[0].value == {"question": "Go to Lisbon?"}
    said = {id: rt.blocking.events(id, kinds=["comment"])[-1].data for id in (run.id, made.id)}
    assert said[run.id]["text"] == f"Forked as run {made.id}."
    assert said[made.id]["text"] == f"This is a fork of run {run.id}."
    assert said[made.id]["via"] == "browser"


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("{not json", "This is not JSON"),
        ("[1]", "The state must be an object"),
        ("{}", "Channels cannot be removed"),
        ('{"city": "x", "notes": [], "messages": [], "more": 1}', "no channel more"),
        ('{"city": "x", "notes": [], "messages": 3}', "messages must be a list"),
        ('{"city": "x", "notes": [], "messages": [{"role": "odd"}]}', "messages: "),
    ],
)
def test_what_was_typed_stays_when_a_fork_is_refused(
    rt: Runtime, person: Person, typed: str, why: str
) -> None:
    run = begin(rt)
    page = fork_page(rt, person, run).submit(
        "/fork", state=typed + HOSTILE if "json" in typed else typed
    )
    assert page.status == 422
    assert why in page.text
    assert dict(page.form("/fork").fields)["state"].startswith(typed)
    assert "<script>alert" not in page.html
    assert len(rt.blocking.runs()) == 1


def test_a_fork_from_a_step_that_is_not_there_is_not_found(rt: Runtime, person: Person) -> None:
    run = begin(rt)
    assert person.get(f"/runs/{run.id}/fork?at=nothing").status == 404


# -- traces


def test_the_page_links_to_the_trace(rt: Runtime) -> None:
    address = "https://traces.example.com/{trace_id}?run={run_id}"
    with ui_server(rt, trace_url=address) as person:
        run = begin(rt)
        page = person.get(f"/runs/{run.id}").html
        assert re.search(f'href="https://traces.example.com/[0-9a-f]{{32}}\\?run={run.id}"', page)


def test_the_address_of_traces_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PERDURE_TRACE_URL", "https://t.example.com/{trace_id}")
    assert ServerOptions.of({}).trace_url == "https://t.example.com/{trace_id}"
    assert ServerOptions.of({"trace_url": ""}).trace_url is None
    with pytest.raises(BadArgument, match="trace_url"):
        ServerOptions.of({"trace_url": "javascript:alert(1)"})


# -- rows that cannot be read


def test_an_encrypted_journal_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "sealed.db"
    sealed_journal.fill(path, sealed_journal.KEYS)
    opened = sealed_journal.opened(path, sealed_journal.KEYS)
    with opened as rt, ui_server(rt, worker=False) as person:
        for run in rt.blocking.runs(output=False):
            for tab in ("history", "effects", "waits", "scores", "state", "output"):
                page = person.get(f"/runs/{run.id}?tab={tab}&open=3")
                assert page.status == 200
                assert "cannot be opened" not in page.text


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("perdure_effects", "arguments"),
        ("perdure_effects", "outcome"),
        ("perdure_waits", "body"),
        ("perdure_checkpoints", "state"),
        ("perdure_values", "body"),
        ("perdure_runs", "setup"),
        ("perdure_scores", "body"),
    ],
)
def test_damaged_rows_are_shown_and_break_nothing(tmp_path: Path, table: str, column: str) -> None:
    path = tmp_path / "sealed.db"
    sealed_journal.fill(path, None)
    rewrite(f"sqlite:///{path}", table, column, lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]))
    with sealed_journal.opened(path, None) as rt, ui_server(rt, worker=False) as person:
        for run in rt.blocking.runs(output=False):
            for tab in ("history", "effects", "waits", "scores", "state", "output"):
                assert person.get(f"/runs/{run.id}?tab={tab}&open=4").status == 200


# -- live


def read_stream(person: Person, path: str, done: Any) -> str:
    """What a live stream says, until it has said enough."""
    text = ""
    with person.http.stream("GET", f"/ui{path}") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for piece in response.iter_text():
            text += piece
            if done(text):
                break
    return text


def test_a_tab_gets_the_parts_that_changed_until_the_run_ends(rt: Runtime, person: Person) -> None:
    run = asleep(rt, begin(rt))
    page = person.get(f"/runs/{run.id}")
    [address] = re.findall('sse-connect="/ui([^"]+)"', page.html)
    rt.blocking.wake(run.id)
    rt.blocking.signal(run.thread_id, "reply", "yes")
    text = read_stream(person, address.replace("&amp;", "&"), lambda text: "event: end" in text)
    for name in ("header", "now", "timeline", "graph", "tab"):
        assert f"event: {name}\n" in text
    assert "state-done" in text
    assert "sse-connect" not in person.get(f"/runs/{run.id}").html


def test_a_tab_is_told_that_its_run_was_deleted_and_shows_nothing_of_it(
    rt: Runtime, person: Person
) -> None:
    run = asleep(rt, begin(rt))
    [address] = re.findall('sse-connect="/ui([^"]+)"', person.get(f"/runs/{run.id}").html)

    def delete(text: str) -> bool:
        if "state-waiting" in text:
            execute(rt.url, "DELETE FROM perdure_runs WHERE id = ?", run.id)
        return "event: end" in text

    text = read_stream(person, address.replace("&amp;", "&").replace("seen=", "seen=9"), delete)
    assert "This run was deleted." in text
    assert "event: timeline\ndata: \n" in text
    assert "event: error" not in text


def test_what_a_run_says_is_shown_while_it_says_it(sqlite_url: str) -> None:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

    async def speak(state: Trip) -> Trip:
        model = GenericFakeChatModel(messages=iter([AIMessage(f"hello {HOSTILE} world")]))
        said = await model.ainvoke("hi")
        perdure.ask("go on?")
        return {"messages": [said]}

    with perdure.Runtime(sqlite_url) as rt:
        rt.register(StateGraph(Trip).add_node(speak).add_edge(START, "speak"), name="speaker")
        with ui_server(rt) as person:
            run = rt.blocking.start("speaker", {"city": "Rome"}, stream="messages")
            until(lambda: rt.blocking.waits(run_id=run.id))
            assert "Live output" in person.get(f"/runs/{run.id}").text
            text = read_stream(person, f"/runs/{run.id}/live", lambda text: "world" in text)
            assert "event: output" in text
            assert "&lt;script&gt;" in text
            assert "<script>alert" not in text


def test_a_list_of_runs_is_not_taken_for_a_run() -> None:
    with temporary() as rt:
        paths = [
            (getattr(route, "path", ""), sorted(getattr(route, "methods", ()) or ()))
            for route in rt.router(ui=True).routes
        ]
    listed = [path for path, methods in paths if path.startswith("/ui/runs/") and "GET" in methods]
    single = listed.index("/ui/runs/{run_id}")
    assert not [path for path in listed[single:] if "{run_id}" not in path]
