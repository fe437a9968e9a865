"""A question whose row cannot be read is asked again. Nothing of the row is trusted: no question is
skipped, and no answer is taken from it.

| what is there when the run is claimed            | what becomes of it                       |
|--------------------------------------------------|------------------------------------------|
| an open wait that cannot be read, of a task      | deleted (`discard_wait`); the task asks  |
| the same, of a breakpoint                        | deleted; the run stops there again       |
| the driver dies after it deleted the wait        | the task asks when the run is recovered  |
| an unreadable wait whose answer was withdrawn    | held: its task may have the old answer   |
| an answer that cannot be read                    | held                                     |
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import WaitClosed
from perdure.types import Retry, State
from tests.support import sealed_journal
from tests.support.raw import execute
from tests.support.sealed_journal import CALLS, KEYS, opened
from tests.support.sqlite_only import url as url
from tests.support.waiters import (
    asking,
    begin,
    chain,
    drive,
    healthy,
    log_of,
    named,
    only_wait,
    side_by_side,
)

DAMAGES = {
    "asked again by a worker that stores no seal": "stamp = stamp + 1",
    "a seal that is missing": "seal = NULL",
    "another task": "task_id = 'x'",
    "no task": "task_id = ''",
    "a body that is cut off": "body = substr(body, 1, length(body) - 1)",
    "another time": "expires_at = 1",
    "another kind": "kind = 'clock', wake_at = 1",
    "another question": "interrupt_id = 'breakpoint:x'",
    "a signal": "name = 'word'",
}


@pytest.fixture(scope="module", params=["encrypted", "checksum"])
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    keys = KEYS if request.param == "encrypted" else None
    path = tmp_path_factory.mktemp("sealed") / "journal.db"
    sealed_journal.fill(path, keys)
    return path, keys


def damage(url: str, how: str, where: str = "state = 'open'") -> None:
    execute(url, f"UPDATE perdure_waits SET {how} WHERE {where}")


@pytest.mark.parametrize("how", DAMAGES)
async def test_a_question_that_cannot_be_read_is_asked_again(
    journal: tuple[Path, dict[str, bytes] | None], tmp_path: Path, how: str
) -> None:
    path, keys = Path(shutil.copy(journal[0], tmp_path)), journal[1]
    async with opened(path, keys) as rt:
        [before] = await rt.waits(thread_id="ben")
    damage(f"sqlite:///{path}", DAMAGES[how], "thread_id = 'ben'")
    execute(f"sqlite:///{path}", "UPDATE perdure_runs SET due_at = 1 WHERE thread_id = 'ben'")
    CALLS.clear()
    async with opened(path, keys) as rt:
        [wait] = await rt.waits(thread_id="ben")
        assert wait.damaged is not None
        await rt.signal("ben", "word", "yes")
        await rt.tick()
        [again] = await rt.waits(thread_id="ben")
        assert (again.id, again.value, again.damaged) == (before.id, before.value, None)
        assert (again.kind, again.name, again.expires_at) == ("human", None, None)
        assert CALLS == []
        await rt.answer(again.id, "yes", by="ann")
        await rt.tick()
        [ben] = await rt.runs(thread_id="ben")
        assert (ben.state, CALLS) == (State.DONE, [("send", "ben")])


async def test_an_answer_to_a_question_that_cannot_be_read_makes_its_run_ask_again(
    url: str,
) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, chain(asking("may I?")))
        wait = await only_wait(rt, run)
        damage(url, "stamp = stamp + 1")
        with pytest.raises(WaitClosed, match=f"{wait.id}.*asks again"):
            await rt.answer(wait.id, "no")
        await drive(rt)
        assert (await only_wait(rt, run)).damaged is None
        await rt.answer(wait.id, "yes")
        await drive(rt)
        assert await log_of(rt, run) == [("may I?", "yes")]


async def test_a_run_that_was_held_for_such_a_question_asks_it_when_retried(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, chain(asking("may I?")))
        damage(url, "stamp = stamp + 1")
        execute(url, "UPDATE perdure_runs SET state = 'held', due_at = NULL")
        await rt.retry(run.id)
        await drive(rt)
        wait = await only_wait(rt, run)
        await rt.answer(wait.id, "yes")
        await drive(rt)
        assert await log_of(rt, run) == [("may I?", "yes")]


async def test_the_answer_to_another_question_is_handed_over_all_the_same(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(asking("one", "first"), asking("two", "second")))
        one, two = sorted(await rt.waits(), key=lambda wait: str(wait.value))
        damage(url, "stamp = stamp + 1", f"id = '{two.id}'")
        await rt.answer(one.id, 1)
        await drive(rt)
        assert (await only_wait(rt, run)).id == two.id
        await rt.answer(two.id, 2)
        await drive(rt)
        assert await log_of(rt, run) == [("one", 1), ("two", 2)]


async def test_the_second_question_of_a_task_keeps_the_first_answer(url: str) -> None:
    def both(state: Any) -> Any:
        return {"log": [perdure.ask("one"), perdure.ask("two")]}

    async with healthy(url) as rt:
        run = await begin(rt, chain(both))
        await rt.answer((await only_wait(rt, run)).id, 1)
        await drive(rt)
        wait = await only_wait(rt, run)
        damage(url, "body = substr(body, 1, 9)")
        with pytest.raises(WaitClosed):
            await rt.answer(wait.id, 3)
        await drive(rt)
        assert (await only_wait(rt, run)).value == "two"
        await rt.answer(wait.id, 2)
        await drive(rt)
        assert await log_of(rt, run) == [1, 2]


@pytest.mark.parametrize("how", ["stamp = 7", "task_id = 'x'", "interrupt_id = 'y'", "body = 'z'"])
async def test_a_breakpoint_whose_wait_cannot_be_read_is_not_passed(url: str, how: str) -> None:
    told = [named(name, lambda state: {"log": ["told"]}) for name in ("first", "second")]
    async with healthy(url) as rt:
        run = await begin(rt, chain(*told).compile(interrupt_before=["second"]))
        damage(url, how)
        execute(url, "UPDATE perdure_runs SET due_at = 1")
        await drive(rt)
        wait = await only_wait(rt, run)
        assert (wait.value, wait.damaged) == ({"breakpoint": ["second"]}, None)
        await rt.answer(wait.id, None)
        await drive(rt)
        assert await log_of(rt, run) == ["told", "told"]


async def test_an_unreadable_question_whose_answer_was_withdrawn_holds_its_run(url: str) -> None:
    """Its task may have the answer that was withdrawn."""

    def ask(state: Any) -> Any:
        if (said := perdure.ask("may I?")) != "yes":
            raise ValueError(said)
        return {"log": [said]}

    async with healthy(url) as rt:
        rt.register(chain(ask), name="g", retry=Retry(attempts=1))
        run = await rt.start("g", {"log": []}, thread_id="t")
        await drive(rt)
        wait = await only_wait(rt, run)
        await rt.answer(wait.id, "no")
        await drive(rt)
        await rt.withdraw(wait.id)
        damage(url, "stamp = stamp + 1")
        await drive(rt)
        assert (await rt.get(run.id)).state is State.HELD


async def test_an_answer_that_cannot_be_read_holds_its_run(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, chain(asking("may I?")))
        await rt.answer((await only_wait(rt, run)).id, "no")
        damage(url, "stamp = stamp + 1", "state = 'answered'")
        await drive(rt)
        assert (await rt.get(run.id)).state is State.HELD
