"""The actions possible on a run now, and their consequences in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from perdure.commands.run_control import Stakes
from perdure.types import Kind, Run, State, WaitRecord
from perdure.views.run_offers import Offered, offers

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
GRACE = timedelta(seconds=10)


def run(state: State) -> Run:
    return Run("r", "t", "g", state, None, None, None, {}, (), NOON, NOON, None)


def wait(kind: Kind, **more: Any) -> WaitRecord:
    given: dict[str, Any] = {"wake_at": None, "name": None, "expires_at": None, **more}
    return WaitRecord(
        "w", "r", "t", kind, None, given["wake_at"], given["name"], given["expires_at"], NOON
    )


def offered(
    state: State, *waits: WaitRecord, can_fork: bool = True, **at_stake: Any
) -> dict[Offered, str]:
    found = offers(run(state), Stakes(**at_stake), waits, NOON, GRACE, can_fork=can_fork)
    return {one.what: " ".join((one.text, *one.also)) for one in found}


def test_each_state_offers_what_is_possible() -> None:
    assert [*offered(State.RUNNING)] == [
        *(Offered.PAUSE, Offered.SIGNAL, Offered.FORK, Offered.CANCEL),
    ]
    assert [*offered(State.PAUSED)] == [
        *(Offered.RESUME, Offered.SIGNAL, Offered.FORK, Offered.CANCEL),
    ]
    assert [*offered(State.FAILED)] == [Offered.RETRY, Offered.FORK]
    assert [*offered(State.DONE, can_fork=False)] == []
    assert Offered.RETRY not in offered(State.HELD, unknown=("charge",))


def test_a_sleeper_can_be_woken_unless_it_is_paused() -> None:
    asleep = wait(Kind.CLOCK, wake_at=NOON + timedelta(days=2))
    said = offered(State.WAITING, asleep)[Offered.WAKE]
    assert said == "The run wakes now instead of at 2030-01-03 12:00:00Z (in 2d)."
    assert Offered.WAKE not in offered(State.PAUSED, asleep)
    assert Offered.WAKE not in offered(State.WAITING)


def test_a_signal_names_what_the_run_waits_for() -> None:
    said = offered(State.WAITING, wait(Kind.SIGNAL, name="reply"))[Offered.SIGNAL]
    assert said == "The run is waiting for reply and continues with the value you send."
    assert "kept until it does" in offered(State.RUNNING)[Offered.SIGNAL]


def test_a_fork_says_that_the_run_stays_and_effects_are_called_again() -> None:
    said = offered(State.DONE)[Offered.FORK]
    assert "This run and its thread do not change." in said
    assert "The new run makes its own effect calls." in said
