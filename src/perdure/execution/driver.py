"""Drive one segment of a run: its start, LangGraph, its end.

Crash points and what each leaves behind for the next claim:

    answered with a command     the command is in the setup, in one batch with the answers; the
                                next driver applies it (`pending_command`)
    claimed, nothing driven     the lease runs out; attempts counts it
    answers handed over         the waits are `applied`, and are handed over again
    a step on disk              progress: attempts is 1 again, and the run goes on after that step
    interrupt on disk           its wait too, in the same batch; the run is still leased
    segment ended               waiting, done, failed ...: in one batch with its event, and with the
                                next run of the thread being due
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.commands.messages import Endpoint
from perdure.execution.drive import SegmentPlans
from perdure.execution.finish import SegmentFinish
from perdure.execution.start import SegmentStart
from perdure.journal.clock import Clock
from perdure.observe.observers import Observers
from perdure.saver import Saver


class Driver(SegmentPlans):
    """The plans before and after LangGraph, for workers and bound graphs."""

    def __init__(
        self,
        saver: Saver,
        clock: Clock,
        observers: Observers,
        endpoints: Callable[[], Sequence[Endpoint]],
    ) -> None:
        super().__init__(saver, clock)
        self.observers = observers
        finish = SegmentFinish(saver, clock, observers, endpoints)
        self.begin = SegmentStart(saver, clock, endpoints).begin
        self.finish, self.failed, self.end = finish.finish, finish.failed, finish.end
