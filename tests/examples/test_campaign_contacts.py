"""The import of contacts into a campaign: all of a file or nothing, and its bad lines by number."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from email.headerregistry import Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perdure
from examples.campaign import records
from examples.campaign.cadence import Cadence
from examples.campaign.contacts import (
    Bad,
    BadSheet,
    Line,
    NoAddressColumn,
    Refused,
    Report,
    bring,
    normalise,
    read,
)
from examples.campaign.database import Database, Row, Statement, sql
from examples.campaign.errors import Unknown

FORKS = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
CAMPAIGN = """INSERT INTO campaigns VALUES (:id, :name, 'intro', 'ana@example.com', '', :gaps,
:days, :opens, :closes, 0, 0, 'running', '', 0, 1)"""
HEADER = "email,name,company,zone\n"


@pytest.fixture
def url(sqlite_url: str) -> str:
    """SQLite: nothing here depends on the database."""
    return sqlite_url


@pytest.fixture
def database(url: str) -> Database:
    """A journal with the tables of the application, and two campaigns."""
    perdure.connect(url).close()
    database = Database(url)
    database.create()
    for number in (1, 2):
        name, columns = f"campaign {number}", Cadence().to_columns()
        database.write(sql(CAMPAIGN, id=number, name=name, **columns))
    return database


def contacts(database: Database) -> list[Row]:
    return database.rows(
        "SELECT id, address, name, company, zone, status FROM contacts ORDER BY id"
    )


def members(database: Database, campaign_id: int = 1) -> list[int]:
    """The ids of a campaign's contacts, which are all active in it."""
    found = database.rows(
        "SELECT * FROM members WHERE campaign_id = :id ORDER BY contact_id",
        id=campaign_id,
    )
    assert {row["status"] for row in found} <= {"active"}
    return [row["contact_id"] for row in found]


def text(*addresses: str) -> str:
    return HEADER + "".join(f"{address},,,\n" for address in addresses)


def many(count: int, start: int = 0) -> str:
    return text(*(f"p{n}@example.com" for n in range(start, start + count)))


def reason(line: str, header: str = HEADER) -> str:
    """Why a line is bad, when it is the only one."""
    sheet = read(header + line)
    assert sheet.rows == []
    [bad] = sheet.bad
    assert bad.number == 2
    return bad.reason


# -- the file


ANA = Line(2, "ana@example.com", "Ana Ortiz", "Acme, Ltd", "Europe/Madrid")
BEN = Line(3, "ben@example.org", "Ben", "", "UTC")


SAVED = {
    "commas": """\
email,name,company,zone
ana@example.com,Ana Ortiz,"Acme, Ltd",Europe/Madrid
ben@example.org,Ben,,
""",
    "other names and order": """\
TZ,Company,E-Mail,NAME
Europe/Madrid,"Acme, Ltd",ana@example.com,Ana Ortiz
,,ben@example.org,Ben""",
    "semicolons": """\
address; Name ;company;timezone
ana@example.com;Ana Ortiz;Acme, Ltd;Europe/Madrid
ben@example.org;Ben
;;;
""",
    "tabs": """\
email\tname\tcompany\tzone
ana@example.com\tAna Ortiz\tAcme, Ltd\tEurope/Madrid
ben@example.org\tBen\t\t
""",
    "quotes": """\
"email";"name";"company";"zone"
"ana@example.com";"Ana Ortiz";"Acme, Ltd";"Europe/Madrid"
" ben@example.org ";" Ben ";"";""
""",
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("content", SAVED.values(), ids=SAVED)
def test_a_file_is_read_however_it_was_saved(content: str, end: str, tmp_path: Path) -> None:
    content = content.replace("\n", end)
    file = tmp_path / "contacts.csv"
    for encoding in ("utf-8", "utf-8-sig"):
        file.write_bytes(content.encode(encoding))
        assert read(file).rows == [ANA, BEN]
        assert read(content.encode(encoding)).rows == [ANA, BEN]
    assert read(content) == read(file)
    assert (read(file).bad, read(file).ignored_columns) == ([], [])


def test_text_that_is_not_english_is_kept() -> None:
    [line] = read("email,name,company\njana@example.com,Jana Šťastná,株式会社\n").rows
    assert (line.name, line.company) == ("Jana Šťastná", "株式会社")


def test_a_contact_without_a_zone_gets_the_default() -> None:
    sheet = read("email,tz\na@example.com,\nb@example.com,Asia/Tokyo\n", zone="America/Lima")
    assert [line.zone for line in sheet.rows] == ["America/Lima", "Asia/Tokyo"]
    assert read("email\na@example.com\n").rows[0].zone == "UTC"


def test_empty_lines_are_skipped_but_counted() -> None:
    sheet = read("\n\nemail\n\na@example.com\n \n\nb@\n")
    assert [line.number for line in sheet.rows] == [5]
    assert [bad.number for bad in sheet.bad] == [8]


def test_a_bad_line_is_named_by_its_first_line() -> None:
    sheet = read('email,notes\na@example.com,"one\r\ntwo"\r\nb@,\n')
    assert [line.number for line in sheet.rows] == [2]
    assert [bad.number for bad in sheet.bad] == [4]


def test_unknown_columns_are_ignored_and_named() -> None:
    sheet = read("Phone,email,,notes\n1,a@example.com,,hello\n")
    assert sheet.ignored_columns == ["Phone", "notes"]
    assert [line.address for line in sheet.rows] == ["a@example.com"]


def test_a_street_address_is_not_taken_for_an_e_mail_address() -> None:
    sheet = read("address,email\n1 High Street,a@example.com\n")
    assert [line.address for line in sheet.rows] == ["a@example.com"]
    assert sheet.ignored_columns == ["address"]


@pytest.mark.parametrize("content", ["name,company\nAna,Acme\n", "a@example.com,Ana\n", "", "\n"])
def test_a_file_without_a_column_of_addresses_is_refused(content: str) -> None:
    with pytest.raises(NoAddressColumn, match="no column email, mail or address"):
        read(content)


def test_a_file_with_two_columns_of_one_name_is_refused() -> None:
    with pytest.raises(BadSheet, match="Two columns are called 'email'"):
        read("Email,name,email\na@example.com,Ana,b@example.com\n")


def test_a_workbook_is_refused_as_one(tmp_path: Path) -> None:
    file = tmp_path / "contacts.xlsx"
    file.write_bytes(b"PK\x03\x04\x14\x00\x06\x00")
    with pytest.raises(BadSheet, match="Export the sheet as CSV"):
        read(file)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_that_is_not_utf_8_is_refused(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "contacts.csv"
    file.write_bytes("email,name\na@example.com,José\n".encode(encoding))
    with pytest.raises(BadSheet, match="not UTF-8"):
        read(file)


def test_a_first_line_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadSheet, match="The first line names the columns"):
        read('"email,name\na@example.com,Ana\n')


def test_an_unknown_default_zone_is_refused() -> None:
    with pytest.raises(BadSheet, match="did you mean Europe/Madrid"):
        read(text("a@example.com"), zone="Europe/Madird")


# -- bad lines


def test_an_address_that_is_in_the_file_twice_names_the_first_line() -> None:
    sheet = read(text("a@example.com", "b@example.com", " A@Example.COM"))
    assert len(sheet.rows) == 2
    assert sheet.bad == [Bad(4, "a@example.com is already on line 2")]


def test_the_good_one_of_two_lines_is_not_a_duplicate_of_the_bad_one() -> None:
    sheet = read("email,zone\na@example.com,Nowhere/Atall\na@example.com,Asia/Tokyo\n")
    assert [bad.number for bad in sheet.bad] == [2]
    assert [line.number for line in sheet.rows] == [3]


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Europe/Madird", "Europe/Madrid"),
        ("europe/madrid", "Europe/Madrid"),
        ("America/New York", "America/New_York"),
    ],
)
def test_an_unknown_zone_is_bad_and_the_right_one_is_suggested(zone: str, hint: str) -> None:
    found = reason(f"a@example.com,,,{zone}\n")
    assert found.startswith(f"{zone!r} is not a time zone; did you mean {hint}")


@pytest.mark.parametrize(
    "zone",
    ["nonsense", "/etc/localtime", "../UTC", "America", "localtime", "posix/UTC", "x" * 5000],
)
def test_a_zone_is_a_name_and_nothing_else(zone: str) -> None:
    assert "is not a time zone" in reason(f"a@example.com,,,{zone}\n")


def test_all_problems_of_a_line_are_reported_at_once() -> None:
    found = reason("a@b,Ana\x07,,Nowhere/Atall\n")
    assert "'a@b' is not an address" in found
    assert "the name contains the character '\\x07'" in found
    assert "'Nowhere/Atall' is not a time zone" in found


@pytest.mark.parametrize(
    "cell",
    [
        '"Ana\r\nBcc: all@example.com"',
        '"Ana\rX"',
        "A\x00",
        "A\x85b",
        "A\u2028b",
        "A\u2029b",
        "\ud800",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("where", ["name", "company"])
def test_a_cell_cannot_write_headers_into_a_mail(cell: str, where: str) -> None:
    found = reason(f"a@example.com,{cell}\n", header=f"email,{where}\n")
    assert f"the {where} contains the character" in found


@pytest.mark.parametrize(
    "cell", ["=?utf-8?q?Bo=0D=0ABcc:_x@y.z?=", "Bo =?utf-8?B?Qm8KQmNjOiB4QHkueg==?= Li"]
)
@pytest.mark.parametrize("where", ["name", "company"])
def test_a_cell_that_a_mail_program_would_decode_is_bad(cell: str, where: str) -> None:
    found = reason(f"a@example.com,{cell}\n", header=f"email,{where}\n")
    assert f"the {where} is encoded" in found


def test_a_line_with_too_many_columns_is_bad() -> None:
    assert reason("a@example.com,Ortiz, Ana,Acme,UTC\n") == "it has 5 columns, the first line 4"
    assert len(read(HEADER + "a@example.com,Ana,,,,,\n").rows) == 1


def test_an_unclosed_quote_reports_how_many_lines_it_swallowed() -> None:
    sheet = read('email,name\na@example.com,"Ana\nb@example.com,Ben\nc@example.com,Cy\n')
    assert sheet.rows == []
    [bad] = sheet.bad
    assert bad.number == 2
    assert bad.reason.startswith("it cannot be read")
    assert bad.reason.endswith("(it ends on line 4)")
    sheet = read('email,name\na@example.com,"Ana\nb@example.com,B"\nc@example.com,Cy\n')
    assert [line.number for line in sheet.rows] == [4]
    assert [bad.reason for bad in sheet.bad] == [
        "the name contains the character '\\n' (it ends on line 3)"
    ]


def test_a_line_after_an_unreadable_one_is_read() -> None:
    sheet = read('email,name\na@example.com,"Ana" Ortiz\nb@example.com,Ben\n')
    assert [bad.number for bad in sheet.bad] == [2]
    assert [line.address for line in sheet.rows] == ["b@example.com"]


# -- addresses


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (" Ana@Example.COM ", "ana@example.com"),
        ("ana+list.x@mail.example.co.uk", "ana+list.x@mail.example.co.uk"),
        ("o'brien_{1}@ex-ample.com", "o'brien_{1}@ex-ample.com"),
        ("ana@Bücher.example", "ana@xn--bcher-kva.example"),
        ("ana@例え.jp", "ana@xn--r8jz45g.jp"),
        ("ana@XN--BCHER-KVA.example", "ana@xn--bcher-kva.example"),
        (f"{'a' * 64}@example.com", f"{'a' * 64}@example.com"),
    ],
)
def test_an_address_has_one_spelling(written: str, found: str) -> None:
    assert normalise(written) == found
    assert normalise(found) == found


@pytest.mark.parametrize(
    "written",
    [
        "",
        "ana",
        "@example.com",
        "ana@",
        "ana@localhost",
        "ana@example.com@example.org",
        "a na@example.com",
        "ana@exa mple.com",
        "Ana <ana@example.com>",
        "<ana@example.com>",
        "ana@example.com, ben@example.com",
        "ana@example.com;ben@example.com",
        "mailto:ana@example.com",
        '"ana"@example.com',
        "ana(x)@example.com",
        ".ana@example.com",
        "ana.@example.com",
        "a..na@example.com",
        "ana@.example.com",
        "ana@example..com",
        "ana@example.com.",
        "ana@-example.com",
        "ana@example-.com",
        "ana@exa_mple.com",
        "ana@[127.0.0.1]",
        "ana@127.0.0.1",
        "josé@example.com",
        "ana\N{ZERO WIDTH SPACE}@example.com",
        "ana@straße.example",
        "ana@example.com\nBcc: all@example.com",
        "ana@example.com\r\n",
        "ana\x00@example.com",
        "ana@example.com\x85",
        "ana@exa\N{LINE SEPARATOR}mple.com",
        f"{'a' * 65}@example.com",
        f"ana@{'b' * 64}.com",
        f"ana@{'ü' * 64}.com",
        f"{'a' * 60}@{'.'.join(['b' * 60] * 4)}.com",
        "a" * 100_000 + "@example.com",
        "ana@" + "é" * 100_000 + ".com",
    ],
    ids=lambda written: ascii(written)[:40],
)
def test_an_invalid_address_is_refused_in_one_printable_line(written: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        normalise(written)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


def test_an_address_has_254_characters_at_most() -> None:
    longest = f"{'a' * 64}@{'b' * 61}.{'c' * 61}.{'d' * 61}.com"
    assert len(longest) == 254
    assert normalise(longest) == longest
    with pytest.raises(ValueError, match="is not an address"):
        normalise(longest.replace("@", "@b"))


@settings(max_examples=500)
@given(
    st.one_of(
        st.text(max_size=20),
        st.emails(),
        st.builds("{}@{}.com".format, st.text(max_size=8), st.text(min_size=1, max_size=8)),
        st.text(alphabet='aB.@ü-_ \r\n"<>,', max_size=12),
    )
)
def test_the_standard_library_reads_every_accepted_address(written: str) -> None:
    try:
        found = normalise(written)
    except ValueError:
        return
    assert Address(addr_spec=found).addr_spec == found
    assert found.isascii()
    assert found.isprintable()
    assert normalise(found) == found


# -- into the database


def test_the_contacts_of_a_file_become_members_of_the_campaign(database: Database) -> None:
    sheet = read(HEADER + "ana@example.com,Ana,Acme,Asia/Tokyo\nben@example.com,,,\n")
    assert bring(database, 1, sheet) == Report(2, 0, [])
    assert contacts(database) == [
        {
            "id": 1,
            "address": "ana@example.com",
            "name": "Ana",
            "company": "Acme",
            "zone": "Asia/Tokyo",
            "status": "active",
        },
        {
            "id": 2,
            "address": "ben@example.com",
            "name": "",
            "company": "",
            "zone": "UTC",
            "status": "active",
        },
    ]
    assert members(database) == [1, 2]
    assert members(database, 2) == []


def test_text_arrives_as_it_was_written(database: Database) -> None:
    name, company = 'Jana "J" Šťastná 😀 \\n %s :id', "50% 'Off' [{}] --"
    sheet = read(
        f'email\tname\tcompany\nj@example.com\t"{name.replace(chr(34), chr(34) * 2)}"\t{company}'
    )
    bring(database, 1, sheet)
    [contact] = contacts(database)
    assert (contact["name"], contact["company"]) == (name, company)


def test_an_import_can_be_repeated(database: Database) -> None:
    bring(database, 1, read(text("a@example.com", "b@example.com")))
    before = contacts(database)
    again = "email,name,zone\nA@example.com,Another,Asia/Tokyo\nb@example.com,,\nc@example.com,,\n"
    assert bring(database, 1, read(again)) == Report(1, 2, [])
    assert contacts(database)[:2] == before
    assert members(database) == [1, 2, 3]
    assert bring(database, 1, read(again)) == Report(0, 3, [])
    assert members(database) == [1, 2, 3]


def test_a_contact_of_another_campaign_keeps_its_id(database: Database) -> None:
    bring(database, 1, read(text("a@example.com", "b@example.com")))
    assert bring(database, 2, read(text("c@example.com", "b@example.com"))) == Report(2, 0, [])
    assert members(database, 2) == [2, 3]
    assert [row["address"] for row in contacts(database)] == [
        "a@example.com",
        "b@example.com",
        "c@example.com",
    ]


def test_ids_go_on_after_the_highest(database: Database) -> None:
    database.write(
        sql(
            """INSERT INTO contacts VALUES
               (3000000000, 'z@example.com', 'z@example.com', 'z', '', '', 'UTC', 'active')"""
        )
    )
    bring(database, 1, read(text("a@example.com")))
    assert members(database) == [3000000001]


def test_a_file_with_one_bad_line_is_refused_as_a_whole(database: Database) -> None:
    sheet = read("email,notes\na@example.com,x\nb@,y\n")
    with pytest.raises(
        Refused, match=r"Nothing was imported: 1 bad line\.\n  line 3: 'b@' is no"
    ) as no:
        bring(database, 1, sheet)
    assert no.value.report == Report(0, 0, sheet.bad, ["notes"])
    assert contacts(database) == []
    assert members(database) == []


def test_bad_lines_can_be_skipped(database: Database) -> None:
    sheet = read(text("a@example.com", "b@", "c@example.com"))
    assert bring(database, 1, sheet, skip_bad=True) == Report(2, 0, sheet.bad)
    assert [row["address"] for row in contacts(database)] == ["a@example.com", "c@example.com"]


@pytest.mark.parametrize("status", ["unsubscribed", "bounced", "removed"])
def test_a_contact_who_must_not_be_written_to_is_a_bad_line(
    database: Database, status: str
) -> None:
    bring(database, 1, read(text("a@example.com", "b@example.com")))
    database.write(sql("UPDATE contacts SET status = :status WHERE id = 2", status=status))
    sheet = read(text("x@", "a@example.com", "B@example.com", "y@"))
    with pytest.raises(Refused) as no:
        bring(database, 2, sheet)
    assert [bad.number for bad in no.value.report.bad] == [2, 4, 5]
    assert no.value.report.bad[1] == Bad(4, f"b@example.com is {status}")
    assert members(database, 2) == []
    assert bring(database, 2, sheet, skip_bad=True).added == 1
    assert members(database, 2) == [1]


def test_a_suppressed_person_is_a_bad_line_under_any_label(database: Database) -> None:
    database.write(
        records.suppress("a@example.com", "unsubscribed", 0),
        records.suppress("b@example.com", "erased", 0),
    )
    sheet = read(text("A+news@example.com", "b+x@example.com", "c@example.com"))
    with pytest.raises(Refused) as no:
        bring(database, 1, sheet)
    assert no.value.report.bad == [
        Bad(2, "a+news@example.com has unsubscribed"),
        Bad(3, "b+x@example.com was erased"),
    ]
    assert bring(database, 1, sheet, skip_bad=True).added == 1
    assert [row["address"] for row in contacts(database)] == ["c@example.com"]


def test_every_contact_has_a_token_of_its_own_and_the_person_it_belongs_to(
    database: Database,
) -> None:
    bring(database, 1, read(text("a+news@example.com", "b@example.com")))
    first, second = database.rows("SELECT * FROM contacts ORDER BY id")
    assert (first["person"], second["person"]) == ("a@example.com", "b@example.com")
    assert len({first["token"], second["token"]} - {""}) == 2


def test_an_import_can_be_repeated_after_a_member_unsubscribed(
    database: Database,
) -> None:
    bring(database, 1, read(text("a@example.com", "b@example.com")))
    database.write(
        sql("UPDATE contacts SET status = 'unsubscribed' WHERE id = 1"),
        sql("UPDATE members SET status = 'unsubscribed' WHERE contact_id = 1"),
    )
    assert bring(database, 1, read(text("a@example.com", "b@example.com"))) == Report(0, 2, [])
    [left] = database.rows("SELECT status FROM members WHERE contact_id = 1")
    assert left["status"] == "unsubscribed"


def test_a_refusal_lists_twenty_lines_and_counts_the_rest(database: Database) -> None:
    with pytest.raises(Refused) as no:
        bring(database, 1, read(text(*["x@"] * 25)))
    lines = str(no.value).splitlines()
    assert lines[0] == "Nothing was imported: 25 bad lines."
    assert lines[1] == "  line 2: 'x@' is not an address: there is no such domain"
    assert lines[20].startswith("  line 21: ")
    assert lines[21] == "  and 5 more"
    assert "--skip-bad" in lines[22]
    assert len(no.value.report.bad) == 25


def test_an_unknown_campaign_is_refused(database: Database) -> None:
    with pytest.raises(Unknown, match="There is no campaign 7; nothing was imported"):
        bring(database, 7, read(text("a@example.com")))
    assert contacts(database) == []


def test_a_file_without_contacts_adds_none(database: Database) -> None:
    assert bring(database, 1, read(HEADER)) == Report(0, 0, [])


def test_a_thousand_lines_are_a_handful_of_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[Statement] = []
    run = Database._run

    def counted(database: Database, connection: Any, statement: Statement) -> list[Row]:
        statements.append(statement)
        return run(database, connection, statement)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_run", counted)
        assert bring(database, 1, read(many(1000))).added == 1000
    assert len(statements) < 10
    assert members(database) == list(range(1, 1001))


# -- killed, and two at once


def forked(work: Callable[[], Any]) -> int:
    """Start it in a process of its own. That ends with 0 if nothing was raised."""
    if pid := os.fork():
        return pid
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(database: Database, number: int) -> bool:
    """Import in a process that dies before its n-th statement, or else before its COMMIT.

    Whether there was an n-th statement.
    """
    reader, writer = os.pipe()
    run, transaction = Database._run, Database._transaction
    count = 0

    def deadly(database: Database, connection: Any, statement: Statement) -> list[Row]:
        nonlocal count
        if count == number:
            os.write(writer, b"x")
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return run(database, connection, statement)

    @contextlib.contextmanager
    def doomed(database: Database, begin: str, end: str) -> Iterator[Any]:
        with transaction(database, begin, end) as connection:
            yield connection
            if end == "COMMIT":
                os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "_run", deadly)
            patch.setattr(Database, "_transaction", doomed)
            bring(database, 1, read(many(5000)))

    assert ended(forked(work)) == -signal.SIGKILL
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        return told.read() == b"x"


@FORKS
def test_killed_at_any_statement_it_leaves_nothing_and_can_be_repeated(database: Database) -> None:
    number = 0
    while killed_at(database, number):
        assert contacts(database) == []
        assert members(database) == []
        number += 1
    assert number >= 4
    assert contacts(database) == []
    assert members(database) == []
    assert bring(database, 1, read(many(5000))) == Report(5000, 0, [])
    assert members(database) == list(range(1, 5001))


@FORKS
@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_all_of_a_file_or_nothing(database: Database) -> None:
    reader, writer = os.pipe()

    def work() -> None:
        os.write(writer, b"x")
        bring(database, 1, sheet)

    before = 0
    for moment in range(20):
        sheet = read(many(2000, start=2000 * moment))
        pid = forked(work)
        os.read(reader, 1)
        select.select([], [], [], moment * 0.004)
        os.kill(pid, signal.SIGKILL)
        acknowledged = ended(pid) == 0
        found = len(contacts(database))
        assert found in ([before + 2000] if acknowledged else [before, before + 2000])
        assert members(database) == list(range(1, found + 1))
        before = found
    os.close(reader)
    os.close(writer)
    report = bring(database, 1, read(many(40_000)))
    assert (report.added, report.known) == (40_000 - before, before)


@FORKS
def test_concurrent_imports_take_turns(database: Database) -> None:
    reader, writer = os.pipe()

    def work(number: int) -> Callable[[], None]:
        sheet = read(many(400, start=100 * number))

        def importing() -> None:
            os.read(reader, 1)
            report = bring(database, number % 2 + 1, sheet)
            assert report.added + report.known == 400

        return importing

    pids = [forked(work(number)) for number in range(4)]
    os.write(writer, b"x" * 4)
    assert [ended(pid) for pid in pids] == [0] * 4
    os.close(reader)
    os.close(writer)
    found = contacts(database)
    assert [row["id"] for row in found] == list(range(1, 701))
    assert {row["address"] for row in found} == {f"p{n}@example.com" for n in range(700)}
    assert len(members(database, 1)) == 600
    assert len(members(database, 2)) == 600


def test_the_tables_are_in_the_file_that_the_journal_opens(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/my%20journal.db"
    perdure.connect(url).close()
    Database(url).create()
    assert {path.name for path in tmp_path.iterdir()} == {"my journal.db"}
