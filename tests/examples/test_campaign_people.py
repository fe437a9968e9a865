"""People are changed, written to again after a mistake, and erased."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.campaign import agent, control, erasure, identity, people, records, strays
from examples.campaign.app import App
from examples.campaign.contacts import Refused
from examples.campaign.errors import Unknown
from examples.campaign.faults import Reply
from examples.campaign.postoffice import Fault, Mail, Moment, PostOffice, scripted
from perdure import errors
from perdure.journal import failpoints
from tests.support.campaign_commands import Command
from tests.support.campaign_commands import command as command
from tests.support.campaign_ends import CY, TWO
from tests.support.campaigns import BO, HELD, MONDAY, PLAN, World, bounce, reply, sql, world
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office
from tests.support.fork_server import ForkServer
from tests.support.raw import Database
from tests.support.sweep import sample

BO_NEWS = "bo+news@example.org"


def contents(url: str) -> dict[str, list[bytes]]:
    """Every row of every table, by table."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if url.startswith("postgres"):
        names = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    with closing(Database(url)) as database:
        tables = [name for (name,) in database.execute(names) if not name.startswith("_cf")]
        return {
            name: [_bytes(row) for row in database.execute(f'SELECT * FROM "{name}"')]
            for name in tables
        }


def _bytes(row: tuple[Any, ...]) -> bytes:
    values = [bytes(one) if isinstance(one, list) else one for one in row]  # a blob, as JSON has it
    return b"|".join(one if isinstance(one, bytes) else str(one).encode() for one in values)


def mentions(url: str, *words: str) -> set[str]:
    return {
        table
        for table, rows in contents(url).items()
        if any(word.encode().lower() in row.lower() for row in rows for word in words)
    }


def lives(office: World) -> None:
    """Bo, whose name is Bo and Bo+News, has mails, an open draft, a reply and a stray; Cy is there
    beside him, and mentions him."""
    office.campaign(PLAN, BO, CY, cadence=TWO)
    office.campaign(HELD, BO, BO_NEWS, CY, name="summer", sequence="summer")
    office.drive()
    office.receive(reply(office.message_id(1), "Dear Ana, I am bo@example.org."))
    office.receive(reply(None, "Who is this?", sender="bo+old@example.org", subject="Hm"))
    office.receive(reply(office.message_id(1, address=CY), "Ask Bo@example.org.", sender=CY))


def of_cy(office: World) -> dict[str, set[bytes]]:
    """What the tables and the journal have of Cy."""
    contact = office.contact(CY)
    threads = [f"campaign-{n}-{contact}".encode() for n in (1, 2)]
    return {
        table: {row for row in rows if CY.encode() in row or any(one in row for one in threads)}
        for table, rows in contents(office.app.settings.url).items()
        if table != "messages"
    }


def clean(office: World) -> None:
    """Nothing names Bo: no table, and on SQLite no file."""
    url = office.app.settings.url
    # Longer than a few bytes: random ones, as in recorded reads, must not spell them by chance.
    words = ("bo@example", "bo+news", "bo+old", '"Bo"', "Hello Bo", "Dear Bo")
    assert mentions(url, *words) == set()
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        for file in path.parent.glob(f"{path.name}*"):
            content = file.read_bytes().lower()
            assert b"bo@example.org" not in content, file
            assert b"bo+news" not in content, file


def test_an_erased_person_is_in_no_table_and_in_no_file(office: World) -> None:
    lives(office)
    url, cy = office.app.settings.url, of_cy(office)
    assert {"perdure_effects", "perdure_events", "perdure_waits", "messages"} <= mentions(url, BO)
    sent = [mail.message_id for mail in office.office.log if mail.recipient != CY]
    erased = people.erase(office.app, BO.upper())
    clean(office)
    assert of_cy(office) == cy
    assert sorted(erased.message_ids) == sorted(sent)
    assert erased.rows.items() >= {"contacts": 2, "members": 3, "runs": 3, "messages": 2}.items()
    assert erased.rows["mentions"] == 1
    [left] = office.rows("SELECT text FROM messages")
    assert "Ask [erased]." in left["text"]
    assert erased.scrubbed == url.startswith("sqlite")
    assert people.erase(office.app, BO).rows == {}
    for address in (BO, BO_NEWS):
        with pytest.raises(Refused, match="was erased"):
            office.enrol(1, address)
    office.sleep_through()
    assert [mail.recipient for mail in office.office.log if mail.recipient != CY] == [BO] * len(
        sent
    )
    stray = office.receive(reply(None, "Hello again"))
    assert (stray["kind"], stray["contact_id"]) == ("stray", None)
    people.erase(office.app, BO)
    clean(office)


def test_an_address_that_was_replaced_stands_for_the_same_person(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(PLAN, BO, cadence=TWO)
    office.drive()
    [row] = office.rows("SELECT token FROM contacts")
    people.update(office.app, BO, new_address="robert@example.org")
    office.inbound.one_click(row["token"])
    office.app.create(replace(PLAN, name="later"))
    for address, why in ((BO, "has unsubscribed"), ("robert@example.org", "unsubscribed")):
        with pytest.raises(Refused, match=why):
            office.enrol(2, address)
    assert people.erase(office.app, BO).rows["contacts"] == 1
    clean(office)
    assert mentions(office.app.settings.url, "robert@") == set()
    for address in (BO, "robert@example.org"):
        with pytest.raises(Refused, match="was erased"):
            office.enrol(2, address)


def test_everybody_whom_a_replaced_address_connects_is_erased_with_their_threads(
    office: World,
) -> None:
    """bo@ became robert@, was imported again, and became bob@: one person, two contacts."""
    office.campaign(PLAN, BO, CY, cadence=TWO)
    office.drive()
    sent = office.message_id(1)
    people.update(office.app, BO, new_address="robert@example.org")
    office.campaign(HELD, BO, name="summer", sequence="summer")
    people.update(office.app, BO, new_address="bob@example.org")
    office.drive()
    [question] = office.questions()
    assert question.value["to"] == "bob@example.org"
    cy, url = of_cy(office), office.app.settings.url
    erased = people.erase(office.app, "robert@example.org")
    assert office.questions() == []
    assert (erased.rows["contacts"], erased.rows["runs"]) == (2, 2)
    assert erased.message_ids == [sent]
    clean(office)
    assert mentions(url, "robert@", "bob@") == set()
    assert of_cy(office) == cy
    for address in (BO, "robert@example.org", "bob@example.org"):
        with pytest.raises(Refused, match="was erased"):
            office.enrol(1, address)


def test_an_address_that_is_replaced_while_its_person_is_erased_is_not_written_to(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    office, together = sqlite_office, identity.together
    office.campaign(PLAN, BO)

    def look_and_change(*of: Any) -> Any:
        found = together(*of)
        monkeypatch.undo()
        people.update(office.app, BO, new_address="robert@example.org")
        return found

    monkeypatch.setattr(erasure, "together", look_and_change)
    people.erase(office.app, BO)
    with pytest.raises(Refused, match="was erased"):
        office.enrol(1, "robert@example.org")


def test_who_has_a_longer_address_is_left_alone(office: World) -> None:
    """A message from bo@example.org.au, or one that names him, is not about bo@example.org."""
    others = ("bo@example.org.au", "x.bo@example.org", "jim-bo@example.org", "o'bo@example.org")
    for address in others:
        office.receive(reply(None, f"I am {address}.", sender=address, subject=address))
    office.receive(reply(None, "Hi"))
    before = office.rows("SELECT * FROM messages WHERE address <> :bo ORDER BY id", bo=BO)
    assert people.erase(office.app, BO).rows == {"messages": 1}
    assert office.rows("SELECT * FROM messages ORDER BY id") == before
    for address in others:
        assert people.erase(office.app, address).rows == {"messages": 1}
    assert office.rows("SELECT * FROM messages") == []


LONG = "bo.van.der.berg@department-of-mathematics.university.example"


@pytest.mark.parametrize("person", [BO, LONG], ids=["short", "long"])
def test_an_address_is_erased_whatever_marks_are_around_it(office: World, person: str) -> None:
    local, _, domain = person.partition("@")
    texts = {
        "<{}>": "<[erased]>",
        "_{}_": "[erased]_",
        "Ask ...{}": "Ask [erased]",
        "Ask...{}": "Ask[erased]",
        "-{}": "[erased]",
        "'{}'": "[erased]'",
        "{}_old": "[erased]_old",
        "{}. Hm": "[erased]. Hm",
        "{}...and": "[erased]...and",
        "{}-": "[erased]-",
        f"to={local}%40{domain}&a": "to=[erased]&a",
        f"to={local}%2Bnews%40{domain}&a": "to=[erased]&a",
    }
    for text in texts:
        office.receive(reply(None, "Hm", sender=CY, subject=text.format(person.title())))
    assert people.erase(office.app, person).rows == {"mentions": len(texts)}
    found = [row["subject"] for row in office.rows("SELECT subject FROM messages")]
    assert sorted(found) == sorted(texts.values())


def test_a_text_of_ours_that_names_an_erased_person_is_written_again_before_it_is_sent(
    office: World,
) -> None:
    def edit(body: str) -> None:
        [question] = office.questions(1, CY)
        office.app.runtime.blocking.answer(question.id, {"action": "edit", "body": body})
        office.drive()

    brief = f"As {BO} said"
    office.campaign(HELD, BO, CY, cadence=TWO, brief=brief, zone="America/Los_Angeles")
    office.sleep_through()
    edit(f"Ask {BO}.")
    office.sleep_through()
    office.clock.advance(timedelta(hours=12))  # its hours are over
    edit(f"Did you ask {BO}?")
    assert office.touch_states(address=CY) == ["sent", "approved"]
    assert people.erase(office.app, BO).rows["mentions"] == 3
    journal = {name for name in contents(office.app.settings.url) if name.startswith("perdure_")}
    assert mentions(office.app.settings.url, BO) <= journal
    assert [one["body"] for one in office.touches(address=CY)] == [
        "Ask [erased].",
        "Did you ask [erased]?",
    ]
    office.sleep_through()
    assert office.touch_states(address=CY) == ["sent", "draft_pending"]
    [question] = office.questions(1, CY)
    assert "Did you ask" not in question.value["body"]
    assert len(office.sent(CY)) == 1


def test_a_message_id_that_names_an_erased_person_is_kept_nowhere(office: World) -> None:
    """Bo answers for Info, and a mail of his was dismissed: both Message-IDs name him."""
    info = "info@example.org"
    office.campaign(PLAN, BO, info, cadence=TWO)
    office.drive()
    answer = reply(office.message_id(1, address=info), Message_ID=f"<1.{BO}>")
    assert office.receive(answer)["contact_id"] == office.contact(info)
    lost = reply(None, sender="b@else.example", subject="Hm", Message_ID=f"<2.{BO}>")
    assert office.receive(lost)["kind"] == "stray"
    [stray] = strays.strays(office.app)
    strays.dismiss(office.app, stray["id"])
    people.erase(office.app, BO)
    clean(office)
    assert office.receive(lost)["kind"] == "dismissed"


def test_a_servers_words_about_another_contact_are_kept_without_the_address(
    office: World,
) -> None:
    info = "info@example.org"
    said = "550 5.7.1 <Bo@Example.org> (expanded from <INFO@example.org>): relay not permitted"
    office.office.faults = scripted({(info, 1): Reply(said), (BO, 1): Reply(said)})
    office.campaign(PLAN, BO, info)
    office.drive()
    [question] = office.questions()
    assert question.value["said"] == (
        "RCPT TO: 550 5.7.1 <address> (expanded from <address>): relay not permitted"
    )
    people.erase(office.app, BO)
    clean(office)


def test_what_a_server_said_about_an_erased_person_is_no_mention_by_another(
    sqlite_office: World,
) -> None:
    office = sqlite_office
    office.campaign(PLAN, BO)
    office.drive()
    office.app.database.write(sql("UPDATE touches SET said = :said", said=f"550 {BO} is unknown"))
    assert "mentions" not in people.erase(office.app, BO).rows


def test_the_message_ids_are_told_before_anything_is_deleted(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(PLAN, BO)
    office.drive()
    sent = [office.message_id(1)]

    class Killed(Exception):
        pass

    def announce(message_ids: list[str]) -> None:
        assert message_ids == sent
        assert office.message_id(1) == sent[0]
        raise Killed

    with pytest.raises(Killed):
        people.erase(office.app, BO, announce=announce)
    assert people.erase(office.app, BO).message_ids == sent


def test_a_non_ascii_address_is_erased_in_either_spelling(sqlite_office: World) -> None:
    office, written = sqlite_office, "Bo+x@B\N{LATIN CAPITAL LETTER U WITH DIAERESIS}cher.example"
    for text in ("one", "two"):
        office.receive(reply(None, text, sender="ida@example.org", subject=f"About {written}"))
    raw = reply(None, "Hi", sender="x@example.org").as_bytes()
    office.receive(raw.replace(b"x@example.org", written.encode()))
    erased = people.erase(office.app, "bo@bücher.example")
    assert erased.rows == {"messages": 1, "mentions": 2}
    assert [row["subject"] for row in office.rows("SELECT * FROM messages")] == [
        "About [erased]"
    ] * 2


@pytest.mark.slow
def test_the_next_erasure_finishes_one_that_was_killed(
    sqlite_office: World, fork_server: ForkServer
) -> None:
    office = sqlite_office
    lives(office)
    cy = of_cy(office)
    told: dict[str, Any] = {
        "settings": asdict(office.app.settings),
        "at": office.clock.time.isoformat(),
    }
    for die_at in sample(range(60, 240), 2):
        child = fork_server.start("people_child:erase", **told, address=BO, die_at=die_at)
        if child.wait() == 0:
            break
        assert people.show(office.app, CY).contact["status"] == "active"
    people.erase(office.app, BO)
    clean(office)
    assert of_cy(office) == cy


def test_an_erasure_waits_for_a_thread_that_is_being_driven(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    office, inside, go_on = sqlite_office, threading.Event(), threading.Event()

    def hook(point: str) -> None:
        if point.startswith("effect ") and not inside.is_set():
            inside.set()
            assert go_on.wait(30)

    office.campaign(PLAN, BO)
    monkeypatch.setattr(failpoints, "hook", hook)
    with ThreadPoolExecutor() as pool:
        driving = pool.submit(office.drive)
        assert inside.wait(30)
        with pytest.raises(
            people.StillDriven, match=f"Run {office.run().id} of thread campaign-1-"
        ):
            people.erase(office.app, BO, patience=0.0)
        assert mentions(office.app.settings.url, BO) >= {"contacts"}
        erasing = pool.submit(people.erase, office.app, BO)
        go_on.set()
        assert erasing.result(30).rows["runs"] == 1
        driving.result(30)
    clean(office)
    assert office.office.log == []


# -- changed


def test_a_changed_contact_gets_a_new_text_that_is_approved_again(
    office: World,
) -> None:
    office.campaign(HELD)
    office.drive()
    [old] = office.questions()
    assert (old.value["to"], "Bo" in old.value["body"]) == (BO, True)
    changed = people.update(office.app, BO, name="Robert", new_address="Robert@example.org")
    assert (changed["address"], changed["person"]) == ("robert@example.org",) * 2
    with contextlib.suppress(errors.Error):  # it may have been asked again by now
        office.app.runtime.blocking.answer(old.id, {"action": "approve"})
    office.drive()
    assert office.office.log == []
    [new] = office.questions()
    assert (new.value["to"], "Robert" in new.value["body"]) == ("robert@example.org", True)
    office.answer("approve")
    assert [mail.recipient for mail in office.office.log] == ["robert@example.org"]


def test_an_approved_text_that_waits_for_its_hour_is_approved_again_after_a_change(
    sqlite_office: World,
) -> None:
    office = sqlite_office
    office.campaign(HELD, zone="America/Los_Angeles")
    office.sleep_through()
    office.clock.advance(timedelta(hours=12))  # its hours are over
    office.answer("approve")
    assert office.touch_states() == ["approved"]
    people.update(office.app, BO, new_address="bo@example.net")
    office.sleep_through()
    assert office.office.log == []
    [question] = office.questions()
    assert question.value["to"] == "bo@example.net"


@pytest.mark.parametrize(
    ("change", "to"),
    [
        (lambda app: people.update(app, BO, new_address="bo@example.net"), "bo@example.net"),
        (lambda app: people.update(app, BO, name="Robert"), BO),
        (lambda app: control.edit(app, 1, control.Changes(brief="Lamps"), redraft=True), BO),
    ],
    ids=["address", "name", "redraft"],
)
def test_an_approval_does_not_count_for_a_text_that_is_withdrawn_at_that_moment(
    sqlite_office: World,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[App], object],
    to: str,
) -> None:
    office, look = sqlite_office, records.look
    office.campaign(HELD)
    office.drive()

    def look_and_change(*place: Any, **of: Any) -> records.Situation:
        monkeypatch.setattr(records, "look", look)
        found = look(*place, **of)
        change(office.app)
        return found

    [question] = office.questions()
    office.app.runtime.blocking.answer(question.id, {"action": "approve"})
    monkeypatch.setattr(records, "look", look_and_change)
    office.sleep_through()
    assert office.office.log == []
    [question] = office.questions()
    assert (question.value["to"], question.value["touch"]) == (to, 1)


def test_a_change_that_is_too_late_for_a_mail_leaves_its_booking_to_the_limits(url: str) -> None:
    def on(reached: Moment, mail: Mail) -> None:
        if reached is Moment.DATA and not here.office.log:
            people.update(here.app, BO, name="Robert")

    with world(url, PostOffice(on=on), apart=3) as here:
        here.campaign(PLAN, cadence=TWO)
        here.drive()
        assert here.touch_states() == ["sent"]
        here.campaign(name="autumn", sequence="other", per_day=1)
        here.drive()
        assert len(here.sent()) == 1
        here.advance(timedelta(days=3))
        assert len(here.sent()) == 2


def test_a_changed_zone_moves_what_is_due(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(PLAN, zone="America/Los_Angeles")
    office.drive()
    assert office.due() == MONDAY + timedelta(hours=8)
    people.update(office.app, BO, zone="Europe/Rome")
    office.drive()
    assert len(office.sent()) == 1


def test_a_change_that_cannot_be_made_says_why(sqlite_office: World) -> None:
    app = sqlite_office.app
    sqlite_office.campaign(PLAN, BO, CY)
    app.database.write(records.suppress("di@example.org", "erased", 0))
    for change, why in (
        ({"new_address": CY}, "Contact cy@example.org already exists"),
        ({"new_address": "Di+x@example.org"}, "di.x@example.org was erased, and is not written to"),
        ({"new_address": "di@"}, "is not an address"),
        ({"zone": "Europe/Room"}, "is not a time zone; did you mean Europe/Rome"),
        ({"name": "Bo\nBcc: all@example.org"}, "the name contains the character"),
    ):
        with pytest.raises(ValueError, match=why):
            people.update(app, BO, **change)
    with pytest.raises(Unknown, match="There is no contact 'eve"):
        people.update(app, "eve@example.org", name="Eve")
    assert people.show(app, BO).contact["name"] == "Bo"


# -- bounced by mistake


def test_a_mail_that_was_refused_by_mistake_is_tried_again_with_the_same_text(
    office: World,
) -> None:
    office.office.faults = lambda recipient, attempt: Fault.REJECT_RECIPIENT
    office.campaign(PLAN, cadence=TWO)
    office.drive()
    assert (office.member(), office.touch_states()) == ("bounced", ["refused"])
    [before] = office.touches()
    office.office.faults = None
    assert people.bounced(office.app, 1) == [BO]
    assert people.unbounce(office.app, BO) == 1
    assert people.unbounce(office.app, BO) == 0
    office.sleep_through()
    assert office.touch_states() == ["sent", "sent"]
    assert office.touches()[0]["body"] == before["body"]
    assert office.member() == "finished"


def test_after_a_report_of_a_bounce_the_next_touch_follows(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(PLAN, cadence=TWO)
    office.drive()
    office.receive(bounce(office.message_id(1)))
    assert (office.member(), len(office.sent())) == ("bounced", 1)
    assert people.unbounce(office.app, BO) == 1
    office.sleep_through()
    assert (office.touch_states(), office.member()) == (["sent", "sent"], "finished")


def test_a_refusal_that_was_undone_does_not_come_back_with_another_campaign_of_the_sequence(
    office: World,
) -> None:
    office.office.faults = scripted({(BO, 1): Fault.REJECT_RECIPIENT})
    office.campaign(PLAN, cadence=TWO)
    office.drive()
    assert office.member() == "bounced"
    assert people.unbounce(office.app, BO) == 1
    office.campaign(PLAN, name="again", cadence=TWO)
    office.sleep_through()
    assert [office.member(one) for one in (1, 2)] == ["finished", "finished"]
    assert len(office.sent()) == 2


def test_undoing_a_bounce_does_not_write_to_a_contact_who_has_replied(
    sqlite_office: World,
) -> None:
    office = sqlite_office
    office.campaign(PLAN, cadence=TWO)
    office.drive()
    office.receive(bounce(office.message_id(1)))
    office.receive(reply(office.message_id(1)))
    assert office.member() == "replied"
    assert people.unbounce(office.app, BO) == 0
    office.sleep_through()
    assert (len(office.sent()), office.member()) == (1, "replied")


def test_a_touch_that_a_report_of_a_bounce_stopped_is_sent_after_all(sqlite_url: str) -> None:
    with world(sqlite_url) as office:

        def on(moment: Moment, mail: Mail) -> None:
            if moment is Moment.BEGAN and len(office.office.log) == 1 and mail.attempt == 2:
                office.inbound.receive(bounce(office.message_id(1)))

        office.office.on = on
        office.campaign(PLAN, cadence=TWO)
        office.sleep_through()
        assert (office.member(), office.touch_states()) == ("bounced", ["sent", "stopped"])
        people.unbounce(office.app, BO)
        office.sleep_through()
        assert (office.member(), office.touch_states()) == ("finished", ["sent", "sent"])


def test_a_bounce_that_is_undone_while_its_thread_ends_does_not_end_it(
    office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = agent.Agent._end

    def undo_and_end(*of: Any) -> Any:
        monkeypatch.undo()
        monkeypatch.setattr(people, "PATIENCE", 0.0)
        assert people.unbounce(office.app, BO) == 0
        return end(*of)

    office.campaign(PLAN, cadence=TWO)
    office.drive()
    monkeypatch.setattr(agent.Agent, "_end", undo_and_end)
    office.receive(bounce(office.message_id(1)))
    office.sleep_through()
    assert (office.touch_states(), office.member()) == (["sent", "sent"], "finished")


@pytest.mark.parametrize("ended", ["removed", "unsubscribed"])
def test_a_bounce_does_not_undo_what_ended_a_contact_meanwhile(sqlite_url: str, ended: str) -> None:
    """The contact is removed, or unsubscribes, while the server is about to say no."""

    def end(moment: Moment, mail: Mail) -> None:
        if moment is Moment.BEGAN and ended == "removed":
            people.remove(here.app, BO)
        elif moment is Moment.BEGAN:
            here.inbound.receive(reply(subject="unsubscribe").as_bytes())

    server = PostOffice(scripted({(BO, 1): Fault.REJECT_RECIPIENT}), end)
    with world(sqlite_url, server) as here:
        here.campaign()
        here.drive()
        assert here.rows("SELECT status FROM contacts") == [{"status": ended}]
        assert (here.member(), here.run().output["ended"]) == (ended, ended)
        with pytest.raises(ValueError, match=r"unsubscribed|removed"):
            people.unbounce(here.app, BO)
        assert here.sent() == []


def test_a_contact_who_unsubscribed_is_not_unbounced(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(PLAN, cadence=TWO)
    office.drive()
    office.receive(bounce(office.message_id(1)))
    office.app.database.write(records.suppress(BO, "unsubscribed", 0))
    with pytest.raises(ValueError, match="has unsubscribed"):
        people.unbounce(office.app, BO)
    assert office.member() == "bounced"


# -- commands


def test_people_are_managed_from_the_command_line(sqlite_office: World, command: Command) -> None:
    office = sqlite_office
    office.campaign(PLAN, cadence=TWO)
    office.drive()
    code, told = command("contact", BO, "--company", "Tables & Co")
    assert code == 0
    assert told.splitlines()[:2] == [
        f"{BO}  Bo, Tables & Co, UTC: active",
        "  campaign spring (running): active",
    ]
    assert "    touch 1 sent on 2030-01-07: " in told
    office.receive(bounce(office.message_id(1)))
    assert f"  bounce from {BO} on 2030-01-07: Undelivered" in command("contact", BO)[1]
    assert command("unbounce", "--campaign", "spring", "--since", "2030-01-08")[1].startswith("No")
    assert command("unbounce", "--campaign", "spring") == (0, "1 thread goes on\n")
    assert command("unbounce") == (
        2,
        "campaign: Name the addresses, or a campaign with --campaign.\n",
    )
    assert command("contact", "eve@example.org")[0] == 2
    code, told = command("erase", BO, "--yes")
    assert code == 0
    assert f"sent: {office.office.log[0].message_id}\n" in told
    assert "       1  contacts\n" in told
    assert "Not reached:\n" in told
    assert command("contact", BO) == (
        2,
        f"campaign: There is no contact '{BO}'. Check the spelling, or import it first.\n",
    )
