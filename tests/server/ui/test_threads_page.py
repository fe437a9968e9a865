"""The list of threads in the browser, by last activity."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import perdure
from perdure.commands import run_search
from perdure.runtime import Runtime
from perdure.server.ui import threads
from tests.server.ui.ui_owners import by_header, owned, person_named
from tests.support.ui import Page, ui_server
from tests.support.waiters import asking, chain


def opened(url: str) -> Runtime:
    made = perdure.Runtime(url)
    made.register(chain(asking("Go?")), "asks")
    return made


@pytest.fixture
def anywhere(url: str) -> Iterator[Runtime]:
    """The same on each database, for what depends on it."""
    with opened(url) as made:
        yield made


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
        assert person.get("/threads?text=b").path == "/ui/runs?thread=b"
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
    monkeypatch.setattr(run_search, "MOST_READ", 4)
    monkeypatch.setattr(run_search, "CHUNK", 2)
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
        assert "bo-1" not in listed(ana.get("/threads?text=bo-1"))


@pytest.mark.parametrize(
    "thread_id", ["a/b c", "ü?x#y", "100%", "%41", "a&b=c;d", "..", "a\n b", "x" * 200]
)
def test_a_thread_of_any_name_leads_to_its_runs(sqlite_url: str, thread_id: str) -> None:
    with opened(sqlite_url) as runtime, ui_server(runtime, worker=False) as person:
        run = runtime.blocking.start("asks", {"log": []}, thread_id=thread_id)
        runtime.blocking.start("asks", {"log": []}, thread_id="another")
        address = re.findall(r'data-href="([^"]+)"', person.get("/threads").html)[1]
        page = person.get(address.replace("&amp;", "&"))
        assert page.status == 200, page.path
        assert re.findall(r'data-href="/ui/runs/([^"]+)"', page.html) == [run.id]
