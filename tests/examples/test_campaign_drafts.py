"""Drafts are listed, edited in one file and approved in bulk, each as it was shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.campaign import drafts
from examples.campaign.agent import DECISION
from examples.campaign.drafts import BadEdits, Draft, difference
from tests.support.campaign_commands import Command
from tests.support.campaign_commands import command as command
from tests.support.campaign_ends import CY
from tests.support.campaigns import BO, HELD, MONDAY, World, reply
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office

DO, ED = "do@example.org", "ed@example.org"


def draft(wait_id: str, to: str) -> Draft:
    return Draft(wait_id, to, 1, "Better tables (1)", "Hello,\n\nlook.\n", MONDAY, schema=DECISION)


def test_a_draft_answered_withdrawn_or_rewritten_meanwhile_is_not_approved(
    office: World,
) -> None:
    office.campaign(HELD, BO, CY, DO, ED)
    office.campaign(HELD, "fay@example.org", name="autumn", sequence="autumn")
    office.drive()
    found = drafts.waiting(office.app, 1)
    assert [one.to for one in found] == [BO, CY, DO, ED]
    waits = {one.to: one.wait_id for one in found}
    office.app.runtime.blocking.answer(waits[CY], {"action": "skip"})
    office.app.runtime.blocking.answer(waits[DO], {"action": "reject", "comment": "warmer"})
    office.receive(reply(sender=ED))
    missed = drafts.answer(office.app, [drafts.approved(one) for one in found], "Eva")
    assert [one.to for one in missed] == [CY, DO, ED]
    office.drive()
    assert [mail.recipient for mail in office.office.log] == [BO]
    assert [one.to for one in drafts.waiting(office.app)] == [DO, "fay@example.org"]
    history = office.app.runtime.blocking.wait_history(office.run(1, BO).id)
    assert [one.answered_by for one in history if one.kind == "human"] == ["Eva"]


def test_fifty_drafts_are_shown_as_one_and_its_differences(
    sqlite_office: World, command: Command
) -> None:
    sqlite_office.campaign(HELD, BO, CY, DO)
    sqlite_office.drive()
    bo, cy, do = (one.wait_id for one in drafts.waiting(sqlite_office.app))
    listed = command("drafts", "spring")[1].splitlines()
    assert re.fullmatch(rf"{bo}  {BO}  touch 1 +\d+m  Better tables \(1\)", listed[0])
    code, told = command("approve", "spring")
    assert code == 2
    assert told.count("I would like to show you") == 1
    assert told.count("To get no more of these mails") == 1
    assert "  Hello [-Bo-]{+Cy+},\n" in told
    assert "  Hello [-Bo-]{+Do+},\n" in told
    assert command("approve", "spring", "nothing")[0] == 2
    assert command("approve", "spring", typed="n\n")[0] == 1
    assert len(sqlite_office.questions()) == 3
    code, told = command("approve", "spring", cy, do, "--by", "Eva", typed="y\n")
    assert code == 0
    assert told.endswith("Approve 2 drafts? [y/N]: 2 drafts approved.\n")
    sqlite_office.drive()
    assert {mail.recipient for mail in sqlite_office.office.log} == {CY, DO}
    assert command("pause", "spring")[0] == 0
    assert "is paused: they wait" in command("approve", "spring", "--yes")[1]
    assert command("drafts")[1].startswith("No drafts are waiting.")
    assert command("stop", "spring", "--yes")[0] == 0
    assert command("approve", "spring")[0] == 2


def test_drafts_are_edited_in_one_file(
    sqlite_office: World, command: Command, tmp_path: Path
) -> None:
    sqlite_office.campaign(HELD, BO, CY, DO, ED)
    sqlite_office.drive()
    file = tmp_path / "drafts.txt"
    assert command("drafts", "spring", "--to", str(file))[0] == 0
    assert command("drafts", "spring", "--to", str(file))[0] == 2  # it would overwrite edits
    text = file.read_text()
    head, bo, cy, _, ed, end = re.split("(?m)^(?==== )", text)
    bo = bo.replace("Better tables (1)", "Tables, Bo").replace("Hello Bo", "Dear Bo")
    bo = bo.rstrip("\n") + "\n\\=== not a draft\n\\Subject: neither\n\n"
    file.write_bytes((head + bo + cy + ed + end).replace("\n", "\r\n").encode())
    sqlite_office.receive(reply(sender=ED))
    code, told = command("approve", "spring", "--edits", str(file), "--yes")
    assert code == 1
    assert "  [-Hello-]{+Dear+} Bo,\n" in told
    assert "(as it was drafted)" in told
    assert f"to {ED}: it is not an open draft" in told
    assert f"Not in the file, and left alone: 1 draft, to {DO}\n" in told
    assert told.endswith("2 drafts approved.\n")
    sqlite_office.drive()
    [mail] = sqlite_office.sent(BO)
    assert mail.subject == "Tables, Bo"
    assert "Dear Bo,\r\n" in mail.content
    assert "\r\n=3D=3D=3D not a draft\r\nSubject: neither\r\n" in mail.content
    [plain] = sqlite_office.sent(CY)
    assert plain.subject == "Better tables (1)"
    assert [one.to for one in drafts.waiting(sqlite_office.app)] == [DO]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("=== draft ", "== draft ", "line 6: '== draft "),
        ("Subject:", "Re:", "line 7: 'Subject: …' is missing"),
        ("Subject: Better tables (1)", "Subject: ", "line 7: the subject is empty"),
        ("Subject: Better tables (1)", "Subject: a\x07", "line 6: subject has characters"),
        ("(1)\n\n", "(1)\n", "line 8: an empty line has to follow"),
        ("to bo@", "to zoe@", "is touch 1 to bo@example.org"),
        ("=== end of drafts ===", "", "the last line, '=== end of drafts ===', is missing"),
        ("=== end of drafts ===", "=== end of drafts ===\nx", "there is text after the end"),
        ("=== draft W2", "=== draft W1", "this draft is also on line 6"),
        ("=== draft W2 ===", "=== draft W2", "does not begin a draft"),
        ("=== draft W2 ===", "== draft W2 ===", "line 14: another draft seems to begin here"),
        ("=== draft W2 === touch 1 to cy@example.org\n", "", "another draft seems to begin here"),
    ],
    ids=str,
)
def test_a_damaged_file_is_refused_as_a_whole(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    file = tmp_path / "drafts.txt"
    open_now = [draft("W1", BO), draft("W2", CY)]
    drafts.write(file, "spring", open_now)
    decisions, missed = drafts.read(file, open_now)
    assert [one.answer for one in decisions] == [{"action": "approve"}] * 2
    assert missed == []
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(BadEdits) as refused:
        drafts.read(file, open_now)
    assert told in str(refused.value)


def test_a_draft_cannot_take_over_the_terminal_it_is_shown_on(
    sqlite_office: World, command: Command
) -> None:
    sqlite_office.campaign(HELD, brief="\x1b[2JTables")
    sqlite_office.drive()
    assert "\x1b" not in command("drafts")[1] + command("approve", "spring")[1]


def test_a_difference_has_the_words_that_differ() -> None:
    assert difference("a\nb", "a\nb") == []
    assert difference("Hello Bo, hi", "Hello Cy, hi") == [
        [(" ", "Hello "), ("-", "Bo"), ("+", "Cy"), (" ", ", hi")]
    ]
    assert difference("a\nb", "a\nb\nc") == [[("+", "c")]]
    assert difference("something else", "x") == [[("-", "something else"), ("+", "x")]]
