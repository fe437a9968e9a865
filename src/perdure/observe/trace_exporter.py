"""Give a sink the traces that are due: a thread beside the runs, in each process with the sink.

What each crash leaves behind is in `operations/traces.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from perdure.errors import Closed, Unavailable, WriteLost
from perdure.observe.observers import Observed, check_is_new
from perdure.observe.trace_fold import ScoredSpans, Span, TraceFold, is_about_a_part
from perdure.operations import effects, traces
from perdure.operations import events as event_ops
from perdure.operations.traces import Trace, Unexported
from perdure.types import EffectRecord, Event

log = logging.getLogger("perdure")

EXPORTING = "Exporting traces"
RUNS = 25
"""Runs taken at once."""
EVENTS = 1000
"""Events of one run exported at once; of many runs fewer each."""
DOWN = 3
"""A sink that refuses so many runs, one after another, is down."""
LATER = 3_600_000
"""Milliseconds until a trace that cannot be made is tried again, perhaps by another version."""
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


class _Ready(NamedTuple):
    """Spans of one run, and what to store once the sink has them."""

    trace: Trace
    run: RunSpans
    n: int
    more: bool


class TraceSink:
    """An observer that exports traces, with a thread of its own. Its subclasses say where to."""

    name: ClassVar[str]
    spans: ClassVar[int]
    """Approximate number of spans in a request. A run is not split; what was taken is noted."""

    def __init__(self) -> None:
        self._engine: Observed
        self._look = LOOK
        self._starting = threading.Lock()
        self._exporting = threading.Lock()
        self._most = RUNS
        self._warned = False
        self._begin()

    def _begin(self) -> None:
        self._woken = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def give(self, runs: Sequence[RunSpans]) -> bool:
        """Export spans, and what the sink has besides. False: they have to be given again."""
        raise NotImplementedError

    def called_effects(self, runs: Sequence[RunSpans]) -> Mapping[str, EffectRecord]:
        """The effects that were called, by key, with their content. Replayed ones were not."""
        keys = {
            str(span.attributes["perdure.effect.key"])
            for run in runs
            for span in run.spans
            if span.what == "effect" and not span.attributes.get("perdure.replayed")
        }
        rows = self._engine.journal.do(effects.find_all(keys)) if keys else []
        return {row.key: effects.to_record(self._engine.serializer, row) for row in rows}

    def attach(self, engine: Observed) -> None:
        check_is_new(self, getattr(self, "_engine", None))
        self._engine = engine
        engine.sinks.append(self.name)

    def nudge(self) -> None:
        """Export soon. Starts the thread at its first call."""
        self._woken.set()
        if self._thread is None or self._pid != os.getpid():
            with self._starting:
                if self._thread is None or self._pid != os.getpid():
                    if self._pid != os.getpid():  # the parent's thread may hold it
                        self._pid, self._exporting = os.getpid(), threading.Lock()
                    self._thread = threading.Thread(
                        target=self._run, name=f"perdure-{self.name}", daemon=True
                    )
                    self._thread.start()

    def flush(self) -> None:
        """Export now what is due, and wait until it is done. Closing the runtime does it too."""
        while self.export_due():
            pass

    def close(self) -> None:
        """Give what is due, for a few seconds at most; the rest is given by the next process."""
        self._closing = True
        self._woken.set()
        thread = self._thread
        if thread is not None and self._pid == os.getpid():
            thread.join(FLUSH)

    def reopen(self) -> None:
        self._begin()

    def _run(self) -> None:
        poll = self._engine.journal.capabilities.poll
        self._look = max(LOOK, 10 * poll)
        while True:
            self._woken.wait(self._look)
            is_left = threading.current_thread() is not self._thread  # it was reopened meanwhile
            closing = self._closing or is_left
            if self._woken.is_set() and not closing:
                self._woken.clear()
                time.sleep(GATHER)
            try:
                self.flush()
                self.give([])
            except Closed:
                pass
            except Exception as error:
                self._engine.failures.note(error, EXPORTING, self.name)
            else:
                self._engine.failures.clear(EXPORTING, self.name)
            if closing:
                return

    def export_due(self) -> bool:
        """Export some of what is due. True: there may be more."""
        with self._exporting:  # who flushes waits for what the thread has taken
            journal, serializer = self._engine.journal, self._engine.serializer
            now = self._engine.clock.now()
            taken = journal.do(traces.take(serializer, self.name, now, now + RESERVED, RUNS))
            if not taken:
                return False
            count = max(EVENTS // 10, min(EVENTS, 10 * EVENTS // len(taken)))
            found = journal.do(traces.unexported(serializer, taken, count))
            ready = [self._ready(one, is_more=len(one.events) == count) for one in found]
            is_more = len(taken) == RUNS or any(one is not None and one.more for one in ready)
            return self._give_all([one for one in ready if one is not None]) and is_more

    def _give_all(self, ready: list[_Ready]) -> bool:
        """Give what is ready, in several requests. If one is refused, the next have fewer runs: it
        may be the fault of a single one, which must not keep the others back."""
        refused = 0
        while ready:
            batch, ready = self._split(ready)
            if self._give(batch):
                self._most, refused = min(RUNS, 2 * self._most), 0
                continue
            refused += 1
            self._most = max(1, len(batch) // 2)
            if len(batch) > 1 or refused == DOWN:
                self._note(ready, arrived=False)
                return False
        return True

    def _split(self, ready: list[_Ready]) -> tuple[list[_Ready], list[_Ready]]:
        """The runs of the next request, and those of later ones."""
        n = spans = 0
        while n < min(len(ready), self._most) and spans < self.spans:
            spans += len(ready[n].run.spans)
            n += 1
        return ready[:n], ready[n:]

    def _ready(self, found: Unexported, *, is_more: bool) -> _Ready | None:
        """What to give of a run. None: that cannot be said, which is no reason to keep the others
        back."""
        trace, events = found
        try:
            fold = TraceFold(trace.open)
            spans = self._fold(trace, fold, events)
        except (Unavailable, Closed, WriteLost):
            raise
        except Exception:
            log.exception("The trace of run %s cannot be made; tried again later.", trace.run_id)
            later = self._engine.clock.now() + LATER
            self._engine.journal.defer(traces.delay(trace, later))
            return None
        n = events[-1].n if events else trace.n
        return _Ready(trace, RunSpans(trace.run_id, trace.thread_id, fold, spans), n, is_more)

    def _fold(self, trace: Trace, fold: TraceFold, events: list[Event]) -> list[Span]:
        """The spans of these events. That of a score says which span it is about: that is among
        these, or in the history before them, which is read once."""
        closed: list[Span] = []
        scored = [event for event in events if is_about_a_part(event)]
        if not scored:
            return fold.spans(events)
        past: ScoredSpans | None = None
        here = ScoredSpans(event.data for event in scored)
        for event in events:
            if is_about_a_part(event):
                place = here.find(event.data)
                if place is None:
                    past = past or self._past(trace, events[0].n, scored)
                    place = past.find(event.data) or fold.open_wait(event.data.get("wait"))
                event = replace(event, data={**event.data, "place": place})
            spans = fold.spans([event])
            here.add(spans)
            closed += spans
        return closed

    def _past(self, trace: Trace, before: int, scored: list[Event]) -> ScoredSpans:
        """Of the spans before an event those that scores are about."""
        fold, found, after = TraceFold(), ScoredSpans(event.data for event in scored), 0
        while after + 1 < before:
            count = min(EVENTS, before - 1 - after)
            page = event_ops.events(
                self._engine.serializer, trace.thread_id, trace.run_id, after, count
            )
            events: list[Event] = self._engine.journal.do(page)
            found.add(fold.spans(event for event in events if event.n < before))
            if len(events) < count:
                break
            after = events[-1].n
        return found

    def _give(self, batch: list[_Ready]) -> bool:
        arrived = not any(ready.run.spans for ready in batch)
        if not arrived:
            try:
                arrived = self.give([ready.run for ready in batch])
            except Exception:
                log.exception("Exporting traces to %s failed.", self.name)
        self._note(batch, arrived=arrived)
        if not arrived and not self._warned:
            log.warning(
                "%s does not take traces now. They stay in the journal and are exported later.",
                self.name,
            )
        self._warned = not arrived
        return arrived

    def _note(self, batch: Sequence[_Ready], *, arrived: bool) -> None:
        journal, now = self._engine.journal, self._engine.clock.now()
        for trace, run, n, more in batch:
            noted = traces.delay(trace, now + PAUSE)
            if arrived:
                opened = run.fold.dump()
                noted = traces.note(self._engine.serializer, trace, n, opened, now, more=more)
            journal.defer(noted)
        journal.flush()
