"""What must be true of the traces that a collector received, whatever was killed when.

The journal's events are the truth that they are compared with. A process that is killed between an
export and its note exports the same again: spans that were received twice are counted in
`redelivered` if they are equal to the last byte, and are a finding otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.commands.events import is_end
from perdure.times import milliseconds
from perdure.types import Event, EventKind
from tests.observe.langsmith_server import Store
from tests.observe.otlp_receiver import Span

Runs = Mapping[str, tuple[str, list[Event]]]
"""The thread and all events of each run, by its id."""
BEGINS = (EventKind.CLAIMED, EventKind.RECOVERED)
RESTS = (EventKind.HELD, EventKind.PAUSED)


class TraceJudge:
    """What a collector received of these runs."""

    def __init__(self, received: Iterable[Span], runs: Runs) -> None:
        self.runs = runs
        self.received = list(received)
        self.spans: dict[tuple[str, str], Span] = {}
        self.two_contents: list[str] = []
        for span in self.received:
            same = self.spans.setdefault((span.trace, span.id), span)
            if same.encoded != span.encoded:
                self.two_contents.append(f"{span.name}: {same} and {span}")
        self.redelivered = len(self.received) - len(self.spans)
        self.traces: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans.values():
            self.traces[span.trace].append(span)
        self.by_run: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans.values():
            if "perdure.run.id" in span.attributes:
                self.by_run[span.attributes["perdure.run.id"]].append(span)

    def findings(self) -> list[str]:
        """All that is wrong."""
        found = [*self.two_contents, *self._wrong_traces(), *self._orphans()]
        for run_id, (thread_id, events) in self.runs.items():
            wrong = self._wrong_run(events, self.by_run[run_id])
            found += [f"run {run_id} of {thread_id}: {what}" for what in wrong]
        return found

    def figures(self) -> dict[str, Any]:
        counts = Counter(span.what for span in self.spans.values())
        return {
            "runs": len(self.runs),
            "traces": len(self.traces),
            "spans": dict(sorted(counts.items())),
            "spans, all": len(self.spans),
            "recovered segments": sum(
                bool(one.attributes.get("perdure.recovered")) for one in self.spans.values()
            ),
            "spans of what was cut off": sum(
                bool(one.attributes.get("perdure.crashed")) for one in self.spans.values()
            ),
            "received again, the same": self.redelivered,
            "received again, and not the same": len(self.two_contents),
        }

    # -- one trace per run, without orphans

    def _wrong_traces(self) -> Iterator[str]:
        owners: dict[str, set[str]] = defaultdict(set)
        for run_id, spans in self.by_run.items():
            for trace in {span.trace for span in spans}:
                owners[trace].add(run_id)
            if len({span.trace for span in spans}) != 1:
                yield f"run {run_id} has several traces"
            thread_id = self.runs[run_id][0] if run_id in self.runs else None
            if {span.attributes.get("gen_ai.conversation.id") for span in spans} != {thread_id}:
                yield f"run {run_id} has spans of other threads than {thread_id}"
        yield from (
            f"trace {trace} is of {runs}" for trace, runs in owners.items() if len(runs) > 1
        )
        yield from (f"trace {trace} is of no run" for trace in self.traces if trace not in owners)
        yield from (f"run {run_id} has no trace" for run_id in self.runs if not self.by_run[run_id])

    def _orphans(self) -> Iterator[str]:
        for span in self.spans.values():
            if span.parent and (span.trace, span.parent) not in self.spans:
                yield f"{span.name} has no parent: {span}"
            for link in span.links:
                if link not in self.spans:
                    yield f"{span.name} has a link to nothing: {span}"
            if span.start > span.end:
                yield f"{span.name} ends before it starts: {span}"

    # -- what the journal says

    def _wrong_run(self, events: list[Event], spans: list[Span]) -> Iterator[str]:
        of: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            of[span.what].append(span)
        ends = [event for event in events if is_end(event) and event.kind not in RESTS]
        if len(of["run"]) != len(ends):
            yield f"{len(of['run'])} roots, and it ended {len(ends)} times"
        if sum(not span.parent for span in spans) != (1 if ends else 0):
            yield "it has not one span without a parent"
        yield from _wrong_segments(events, of["segment"])
        told = Counter(
            (event.data["key"], event.data.get("state"), milliseconds(event.at))
            for event in events
            if event.kind == EventKind.EFFECT and "key" in event.data
        )
        made = Counter(
            (one.attributes["perdure.effect.key"], one.attributes["perdure.effect.state"], _ms(one))
            for one in of["effect"]
            if not {"perdure.crashed", "perdure.replayed"} & one.attributes.keys()
        )
        yield from _differences("effect", told, made)
        asked = Counter(
            (event.data["wait"], milliseconds(event.at))
            for event in events
            if event.kind == EventKind.WAIT
        )
        waited = Counter(
            (one.attributes["perdure.wait.id"], one.start // 1_000_000) for one in of["wait"]
        )
        yield from _differences("wait", asked, waited)
        scored = Counter(
            (event.data.get("name"), event.data.get("effect"), milliseconds(event.at))
            for event in events
            if event.kind == EventKind.SCORED
        )
        noted: Counter[Any] = Counter()
        for one in of["score"]:
            key = one.attributes.get("perdure.effect.key")
            noted[one.attributes.get("gen_ai.evaluation.name"), key, _ms(one)] += 1
            parent = self.spans.get((one.trace, one.parent))
            on = None if parent is None else parent.attributes.get("perdure.effect.key")
            if on != key:
                yield f"the score of {key} is on {on}"
        yield from _differences("score", scored, noted)


def langsmith_findings(store: Store, runs: Runs) -> list[str]:
    """What is wrong with what LangSmith was given: it has every segment, effect, wait and score of
    these runs, once, and nothing else."""
    store.check()
    made: dict[str, Counter[str]] = defaultdict(Counter)
    for one in store.runs.values():
        about = one["extra"]["metadata"]
        if not {"perdure_crashed", "perdure_replayed"} & about.keys() or about.get(
            "perdure_segment"
        ):
            made[about["perdure_run_id"]][about["perdure_span"]] += 1
    found = [f"run {run_id} is of nothing" for run_id in made if run_id not in runs]
    scored = {
        (one["source_info"]["perdure_run_id"], one["key"], _earned(store, one)): one
        for one in (_feedback(one) for one in store.feedback.values())
    }
    for run_id, (_, events) in runs.items():
        told = Counter(event.kind for event in events)
        expected = {
            "segment": told["claimed"] + told["recovered"],
            "effect": told["effect"],
            "wait": told["wait"],
        }
        found += [
            f"run {run_id} has {made[run_id][what]} of {what}, not {n}"
            for what, n in expected.items()
            if made[run_id][what] != n
        ]
        last = {
            (event.data["name"], event.data.get("effect")): event.data.get("value")
            for event in events
            if event.kind == EventKind.SCORED and "effect" in event.data
        }
        for (name, effect), value in last.items():
            given = scored.get((run_id, name, effect), {}).get("score", "not there")
            if given != value:
                found.append(f"run {run_id}: {name} of {effect} is {given}, not {value}")
    return found


def _feedback(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "source_info": one["feedback_source"]["metadata"]}


def _earned(store: Store, feedback: dict[str, Any]) -> str | None:
    """The effect that feedback is on."""
    about = store.runs[feedback["run_id"]]["extra"]["metadata"]
    key: str | None = about.get("perdure_effect_key")
    return key


def _wrong_segments(events: list[Event], spans: list[Span]) -> Iterator[str]:
    """Each claim and each recovery has its segment, in order, closed before the next begins."""
    begun = [event for event in events if event.kind in BEGINS]
    segments = sorted(spans, key=lambda span: span.attributes["perdure.segment"])
    numbers = [span.attributes["perdure.segment"] for span in segments]
    if numbers != list(range(1, len(begun) + 1)):
        yield f"segments {numbers}, and it was claimed {len(begun)} times"
        return
    for n, (event, span) in enumerate(zip(begun, segments, strict=True)):
        if span.start // 1_000_000 != milliseconds(event.at):
            yield f"{span.name} began {span.start}, not {event.at}"
        if bool(span.attributes.get("perdure.recovered")) != (event.kind == EventKind.RECOVERED):
            yield f"{span.name} was {event.kind}"
        link = ((span.trace, segments[n - 1].id),) if n else ()
        if span.links != link:
            yield f"{span.name} is not linked to the one before"
        dies = n + 1 < len(begun) and begun[n + 1].kind == EventKind.RECOVERED
        if bool(span.attributes.get("perdure.crashed")) != dies:
            yield f"{span.name} died: {dies}"
        if n + 1 < len(begun) and span.end > segments[n + 1].start:
            yield f"{span.name} ends after the next began"


def _differences(what: str, told: Counter[Any], made: Counter[Any]) -> Iterator[str]:
    yield from (f"{what} {one} has no span" for one in told - made)
    yield from (f"the span of {what} {one} is of nothing" for one in made - told)


def _ms(span: Span) -> int:
    return span.end // 1_000_000
