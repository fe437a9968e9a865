"""What recovery did not repeat, and what crashes cost: for one run, and in total."""

from __future__ import annotations

from datetime import timedelta

from perdure.journal import Plan
from perdure.operations import saved
from perdure.operations.saved import SavedTotal
from perdure.service.runs import RunService
from perdure.service.views.saved_work import SavedWork, Work, recoveries
from perdure.types import Run


def saved_by_run(service: RunService, run_id: str) -> Plan[SavedWork]:
    """Of one run, with each of its crashes, from its events."""
    run: Run = yield from service.get(run_id, output=False)
    crashes = recoveries((yield from service.events(run.id, 0, None)))
    lost = sum((one.lost for one in crashes), timedelta(0))
    has_saved = bool(crashes) or any(run.saved.values())
    return SavedWork(int(has_saved), Work(**run.saved), len(crashes), lost, crashes)


def saved_in_total(graph: str | None, since: int, until: int) -> Plan[SavedWork]:
    """Of the runs accepted in a time, from an index of those that saved something or crashed."""
    total: SavedTotal = yield saved.saved_total(graph, since, until)
    work = Work(total.effects, total.model_calls, total.tokens)
    return SavedWork(total.runs, work, total.recoveries, timedelta(milliseconds=total.lost_ms))
