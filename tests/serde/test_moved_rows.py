"""Every sealed blob is bound to its place: moved to any other one of its kind, it is refused, and
so is a row in which a deciding column was changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint.rows import CheckpointRow, WritesRow, load_state, load_values, load_writes
from perdure.checkpoint.values import ValueRef
from perdure.commands import messages, runs, scores, waits
from perdure.commands.effects import EffectRow
from perdure.commands.events import EventRow, load_event
from perdure.commands.messages import MessageRow, to_message
from perdure.commands.runs import RunRow
from perdure.commands.schedules import ScheduleRow
from perdure.commands.waits import WaitRow
from perdure.errors import UNREADABLE
from perdure.serde.encryption import ChecksumEnvelope, EncryptedEnvelope, Place
from perdure.serde.serializer import Serializer
from perdure.types import State
from tests.support import sealed_journal
from tests.support.sealed_journal import CALLS, KEYS, opened, rows_of

Stored = dict[str, Any]
MODES = {"encrypted": KEYS, "checksum": None}


def _pick(kind: Any, row: Stored) -> Any:
    return kind(**{name: row[name] for name in kind._fields if name in row})


class Reader:
    """Opens each blob of a row as perdure does."""

    def __init__(self, keys: dict[str, bytes] | None) -> None:
        self.serializer = Serializer(keys=keys)
        self.columns: dict[tuple[str, str], Callable[[Stored], Any]] = {
            ("perdure_runs", "setup"): self._run(runs.load_setup),
            ("perdure_runs", "labels"): self._run(runs.load_labels),
            ("perdure_runs", "error"): self._run(runs.load_error),
            ("perdure_runs", "output"): self._run(runs.stored_output),
            ("perdure_waits", "body"): self._wait(waits.load_body),
            ("perdure_waits", "seal"): self._wait(waits.load_body),
            ("perdure_waits", "answer"): self._wait(waits.load_answer),
            ("perdure_signals", "body"): self._signal,
            ("perdure_reads", "body"): self._read,
            ("perdure_events", "body"): lambda row: load_event(
                self.serializer, _pick(EventRow, row)
            ),
            ("perdure_schedules", "body"): lambda row: _pick(ScheduleRow, row).load(
                self.serializer
            ),
            ("perdure_effects", "arguments"): lambda row: _pick(EffectRow, row).load_arguments(
                self.serializer
            ),
            ("perdure_effects", "outcome"): lambda row: _pick(EffectRow, row).load_outcome(
                self.serializer
            ),
            ("perdure_outbox", "body"): lambda row: to_message(
                self.serializer, _pick(MessageRow, row)
            ),
            ("perdure_scores", "body"): self._score,
            ("perdure_checkpoints", "state"): lambda row: load_state(
                self.serializer, _pick(CheckpointRow, row)
            ),
            ("perdure_values", "body"): self._value,
            ("perdure_writes", "body"): lambda row: load_writes(
                self.serializer, _pick(WritesRow, row)
            ),
        }

    def _run(self, load: Callable[..., Any]) -> Callable[[Stored], Any]:
        return lambda row: load(self.serializer, _pick(RunRow, {**row, "has_checkpoints": 1}))

    def _wait(self, load: Callable[..., Any]) -> Callable[[Stored], Any]:
        return lambda row: load(self.serializer, _pick(WaitRow, row))

    def _signal(self, row: Stored) -> Any:
        names = ("thread_id", "id", "name", "key", "sent_at")
        return self.serializer.loads(row["body"], waits.signal_place(*(row[n] for n in names)))

    def _read(self, row: Stored) -> Any:
        name = f"read {row['n']} of task {row['task']!r} of run {row['run_id']}"
        return self.serializer.loads(row["body"], Place(name, (row["thread_id"],)))

    def _score(self, row: Stored) -> Any:
        own = ("thread_id", "run_id", "name", "about", "value", "at")
        names = (*own, "kind", "label", "target", "target_id")
        return self.serializer.loads(row["body"], scores.place_of(*(row[n] for n in names)))

    def _value(self, row: Stored) -> Any:
        ref = _pick(ValueRef, row)
        return load_values(self.serializer, row["thread_id"], row["ns"], [(ref, row["body"])])


BOUND = {
    "perdure_runs": "thread_id id graph version key created_at",
    "perdure_waits": "thread_id id run_id kind name interrupt_id wake_at expires_at created_at ns "
    "checkpoint_id task_id path stamp",
    "perdure_signals": "thread_id id name key sent_at",
    "perdure_reads": "thread_id run_id task n",
    "perdure_events": "thread_id run_id kind at change",
    "perdure_schedules": "name graph cron timezone",
    "perdure_effects": "scope task name n key checkpoint_id digest",
    "perdure_outbox": "thread_id id run_id topic sent_at",
    "perdure_scores": "thread_id run_id about value at kind label target target_id",
    "perdure_checkpoints": "thread_id ns id parent_id run_id step refs",
    "perdure_values": "thread_id ns channel chain seq step",
    "perdure_writes": "thread_id ns checkpoint_id task_id stamp",
}
"""The columns that the first blob of each table is bound to."""
ALSO = {
    ("perdure_waits", "answer"): "thread_id id run_id answered_by answered_at",
    ("perdure_effects", "outcome"): "scope task name n key digest thread_id run_id state",
}


Journal = tuple[Path, dict[str, bytes] | None]


@pytest.fixture(scope="module", params=MODES)
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Journal:
    keys = MODES[request.param]
    path = tmp_path_factory.mktemp("sealed") / "journal.db"
    sealed_journal.fill(path, keys)
    return path, keys


def test_a_row_of_which_a_deciding_column_was_changed_is_refused(
    journal: Journal,
) -> None:
    path, keys = journal
    reader, changed = Reader(keys), set()
    for (table, column), load in reader.columns.items():
        if column in ("labels", "error", "output", "seal"):
            bound = "thread_id id"
        else:
            bound = ALSO.get((table, column), BOUND[table])
        rows = rows_of(path, table)
        for row in rows:
            if row[column] is None:
                continue
            for name in bound.split():
                for value in _others(rows, name, row):
                    if not _may_be(table, row, name, value):
                        changed.add((table, column, name))
                        with pytest.raises(UNREADABLE):
                            load({**row, name: value})
    expected = {(table, name) for table, names in BOUND.items() for name in names.split()}
    assert expected <= {(table, name) for table, _, name in changed}
    for (table, column), names in ALSO.items():
        assert {(table, column, name) for name in names.split()} <= changed


def _others(rows: list[Stored], name: str, row: Stored) -> set[Any]:
    """Values of a column in other rows, and one that no row has."""
    kind = type(row[name])
    made = {int: (row[name] or 0) + 1 if kind is int else 1, float: 0.5}.get(kind, "another")
    return {one[name] for one in rows} - {row[name]} | {made}


def _may_be(table: str, row: Stored, name: str, value: Any) -> bool:
    """What is decided in SQL, and so not authenticated."""
    if table == "perdure_events" and row["kind"] in ("claimed", "recovered"):
        return name in ("thread_id", "run_id") or value in ("claimed", "recovered")
    if table == "perdure_events" and name == "kind":
        ends = {"released", "cancelled", "paused"}
        return row["kind"] in ends | {"done", "waiting", "failed", "held"} and value in ends
    return table == "perdure_effects" and name == "state" and row["state"] == "failed"


# -- in a run


def test_a_blob_of_an_older_version_opens_with_its_old_binding() -> None:
    for envelope in (ChecksumEnvelope(), EncryptedEnvelope(KEYS)):
        old = envelope.seal(b"x", "message m")
        assert envelope.unseal(old, messages.place("t", "m", "r", "topic", 1)) == b"x"
        with pytest.raises(UNREADABLE):
            envelope.unseal(old, messages.place("t", "n", "r", "topic", 1))
        new = envelope.seal(b"x", messages.place("t", "m", "r", "topic", 1))
        for byte in range(5):  # nor can a new one be made an old one
            with pytest.raises(UNREADABLE):
                envelope.unseal(bytes([byte]) + new[1:], "message m")


@pytest.mark.parametrize("decision", ["cancel", "pause"])
async def test_with_keys_a_run_that_was_stopped_goes_on_only_if_somebody_says_so(
    tmp_path: Path, decision: str
) -> None:
    path = tmp_path / "journal.db"
    await sealed_journal.afill(path, KEYS)
    CALLS.clear()
    async with opened(path, KEYS) as rt:
        [ben] = await rt.runs(thread_id="ben")
        [wait] = await rt.waits(thread_id="ben", kind="human")
        await rt.answer(wait.id, "yes")
        await getattr(rt, decision)(ben.id)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(
                "UPDATE perdure_runs SET state = 'pending', due_at = 1 WHERE id = ?", [ben.id]
            )
        await rt.tick()
        found = await rt.get(ben.id)
        assert found.state is State.HELD
        assert "its history says" in str(found.reason)
        assert CALLS == []
        await rt.retry(ben.id)  # which a person decides
        await rt.tick()
        assert (await rt.get(ben.id)).state is State.DONE
        assert CALLS == [("send", "ben")]
        [fay] = await rt.runs(thread_id="fay")
        await rt.retry(fay.id)
        await rt.tick()
        assert CALLS[1:] == [("refuse", "fay")]
        [cyd] = await rt.runs(thread_id="cyd")
        [wait] = await rt.waits(thread_id="cyd", kind="human")
        await rt.pause(cyd.id)
        await rt.answer(wait.id, "yes")
        await rt.resume(cyd.id)
        await rt.tick()
        assert (await rt.get(cyd.id)).state is State.DONE
