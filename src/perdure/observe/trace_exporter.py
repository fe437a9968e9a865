"""Give a sink the traces that are due: a thread beside the runs, in each process with the sink.

What each crash leaves behind is in `operations/traces.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from perdure.errors import Error
from perdure.journal import Op
from perdure.observe.observed import Observed
from perdure.observe.trace_fold import Span, TraceFold, locate
from perdure.operations import events as event_ops
from perdure.operations import traces
from perdure.operations.traces import Trace, Unexported
from perdure.types import Event, EventKind

log = logging.getLogger("perdure")

RUNS = 100
"""Runs taken at once."""
EVENTS = 1000
"""Events of one run exported at once."""
RESERVED = 60_000
"""Milliseconds for which traces are reserved: longer than a sink may take."""
PAUSE = 5_000
"""Milliseconds until a sink that failed is tried again."""
GATHER = 0.2
"""Seconds to wait for the ends of other segments, to export them together."""
LOOK = 5.0
"""Seconds between two looks at what other processes left."""
FLUSH = 5.0
"""Seconds that closing waits for the last traces to be given."""


class RunSpans(NamedTuple):
    """Spans of one run."""

    run_id: str
    thread_id: str
    fold: TraceFold
    spans: list[Span]


class TraceSink:
    """An observer that exports traces. Its subclasses say where to, in `give`."""

    name: ClassVar[str]
    spans: ClassVar[int]
    """Approximate number of spans in a request. A run is not split; what was taken is noted."""

    def __init__(self) -> None:
        self._engine: Observed
        self._exporter: TraceExporter | None = None

    def give(self, runs: Sequence[RunSpans]) -> bool:
        """Export spans. False: they have to be given again."""
        raise NotImplementedError

    def attach(self, engine: Observed) -> None:
        self._engine, self._exporter = engine, TraceExporter(engine, self)
        engine.sinks.append(self.name)

    def nudge(self) -> None:
        if self._exporter is not None:
            self._exporter.nudge()

    def flush(self) -> None:
        """Export now what is due. It blocks. Closing the runtime does it too."""
        if self._exporter is not None:
            while self._exporter.export_due():
                pass

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()


class _Ready(NamedTuple):
    """Spans of one run, and what to store once the sink has them."""

    trace: Trace
    run: RunSpans
    n: int
    more: bool


class TraceExporter:
    """The thread that gives one sink what is due."""

    def __init__(self, engine: Observed, sink: TraceSink) -> None:
        self._engine, self._sink = engine, sink
        self._look = LOOK
        self._starting = threading.Lock()
        self._woken = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._warned = False

    def nudge(self) -> None:
        """Export soon. Starts the thread at its first call."""
        self._woken.set()
        if self._thread is None or self._pid != os.getpid():
            with self._starting:
                if self._thread is None or self._pid != os.getpid():
                    self._pid = os.getpid()
                    self._thread = threading.Thread(
                        target=self._run, name=f"perdure-{self._sink.name}", daemon=True
                    )
                    self._thread.start()

    def close(self) -> None:
        """Give what is due, for a few seconds at most; the rest is given by the next process."""
        self._closing = True
        self._woken.set()
        thread = self._thread
        if thread is not None and self._pid == os.getpid():
            thread.join(FLUSH)

    def _run(self) -> None:
        poll = self._engine.journal.capabilities.poll
        self._look = max(LOOK, 10 * poll)
        while True:
            self._woken.wait(self._look)
            closing = self._closing
            if self._woken.is_set() and not closing:
                self._woken.clear()
                time.sleep(GATHER)
            try:
                while self.export_due():
                    pass
            except Error as error:
                log.debug("Traces cannot be exported now: %s", error)
            except Exception:
                log.exception("Exporting traces failed.")
            if closing:
                return

    def export_due(self) -> bool:
        """Export some of what is due. True: there may be more."""
        journal, serializer = self._engine.journal, self._engine.serializer
        now = self._engine.clock.now()
        name = self._sink.name
        taken = journal.do(traces.take(serializer, name, now, now + RESERVED, RUNS))
        if not taken:
            return False
        found = journal.do(traces.unexported(serializer, taken, EVENTS))
        batch: list[_Ready] = []
        is_taking = True
        for one in found:
            batch.append(self._ready(one))
            if sum(len(ready.run.spans) for ready in batch) >= self._sink.spans:
                is_taking = self._give(batch, is_taking)
                batch = []
        return self._give(batch, is_taking) and len(taken) == RUNS

    def _ready(self, found: Unexported) -> _Ready:
        trace = found.trace
        fold = TraceFold(trace.open)
        events = [self._placed(trace, event) for event in found.events]
        spans = fold.spans(events)
        n = found.events[-1].n if found.events else trace.n
        run = RunSpans(trace.run_id, trace.thread_id, fold, spans)
        return _Ready(trace, run, n, len(events) == EVENTS)

    def _placed(self, trace: Trace, event: Event) -> Event:
        """The event; if it is a score of a step, effect or decision, with the span that earned
        it."""
        if event.kind != EventKind.SCORED or not event.data.keys() & {"step", "effect", "wait"}:
            return event
        history = event_ops.events(
            self._engine.serializer, trace.thread_id, trace.run_id, 0, event.n
        )
        past: list[Event] = self._engine.journal.do(history)
        place = locate(past, event.data)
        return Event(event.n, event.at, event.kind, {**event.data, "place": place})

    def _give(self, batch: list[_Ready], is_taking: bool) -> bool:
        """Give these to the sink and note that, or delay them. If it failed before, only delay."""
        given = is_taking and not any(ready.run.spans for ready in batch)
        if is_taking and not given:
            try:
                given = self._sink.give([ready.run for ready in batch])
            except Exception:
                log.exception("Exporting traces to %s failed.", self._sink.name)
        journal, now = self._engine.journal, self._engine.clock.now()
        for ready in batch:
            journal.defer(self._noted(ready, now) if given else _delayed(ready, now))
        journal.flush()
        if not given and not self._warned:
            log.warning(
                "%s does not take traces now. They stay in the journal and are exported later.",
                self._sink.name,
            )
        self._warned = not given
        return given

    def _noted(self, ready: _Ready, now: int) -> Op[None]:
        opened = ready.run.fold.dump()
        serializer = self._engine.serializer
        return traces.note(serializer, ready.trace, ready.n, opened, now, more=ready.more)


def _delayed(ready: _Ready, now: int) -> Op[None]:
    return traces.delay(ready.trace, now + PAUSE)
