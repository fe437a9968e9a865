"""The outbox in the browser: what is not delivered, what was given up, deliver it now."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.commands.messages import NEVER
from perdure.runtime import Runtime
from tests.support.agents import Log, chain
from tests.support.raw import execute
from tests.support.ui import Person, ui_account


def tell(state: Log) -> Any:
    for text in state["log"]:
        perdure.outbox("crm", {"note": text})
    return {}


GRAPHS = {"tell": chain(tell)}


def send(rt: Runtime, *notes: str) -> None:
    rt.blocking.start("tell", {"log": list(notes)})
    rt.blocking.tick()


def give_up(rt: Runtime) -> None:
    sql = "UPDATE perdure_outbox SET due_at = {}, attempts = 9, error = 'HTTP <500>'"
    execute(rt.url, sql.format(NEVER))


def test_an_empty_outbox_says_so(person: Person) -> None:
    assert "Every message has been delivered." in person.get("/outbox").text
    assert "No message has been given up." in person.get("/outbox?show=given-up").text


def test_a_message_is_listed_with_its_payload_and_its_run(rt: Runtime, person: Person) -> None:
    send(rt, "hello")
    page = person.get("/outbox")
    assert "waiting 1" in page.text
    assert "hello" in page.text
    assert rt.blocking.runs()[0].id in page.html


def test_a_message_that_was_given_up_is_delivered_again(rt: Runtime, person: Person) -> None:
    send(rt, "hello")
    give_up(rt)
    page = person.get("/outbox?show=given-up")
    assert "given up 1" in page.text
    assert "HTTP <500>" in page.text
    done = page.submit("/outbox/redeliver")
    assert "delivers it now" in done.text
    got: list[str] = []
    rt.deliver("crm", lambda message: got.append(message.payload["note"]))
    rt.blocking.tick()
    assert got == ["hello"]
    assert page.submit("/outbox/redeliver").status == 404  # it is delivered


@pytest.mark.parametrize("show", ["waiting", "given-up"])
def test_a_long_outbox_has_pages(rt: Runtime, person: Person, show: str) -> None:
    send(rt, *(f"note-{n:02}" for n in range(70)))
    if show == "given-up":
        give_up(rt)
    page = person.get(f"/outbox?show={show}")
    assert page.text.count("note-") == 50
    address = page.html.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
    second = person.get(address.replace("&amp;", "&"))
    assert second.text.count("note-") == 20
    assert "Next page" not in second.text


def test_only_operators_see_it(rt: Runtime) -> None:
    with ui_account(rt, "answer", worker=False) as ana:
        page = ana.get("/outbox")
        assert (page.status, "Only operators" in page.text) == (403, True)
        assert "/ui/outbox" not in ana.get("/schedules").html
