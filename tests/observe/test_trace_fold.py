"""However a run's events are cut into pieces, its spans are the same; and they are one whole trace.

The histories are those of real runs, some of whose workers were killed: tests/observe/traced.py.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.commands.events import is_end
from perdure.observe.trace_fold import RUN, Span, TraceFold, effect_key
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds
from perdure.types import Event, EventKind
from tests.observe.traced import MARK, STORIES, histories
from tests.support import sweep
from tests.support.agents import NOON
from tests.support.fork_server import ForkServer

pytestmark = pytest.mark.slow
PLACE = Place("a trace", ())


@pytest.fixture(scope="module")
def recorded(fork_server: ForkServer) -> dict[str, list[Event]]:
    return histories(fork_server)


def folded(events: list[Event], *cuts: int) -> list[Span]:
    """The spans of these events, given in pieces, each to a process of its own."""
    serializer, opened, spans = Serializer(), None, []
    for start, end in zip((0, *cuts), (*cuts, len(events)), strict=True):
        fold = TraceFold(opened)
        spans += fold.spans(events[start:end])
        opened = serializer.loads(serializer.dumps(fold.dump(), PLACE, "it"), PLACE, dict)
    return spans


@settings(max_examples=sweep.examples(500, 60), deadline=None)
@given(data=st.data())
def test_however_events_are_cut_into_pieces_the_spans_are_the_same(
    recorded: dict[str, list[Event]], data: st.DataObject
) -> None:
    events = recorded[data.draw(st.sampled_from(sorted(recorded)))]
    end = data.draw(st.integers(0, len(events)))
    cuts = data.draw(st.lists(st.integers(0, end), max_size=8))
    assert folded(events[:end], *sorted(cuts)) == folded(events[:end])


def test_every_history_is_one_whole_trace(recorded: dict[str, list[Event]]) -> None:
    assert len(recorded) > len(STORIES)
    wrong = {name: found for name, events in recorded.items() if (found := flaws(events))}
    assert wrong == {}


def flaws(events: list[Event]) -> list[str]:
    """What is wrong with the trace of a run that has ended."""
    spans = folded(events)
    keys = Counter(span.key for span in spans)
    by_key = {span.key: span for span in spans}
    found = [f"{key} is there {n} times" for key, n in keys.items() if n > 1]
    found += [f"{one} has no parent" for one in spans if one.parent and one.parent not in keys]
    found += [f"{one} has no link" for one in spans if one.link and one.link not in keys]
    found += [f"{one} ends before it starts" for one in spans if one.start > one.end]
    found += [f"{one} is a root" for one in spans if one.parent is None and one.key != RUN]
    starts = {(span.key, span.start) for span in spans}
    found += [f"{one} is on a wrong path" for one in spans if not {*one.path} <= starts]
    begin, end = milliseconds(events[0].at), milliseconds(events[-1].at)
    found += [f"{one} is outside" for one in spans if one.start < begin or one.end > end]
    ends = [one for one in events if is_end(one) and one.kind not in ("held", "paused")]
    counts = Counter(span.what for span in spans)
    told = Counter(event.kind for event in events)
    expected = {
        "run": len(ends),
        "segment": told["claimed"] + told["recovered"],
        "wait": told["wait"] + told["withdrawn"],
        "score": told["scored"],
    }
    found += [
        f"{counts[what]} of {what}, not {n}" for what, n in expected.items() if counts[what] != n
    ]
    effects = [one for one in spans if one.what == "effect"]
    plain = [
        one
        for one in effects
        if not {"perdure.crashed", "perdure.replayed"} & one.attributes.keys()
    ]
    if len(plain) != told["effect"]:
        found.append(f"{len(plain)} effects, not {told['effect']}")
    for one in effects:
        before = by_key.get(one.parent or ())
        if before is not None and before.what == "step" and one.end > before.end:
            found.append(f"{one} ends after {before}")
    recovered = [one for one in events if one.kind in ("claimed", "recovered")]
    crashed = [
        one.attributes["perdure.segment"]
        for one in spans
        if one.what == "segment" and one.attributes.get("perdure.crashed")
    ]
    dead = [n for n, one in enumerate(recovered) if one.kind == "recovered"]
    if crashed != dead:
        found.append(f"segments {crashed} died, not {dead}")
    if any(MARK in str(span) for span in spans):
        found.append("it has content")
    return found


def only(spans: list[Span], what: str, **attributes: Any) -> list[Span]:
    wanted = {f"perdure.{name.replace('_', '.')}": value for name, value in attributes.items()}
    return [one for one in spans if one.what == what and wanted.items() <= one.attributes.items()]


def test_the_attempt_that_a_death_cut_off_is_a_span_in_the_segment_that_died(
    recorded: dict[str, list[Event]],
) -> None:
    spans = folded(recorded["killed_twice_in_an_effect_that_is_called_again 0"])
    looks = [one for one in spans if one.name == "execute_tool look"]  # another one runs beside it
    [cut] = only(looks, "effect", crashed=True)
    [again] = only(looks, "effect", effect_how="called again")
    assert (cut.key, again.key) == tuple(effect_key(cut.key[1], n) for n in (1, 2))  # type: ignore[arg-type]
    steps = {span.key: span for span in spans if span.what == "step"}
    died, next_one = (steps[one.parent].parent for one in (cut, again))  # type: ignore[index]
    [segment] = [one for one in spans if one.key == died]
    assert segment.attributes["perdure.crashed"]
    assert died < next_one  # type: ignore[operator]


def test_tokens_of_a_model_call_that_was_cut_off_and_made_again_count_once() -> None:
    call = {"name": "model", "key": "k", "state": "done", "attempt": 2, "how": "called again"}
    usage = {"model": "m", "input_tokens": 7, "output_tokens": 3}
    told: list[tuple[EventKind, dict[str, Any]]] = [
        (EventKind.STARTED, {"graph": "g"}),
        (EventKind.CLAIMED, {"worker": "w"}),
        (EventKind.RECOVERED, {"worker": "v"}),
        (EventKind.EFFECT, {**call, "begun_at": NOON, "usage": usage}),
    ]
    spans = folded([Event(n, NOON, kind, data) for n, (kind, data) in enumerate(told, 1)])
    calls = [one.attributes for one in spans if one.name == "chat m"]
    assert [one["perdure.effect.attempt"] for one in calls] == [1, 2]
    assert [one.get("gen_ai.usage.input_tokens") for one in calls] == [None, 7]


def test_a_retry_days_later_is_no_span_of_days(recorded: dict[str, list[Event]]) -> None:
    spans = folded(recorded["whole 0"])
    paid = [one for one in spans if one.name == "execute_tool pay"]
    assert [one.attributes["perdure.effect.attempt"] for one in paid] == [1, 2, 3]
    assert max(one.end - one.start for one in paid) < 10_000


def test_what_is_said_of_an_ended_run_is_in_the_trace_that_ended(
    recorded: dict[str, list[Event]],
) -> None:
    spans = folded(recorded["settled_after_its_end 0"])
    [settled] = [one for one in spans if one.name.startswith("settled")]
    assert settled.parent == RUN


def test_an_effect_that_ends_after_the_last_step_is_in_a_step() -> None:
    """A node left it running, and the end of the segment waited for it."""
    at = iter(NOON + timedelta(seconds=n) for n in range(10))
    told: list[tuple[EventKind, dict[str, Any]]] = [
        (EventKind.STARTED, {"graph": "g"}),
        (EventKind.CLAIMED, {"worker": "w"}),
        (EventKind.STEP, {"step": 1, "source": "loop", "nodes": ["a"]}),
        (EventKind.EFFECT, {"name": "late", "key": "k", "attempt": 1, "state": "done"}),
        (EventKind.DONE, {}),
    ]
    events = [Event(n, next(at), kind, data) for n, (kind, data) in enumerate(told, 1)]
    assert flaws(events) == []


def test_events_that_cannot_be_read_leave_no_orphans(recorded: dict[str, list[Event]]) -> None:
    """One that is damaged has no data."""
    events = [
        Event(one.n, one.at, one.kind, {}, "damaged") if one.n % 3 else one
        for one in recorded["killed_between_steps 0"]
    ]
    spans = folded(events)
    keys = Counter(span.key for span in spans)
    assert [one for one in spans if one.parent and one.parent not in keys] == []
    assert max(keys.values()) == 1
