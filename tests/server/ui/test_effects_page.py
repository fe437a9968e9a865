"""Effects in the browser: the list by state and name, one of them, how it is settled."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.runtime import Runtime
from perdure.types import EventKind, State
from tests.support.agents import Log, chain
from tests.support.raw import execute
from tests.support.ui import Page, Person, ui_account


@perdure.effect(retry=None)
def send(to: str) -> Any:
    if to == "bounce":
        raise ValueError("<b>550</b> user unknown")
    return {"sent": to}


@perdure.effect(unknown="hold", retry=None, timeout=0.05)
async def charge(customer: str) -> Any:
    import asyncio

    if customer == "slow":
        await asyncio.sleep(60)
    return "charged"


def mail(state: Log) -> Any:
    return {"log": [str(send(to)) for to in state["log"]]}


async def pay(state: Log) -> Any:
    return {"log": [await charge(one) for one in state["log"]]}


GRAPHS = {"mail": chain(mail), "pay": chain(pay)}


def run(rt: Runtime, graph: str, *log: str) -> str:
    started = rt.blocking.start(graph, {"log": list(log)})
    rt.blocking.tick()
    return started.id


def one(rt: Runtime, person: Person) -> Page:
    [unknown] = rt.blocking.effects(state="unknown")
    return person.get(f"/effects/one?key={unknown.key}")


def next_page(page: Page) -> Page:
    address = page.html.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
    return page.person.get(address.replace("&amp;", "&"))


def test_without_effects_the_page_says_how_to_record_one(person: Person) -> None:
    assert "No effects yet." in person.get("/effects").text
    assert "No effect has an unknown outcome." in person.get("/effects?state=unknown").text


def test_the_newest_come_first_with_their_arguments_and_errors(rt: Runtime, person: Person) -> None:
    run(rt, "mail", "ada")
    run(rt, "mail", "bounce")
    page = person.get("/effects")
    assert page.text.index("to='bounce'") < page.text.index("to='ada'")
    assert "ValueError: <b>550</b> user unknown" in page.text
    failed = person.get("/effects?state=failed").text
    assert ("bounce" in failed, "ada" in failed) == (True, False)
    named = person.get("/effects").submit("/effects", name="charge")
    assert "No effect matches." in named.text


def test_a_long_list_has_pages_by_run(rt: Runtime, person: Person) -> None:
    for n in range(3):
        run(rt, "mail", *(f"a{n}-{m:02}" for m in range(25)))
    page = person.get("/effects")
    second = next_page(page)
    assert page.text.count("to='a") == 50
    assert second.text.count("to='a0") == 25
    assert "First page" in second.text


def test_a_filter_without_an_index_looks_only_so_far_and_says_so(
    rt: Runtime, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.server.ui import effects, lists

    run(rt, "mail", "bounce")
    run(rt, "mail", *(f"a{n}" for n in range(8)))
    monkeypatch.setattr(effects, "LOOKED_AT", 5)
    monkeypatch.setattr(lists.look, "__kwdefaults__", {"most": 50, "looked_at": 5})
    page = person.get("/effects?state=failed")
    assert "Older ones may match." in page.text
    assert "to='bounce'" in next_page(page).text


def test_an_effect_has_its_arguments_its_result_and_its_run(rt: Runtime, person: Person) -> None:
    run_id = run(rt, "mail", "ada")
    [effect] = rt.blocking.effects(run_id)
    page = person.get(f"/effects/one?key={effect.key}")
    for text in ("ada", "sent", run_id, effect.key, "Result"):
        assert text in page.text
    assert run_id in person.get(f"/effects?run={run_id}").html


def test_a_settled_effect_lets_its_run_go_on_and_says_who_decided(
    rt: Runtime, person: Person
) -> None:
    run_id = run(rt, "pay", "slow")
    page = one(rt, person)
    assert "Did it happen?" in page.text
    done = page.submit("/effects/settle", how="done", result='"by hand"', reason="saw it")
    assert "Settled as done." in done.text
    rt.blocking.tick()
    assert rt.blocking.get(run_id).state is State.DONE
    assert rt.blocking.get(run_id).output["log"] == ["slow", "by hand"]
    [event] = [one for one in rt.blocking.events(run_id) if one.kind == EventKind.SETTLED]
    assert event.data["reason"] == "saw it"
    assert event.data["by"]


def test_a_decision_that_came_second_changes_nothing(rt: Runtime, person: Person) -> None:
    run(rt, "pay", "slow")
    page = one(rt, person)
    page.submit("/effects/settle", how="done", result="1")
    rt.blocking.tick()
    second = page.submit("/effects/settle", how="fail", reason="no")
    assert second.status == 409
    assert "that is settled" in second.text


@pytest.mark.parametrize(
    ("how", "result", "said"),
    [
        ("", "", "Choose what happened"),
        ("done", "{", "not valid JSON"),
        ("later", "", "Choose what happened"),
    ],
)
def test_an_incomplete_decision_is_refused(
    rt: Runtime, person: Person, how: str, result: str, said: str
) -> None:
    run(rt, "pay", "slow")
    refused = one(rt, person).submit("/effects/settle", how=how, result=result)
    assert (refused.status, said in refused.text) == (422, True)
    assert len(rt.blocking.effects(state="unknown")) == 1


@pytest.mark.parametrize(
    "address",
    ["/effects?state=odd", "/effects?behind=1", "/effects?behind=[1,2,3]", '/effects?behind=["a"]'],
)
def test_an_address_that_is_not_valid_is_refused(person: Person, address: str) -> None:
    assert person.get(address).status == 422


def test_an_effect_that_cannot_be_read_is_listed_as_damaged(rt: Runtime, person: Person) -> None:
    run(rt, "mail", "ada")
    url = str(rt.url)
    execute(url, "UPDATE perdure_effects SET arguments = X'00'")
    assert "damaged" in person.get("/effects").text


def test_an_approver_may_look_but_not_settle(rt: Runtime) -> None:
    run(rt, "pay", "slow")
    with ui_account(rt, "answer", worker=False) as ana:
        page = one(rt, ana)
        assert "Only operators can settle it" in page.text
        assert [form.action for form in page.forms] == ["/ui/sign-out"]
