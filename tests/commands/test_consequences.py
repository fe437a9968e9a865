"""The predicted consequences of an action on runs are what happens."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure.commands.run_control import RunAction, Stakes, read_stakes
from perdure.errors import WrongState
from perdure.types import Control, Retry, Run, State
from perdure.views.run_offers import Consequence, consequence
from tests.support.effects import Cut, Times
from tests.support.waiters import DAY, MINUTE, asking, chain, drive, healthy, sleeping

NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)
TEN = timedelta(seconds=10)


def run(state: State, id: str = "r") -> Run:
    return Run(id, "t", "g", state, None, None, None, {}, (), NOW, NOW, None)


def will(state: State, action: RunAction, **stakes: Any) -> Consequence:
    return consequence(run(state), action, Stakes(**stakes), TEN)


def test_cancelling_says_what_is_undone_and_which_children_stop() -> None:
    said = will(
        State.WAITING,
        RunAction.CANCEL,
        undoable=("book", "charge", "book", "mail", "post"),
        unknown=("call",),
        children=2,
    )
    assert said.text == "cancelled once a worker has undone its effects"
    assert said.also == (
        "undoes 5 effects: book, charge, mail and 1 more",
        "the outcome of call stays unknown",
        "cancels 2 child runs",
    )


def test_retrying_says_what_is_called_again_or_why_it_would_not_help() -> None:
    assert will(State.FAILED, RunAction.RETRY, failed=("charge",)) == Consequence(
        True, "retried from its last step", ("calls charge again",)
    )
    said = will(State.HELD, RunAction.RETRY, unknown=("charge",))
    assert said == Consequence(
        False, "not retried: it would be held again until a person settles charge"
    )


@pytest.mark.parametrize(
    ("state", "action", "stakes", "why"),
    [
        (State.DONE, RunAction.CANCEL, {}, "it has ended"),
        (State.FAILED, RunAction.PAUSE, {}, "it has ended"),
        (State.HELD, RunAction.PAUSE, {}, "it is held already, until it is retried or cancelled"),
        (State.PAUSED, RunAction.PAUSE, {}, "it is paused already"),
        (State.RUNNING, RunAction.PAUSE, {"control": Control.CANCEL}, "it is being cancelled"),
        (State.PENDING, RunAction.CANCEL, {"control": Control.CANCEL}, "it is being cancelled"),
        (State.WAITING, RunAction.RETRY, {}, "it is neither failed nor held"),
        (State.FAILED, RunAction.RETRY, {"is_passed": True}, "a later run of the thread began"),
        (State.WAITING, RunAction.RESUME, {}, "it is not paused"),
    ],
)
def test_an_impossible_action_says_why(
    state: State, action: RunAction, stakes: dict[str, Any], why: str
) -> None:
    assert will(state, action, **stakes) == Consequence(False, f"not {action.done}: {why}")


async def read(rt: Any, *runs: Run) -> list[tuple[Run, Stakes]]:
    found = [await rt.get(one.id) for one in runs]
    read: list[tuple[Run, Stakes]] = await rt.journal.arun(read_stakes(found))
    return read


async def test_what_is_at_stake_is_read_for_all_runs_at_once(url: str) -> None:
    cut = Times(1, Cut)

    @perdure.effect(compensate=lambda result: None)
    def book() -> str:
        return "booked"

    @perdure.effect(unknown="hold")
    def charge() -> str:
        cut()
        return "charged"

    @perdure.effect(retry=None)
    def mail() -> None:
        raise ValueError("no such mailbox")

    def books(state: Any) -> Any:
        return {"log": [book(), book()]}

    def mails(state: Any) -> Any:
        return {"log": [mail()]}

    def charges(state: Any) -> Any:
        return {"log": [charge()]}

    async with healthy(url) as rt:

        async def starts(state: Any) -> Any:
            await rt.start("asks", {"log": []})
            await rt.start("asks", {"log": []}, on_parent_cancel="leave")
            return {"log": []}

        rt.register(chain(asking("Go?")), "asks")
        rt.register(chain(books, starts, asking("Go?")), "books")
        rt.register(chain(mails), "mails", retry=Retry(attempts=1))
        rt.register(chain(charges), "charges")
        booked = await rt.start("books", {"log": []})
        failed = await rt.start("mails", {"log": []}, thread_id="passed")
        held = await rt.start("charges", {"log": []})
        await drive(rt)
        await rt.start("asks", {"log": []}, thread_id="passed")
        await drive(rt)
        rt.clock.advance(MINUTE)
        await drive(rt)
        found = {run.id: stakes for run, stakes in await read(rt, booked, failed, held)}
        assert found[booked.id] == Stakes(undoable=("book", "book"), children=1)
        assert found[failed.id] == Stakes(failed=("mail",), is_passed=True)
        assert found[held.id] == Stakes(unknown=("charge",))
        assert await rt.journal.arun(read_stakes([replace(booked, id="gone")])) == []
        assert await rt.journal.arun(read_stakes([])) == []


async def test_predictions_match_what_happens(url: str) -> None:
    def fails(state: Any) -> Any:
        raise ValueError("no")

    async with healthy(url) as rt:
        rt.register(chain(asking("Go?")), "asks")
        rt.register(chain(sleeping(DAY)), "sleeps")
        rt.register(chain(fails), "fails", retry=Retry(attempts=1))
        rt.register(chain(fails), "holds", retry=Retry(attempts=1), hold=True)

        async def make() -> list[Run]:
            graphs = ("asks", "sleeps", "fails", "holds", "asks", "asks", "sleeps")
            made = [await rt.start(graph, {"log": []}) for graph in graphs]
            await drive(rt)
            await rt.pause(made[4].id)
            await rt.cancel(made[5].id)
            made.append(await rt.start("asks", {"log": []}, thread_id=made[6].thread_id))
            return made

        acts = {RunAction.PAUSE: rt.pause, RunAction.CANCEL: rt.cancel, RunAction.RETRY: rt.retry}
        for action, act in acts.items():
            for found, stakes in await read(rt, *await make()):
                said = consequence(found, action, stakes, TEN)
                try:
                    done = await act(found.id)
                except WrongState:
                    assert not said.happens, (found.state, said)
                else:
                    assert said.happens or done.state == found.state, (found.state, said)
