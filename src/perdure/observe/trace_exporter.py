"""Give a sink the traces that are due: a thread beside the runs, in each process with the sink.

What each crash leaves behind is in `commands/events.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from perdure.commands import effects, events
from perdure.commands.events import Trace
from perdure.errors import Closed, Unavailable, WriteLost
from perdure.observe.observers import Observed, check_is_new
from perdure.observe.trace_fold import REPLAYED, Span, TraceFold, is_about_a_part
from perdure.types import EffectRecord, Event

log = logging.getLogger("perdure")

EXPORTING = "Exporting traces"
RUNS = 25  # runs taken at once
EVENTS = 1000  # events of one run exported at once; of many runs fewer each
DOWN = 3  # a sink that refuses so many runs, one after another, is down
# Milliseconds until a trace that cannot be made is tried again, perhaps by another version; for
# which traces are reserved, longer than a sink may take; until a sink that failed is tried again.
LATER, RESERVED, PAUSE = 3_600_000, 60_000, 5_000
# Seconds to wait for the ends of other segments, to export them together; between two looks at what
# other processes left; that closing waits for the last traces to be given.
GATHER, LOOK, FLUSH = 0.2, 5.0, 5.0


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
    """An observer that exports traces, with a thread of its own. Its subclasses say where to.

    `spans` is the approximate number of spans in a request: a run is not split.
    """

    name: ClassVar[str]
    spans: ClassVar[int]

    def __init__(self) -> None:
        self._engine: Observed
        self._starting, self._exporting = threading.Lock(), threading.Lock()
        self._is_refusing = False
        self._begin()

    def _begin(self) -> None:
        self._woken = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def give(self, runs: Sequence[RunSpans]) -> bool:
        """Export spans. False: they have to be given again."""
        raise NotImplementedError

    def called_effects(self, runs: Sequence[RunSpans]) -> Mapping[str, EffectRecord]:
        """The effects that were called, by key, with their content. Replayed ones were not."""
        keys = {
            str(span.attributes["perdure.effect.key"])
            for run in runs
            for span in run.spans
            if span.what == "effect" and REPLAYED not in span.attributes
        }
        rows = self._engine.journal.do(effects.find_all(keys)) if keys else []
        return {row.key: effects.to_record(self._engine.serializer, row) for row in rows}

    def attach(self, engine: Observed) -> None:
        check_is_new(self, getattr(self, "_engine", None))
        self._engine = engine
        engine.sinks.append(self.name)

    def nudge(self) -> None:
        """Export soon. Starts the thread at its first call in a process."""
        self._woken.set()
        with self._starting:
            if self._pid != os.getpid():  # a fork: the thread is the parent's, and may hold this
                self._pid, self._thread, self._exporting = os.getpid(), None, threading.Lock()
            if self._thread is None:
                name = f"perdure-{self.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Export now what is due, and wait until it is done. Closing the runtime does it too."""
        while self.export_due():
            pass

    def close(self) -> None:
        """Give what is due, for a few seconds at most; the rest is given by the next process."""
        self._closing = True
        self._woken.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(FLUSH)

    def reopen(self) -> None:
        self._begin()

    def _run(self) -> None:
        engine = self._engine
        look = max(LOOK, 10 * engine.journal.capabilities.poll)
        closing = False
        while not closing:
            self._woken.wait(look)
            is_left = threading.current_thread() is not self._thread  # it was reopened meanwhile
            closing = self._closing or is_left
            if self._woken.is_set() and not closing:
                self._woken.clear()
                time.sleep(GATHER)
            try:
                self.flush()
            except Closed:
                pass
            except Exception as error:
                engine.failures.note(error, EXPORTING, self.name)
            else:
                engine.failures.clear(EXPORTING, self.name)

    def export_due(self) -> bool:
        """Export some of what is due. True: there may be more."""
        with self._exporting:  # who flushes waits for what the thread has taken
            journal, serializer = self._engine.journal, self._engine.serializer
            now = self._engine.clock.now()
            taken = journal.do(events.take_traces(serializer, self.name, now, now + RESERVED, RUNS))
            if not taken:
                return False
            count = max(EVENTS // 10, min(EVENTS, 10 * EVENTS // len(taken)))
            found = journal.do(events.unexported(serializer, taken, count))
            each = zip(taken, found, strict=True)
            ready = [one for trace, own in each if (one := self._ready(trace, own, count))]
            arrived = self._give_all(ready)
            return arrived and (len(taken) == RUNS or any(one.more for one in ready))

    def _ready(self, trace: Trace, unexported: list[Event], count: int) -> _Ready | None:
        """What to give of a run. None: that cannot be said, which is no reason to keep the others
        back."""
        try:
            fold = TraceFold(trace.open)
            if trace.open is not None and any(map(is_about_a_part, unexported)):
                fold = self._fold_again(trace, unexported[0].n)
            spans = fold.spans(unexported)
        except (Unavailable, Closed, WriteLost):
            raise
        except Exception:
            log.exception("The trace of run %s cannot be made; tried again later.", trace.run_id)
            later = self._engine.clock.now() + LATER
            self._engine.journal.defer(events.delay_trace(trace, later))
            return None
        n = unexported[-1].n if unexported else trace.n
        run = RunSpans(trace.run_id, trace.thread_id, fold, spans)
        return _Ready(trace, run, n, len(unexported) == count)

    def _fold_again(self, trace: Trace, before: int) -> TraceFold:
        """The fold of all events before this one, which knows the spans that scores are about."""
        fold, after = TraceFold(), 0
        while after + 1 < before:
            count = min(EVENTS, before - 1 - after)
            page = events.events_of(
                self._engine.serializer, trace.thread_id, trace.run_id, after, count
            )
            earlier: list[Event] = self._engine.journal.do(page)
            fold.spans(event for event in earlier if event.n < before)
            if len(earlier) < count:
                break
            after = earlier[-1].n
        return fold

    def _give_all(self, ready: list[_Ready]) -> bool:
        """Give what is ready, in several requests. The runs of one that is refused are given one by
        one: it may be the fault of a single run, which must not keep the others back."""
        requests, refused, arrived = deque(self._requests(ready)), 0, True
        while requests:
            request = requests.popleft()
            if refused < DOWN and self._give(request):
                refused = 0
            elif refused < DOWN and len(request) > 1:
                requests.extendleft([one] for one in reversed(request))
            else:
                refused, arrived = refused + 1, False
                until = self._engine.clock.now() + PAUSE
                for one in request:
                    self._engine.journal.defer(events.delay_trace(one.trace, until))
        self._engine.journal.flush()
        return arrived

    def _requests(self, ready: list[_Ready]) -> Iterator[list[_Ready]]:
        """The runs of each request."""
        request: list[_Ready] = []
        for one in ready:
            request.append(one)
            if sum(len(each.run.spans) for each in request) >= self.spans:
                yield request
                request = []
        if request:
            yield request

    def _give(self, request: list[_Ready]) -> bool:
        """Give a sink some runs, and note that it has them."""
        arrived = not any(ready.run.spans for ready in request)
        if not arrived:
            try:
                arrived = self.give([ready.run for ready in request])
            except Exception:
                log.exception("Exporting traces to %s failed.", self.name)
        if not arrived and not self._is_refusing:
            log.warning(
                "%s does not take traces now. They stay in the journal and are exported later.",
                self.name,
            )
        self._is_refusing = not arrived
        for trace, run, n, more in request if arrived else ():
            opened, now = run.fold.dump(), self._engine.clock.now()
            noted = events.note_trace(self._engine.serializer, trace, n, opened, now, more=more)
            self._engine.journal.defer(noted)
        return arrived
