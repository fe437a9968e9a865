"""A blob in any other row than its own is refused, and a forged row lets nothing pass.

What perdure reads of a journal is compared before and after: what differs must say that it is
damaged, or be an error.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.testing import TemporaryRuntime
from perdure.types import State
from tests.support import sealed_journal
from tests.support.agents import Log, chain
from tests.support.raw import execute
from tests.support.sealed_journal import CALLS, KEYS, opened, rows_of

MODES = {"encrypted": KEYS, "checksum": None}
COLUMNS = {
    "perdure_runs": ("setup", "labels", "error", "output"),
    "perdure_waits": ("body", "seal", "answer"),
    "perdure_events": ("body",),
    "perdure_schedules": ("body",),
    "perdure_effects": ("arguments", "outcome"),
    "perdure_outbox": ("body",),
    "perdure_scores": ("body",),
    "perdure_checkpoints": ("state",),
    "perdure_values": ("body",),
    "perdure_writes": ("body",),
}
"""What a list, a single read or a thread's state shows. Signals are tried on their own."""
TRIGGERS = "SELECT name FROM sqlite_schema WHERE type = 'trigger'"
PAIRS = 6
"""Rows of a column whose blobs change places, at most."""
MARKS = ("amaged", "WrongKey", "Unreadable")

Journal = tuple[Path, dict[str, bytes] | None]


@pytest.fixture(scope="module", params=MODES)
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Journal:
    keys = MODES[request.param]
    path = tmp_path_factory.mktemp("sealed") / "journal.db"
    sealed_journal.fill(path, keys)
    return path, keys


async def seen(path: Path, keys: dict[str, bytes] | None) -> dict[str, str]:
    """Everything that a client reads, by what it is about."""
    found: dict[str, str] = {}

    async def note(name: str, read: Callable[[], Any]) -> list[Any]:
        try:
            values = await read()
        except Exception as error:
            found[name] = repr(error)
            return []
        for n, value in enumerate(values):
            found[f"{name} {n}"] = repr(value)
        return list(values)

    async with opened(path, keys) as rt:
        for run in await note("run", lambda: rt.runs(limit=100)):
            thread = run.thread_id
            await note(f"get {thread}", partial(one, rt, run.id))
            await note(f"events {thread}", partial(rt.events, run.id))
            await note(f"effects {thread}", partial(rt.effects, run.id))
            await note(f"scores {thread}", partial(rt.scores, run.id))
            await note(f"history {thread}", partial(history, rt, thread))
            await note(f"waits {thread}", partial(rt.wait_history, run.id))
        await note("wait", lambda: rt.waits(limit=100))
        await note("message", rt.messages)
        await note("schedule", rt.schedules)
    return found


async def one(rt: TemporaryRuntime, run_id: str) -> list[Any]:
    return [await rt.get(run_id)]


async def history(rt: TemporaryRuntime, thread_id: str) -> list[Any]:
    config: Any = {"configurable": {"thread_id": thread_id}}
    return [
        (item.checkpoint["channel_values"], item.pending_writes)
        async for item in rt.saver.alist(config)
    ]


def moves(path: Path, table: str, column: str) -> Iterator[tuple[bytes, bytes]]:
    """Blobs of two rows of a kind."""
    blobs = {bytes(row[column]): None for row in rows_of(path, table) if row[column] is not None}
    yield from itertools.islice(itertools.permutations(blobs, 2), PAIRS)


async def test_a_blob_in_any_other_row_of_its_kind_is_refused(
    tmp_path: Path, journal: Journal
) -> None:
    path, keys = journal
    whole = await seen(path, keys)
    for table, columns in COLUMNS.items():
        for column in columns:
            tried = 0
            for there, moved in moves(path, table, column):
                copy = Path(shutil.copy(path, tmp_path / "copy.db"))
                for (name,) in execute(f"sqlite:///{copy}", TRIGGERS):  # events never change
                    execute(f"sqlite:///{copy}", f"DROP TRIGGER {name}")
                sql = f"UPDATE {table} SET {column} = ? WHERE {column} = ?"
                execute(f"sqlite:///{copy}", sql, moved, there)
                now = await seen(copy, keys)
                changed = {name: text for name, text in now.items() if whole.get(name) != text}
                assert changed, f"a moved {table}.{column} was read as if it were right"
                for name, text in changed.items():
                    assert any(mark in text for mark in MARKS), (table, column, name, text)
                tried += 1
            assert tried > 1, f"{table}.{column} has no two rows"


async def test_a_signal_in_the_place_of_another_holds_the_run_that_takes_it(
    tmp_path: Path, journal: Journal
) -> None:
    def heed(state: Log) -> Log:
        return {"log": [perdure.wait_for("other")]}

    path, keys = Path(shutil.copy(journal[0], tmp_path)), journal[1]
    async with opened(path, keys) as rt:
        await rt.signal("ian", "other", "moved")
        [(moved,)] = execute(rt.url, "SELECT body FROM perdure_signals WHERE thread_id = 'ian'")
        sql = "UPDATE perdure_signals SET body = ? WHERE thread_id = 'eve' AND name = 'other'"
        execute(rt.url, sql, moved)
        [eve] = await rt.runs(thread_id="eve")
        await rt.cancel(eve.id)
        rt.register(chain(heed), name="heed")
        run = await rt.start("heed", {"log": []}, thread_id="eve")
        await rt.tick()
        found = await rt.get(run.id)
        assert found.state is not State.DONE
        assert "damaged" in f"{found.reason} {found.error}"


BEN, ADA = (f"(SELECT * FROM perdure_waits WHERE thread_id = '{one}')" for one in ("ben", "ada"))


FORGERIES = {
    "the answer of another wait": f"""
        UPDATE perdure_waits SET state = 'answered', answer = a.answer, change = a.change,
            answered_by = a.answered_by, answered_at = a.answered_at
        FROM {ADA} AS a WHERE perdure_waits.thread_id = 'ben'""",
    "the row of another wait": f"""
        UPDATE perdure_waits SET state = 'answered', thread_id = 'ben', run_id = b.run_id,
            ns = b.ns, checkpoint_id = b.checkpoint_id, task_id = b.task_id, path = b.path,
            stamp = b.stamp, interrupt_id = b.interrupt_id
        FROM {BEN} AS b WHERE perdure_waits.thread_id = 'ada'""",
    "a state without an answer": """
        UPDATE perdure_waits SET state = 'answered', answered_by = 'ann' WHERE thread_id = 'ben'""",
    "another time": "UPDATE perdure_waits SET expires_at = 1 WHERE thread_id = 'ben'",
    "another task": "UPDATE perdure_waits SET task_id = 'x' WHERE thread_id = 'ben'",
    "the outcome of another effect": """
        UPDATE perdure_effects SET outcome = (SELECT outcome FROM perdure_effects
            WHERE thread_id = 'ada' AND name = 'quote') WHERE thread_id = 'ben'""",
    "another task of an effect": """
        UPDATE perdure_effects SET task = 'x' WHERE thread_id = 'ben'""",
    "another graph": "UPDATE perdure_runs SET graph = 'nap' WHERE thread_id = 'ben'",
    "the input of another run": """
        UPDATE perdure_runs SET begun = 0, setup = (SELECT setup FROM perdure_runs
            WHERE thread_id = 'ada') WHERE thread_id = 'ben'""",
    "a run that has not begun": "UPDATE perdure_runs SET begun = 0 WHERE thread_id = 'ben'",
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_approval_outcome_or_run_lets_nothing_pass(
    tmp_path: Path, journal: Journal, forgery: str
) -> None:
    keys, path = journal[1], Path(shutil.copy(journal[0], tmp_path))
    execute(f"sqlite:///{path}", FORGERIES[forgery])
    execute(f"sqlite:///{path}", "UPDATE perdure_runs SET due_at = 1 WHERE thread_id = 'ben'")
    CALLS.clear()
    async with opened(path, keys) as rt:
        await rt.tick()
        [ben] = await rt.runs(thread_id="ben")
        assert CALLS == []
        assert ben.state in (State.HELD, State.WAITING)
        if ben.state is State.HELD:
            assert "damaged" in str(ben.reason)
        [cyd] = await rt.waits(thread_id="cyd", kind="human")
        await rt.answer(cyd.id, "yes")
        await rt.tick()
        assert ("send", "cyd") in CALLS
