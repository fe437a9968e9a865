"""The list of runs in the browser: filters, pages by key, live rows, bulk actions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.commands import run_search
from perdure.runtime import Runtime
from perdure.server.ui import bulk, live, runs
from perdure.types import Retry, Run, State
from tests.server.ui.ui_live import Stream
from tests.server.ui.ui_owners import by_header, owned, person_named
from tests.support.polling import until
from tests.support.ui import Page, ui_server
from tests.support.waiters import DAY, asking, chain, listening, sleeping


def fails(state: Any) -> Any:
    raise ValueError("no such mailbox <b>here</b>")


def opened(url: str) -> Runtime:
    made = perdure.Runtime(url)
    made.register(chain(asking("Go?")), "asks")
    made.register(chain(listening("reply", timeout=3 * DAY)), "hears")
    made.register(chain(sleeping(2 * DAY)), "sleeps")
    made.register(chain(fails), "fails", retry=Retry(attempts=1))
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


def start(runtime: Runtime, graph: str = "asks", *, drive: bool = True, **options: Any) -> Run:
    run = runtime.blocking.start(graph, {"log": []}, **options)
    if drive:
        runtime.blocking.tick(100)
    return run


def listed(page: Page) -> list[str]:
    """The runs on a page, in their order."""
    return re.findall(r'sse-swap="run-([^"]+)"', page.html)


# -- what is listed


def test_each_run_says_what_it_waits_for(runtime: Runtime) -> None:
    asked = start(runtime, metadata={"team": "blue"}, tags=["spring"], thread_id="t/1 ü")
    start(runtime, "hears")
    start(runtime, "sleeps")
    start(runtime, thread_id="t/1 ü", drive=False)
    failed = start(runtime, "fails")
    with ui_server(runtime, worker=False) as person:
        page = person.get("/runs")
        assert page.status == 200
        for said in (
            "a person, to answer “Go?”",
            "the signal reply until",
            "the clock",
            "its turn after run",
            "ValueError: no such mailbox <b>here</b>",
            "team= blue",
            "spring",
        ):
            assert said in page.text
        assert listed(page)[0] == failed.id
        assert f"/ui/runs/{asked.id}" in page.html
        assert "/ui/runs?thread=t%2F1+%C3%BC" in page.html
        assert re.findall(r"<b>(\d+)</b> <span>(\w+)", page.html) == [
            ("1", "pending"),
            ("0", "running"),
            ("3", "waiting"),
            ("0", "paused"),
            ("0", "held"),
            ("0", "done"),
            ("1", "failed"),
            ("0", "cancelled"),
        ]


def test_a_journal_without_runs_says_so(runtime: Runtime) -> None:
    with ui_server(runtime, worker=False) as person:
        assert "No runs yet." in person.get("/runs").text
        assert "No run matches." in person.get("/runs?state=held").text


def test_every_filter_is_in_the_address_and_in_the_form(anywhere: Runtime) -> None:
    asked = start(anywhere, metadata={"team": "blue", "n": 7}, thread_id="campaign-7")
    failed = start(anywhere, "fails", metadata={"team": "red"}, tags=["spring"])
    with ui_server(anywhere, worker=False) as person:

        def found(query: str) -> list[str]:
            page = person.get(f"/runs?{query}")
            assert page.status == 200, page.text
            return listed(page)

        assert found("state=failed") == [failed.id]
        assert found("state=failed&state=waiting") == [failed.id, asked.id]
        assert found("graph=asks") == [asked.id]
        assert found("label=team%3Dblue&label=n%3D7") == [asked.id]
        assert found("since=1h") == [failed.id, asked.id]
        assert found("until=1h") == []
        assert found("since=2020-01-01&until=2020-01-02T09%3A00") == []
        assert found("text=mailbox") == found("text=SPRING") == [failed.id]
        assert found("text=campaign-7") == [asked.id]
        assert found(f"text={asked.id[:-3]}") == [asked.id]
        assert found(f"thread={failed.thread_id}") == [failed.id]
        assert found(f"parent={failed.id}") == []
        page = person.get("/runs?state=failed&text=mailbox&graph=fails&since=7d&label=team%3Dred")
        form = dict(page.form("/runs").fields)
        assert form == {
            "state": "failed",
            "text": "mailbox",
            "graph": "fails",
            "label": "team=red",
            "since": "7d",
        }
        assert listed(page.submit("/runs", text="")) == [failed.id]
        assert listed(page.submit("/runs", graph="asks")) == []


@pytest.mark.parametrize(
    "query",
    [
        "state=nothing",
        "q=misspelt",
        "since=yesterday",
        "since=99999999d",
        "before=x",
        "text=" + "x" * 1001,
    ],
)
def test_a_filter_that_is_not_valid_is_a_page_that_says_so(runtime: Runtime, query: str) -> None:
    with ui_server(runtime, worker=False) as person:
        page = person.get(f"/runs?{query}")
        assert page.status == 422
        assert "Not valid" in page.text


def test_pages_neither_repeat_nor_skip_while_runs_are_added(
    anywhere: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE", 4)
    made = [start(anywhere, drive=False).id for _ in range(11)][::-1]
    with ui_server(anywhere, worker=False) as person:
        page = person.get("/runs")
        seen = listed(page)
        pages = [seen]
        while older := re.search(r'href="([^"]+)" rel="next"', page.html):
            start(anywhere, drive=False)
            page = person.get(older[1].replace("&amp;", "&"))
            pages.append(listed(page))
            seen += pages[-1]
        assert [id for id in seen if id in made] == made
        newer = re.search(r'href="([^"]+)" rel="prev"', page.html)
        assert newer
        assert listed(person.get(newer[1].replace("&amp;", "&"))) == pages[-2]


def test_a_search_that_stops_offers_to_look_further(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_search, "MOST_READ", 10)
    monkeypatch.setattr(run_search, "CHUNK", 5)
    wanted = start(runtime, drive=False, metadata={"team": "blue"})
    for _ in range(15):
        start(runtime, drive=False)
    with ui_server(runtime, worker=False) as person:
        page = person.get("/runs?label=team%3Dblue")
        assert "No match in the 10 runs searched." in page.text
        further = re.search(r'href="([^"]+)" rel="next"', page.html)
        assert further
        assert "Keep searching" in page.text
        assert listed(person.get(further[1].replace("&amp;", "&"))) == [wanted.id]


def test_a_viewer_of_few_threads_looks_further_without_learning_of_hidden_runs(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_search, "MOST_READ", 4)
    monkeypatch.setattr(run_search, "CHUNK", 2)
    hidden = []
    for number in range(13):
        owner = "bo" if number else "ana"
        owned(runtime, f"{owner}-{number}", owner)
        made = start(runtime, drive=False, thread_id=f"{owner}-{number}")
        hidden += [made.id] if number else []
    with ui_server(runtime, worker=False, auth=by_header()) as person:
        ana = person_named(person, "ana")
        page, looked = ana.get("/runs"), 1
        while not listed(page):
            assert not any(id in page.html for id in hidden)
            further = re.search(r'href="([^"]+)" rel="next"', page.html)
            assert further
            page, looked = ana.get(further[1].replace("&amp;", "&")), looked + 1
        assert looked > 2


# -- who sees what


def test_a_viewer_sees_and_changes_only_the_runs_of_their_own_threads(
    anywhere: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE", 3)
    mine: list[str] = []
    hers: list[str] = []
    for number in range(8):
        owner = "ana" if number % 2 else "bo"
        owned(anywhere, f"{owner}-{number}", owner)
        made = start(anywhere, drive=False, thread_id=f"{owner}-{number}")
        (mine if owner == "ana" else hers).append(made.id)
    with ui_server(anywhere, worker=False, auth=by_header()) as person:
        ana = person_named(person, "ana")
        page = ana.get("/runs")
        seen = listed(page)
        assert not any(id in page.html for id in hers)
        assert not page.html.count('class="counter')  # they would count what is hidden
        while older := re.search(r'href="([^"]+)" rel="next"', page.html):
            page = ana.get(older[1].replace("&amp;", "&"))
            assert not any(id in page.html for id in hers)
            seen += listed(page)
        assert seen == mine[::-1]
        assert listed(ana.get(f"/runs?text={hers[0]}")) == []
        assert listed(ana.get("/runs?text=bo-0&thread=bo-0")) == []
        form = ana.get("/runs")
        preview = form.submit("/runs/bulk", id=[mine[0], hers[0]], action="cancel")
        assert "1 run will be cancelled" in preview.text
        assert hers[0] not in preview.html
        done = preview.submit("/runs/bulk/do", ids=f"{mine[0]} {hers[0]}")
        assert "it has been deleted" in done.text
        states = [anywhere.blocking.get(id).state for id in (mine[0], hers[0])]
        assert states == [State.CANCELLED, State.PENDING]


# -- many at once


def test_a_bulk_action_is_previewed_confirmed_and_reported_run_by_run(runtime: Runtime) -> None:
    waiting = [start(runtime).id for _ in range(3)]
    failed = start(runtime, "fails").id
    with ui_server(runtime, worker=False) as person:
        preview = person.get("/runs").submit("/runs/bulk", id=[*waiting, failed], action="cancel")
        assert "3 runs will be cancelled. 1 run stays unchanged." in preview.text
        assert "3 runs: cancelled at once" in preview.text
        assert "1 run: not cancelled: it has ended" in preview.text
        assert runtime.blocking.get(waiting[0]).state is State.WAITING  # nothing was done yet
        done = preview.submit("/runs/bulk/do", reason="wrong list")
        assert "Done: 3 runs." in done.text
        for id in waiting:
            found = runtime.blocking.get(id)
            assert (found.state, found.reason) == (State.CANCELLED, "wrong list")
            event = runtime.blocking.events(id)[-1]
            assert event.data["via"] == "browser"
            assert id in done.html
        assert runtime.blocking.get(failed).state is State.FAILED


def test_a_confirmation_that_is_sent_twice_does_nothing_twice(anywhere: Runtime) -> None:
    run = start(anywhere)
    with ui_server(anywhere, worker=False) as person:
        preview = person.get("/runs").submit("/runs/bulk", id=run.id, action="pause")
        assert "Done: 1 run." in preview.submit("/runs/bulk/do").text
        anywhere.blocking.resume(run.id)
        events = len(anywhere.blocking.events(run.id))
        again = preview.submit("/runs/bulk/do")
        assert "paused, now pending" in again.text
        assert len(anywhere.blocking.events(run.id)) == events


def test_runs_that_changed_since_the_preview_are_reported_as_they_are(anywhere: Runtime) -> None:
    first, second, third = (start(anywhere).id for _ in range(3))
    with ui_server(anywhere, worker=False) as person:
        preview = person.get("/runs").submit(
            "/runs/bulk", id=[first, second, third], action="pause"
        )
        anywhere.blocking.cancel(first)
        anywhere.blocking.cancel(second)
        anywhere.blocking.prune(older_than=timedelta(0), states=["cancelled"], limit=1)
        done = preview.submit("/runs/bulk/do")
        assert "Done: 1 run. Refused: 2 runs" in done.text
        assert "is cancelled and cannot be paused: it has ended." in done.text
        assert "it has been deleted" in done.text
        assert anywhere.blocking.get(third).state is State.PAUSED


def test_all_that_match_are_found_by_the_filters_up_to_a_bound(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST", 4)
    monkeypatch.setattr(bulk, "PIECE", 2)
    for _ in range(6):
        start(runtime, "fails", metadata={"team": "blue"})
    start(runtime, "fails")
    start(runtime, metadata={"team": "blue"})
    with ui_server(runtime, worker=False) as person:
        page = person.get("/runs?label=team%3Dblue")
        preview = page.submit("/runs/bulk", all="yes", action="retry")
        assert "4 runs will be retried." in preview.text
        assert "One action covers the newest 4" in preview.text
        piece = preview.submit("/runs/bulk/do")
        assert "2 of 4 runs" in piece.text
        assert len(runtime.blocking.runs(state="failed")) == 5
        rest = piece.submit("/runs/bulk/do")
        assert "Done: 4 runs." in rest.text
        assert len(runtime.blocking.runs(state="failed")) == 3


def test_all_that_match_a_text_are_searched_for_in_more_than_one_page(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_search, "MOST_READ", 4)
    monkeypatch.setattr(run_search, "CHUNK", 2)
    wanted = [start(runtime, drive=False, tags=["spring"] * (n % 5 == 0)).id for n in range(14)]
    with ui_server(runtime, worker=False) as person:
        page = person.get("/runs?text=spring")
        preview = page.submit("/runs/bulk", all="yes", action="cancel")
        assert "3 runs will be cancelled." in preview.text
        assert wanted[0] in preview.html
        monkeypatch.setattr(bulk, "SEARCHES", 1)
        assert "More runs may match" in page.submit("/runs/bulk", all="yes", action="cancel").text


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "delete"},
        {"action": "cancel", "batch": "x"},
        {"action": "cancel", "ids": ""},
        {"action": "cancel", "ids": " ".join(["x"] * 1001)},
        {"action": "cancel", "begin": "-1"},
    ],
)
def test_a_confirmation_that_is_not_ours_is_refused(
    runtime: Runtime, fields: dict[str, str]
) -> None:
    run = start(runtime)
    with ui_server(runtime, worker=False) as person:
        preview = person.get("/runs").submit("/runs/bulk", id=run.id, action="cancel")
        assert preview.submit("/runs/bulk/do", {}, **fields).status == 422
        assert runtime.blocking.get(run.id).state is State.WAITING


def test_nothing_selected_leads_back_to_the_list(runtime: Runtime) -> None:
    start(runtime)
    with ui_server(runtime, worker=False) as person:
        page = person.get("/runs?state=waiting").submit("/runs/bulk", action="cancel")
        assert page.path == "/ui/runs?state=waiting"
        assert "No run was selected." in page.text


# -- live


def test_rows_change_in_place_and_new_runs_are_announced(anywhere: Runtime) -> None:
    first, second = start(anywhere).id, start(anywhere).id
    with ui_server(anywhere, worker=False) as person:
        stream = Stream(person, person.get("/runs?graph=asks"))
        until(lambda: stream.is_open, "an open stream")
        anywhere.blocking.pause(first)
        until(lambda: f"run-{first}" in stream.events, "the row of the paused run")
        assert any("a person" in line for line in stream.lines)
        assert any("state-paused" in line for line in stream.lines)
        until(lambda: "counters" in stream.events, "the counters")
        start(anywhere, "sleeps")  # another graph: the page would not list it
        new = start(anywhere)
        until(lambda: any("Show 1 new run" in line for line in stream.lines), "a new run")
        assert f"run-{second}" not in stream.events  # it did not change
        assert f"run-{new.id}" not in stream.events


def test_a_change_soon_after_a_row_was_read_is_shown_too(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "INTERVAL", 0.0)
    run = start(runtime).id
    with ui_server(runtime, worker=False) as person:
        stream = Stream(person, person.get("/runs?graph=asks"))
        until(lambda: stream.is_open, "an open stream")
        for times in range(1, 4):
            runtime.blocking.pause(run)
            _wait_for_rows(stream, "paused", times)
            runtime.blocking.resume(run)
            _wait_for_rows(stream, "pending", times)


def _wait_for_rows(stream: Stream, state: str, number: int) -> None:
    """Wait until so many rows in a state were sent."""

    def are_sent() -> bool:
        return sum(f"badge state-{state}" in line for line in stream.lines) == number

    until(are_sent, f"row {number} that is {state}", 10)
