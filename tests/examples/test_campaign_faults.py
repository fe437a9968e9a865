"""The campaign when things fail: the mail server, the process, the database, the other process.

The post office's own log decides what was sent: never twice, and never after a reply.
"""

from __future__ import annotations

import signal
import smtplib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from examples.campaign.cadence import Cadence
from examples.campaign.demo.postoffice import Fault, Mail, Moment, PostOffice, scripted
from perdure.testing.postgres import Server
from perdure.types import State
from tests.examples import campaigns
from tests.examples.campaigns import (
    BO,
    DAY,
    HELD,
    HOST,
    MONDAY,
    PLAN,
    Workers,
    World,
    bounce,
    listening,
    reply,
    world,
)
from tests.support.polling import until
from tests.support.sweep import examples, sample

office, workers = campaigns.office, campaigns.workers

TWO = Cadence((0, 4))
UNKNOWN = [Fault.DROP_BEFORE, Fault.DROP_AFTER, Fault.LATE]


def first(fault: Fault, times: int = 1, **options: Any) -> PostOffice:
    """A post office that fails in this way at first."""
    return PostOffice(scripted({(BO, n + 1): fault for n in range(times)}), **options)


def settle(office: World, how: Any, reason: str | None = None) -> None:
    [effect] = office.app.runtime.blocking.effects(state="unknown")
    office.app.runtime.blocking.settle(effect.key, how, by="Eva", reason=reason)
    office.drive()


# -- the mail server


@pytest.mark.parametrize("fault", list(Fault), ids=str)
def test_a_touch_goes_out_once_whatever_the_server_does_at_first(
    sqlite_url: str, fault: Fault
) -> None:
    late = first(fault, late=30.0)
    timeout = 1.0 if fault is Fault.LATE else 20.0
    with world(sqlite_url, late, smtp_timeout=timeout) as office:
        office.campaign(cadence=TWO)
        office.drive()
        match fault:
            case Fault.REJECT_DATA:
                assert (office.member(), office.sent()) == ("active", [])
                assert "554" in office.questions()[0].value["problem"]
            case _:
                office.advance(timedelta(minutes=5))
                assert office.touch_states() == ["sent"]
                assert len(office.sent()) == 1
                office.sleep_through()
                assert len(office.sent()) == 2


@pytest.mark.parametrize("fault", UNKNOWN, ids=str)
def test_without_a_look_up_an_unknown_outcome_is_held_for_a_person(url: str, fault: Fault) -> None:
    with world(url, first(fault, late=30.0), smtp_timeout=1.0, lookup_url="") as office:
        office.campaign(cadence=TWO)
        office.drive()
        taken = len(office.sent())
        assert taken == int(fault is not Fault.DROP_BEFORE)
        assert office.run().state is State.HELD
        office.advance(60 * DAY)
        assert len(office.sent()) == taken
        if taken:
            settle(office, "done")
        else:
            settle(office, "retry")
        assert office.touch_states() == ["sent"]
        assert len(office.sent()) == 1
        assert office.due() == office.clock.time + 4 * DAY
        office.sleep_through()
        assert len(office.sent()) == 2
        assert office.run().output["ended"] == "finished"


def test_a_touch_that_a_person_gives_up_is_left_out(url: str) -> None:
    with world(url, first(Fault.DROP_BEFORE), lookup_url="") as office:
        office.campaign(cadence=TWO)
        office.drive()
        settle(office, "fail", "the address was wrong for a while")
        assert office.touch_states() == ["skipped"]
        office.sleep_through()
        assert office.touch_states() == ["skipped", "sent"]
        assert [mail.subject for mail in office.sent()] == ["Better tables (2)"]


@pytest.mark.parametrize(("how", "sent"), [("done", "sent"), ("retry", "stopped")])
def test_a_reply_to_a_touch_that_is_held_is_honoured(url: str, how: str, sent: str) -> None:
    with world(url, first(Fault.DROP_BEFORE), lookup_url="") as office:
        office.campaign()
        office.drive()
        office.receive(reply())
        settle(office, how)
        assert office.touch_states() == [sent]
        assert office.run().output["ended"] == "replied"
        assert office.sent() == []


def test_a_person_is_asked_for_another_text_if_the_server_refuses_it(url: str) -> None:
    with world(url, first(Fault.REJECT_DATA)) as office:
        office.campaign(cadence=TWO)
        office.drive()
        [question] = office.questions()
        assert (question.value["kind"], question.value["touch"]) == ("approval", 1)
        assert "554 5.7.1 Not wanted here" in question.value["problem"]
        office.answer("edit", body="Another text.")
        assert office.touch_states() == ["sent"]
        assert "Another text." in office.sent()[0].content
        assert office.member() == "active"


# -- mail that comes in


def test_the_same_mail_handed_over_by_many_at_once_is_one(office: World) -> None:
    office.campaign()
    office.drive()
    content = reply().as_bytes()
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(office.inbound.receive, [content] * 8))
    assert len({row["id"] for row in rows if row}) == 1
    assert len(office.rows("SELECT * FROM messages")) == 1
    office.drive()
    assert office.scores() == {"touch 1": 1.0}


def test_replies_bounces_and_drivers_at_once_do_not_block_each_other(office: World) -> None:
    crowd = [f"p{n}@example.org" for n in range(12)]
    office.campaign(PLAN, *crowd)
    office.campaign(PLAN, *crowd, name="autumn")
    office.drive()
    mails = [
        reply(office.message_id(1, address=one), sender=one).as_bytes()
        if n % 2
        else bounce(office.message_id(1, address=one), one)
        for n, one in enumerate(crowd)
    ]
    office.clock.advance(4 * DAY)
    with ThreadPoolExecutor(8) as pool:
        received = [pool.submit(office.inbound.receive, mail) for mail in mails]
        driven = pool.submit(office.drive)
        removed = [pool.submit(office.app.remove, one) for one in crowd[:6]]
        driven.result()
        assert all(one.result() for one in received)
        for removal in removed:
            removal.result()
    office.inbound.sweep()
    office.drive()
    for one in crowd:
        for campaign_id in (1, 2):
            assert office.run(campaign_id, one).state is State.DONE
            assert office.member(campaign_id, one) != "active"


def test_the_sweep_signals_a_mail_whose_receiver_died(url: str, workers: Workers) -> None:
    with world(url) as office:
        office.campaign(HELD)
        office.drive()
        workers.receive_and_die(office, reply())
        assert office.rows("SELECT kind, signalled FROM messages") == [
            {"kind": "reply", "signalled": 0}
        ]
        office.drive()
        assert len(office.questions()) == 1
        office.answer("approve")  # nobody told the thread, but it asks
        assert office.sent() == []
        assert office.inbound.sweep() == 1
        assert office.inbound.sweep() == 0
        office.drive()
        assert office.run().output["ended"] == "replied"


def test_a_mail_whose_receiver_died_is_signalled_when_it_is_handed_over_again(
    url: str, workers: Workers
) -> None:
    with world(url) as office:
        office.campaign()
        office.drive()
        mail = reply()
        workers.receive_and_die(office, mail)
        office.receive(mail)
        assert office.run().output["ended"] == "replied"
        assert office.rows("SELECT signalled FROM messages") == [{"signalled": 1}]


def test_a_reply_arrives_over_the_wire(office: World) -> None:
    office.campaign()
    office.drive()
    with listening(office) as port, smtplib.SMTP(HOST, port, "localhost") as client:
        assert client.send_message(reply(), BO, ["ana@example.com"]) == {}
        assert client.send_message(reply(), BO, ["ana@example.com"]) == {}
    office.drive()
    assert office.run().output["ended"] == "replied"
    assert len(office.rows("SELECT * FROM messages")) == 2


def test_mail_is_deferred_while_the_database_is_down(
    postgres_url: str, postgres_server: Server
) -> None:
    with world(postgres_url) as office:
        office.campaign()
        office.drive()
        with listening(office) as port, smtplib.SMTP(HOST, port, "localhost") as client:
            postgres_server.stop()
            with pytest.raises(smtplib.SMTPDataError) as refused:
                client.send_message(reply(), BO, ["ana@example.com"])
            assert refused.value.smtp_code == 451
            postgres_server.start()
            client.send_message(reply(), BO, ["ana@example.com"])
        office.drive()
        assert office.run().output["ended"] == "replied"


# -- killed


def is_free(url: str) -> bool:
    """Whether nobody keeps the database, or a run in it, from others."""
    if url.startswith("d1"):  # no transaction stays open
        return True
    try:
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path, timeout=0.2, isolation_level=None)) as database:
                database.execute("BEGIN IMMEDIATE")
        else:
            with psycopg.connect(url) as server:
                server.execute("SELECT 1 FROM perdure_runs FOR UPDATE NOWAIT")
    except (sqlite3.OperationalError, psycopg.errors.LockNotAvailable):
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("moment", list(Moment), ids=str)
def test_a_worker_killed_in_a_conversation_sends_once(
    url: str, workers: Workers, moment: Moment
) -> None:
    def on(reached: Moment, mail: Mail) -> None:
        if reached is moment and mail.attempt in (1, 3):
            workers.kill()

    with world(url, PostOffice(on=on), lookup_after=0.5) as office:
        office.campaign(cadence=TWO)
        killed = 0
        while not office.run().ended:
            killed += workers.drive(office) is None
            if (due := office.due()) is not None:
                office.clock.move_to(max(due, office.clock.time))
        assert killed >= 1
        assert office.touch_states() == ["sent", "sent"]
        assert [mail.subject for mail in office.sent()] == [
            "Better tables (1)",
            "Better tables (2)",
        ]


@pytest.mark.slow
@pytest.mark.parametrize("moment", [Moment.BEGAN, Moment.DATA, Moment.ACCEPTED], ids=str)
def test_a_worker_suspended_in_a_conversation_does_not_send_after_its_successor(
    url: str, workers: Workers, moment: Moment
) -> None:
    stood_still = threading.Event()

    def on(reached: Moment, mail: Mail) -> None:
        if reached is moment and mail.attempt == 1:
            workers.stop()
            while not is_free(url):  # it stands still in the middle of a transaction
                workers.kill(signal.SIGCONT)
                until(lambda: is_free(url), "the end of that transaction")
                workers.stop()
            stood_still.set()

    with world(url, PostOffice(on=on), lookup_after=0.5) as here, ThreadPoolExecutor(1) as other:
        here.campaign(cadence=TWO)
        frozen = other.submit(workers.drive, here)
        try:
            assert stood_still.wait(30)
            here.clock.advance(timedelta(minutes=1))
            here.drive()
            assert here.touch_states() == ["sent"]
        finally:
            workers.kill(signal.SIGCONT)
        frozen.result()
        here.sleep_through()
        assert here.touch_states() == ["sent", "sent"]
        assert len(here.sent()) == 2


@pytest.mark.parametrize("moment", [Moment.DATA, Moment.ACCEPTED], ids=str)
def test_without_a_look_up_a_killed_conversation_is_held(
    sqlite_url: str, workers: Workers, moment: Moment
) -> None:
    def on(reached: Moment, mail: Mail) -> None:
        if reached is moment:
            workers.kill()

    with world(sqlite_url, PostOffice(on=on), lookup_url="") as office:
        office.campaign(cadence=TWO)
        assert workers.drive(office) is None
        assert workers.drive(office)
        assert office.run().state is State.HELD
        assert len(office.office.conversations) == 1


@pytest.mark.slow
def test_a_reply_ends_the_thread_wherever_its_worker_died_and_no_person_is_asked(
    sqlite_url: str, workers: Workers
) -> None:
    with world(sqlite_url, lookup_after=0.5) as office:

        def begin(address: str) -> int:
            return office.campaign(HELD, address, name=address, cadence=TWO)

        begin("p0@example.org")
        points = workers.drive(office)
        assert points
        outcomes = []
        for n in sample(range(1, points + 1), 5):
            address = f"p{n}@example.org"
            campaign_id = begin(address)
            outcomes.append(workers.drive(office, die_at=n))
            office.receive(reply(sender=address))
            found = office.run(campaign_id, address)
            assert (found.state, found.output["ended"]) == (State.DONE, "replied")
        assert outcomes.count(None) > len(outcomes) // 2, "hardly one of them died"


@pytest.mark.slow
def test_workers_killed_everywhere_send_each_touch_once(url: str, workers: Workers) -> None:
    """Each contact's thread is killed at another point, and its recovery at another one again."""
    contacts = examples(10, 3)
    with world(url, lookup_after=0.5) as office:
        points, kills = 200, 0
        for n in range(contacts + 1):
            address = f"p{n}@example.org"
            campaign_id = office.campaign(PLAN, address, name=f"c{n}", cadence=TWO)
            left = [] if n == 0 else [n * points // (contacts + 1), 11 + 13 * n % 80]
            passed = 0
            while not office.run(campaign_id, address).ended:
                came_to = workers.drive(office, die_at=left[0] if left else 0)
                if came_to is None:
                    kills += 1
                    left.pop(0)
                    continue
                passed += came_to
                left[:1] = [max(1, left[0] - came_to)] if left else []
                if (due := office.due()) is not None:
                    office.clock.move_to(max(due, office.clock.time))
            points = passed if n == 0 else points
            assert office.touch_states(campaign_id, address) == ["sent", "sent"]
            assert len(office.sent(address)) == 2
            assert office.member(campaign_id, address) == "finished"
            assert office.scores(campaign_id, address) == {"touch 1": 0.0, "touch 2": 0.0}
            office.clock.advance((MONDAY - office.clock.time) % (7 * DAY))
        assert kills >= 1.5 * contacts
