"""Plans that read the data for a list of runs, in a constant number of reads."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.journal import Plan
from perdure.operations import effects, runs, waits
from perdure.operations.run_payload import maybe_control
from perdure.operations.runs import Ahead
from perdure.operations.waits import WaitRow
from perdure.serde.serializer import Serializer
from perdure.types import Run, State
from perdure.views.waiting_for import RunLine

SHOWN = 3
"""Maximum number of open waits that are read of one run."""


class RunLineService:
    """Runs with what they wait for."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def of(self, found: Sequence[Run]) -> Plan[list[RunLine]]:
        """These runs with their open waits, turns, unknown effects and survived crashes: at most
        three reads for any number of runs."""
        resting = [run.id for run in found if run.state is State.WAITING]
        held = [run.id for run in found if run.state is State.HELD]
        open_waits: list[tuple[WaitRow, int]] = (
            (yield waits.of_runs(resting, SHOWN)) if resting else []
        )
        unknown: dict[str, list[str]] = (yield effects.unknown_of_runs(held)) if held else {}
        ahead: dict[str, Ahead] = (yield runs.ahead(run.id for run in found)) if found else {}
        return [self._line(run, open_waits, unknown, ahead.get(run.id)) for run in found]

    def _line(
        self,
        run: Run,
        open_waits: Sequence[tuple[WaitRow, int]],
        unknown: dict[str, list[str]],
        ahead: Ahead | None,
    ) -> RunLine:
        mine = [(row, total) for row, total in open_waits if row.run_id == run.id]
        control = None if ahead is None else maybe_control(ahead.control)
        behind = ahead is not None and _is_behind(run) and ahead.head != run.id
        return RunLine(
            run,
            tuple(waits.to_wait(self._serializer, row) for row, _ in mine),
            mine[0][1] if mine else 0,
            ahead.head if ahead is not None and behind else None,
            tuple(unknown.get(run.id, ())),
            control if run.state is State.RUNNING else None,
            0 if ahead is None else ahead.recoveries,
        )


def _is_behind(run: Run) -> bool:
    """Whether a run waits for the one before it on its thread."""
    return run.state is State.PENDING and run.due_at is None
