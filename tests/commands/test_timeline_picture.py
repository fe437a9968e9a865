"""The timeline of a run: what it shows, that it is bounded, and that it is safe to embed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from perdure.types import EffectRecord, EffectState, Event
from perdure.views.event_wording import WORDING
from perdure.views.timeline import Period, PeriodKind, timeline
from perdure.views.timeline_drawing import Links, timeline_picture
from perdure.views.timeline_layout import LIMIT, Layout, lay_out
from perdure.views.timeline_marks import Look, Mark, MarkKind
from perdure.views.timeline_parts import (
    MOST_MARKS,
    MOST_STRETCHES,
    TimelineParts,
    Zoom,
    timeline_parts,
)

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x00\u202e'


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


Told = tuple[float, str] | tuple[float, str, dict[str, Any]]


def history(*told: Told) -> list[Event]:
    """Events so many seconds after the start."""
    return [
        Event(n, at(second), kind, data[0] if data else {})
        for n, (second, kind, *data) in enumerate(told, 1)
    ]


def claim(second: float, worker: str, kind: str = "claimed") -> Told:
    return second, kind, {"worker": f"{worker}:x", "driven": "worker"}


def step(second: float, number: int, *nodes: str, **more: Any) -> Told:
    return second, "step", {"step": number, "nodes": [*nodes], "source": "loop", **more}


def effect(second: float, name: str, begun: float, state: str = "done", **more: Any) -> Told:
    key = more.pop("key", f"{name}-key")
    return (
        second,
        "effect",
        {"name": name, "key": key, "state": state, "begun_at": at(begun)} | more,
    )


def asleep(second: float, until: float, id: str) -> tuple[Told, Told]:
    data = {"wait": id, "kind": "clock", "wake_at": at(until)}
    return (second, "wait", data), (second, "waiting")


def parts_of(*told: Told, now: float | None = None, **options: Any) -> TimelineParts:
    events = history(*told)
    until = events[-1].at if now is None else at(now)
    return timeline_parts(timeline(events, until), until, **options)


def draw(parts: TimelineParts, **options: Any) -> ET.Element:
    """The picture, parsed: it is well-formed XML."""
    return ET.fromstring(timeline_picture(parts, title="Timeline of the run", **options))


def titles(picture: ET.Element) -> list[str]:
    return [one.text or "" for one in picture.iter("{http://www.w3.org/2000/svg}title")]


def words(picture: ET.Element) -> list[str]:
    """What is written in the picture, without the titles of what is written."""
    found = picture.iter("{http://www.w3.org/2000/svg}text")
    return ["".join((one.text or "", *(inner.tail or "" for inner in one))) for one in found]


CRASHED = (
    (0, "started"),
    claim(0, "a:1"),
    step(1, 1, "search"),
    effect(2, "look up", 1.1),
    claim(12, "b:2", "recovered"),
    effect(13, "pay", 2.5, attempt=2, how="called again"),
    step(
        14, 2, "pay", saved={"effects": 1, "tokens": 90, "replayed": [["look up", "look up-key"]]}
    ),
    (14, "done"),
)


# -- what it shows


def test_each_worker_has_a_lane_and_each_segment_a_bar() -> None:
    layout = lay_out(parts_of(*CRASHED))
    [strip] = layout.strips
    assert [lane.name for lane in strip.lanes] == ["a:1", "b:2"]
    bars = [(one.lane, one.stretch.segment) for one in strip.stretches if one.lane >= 0]
    assert bars == [(0, 1), (1, 2)]


def test_a_crash_is_a_break_that_says_who_took_over_after_how_long() -> None:
    picture = draw(parts_of(*CRASHED))
    said = titles(picture)
    assert any("the worker a:1 was lost; recovered by b:2 after 9.5s" in one for one in said)
    assert "#2 recovered after 9.5s" in words(picture)
    assert "9.5s lost" in words(picture)
    assert len([one for one in picture.iter() if one.get("class") == "break"]) == 1


def test_an_effect_that_a_crash_cut_off_is_shown_where_it_was_cut_off() -> None:
    first = parts_of(*CRASHED).stretches[0]
    cut = [one for one in first.marks if one.look is Look.CUT_OFF]
    assert [(one.label, one.since, one.first) for one in cut] == [("pay", at(2.5), 6)]
    assert first.until == at(2.5), "its worker was alive when it began the effect"


def test_what_came_from_the_record_is_hatched_and_says_what_it_saved() -> None:
    picture = draw(parts_of(*CRASHED), id="t")
    hatched = [one for one in picture.iter() if one.get("fill") == "url(#t-hatch)"]
    assert len(hatched) == 2, "the mark, and its key in the legend"
    assert "1 effect from the record, not called again: look up; 90 tokens saved" in titles(picture)
    assert "saved look up" in words(picture)


def test_effects_have_their_outcome_attempts_and_key() -> None:
    told = (
        (0, "started"),
        claim(0, "a:1"),
        effect(1, "one", 0.5),
        effect(2, "two", 1.5, "failed", attempt=3, error="ValueError: no"),
        effect(3, "three", 2.5, "unknown"),
        effect(4, "four", 3.5, "open", retry_at=at(60)),
    )
    marks = [one for part in parts_of(*told).stretches for one in part.marks]
    shown = {one.label: one.look for one in marks}
    assert shown == {
        "one": Look.GOOD,
        "two ×3": Look.BAD,
        "three": Look.UNKNOWN,
        "four": Look.OPEN,
    }
    assert "effect two failed, attempt 3: ValueError: no, 0.50s, key two-key" in marks[1].text


def test_an_effect_that_is_called_now_is_shown_as_in_progress() -> None:
    told = ((0, "started"), claim(0, "a:1"), step(1, 1, "search"))
    record = EffectRecord(
        "k", "model", EffectState.OPEN, "r", "t", 1, {}, None, None, at(2), at(2), None
    )
    [part] = parts_of(*told, now=30, effects=[record]).stretches
    assert part.marks[-1].text == "effect model in progress for 28s, key k"
    assert part.lasts


def test_what_people_did_and_signals_stand_at_their_time() -> None:
    told = (
        (0, "started"),
        claim(0, "a:1"),
        (1, "wait", {"wait": "w", "kind": "human"}),
        (1, "waiting"),
        (3600, "answer", {"wait": "w", "by": "ana"}),
        claim(3601, "a:1"),
        (3601.5, "signal", {"wait": "v", "name": "reply"}),
        (3602, "done"),
    )
    moments = {
        one.label: one.since
        for part in parts_of(*told).stretches
        for one in part.marks
        if one.kind is MarkKind.MOMENT
    }
    assert moments == {
        "answered by ana": at(3600),
        "received the signal reply": at(3601.5),
        "done": at(3602),
    }


def test_a_question_that_timed_out_is_an_event_and_a_signal_that_did_not_come_is_not() -> None:
    for kind, shown in (("human", ["timed out waiting"]), ("signal", [])):
        wait = {"wait": "w", "kind": kind, "name": "reply", "expires_at": at(60)}
        told = (
            (0, "started"),
            claim(0, "a:1"),
            (1, "wait", wait),
            (1, "waiting"),
            claim(60, "a:1"),
            (60, "expired", {"wait": "w"}),
        )
        marks = [one.label for part in parts_of(*told).stretches for one in part.marks]
        assert marks == shown


def test_times_on_the_axis_are_in_the_readers_zone() -> None:
    picture = draw(parts_of(*CRASHED), zone=ZoneInfo("Asia/Tokyo"))
    assert "1 Jan 21:00:00" in words(picture)


# -- a long life


def month(sleeps: int) -> list[Told]:
    told: list[Told] = [(0, "started")]
    for n in range(sleeps):
        begin = n * 86_400.0
        told += [claim(begin, "a:1"), step(begin + 0.5, n, "write", "send")]
        told += [effect(begin + 0.6, "send", begin + 0.5, key=f"send-{n}")]
        told += asleep(begin + 0.7, begin + 86_400, f"w{n}")
    return told


def test_a_month_of_sleeps_is_readable_each_says_its_real_length() -> None:
    parts = parts_of(*month(40), now=40 * 86_400)
    layout = lay_out(parts)
    rests = [one for strip in layout.strips for one in strip.stretches if one.lane < 0]
    assert {one.stretch.label for one in rests} == {"23h 59m asleep"}
    assert all(24 < one.right - one.left < 320 for one in rests)
    assert layout.width < 1100
    shown = [one for one in words(draw(parts)) if "asleep" in one or one == "23h 59m"]
    assert len(shown) == 40
    sends = [one.label for strip in layout.strips for part in strip.stretches for one in part.marks]
    assert sends.count("write, send") > 30


def long_run() -> list[Told]:
    told: list[Told] = [(0, "started"), claim(0, "a:1")]
    for n in range(1, 5000):
        told += [effect(n, "model", n - 0.9, key=f"k{n}"), step(n, n, "agent")]
    return told


def many_segments() -> list[Told]:
    told: list[Told] = [(0, "started")]
    for n in range(2500):
        begin = n * 100.0
        told += [claim(begin, f"w:{n % 40}", "recovered" if n % 7 == 1 else "claimed")]
        told += [step(begin + 1, n, "agent")]
        told += [] if n % 7 == 0 else asleep(begin + 2, begin + 100, f"w{n}")
    return told


@pytest.mark.parametrize("told", [long_run(), many_segments()], ids=["steps", "segments"])
def test_a_run_of_ten_thousand_events_has_a_bounded_picture(told: Sequence[Told]) -> None:
    parts = parts_of(*told, now=300_000)
    assert len(told) > 7000
    assert len(parts.stretches) <= MOST_STRETCHES
    assert sum(len(one.marks) for one in parts.stretches) <= MOST_MARKS + 4 * MOST_STRETCHES
    assert lay_out(parts).width < 1100
    picture = timeline_picture(parts, title="Timeline of the run")
    assert len(picture) < 200_000
    assert picture.count("<") < 6000
    assert re.search(r"\+[\d,]+ (steps|segments)", picture)


@pytest.mark.parametrize("told", [long_run(), many_segments()], ids=["steps", "segments"])
def test_what_was_merged_can_be_zoomed_into_down_to_each_event(told: Sequence[Told]) -> None:
    events = history(*told)
    periods = timeline(events, at(300_000))
    zoom: Zoom | None = None
    for _ in range(6):
        parts = timeline_parts(periods, at(300_000), zoom=zoom)
        merged: list[Any] = [
            *(one for one in parts.stretches if one.count > 1),
            *(mark for one in parts.stretches for mark in one.marks if mark.count > 1),
        ]
        if not merged:
            break
        inside = Zoom(merged[0].first, merged[0].last)
        assert zoom is None or inside.last - inside.first < zoom.last - zoom.first
        zoom = inside
    else:
        pytest.fail("it never ended")
    assert zoom is not None
    numbers = [mark.first for one in parts.stretches for mark in one.marks]
    assert numbers
    assert all(zoom.first <= number <= zoom.last for number in numbers)


def test_a_long_segment_continues_on_the_next_strip() -> None:
    layout = lay_out(parts_of(*long_run()[:200], now=100))
    assert layout.width < 1100
    bars = [one.stretch for strip in layout.strips for one in strip.stretches]
    assert {one.segment for one in bars} == {1}
    assert len(bars) > 2
    assert [one.until for one in bars[:-1]] == [one.since for one in bars[1:]]
    assert sum(len(one.marks) for one in bars) == 198
    assert [one.lasts for one in bars] == [False] * (len(bars) - 1) + [True]
    said = titles(draw(parts_of(*long_run()[:200], now=100)))
    assert "1 segment by 1 worker" in said[0]


def test_many_workers_share_a_lane_and_are_named_at_their_bars() -> None:
    told: list[Told] = [(0, "started")]
    for n in range(9):
        told += [claim(n, f"host:{n}"), (n + 0.1, "released", {})]
    [strip] = lay_out(parts_of(*told)).strips
    assert [lane.name for lane in strip.lanes][-1] == "4 others"
    named = [one.header for one in strip.stretches if one.lane == 5]
    assert named[-1] == "#9 host:8"


def overlaps(layout: Layout) -> list[tuple[Mark, Mark]]:
    """Marks whose label another one of the same row is drawn upon."""
    found = []
    for strip in layout.strips:
        for marks in (
            strip.moments,
            *(
                tuple(
                    mark
                    for one in strip.stretches
                    if one.lane == n
                    for mark in one.marks
                    if mark.mark.kind in (MarkKind.EFFECT, MarkKind.SAVED)
                )
                for n in range(len(strip.lanes))
            ),
        ):
            labelled = [one for one in marks if one.label]
            for one in labelled:
                end = one.left if one.is_before else one.right + 14 + len(one.label) * 6.1
                begin = one.left - 4 - len(one.label) * 6.1 if one.is_before else one.left
                assert end <= LIMIT + 1
                found += [
                    (one.mark, other.mark)
                    for other in labelled
                    if other.row == one.row and other is not one and begin < other.left < end
                ]
    return found


@pytest.mark.parametrize("told", [CRASHED, month(12), long_run()[:60]])
def test_no_label_overlaps_another(told: Sequence[Told]) -> None:
    assert overlaps(lay_out(parts_of(*told))) == []


# -- it is safe to embed


def every_kind(text: str) -> list[Event]:
    """An event of each kind with a text in every field."""
    first = ("name", "by", "reason", "error", "how", "message", "traceback", "source", "state")
    more = ("key", "worker", "ns", "driven", "label", "about", "action", "caught_in", "graph")
    told: dict[str, Any] = dict.fromkeys((*first, *more), text)
    told |= {"nodes": [text], "wait": text, "kind": text}
    told |= {"text": text, "to": text, "via": text, "from": text}
    saved: Mapping[str, Any] = {"effects": 2, "replayed": [[text, text]]}
    made = [Event(1, START, "started", told), Event(2, START, "claimed", told)]
    for kind in [*WORDING, "a kind of a later version"]:
        made.append(Event(len(made) + 1, at(len(made)), kind, {**told, "saved": saved}))
    damaged = Event(len(made) + 1, at(len(made)), "effect", {}, damaged=text)
    return [*made, damaged]


def test_no_text_of_an_event_becomes_markup() -> None:
    events = every_kind(HOSTILE)
    periods: list[Period] = timeline(events, at(100))
    parts = timeline_parts(periods, at(100))
    links = Links(
        lambda n: {"href": f"?open={n}&x={HOSTILE}"}, lambda z: {"href": f"?from={z.first}"}
    )
    for given in ({}, {"links": links, "selected": 4}):
        html = timeline_picture(parts, title=HOSTILE, **given)  # type: ignore[arg-type]
        assert "<script" not in html
        assert "<img" not in html
        picture = ET.fromstring(html)
        names = {one.tag.rpartition("}")[2] for one in picture.iter()}
        assert names <= {
            *("figure", "div", "svg", "title", "defs", "pattern", "rect", "line", "path", "text"),
            *("polygon", "g", "a", "ul", "ol", "li", "details", "summary"),
        }
        attributes = {name for one in picture.iter() for name in one.attrib}
        assert not [one for one in attributes if one.startswith("on") or one == "style"]


def test_every_element_is_a_link_to_its_event_and_the_keyboard_has_a_list() -> None:
    links = Links(lambda n: {"href": f"?open={n}"}, lambda zoom: {"href": f"?from={zoom.first}"})
    picture = draw(parts_of(*CRASHED), links=links, selected=6)
    svg = next(picture.iter("{http://www.w3.org/2000/svg}svg"))
    assert svg.get("role") == "group", "an image would hide its links from screen readers"
    found = [one.get("href") for one in svg.iter("{http://www.w3.org/2000/svg}a")]
    assert {"?open=3", "?open=4", "?open=5", "?open=6", "?open=7", "?open=8"} <= set(found)
    selected = [one for one in svg.iter() if one.get("class") == "selected"]
    assert {one.get("href") for one in selected} == {"?open=6"}
    listed = [one.get("href") for one in picture.iter("a")]
    assert {"?open=4", "?open=6", "?open=7"} <= set(listed)
    assert (
        draw(parts_of(*CRASHED)).find(".//{http://www.w3.org/2000/svg}svg[@role='img']") is not None
    )


def test_a_run_without_events_says_so() -> None:
    assert "Nothing has happened" in timeline_picture(timeline_parts([], START), title="A run")


def test_a_rest_leads_to_its_question_and_a_death_to_its_takeover() -> None:
    told = (
        (0, "started"),
        claim(0, "a:1"),
        (1, "wait", {"wait": "w", "kind": "human"}),
        (1, "waiting"),
    )
    rest = parts_of(*told, now=60).stretches[-1]
    assert (rest.kind, rest.first, rest.lasts) == (PeriodKind.PERSON, 3, True)
    lost = parts_of(*CRASHED).stretches[1]
    assert (lost.kind, lost.first) == (PeriodKind.LOST, 5)
