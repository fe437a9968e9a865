"""Contacts from a CSV file: all of them, or none and a list of the bad lines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.campaign.contacts import BadSheet, normalise, person_of, read
from examples.campaign.database import Database, Statement
from tests.examples import campaigns
from tests.examples.campaigns import BO, CY, PLAN, World, reply

office, sqlite_office = campaigns.office, campaigns.sqlite_office
SHEET = f"email,name,company,zone\n{BO},Bo,Ltd,Europe/Berlin\n{CY},Cy,,\n"


def test_a_file_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "contacts.csv"
    path.write_text(f"\ufeffName, Notes,Zone,EMAIL\nZoë,x,Asia/Tokyo, {BO.upper()} \n")
    [line] = read(path, "UTC")
    assert (line.address, line.name, line.zone) == (BO, "Zoë", "Asia/Tokyo")


def test_all_bad_lines_are_named_and_nothing_is_imported(sqlite_office: World) -> None:
    campaign_id = sqlite_office.app.create(PLAN)
    bad = "email,name,zone\nbo@example.org,Bo,Mars/Base\nkim,Kim,\nal@example.org,A\x07l,\n"
    with pytest.raises(BadSheet) as refused:
        sqlite_office.app.import_contacts(campaign_id, f"{bad}{CY},,\n{CY.upper()},,\n")
    assert [problem[:7] for problem in refused.value.problems] == [
        "line 2:",
        "line 3:",
        "line 4:",
        "line 6:",
    ]
    assert "Mars/Base" in str(refused.value)
    assert f"{CY} is already on line 5" in str(refused.value)
    assert sqlite_office.rows("SELECT * FROM contacts") == []
    with pytest.raises(BadSheet, match="email, name, company, zone"):
        sqlite_office.app.import_contacts(campaign_id, "mail\nbo@example.org\n")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (" Bo@Example.ORG ", "bo@example.org"),
        ("bo+News@example.org", "bo+news@example.org"),
        ("bo@Bücher.example", "bo@xn--bcher-kva.example"),
    ],
)
def test_an_address_has_one_spelling(written: str, found: str) -> None:
    assert normalise(written) == found


@pytest.mark.parametrize(
    "written",
    ["", "bo", "bo@", "bo@localhost", "b o@example.org", "bö@example.org", "Bo <bo@example.org>"],
)
def test_an_invalid_address_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        normalise(written)


def test_what_follows_a_plus_is_a_label() -> None:
    assert person_of("bo+news@example.org") == BO
    assert person_of("+bo@example.org") == "+bo@example.org"


def test_an_import_can_be_repeated_and_leaves_known_contacts_as_they_are(office: World) -> None:
    first = office.app.create(PLAN)
    second = office.app.create(replace(PLAN, name="autumn"))
    assert office.app.import_contacts(first, SHEET) == 2
    assert office.app.import_contacts(first, SHEET.replace("Bo,Ltd", "Robert,Inc")) == 0
    assert office.app.import_contacts(second, f"{SHEET}al@example.org,,,\n") == 3
    rows = office.rows("SELECT * FROM contacts ORDER BY id")
    assert len({row["id"] for row in rows}) == 3
    assert (rows[0]["name"], rows[0]["company"], rows[0]["zone"]) == ("Bo", "Ltd", "Europe/Berlin")
    assert len({row["token"] for row in rows}) == 3
    assert len(office.rows("SELECT * FROM members")) == 5


def test_who_opted_out_bounced_or_was_removed_is_not_imported_again(office: World) -> None:
    office.campaign(PLAN, BO, CY)
    office.drive()
    office.receive(reply(text="unsubscribe"))
    office.app.remove(CY)
    second = office.app.create(replace(PLAN, name="autumn"))
    sheet = f"email\n{BO.replace('@', '+x@')}\n{CY}\n"
    with pytest.raises(BadSheet) as refused:
        office.app.import_contacts(second, sheet)
    assert [problem.partition(" ")[2] for problem in refused.value.problems] == [
        "has opted out",
        "has opted out",
    ]
    office.enrol(1, BO, CY)  # where they are members already, nothing changes
    assert office.rows("SELECT * FROM members WHERE campaign_id = 2") == []


def test_a_person_who_opts_out_during_an_import_is_sent_nothing(office: World) -> None:
    """Of two transactions of PostgreSQL neither may see the other."""
    office.campaign()
    office.app.database.write(campaigns.sql(f"INSERT INTO suppressions VALUES ('{BO}', 0)"))
    office.drive()
    assert office.office.log == []


def test_a_thousand_lines_are_imported_in_two_batches(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.campaign.contacts._AT_ONCE", 600)
    campaign_id = sqlite_office.app.create(PLAN)
    sheet = "email\n" + "".join(f"p{n}@example.org\n" for n in range(1000))
    assert sqlite_office.app.import_contacts(campaign_id, sheet) == 1000
    [row] = sqlite_office.rows("SELECT max(id) AS last, count(*) AS n FROM contacts")
    assert row == {"last": 1000, "n": 1000}


def test_an_import_that_is_cut_off_leaves_nothing_and_can_be_repeated(office: World) -> None:
    campaign_id = office.app.create(PLAN)
    run = Database._run

    def cut_off(database: Database, connection: Any, statement: Statement) -> Any:
        if "INTO members" in statement.text:
            raise KeyboardInterrupt
        return run(database, connection, statement)

    if office.app.database.is_d1:
        pytest.skip("all statements are one request")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "_run", cut_off)
        with pytest.raises(KeyboardInterrupt):
            office.app.import_contacts(campaign_id, SHEET)
    assert office.rows("SELECT * FROM contacts") == []
    assert office.app.import_contacts(campaign_id, SHEET) == 2


def test_concurrent_imports_and_creates_have_ids_of_their_own(office: World) -> None:
    sheets = [
        "email\n" + "".join(f"p{n}@example.com\n" for n in range(start, start + 40))
        for start in (0, 10, 20, 30)
    ]
    with ThreadPoolExecutor(4) as pool:
        ids = list(
            pool.map(lambda n: office.app.create(replace(PLAN, name=f"campaign {n % 2}")), range(4))
        )
        added = list(pool.map(lambda n: office.app.import_contacts(n % 2 + 1, sheets[n]), range(4)))
    assert sorted(ids) == [1, 1, 2, 2]
    assert len(added) == 4
    found = office.rows("SELECT id, address FROM contacts ORDER BY id")
    assert {row["address"] for row in found} == {f"p{n}@example.com" for n in range(70)}
    assert len({row["id"] for row in found}) == 70
    assert len(office.rows("SELECT * FROM members")) == 120


def test_a_name_that_is_taken_is_refused(office: World) -> None:
    assert office.app.create(PLAN) == office.app.create(PLAN) == 1
    with pytest.raises(ValueError, match="already exists"):
        office.app.create(replace(PLAN, brief="Chairs"))


@pytest.mark.parametrize("sender", ["Ana", "", "ana@localhost"])
def test_a_sender_that_no_mail_can_have_is_refused(sqlite_office: World, sender: str) -> None:
    with pytest.raises(ValueError, match="is not a sender"):
        sqlite_office.app.create(replace(PLAN, sender=sender))
    assert sqlite_office.rows("SELECT * FROM campaigns") == []
