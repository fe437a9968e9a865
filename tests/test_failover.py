"""The judge of `make failover` finds what is planted in a ledger, and the page says it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from matrix.evidence import PAGE
from matrix.failover.__main__ import KINDS, ROUNDS, plan, render
from matrix.failover.cluster import ROUTES
from matrix.failover.judge import Change, Left, first_commit, judge

RUN = "01a1ecca-e706-7a1e-bb93-4efc452dbb19"
OTHER = "01a1ecca-ffff-7a1e-bb93-4efc452dbb19"


def changes(strict: bool = True) -> list[Change]:
    """Two changes, at 10 and at 110, after each of which the database took writes at once."""
    return [Change("kill -9", "HAProxy", strict, t, t + 10, writes=5.0) for t in (0.0, 100.0)]


def done(number: str, **output: str) -> Left:
    return Left("done", {"number": number, **output}, 117.0)


def line(what: str, t: float = 1.0, **facts: Any) -> dict[str, Any]:
    return {"what": what, "t": t, "number": "a", "run": RUN, **facts}


def test_a_ledger_that_the_journal_agrees_with_has_no_findings() -> None:
    told = [line("start"), line("signal", word="w"), line("answer", word="w")]
    called = [line("call", effect="charge", key=None), line("recorded", effect="charge")]
    both = changes()
    left = {RUN: done("a", collected="w", approved="w"), OTHER: Left("done", {}, 16.0)}
    judge(both, [*told, *called], left, "")
    assert [change.findings for change in both] == [[], []]
    assert [change.acknowledged for change in both] == [3, 0]
    assert both[0].progress == 1.0


def test_a_run_that_the_journal_does_not_have_is_lost_at_the_change_it_was_started_in() -> None:
    both = changes()
    judge(both, [line("start", 105.0)], {}, "")
    assert not both[0].lost
    assert both[1].lost == [f"start a {RUN}"]
    assert f"lost: start a {RUN}" in both[1].findings


def test_a_signal_and_an_answer_that_the_run_did_not_get_are_lost() -> None:
    [change, _] = both = changes()
    told = [line("signal", word="w"), line("answer", word="w")]
    judge(both, told, {RUN: done("a", collected="other")}, "")
    assert change.lost == [f"signal a {RUN}", f"answer a {RUN}"]


def test_a_loss_under_asynchronous_replication_must_be_named() -> None:
    [change, _] = both = changes(strict=False)
    told = [line("start"), line("start", number="b", run=OTHER)]
    judge(both, told, {}, f"WARNING run {RUN} is missing")
    assert change.unnamed == [f"start b {OTHER}"]
    assert f"unnamed: start b {OTHER}" in change.findings


def test_a_call_of_a_recorded_effect_and_one_under_a_second_key_are_repeats() -> None:
    [change, _] = both = changes()
    plain = line("call", effect="charge", key=None)
    keyed = [line("call", effect="ship", key=key) for key in ("1", "1", "2")]
    judge(both, [plain, plain, line("recorded", effect="charge"), plain, *keyed], {}, "")
    assert [text.split(" ", 1)[0] for text in change.repeated] == ["charge", "ship"]


def test_a_run_that_did_not_end_is_stranded_and_not_lost() -> None:
    [change, _] = both = changes()
    judge(both, [line("start")], {RUN: Left("held", {}, 50.0)}, "")
    assert not change.lost
    assert change.stranded == [f"a {RUN} held"]


def test_an_answer_that_a_waiting_run_still_waits_for_is_lost() -> None:
    [change, _] = both = changes()
    judge(both, [line("start"), line("answer", word="w")], {RUN: Left("waiting", {}, 50.0)}, "")
    assert change.lost == [f"answer a {RUN}"]


def test_progress_counts_from_the_commit_of_a_plain_client_on_a_newer_timeline() -> None:
    commits = [line("commit", 20.0, timeline=1), line("commit", 30.0, timeline=2)]
    assert first_commit(commits, 10.0, 1) == 30.0
    late = Change("ghost", "HAProxy", True, 0.0, 10.0, writes=5.0)
    judge([late], [], {RUN: Left("done", {}, 14.0), OTHER: Left("done", {}, 26.0)}, "")
    assert late.progress == 11.0
    assert late.findings == ["late: the first run ended after 11.0 s"]


def test_twenty_changes_have_every_route_replication_and_kind() -> None:
    given = Namespace(changes=20, seed="1", kinds=[*KINDS], routes=[*ROUTES], replication=[*ROUNDS])
    planned = plan(given)
    assert len(planned) == 20
    assert {one.kind for one in planned} == set(KINDS)
    assert {(one.replication, one.route) for one in planned} == {
        (how, route) for how in ROUNDS for route in ROUTES
    }


def test_the_page_says_what_was_found() -> None:
    [good, bad] = changes()
    good.progress = bad.progress = 1.0
    good.acknowledged, bad.lost = 10, [f"start a {RUN}"]
    page = render([good, bad], 2, "1", 60.0, "PostgreSQL 15")
    assert "2 changes. Strict synchronous replication: 1 of 10 acknowledged calls lost" in page
    assert "| strict | kill -9 | 2 | 5.0 s | 1.0 s | 10 | 1 | 0 | 0 | 0 | 0 |" in page
    assert f"kill -9, strict, HAProxy: lost: start a {RUN}" in page


def test_the_evidence_has_a_place_for_the_figures() -> None:
    assert PAGE.read_text().count("<!-- failover -->\n**") == 1
