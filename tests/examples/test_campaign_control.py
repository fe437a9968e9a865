"""A campaign is paused, resumed and stopped while it runs, whoever is killed then."""

from __future__ import annotations

from typing import Any

import pytest

from examples.campaign.app import WrongState
from tests.examples import campaigns
from tests.examples.campaigns import BO, CY, DAY, HELD, PLAN, TWO, World

office, sqlite_office = campaigns.office, campaigns.sqlite_office
THREE = (BO, CY, "do@example.org")


def dies_after(office: World, monkeypatch: pytest.MonkeyPatch, signals: int) -> Any:
    """A command that is cut off when it has told so many threads."""
    signal, left = office.app.runtime.blocking.signal, [signals]

    def cut_off(*args: Any, **more: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        signal(*args, **more)

    patch = pytest.MonkeyPatch()
    patch.setattr(type(office.app.runtime.blocking), "signal", staticmethod(cut_off))
    return patch


def test_a_stop_that_is_cut_off_has_stopped_everything_and_is_finished_by_the_next(
    office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.campaign(HELD, *THREE, cadence=TWO)
    office.drive()
    patch = dies_after(office, monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        office.app.stop(1)
    patch.undo()
    assert [office.member(1, one) for one in THREE] == ["stopped"] * 3
    office.drive()
    office.ends("stopped", address=BO)
    assert len(office.questions()) == 2
    office.app.runtime.blocking.answer(office.questions(1, CY)[0].id, {"action": "approve"})
    office.drive()
    office.ends("stopped", address=CY)  # an answer to a draft of a stopped campaign sends nothing
    office.app.stop(1)
    office.drive()
    for one in THREE:
        office.ends("stopped", address=one)
    office.nothing_more(sent=0)
    for refused in (
        lambda: office.app.resume(1),
        lambda: office.app.pause(1),
        lambda: office.app.launch(1),
        lambda: office.enrol(1, "ed@example.org"),
    ):
        with pytest.raises(WrongState, match="'spring' is stopped for good"):
            refused()


def test_a_resume_that_is_cut_off_is_finished_by_the_next_or_by_the_threads_themselves(
    office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.campaign(PLAN, *THREE, cadence=TWO)
    office.drive()
    office.app.pause(1)
    office.advance(4 * DAY)
    assert len(office.office.log) == 3
    patch = dies_after(office, monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        office.app.resume(1)
    patch.undo()
    office.drive()
    assert [len(office.sent(one)) for one in THREE] == [2, 1, 1]
    office.app.resume(1)
    office.drive()
    assert [len(office.sent(one)) for one in THREE] == [2, 2, 2]


def test_threads_that_nobody_woke_after_a_pause_look_by_themselves(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(PLAN, *THREE, cadence=TWO)
    office.drive()
    office.app.pause(1)
    office.advance(4 * DAY)
    patch = dies_after(office, pytest.MonkeyPatch(), 0)
    with pytest.raises(KeyboardInterrupt):
        office.app.resume(1)
    patch.undo()
    office.advance(DAY / 4)
    assert [len(office.sent(one)) for one in THREE] == [2, 2, 2]


def test_drafts_of_a_paused_campaign_stay_open_and_their_answers_wait(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(HELD, BO, CY)
    office.drive()
    [bo], [cy] = office.questions(1, BO), office.questions(1, CY)
    office.app.pause(1)
    office.app.runtime.blocking.answer(bo.id, {"action": "approve"})
    office.advance(DAY)
    assert office.office.log == []
    office.app.resume(1)
    office.drive()
    assert [mail.recipient for mail in office.office.log] == [BO]
    [still] = office.questions()
    assert still.value == cy.value


def test_a_paused_campaign_sends_nothing_even_in_the_middle_of_a_conversation(
    office: World,
) -> None:
    def pause(moment: object, mail: object) -> None:
        office.app.pause(1)

    office.office.on = pause
    office.campaign()
    office.drive()
    assert (office.sent(), office.run().state) == ([], "waiting")
    office.office.on = None
    office.app.resume(1)
    office.drive()
    assert len(office.sent()) == 1
