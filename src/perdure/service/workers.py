"""Plans about workers: list them with their runs, ask one to drain.

A worker sends a heartbeat every `beat` seconds. After three missed ones it is silent.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import NotFound
from perdure.journal import Capabilities, Plan
from perdure.journal.clock import Clock
from perdure.journal.names import check_id, check_text
from perdure.operations import workers
from perdure.operations.workers import Crew, DrivenRow, Load, WorkerRow
from perdure.service.local_engine import LocalEngine
from perdure.times import maybe_moment, moment
from perdure.types import DrivenRun, WorkerInfo, WorkerState

BEAT = 10.0
"""Seconds between two heartbeats of a worker."""
BILLED_BEAT = 30.0
"""The same on a database that bills each row."""
SILENT_AFTER = 3
"""Beats after which a worker is silent."""


def beat_of(capabilities: Capabilities) -> float:
    """Seconds between two heartbeats on this database."""
    return BILLED_BEAT if capabilities.bills_rows else BEAT


class WorkerService:
    """Plans about the workers of a journal."""

    def __init__(self, engine: LocalEngine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock

    def workers(self) -> Plan[list[WorkerInfo]]:
        """Every announced worker, oldest first; then unannounced ones that drive a run now."""
        found: Crew = yield workers.crew()
        loads = {load.worker: load for load in found.loads}
        driven: dict[str, list[DrivenRow]] = {}
        for row in found.driven:
            driven.setdefault(row.worker, []).append(row)
        known = [
            self._announced(row, loads.pop(row.id, None), driven.get(row.id, ()))
            for row in found.announced
        ]
        return known + [
            self._unannounced(load, driven.get(load.worker, ())) for load in loads.values()
        ]

    def drain(self, worker_id: str, by: str | None) -> Plan[None]:
        """Ask a worker to drain. Raises `NotFound`."""
        if by is not None:
            check_text("by", by)
        id = check_id("worker", worker_id)
        if not (yield workers.drain(id, by, self._clock.now())):
            raise NotFound("worker", id)

    def _announced(
        self, row: WorkerRow, load: Load | None, runs: Sequence[DrivenRow]
    ) -> WorkerInfo:
        return WorkerInfo(
            id=row.id,
            host=row.host,
            pid=row.pid,
            state=self._state(row),
            driven=0 if load is None else load.runs,
            runs=_runs(runs),
            graphs=tuple(one.removesuffix("@") for one in workers.load_graphs(row.graphs)),
            concurrency=row.concurrency,
            started_at=moment(row.started_at),
            seen_at=moment(row.seen_at),
            drain_at=maybe_moment(row.drain_at),
            drain_by=workers.load_actor(row.drain_by),
        )

    def _state(self, row: WorkerRow) -> WorkerState:
        if self._engine.is_dead(row.id):
            return WorkerState.DEAD
        beat = beat_of(self._engine.journal.capabilities)
        if self._clock.now() - row.seen_at > SILENT_AFTER * beat * 1000:
            return WorkerState.SILENT
        return WorkerState.ALIVE if row.drain_at is None else WorkerState.DRAINING

    def _unannounced(self, load: Load, runs: Sequence[DrivenRow]) -> WorkerInfo:
        host, _, rest = load.worker.partition(":")
        pid = rest.partition(":")[0]
        state = WorkerState.ALIVE
        if self._engine.is_dead(load.worker):
            state = WorkerState.DEAD
        elif load.until is None or load.until <= self._clock.now():
            state = WorkerState.SILENT
        return WorkerInfo(
            id=load.worker,
            host=host,
            pid=int(pid) if pid.isdecimal() else 0,
            state=state,
            driven=load.runs,
            runs=_runs(runs),
        )


def _runs(rows: Sequence[DrivenRow]) -> tuple[DrivenRun, ...]:
    return tuple(
        DrivenRun(row.run_id, row.thread_id, row.graph, row.version, moment(row.updated_at))
        for row in rows
    )
