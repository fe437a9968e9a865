"""Two who change the campaign's tables at once: one of them is first, and the other one sees it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from examples.campaign import people
from examples.campaign.cadence import Cadence
from examples.campaign.contacts import Refused, bring, read
from examples.campaign.database import Database, Statement
from examples.campaign.records import close, suppress
from tests.support import campaigns
from tests.support.campaigns import BO, DAY, PLAN, World, reply, world
from tests.support.polling import until
from tests.support.raw import execute, held_open

office = campaigns.office

THREE = Cadence((0, 4, 7))
SHEETS = [
    "email\n" + "".join(f"p{n}@example.com\n" for n in range(start, start + 40))
    for start in (0, 10, 20, 30)
]


def test_one_of_several_concurrent_replies_is_credited(office: World) -> None:
    office.campaign(cadence=THREE)
    office.drive()
    office.advance(4 * DAY)
    mails = [reply(office.message_id(step)).as_bytes() for step in (1, 2) * 3]
    with ThreadPoolExecutor(6) as pool:
        received = list(pool.map(office.inbound.receive, mails))
    office.drive()
    [earned] = [row for row in received if row["run_id"]]
    outcomes = {touch["step"]: touch["outcome"] for touch in office.touches()}
    assert outcomes == {1: 0.0, 2: 0.0} | {earned["step"]: 1.0}
    assert office.scores() == {f"touch {step}": value for step, value in outcomes.items()}


def test_a_reply_that_arrives_as_its_thread_ends_is_late(postgres_url: str) -> None:
    """The one that closes has told that the touch earned nothing, so the receiver has to tell."""
    closing = [
        text.replace(":campaign_id", "1")
        .replace(":contact_id", "1")
        .replace(":status", "'finished'")
        for text, _ in close(1, 1, "finished")
    ]
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with world(postgres_url) as office:
        office.campaign(cadence=THREE)
        office.drive()
        mail = reply(office.message_id(1)).as_bytes()
        with ThreadPoolExecutor(1) as pool, held_open(postgres_url, *closing):
            received = pool.submit(office.inbound.receive, mail)
            until(lambda: execute(postgres_url, waiting) != [(0,)], "a receiver that waits")
        assert (received.result()["run_id"], received.result()["late"]) == (office.run().id, 1)
        assert office.member() == "replied"
        office.drive()
        assert office.scores() == {"touch 1": 1.0}


def test_concurrent_imports_run_one_after_the_other(office: World) -> None:
    ids = [office.app.create(replace(PLAN, name=name)) for name in ("a", "b")]
    with ThreadPoolExecutor(4) as pool:
        reports = list(
            pool.map(lambda n: bring(office.app.database, ids[n % 2], read(SHEETS[n])), range(4))
        )
    assert [report.added + report.known for report in reports] == [40] * 4
    assert sum(report.added for report in reports) == 120
    found = office.rows("SELECT id, address FROM contacts ORDER BY id")
    assert [row["id"] for row in found] == list(range(1, 71))
    assert {row["address"] for row in found} == {f"p{n}@example.com" for n in range(70)}


def test_campaigns_created_at_once_have_different_ids(office: World) -> None:
    def create(n: int) -> int | None:
        try:
            return office.app.create(replace(PLAN, name=f"campaign {n % 4}"))
        except ValueError:  # the name is taken
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [id for id in pool.map(create, range(8)) if id is not None]
    assert sorted(made) == [1, 2, 3, 4]


def before_the_next_write(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen after somebody has looked, and before he writes."""
    write = Database.write

    def late(database: Database, *statements: Statement) -> Any:
        patch.setattr(Database, "write", write)
        act()
        return database.write(*statements)

    patch.setattr(Database, "write", late)


def test_a_person_erased_during_an_import_does_not_come_back(
    office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.campaign(PLAN, "cy@example.org", BO)
    second = office.app.create(replace(PLAN, name="second"))
    before_the_next_write(monkeypatch, lambda: people.erase(office.app, BO))
    with pytest.raises(Refused, match="was erased"):
        office.enrol(second, BO)
    assert office.rows("SELECT * FROM members WHERE campaign_id = :id", id=second) == []
    before_the_next_write(
        monkeypatch,
        lambda: office.app.database.write(suppress("di@example.org", "unsubscribed", 0)),
    )
    with pytest.raises(ValueError, match=r"di\+x@example\.org has unsubscribed"):
        people.update(office.app, "cy@example.org", new_address="di+x@example.org")


def test_a_mail_that_arrives_while_its_author_is_erased_is_a_stray(
    office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.campaign()
    office.drive()
    mail = reply(office.message_id(1))
    before_the_next_write(monkeypatch, lambda: people.erase(office.app, BO))
    stored = office.receive(mail)
    assert (stored["kind"], stored["contact_id"], stored["told"]) == ("stray", None, 0)
    assert office.rows("SELECT told FROM messages") == [{"told": 1}]


def test_a_person_who_unsubscribes_during_the_import_is_sent_nothing(office: World) -> None:
    """Of two transactions of PostgreSQL neither may see the other."""
    office.campaign()
    office.app.database.write(suppress(BO, "unsubscribed", 0))
    office.drive()
    assert office.office.log == []
    assert (office.touch_states(), office.member()) == (["stopped"], "unsubscribed")
