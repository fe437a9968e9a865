"""Drive one segment of a run: its start, LangGraph, its end.

Crash points and what each leaves behind for the next claim:

    claimed, nothing driven     the lease runs out; attempts counts it
    answers handed over         the waits are `applied`, and are handed over again
    a step on disk              progress: attempts is 1 again, and the run goes on after that step
    interrupt on disk           its wait too, in the same batch; the run is still leased
    segment ended               waiting, done, failed ...: in one batch with its event, and with the
                                next run of the thread being due
"""

from __future__ import annotations

from perdure.engine.drive import Drive, Ended, Outcome
from perdure.engine.graphs import Graph
from perdure.engine.segment_end import SegmentFinish
from perdure.engine.segment_start import SegmentStart
from perdure.journal import Journal, Plan
from perdure.journal.clock import Clock
from perdure.operations.claims import SegmentEnd
from perdure.operations.runs import RunRow
from perdure.saver import Saver
from perdure.serde.serializer import Serializer


class Driver:
    """The plans before and after LangGraph, for workers and bound graphs."""

    def __init__(self, saver: Saver, clock: Clock) -> None:
        self._saver, self.clock = saver, clock
        self._start, self._finish = SegmentStart(saver, clock), SegmentFinish(saver, clock)

    @property
    def journal(self) -> Journal:
        return self._saver.journal

    @property
    def serializer(self) -> Serializer:
        return self._saver.serializer

    def begin(self, row: RunRow, graph: Graph, *, inline: bool = False) -> Plan[Drive | SegmentEnd]:
        """What to drive, or how the segment ends if the run cannot be driven."""
        return self._start.begin(row, graph, inline=inline)

    def finish(self, drive: Drive, outcome: Outcome) -> Plan[Ended]:
        """End a segment after LangGraph returned or raised."""
        return self._finish.finish(drive, outcome)

    def end(self, row: RunRow, end: SegmentEnd) -> Plan[Ended]:
        """End a segment as decided."""
        return self._finish.end(row, end)

    def stop_at_breakpoint(self, drive: Drive) -> Plan[SegmentEnd | None]:
        """The end of a segment that stopped at a breakpoint. None if it did not."""
        return self._finish.stop_at_breakpoint(drive)

    def failed(self, drive: Drive, error: BaseException) -> SegmentEnd:
        """The end of a segment that raised: for good, or to be retried after a pause."""
        return self._finish.failed(drive, error)
