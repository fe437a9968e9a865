"""Calls of a client inside a run: their effect, and the parent of a run that they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.commands import runs
from perdure.commands.runs import RunRow
from perdure.commands.starting import Parent
from perdure.effects import decorator
from perdure.effects.call_record import CallRecord
from perdure.effects.decorator import Effect
from perdure.effects.identity import TaskContext, current_task
from perdure.effects.record_matching import CallPosition
from perdure.journal import Journal, Plan


async def call_method(
    effect: Effect, bound: tuple[tuple[Any, ...], dict[str, Any]], is_parallel: bool | None
) -> Any:
    """Call a method of a client as an effect of the task. `is_parallel` is what its caller in
    another thread knows of its position."""

    def make_record(
        task: TaskContext, attempt: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CallRecord:
        record = effect.make_record(task, attempt, args, kwargs)
        if is_parallel is not None:
            instance = record.position.instance
            record.position = CallPosition(attempt, is_parallel=is_parallel, instance=instance)
        return record

    return await decorator.aperform(effect.caller, bound, make_record)


def is_in_run() -> bool:
    """Whether effects that are called here are recorded."""
    return current_task() is not None


def is_parallel() -> bool:
    """Whether the calls of this node may come in another order when it runs again."""
    return not CallPosition(1).is_in_turn()


def parent_of_call(journal: Journal, *, ignores_parent_cancel: bool) -> Plan[Parent | None]:
    """The run that starts another one here, if that is in the same journal."""
    found = current_task()
    if found is None or found[0].segment is None:
        return None
    segment = found[0].segment
    row = segment.row
    if segment.journal is not journal:
        there: RunRow | None = yield runs.find(row.id)
        if there is None or there.token != row.token:
            return None
    return Parent(
        row.thread_id, row.id, row.token, row.depth, ignores_parent_cancel, segment.refuse
    )
