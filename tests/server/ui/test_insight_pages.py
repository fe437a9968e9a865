"""Scores and prompts in the browser, with their plots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph_sdk import Auth

import perdure
from perdure.runtime import Runtime
from tests.support.agent_server import served
from tests.support.agents import Log, chain
from tests.support.html_judge import faults
from tests.support.ui import Person, ui_account, ui_server
from tests.support.xss import PAYLOADS, as_name


def write(state: Log) -> Any:
    for text in state["log"]:
        perdure.prompt("writer", text)
    return {}


@pytest.fixture
def rt(sqlite_url: str) -> Iterator[Runtime]:
    found = perdure.Runtime(sqlite_url)
    found.register(chain(write), name="letter")
    with found:
        yield found


@pytest.fixture
def person(rt: Runtime) -> Iterator[Person]:
    with ui_server(rt, worker=False) as found:
        yield found


def run(rt: Runtime, *log: str) -> str:
    started = rt.blocking.start("letter", {"log": list(log)})
    rt.blocking.tick()
    return started.id


# -- scores


def test_without_scores_the_page_says_how_to_give_one(person: Person) -> None:
    assert "No scores yet." in person.get("/scores").text


def test_scores_have_plots_by_name_and_a_list(rt: Runtime, person: Person) -> None:
    for value in (0, 1, 1):
        id = run(rt)
        rt.blocking.score(id, "replied", value, by="crm")
        rt.blocking.score(id, "tone", "warm")
    page = person.get("/scores")
    assert "67 % (21–94 %, n = 3)" in page.text
    assert "warm 3" in page.text
    assert page.html.count("<svg") == 2
    only = person.get("/scores?name=tone")
    assert ("warm 3" in only.text, "67 %" in only.text) == (True, False)
    assert "No score matches." in person.get("/scores?name=none").text


def test_hostile_scores_are_text(rt: Runtime, person: Person) -> None:
    id = run(rt)
    for n, payload in enumerate(PAYLOADS[::5]):
        name = as_name(payload)
        rt.blocking.score(id, name, f"{n}{name}", about=name, comment=payload, by=name)
    page = person.get("/scores")
    assert page.status == 200
    assert faults(page.html) == []


# -- prompts


def test_without_prompts_the_page_says_how_to_name_one(person: Person) -> None:
    assert "No prompts yet." in person.get("/prompts").text


def test_versions_of_a_prompt_are_compared_with_their_outcomes(rt: Runtime, person: Person) -> None:
    rt.blocking.score(run(rt, "Be brief."), "replied", 1)
    rt.blocking.score(run(rt, "Be warm and brief."), "replied", 0)
    assert "writer" in person.get("/prompts").text
    page = person.get("/prompts/one?name=writer")
    assert "2 versions." in page.text
    assert "may be chance" in page.text
    assert "<ins>" in page.html
    first, second = (one.version for one in rt.blocking.prompts("writer"))
    turned = page.submit("/prompts/one", before=second, after=first)
    assert f"{first} against {second}" in turned.text
    assert person.get(f"/prompts/one?name=writer&before={first}&after=none").status == 404
    assert person.get("/prompts/one?name=none").status == 404


def test_hostile_prompts_are_text(rt: Runtime, person: Person) -> None:
    run(rt, *PAYLOADS[::9])
    assert faults(person.get("/prompts").html) == []
    assert faults(person.get("/prompts/one?name=writer").html) == []


# -- who may look


def test_an_approver_may_look_at_all_of_them(rt: Runtime) -> None:
    with ui_account(rt, "answer", worker=False) as ana:
        for path in ("/scores", "/prompts"):
            assert ana.get(path).status == 200


def owners(*permissions: str) -> Auth:
    """Everyone may read, and sees only the threads of their own."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": "ada", "permissions": ["perdure:read", *permissions]}

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        return {"owner": ctx.user.identity}

    return auth


EVERYTHING = ("/prompts", "/health", "/schedules", "/code-changes")


def test_where_threads_are_hidden_what_sums_up_all_of_them_is_for_operators(rt: Runtime) -> None:
    effect = run(rt)
    rt.blocking.score(effect, "replied", 1)
    with served(rt, ui=True, worker=False, auth=owners()) as server:
        ada = Person(server.http(follow_redirects=True), server)
        assert {path: ada.get(path).status for path in EVERYTHING} == dict.fromkeys(EVERYTHING, 403)
        assert "No scores yet." in ada.get("/scores").text  # it is on a thread of others
        assert ada.get("/effects").status == 200
    with served(rt, ui=True, worker=False, auth=owners("perdure:admin")) as server:
        ada = Person(server.http(follow_redirects=True), server)
        assert {path: ada.get(path).status for path in EVERYTHING} == dict.fromkeys(EVERYTHING, 200)
