"""The timeline of a run as a picture: who drove it when, what it did, its rests and crashes.

It is SVG, with no library and no script. Colours are the page's own by class (`markup`), so one
drawing serves light and dark. Meaning never rests on colour alone. Below the picture are its
legend, and the same as a list of sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo

from perdure.views.formatting import count, duration
from perdure.views.markup import Html, element, join
from perdure.views.timeline import PeriodKind
from perdure.views.timeline_layout import (
    AXIS,
    BAR,
    CHARACTER,
    EFFECT,
    GUTTER,
    HEADER,
    REST,
    ROW,
    Lane,
    Layout,
    PlacedMark,
    PlacedStretch,
    PlacedStrip,
    lay_out,
    shorten,
)
from perdure.views.timeline_marks import Look, MarkKind
from perdure.views.timeline_parts import Stretch, TimelineParts, Zoom


def line(look: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return element("line", class_=look, x1=x1, y1=y1, x2=x2, y2=y2)


def text(
    x: float,
    y: float,
    words: str,
    look: str | None = None,
    anchor: str | None = None,
    title: str = "",
) -> Html:
    whole = element("title", title) if title and title != words else None
    return element("text", whole, words, class_=look, x=x, y=y, text_anchor=anchor)


def sign(x: float, y: float, look: Look) -> Html:
    """The outcome of an effect: a tick, a cross, a bolt, a question mark, dots."""
    paths = {
        Look.GOOD: f"M{x - 3:.1f} {y:.1f}l2 2.5l4 -5",
        Look.BAD: f"M{x - 2.5:.1f} {y - 2.5:.1f}l5 5m0 -5l-5 5",
        Look.CUT_OFF: f"M{x + 1:.1f} {y - 4:.1f}l-3 4h4l-3 4",
        Look.UNKNOWN: f"M{x - 2:.1f} {y - 2:.1f}c0 -3 4.5 -3 4.5 0c0 1.5 -2.2 1.5 -2.2 3m0 1.8v.6",
    }
    path = paths.get(look, f"M{x - 3:.1f} {y:.1f}h1m2 0h1m2 0h1")
    return element("path", class_=f"sign {look}", d=path)


def crack(x: float, y: float) -> Html:
    """The end of a segment whose worker was lost."""
    return element("path", class_="break", d=f"M{x:.1f} {y - 4:.1f}l-4 8l7 5l-7 5l7 5l-4 8")


def axis_break(x: float, y: float) -> Html:
    """Two strokes where the axis is broken."""
    under = element("rect", class_="under", x=x - 5, y=y - 3, width=10, height=6)
    return join(under, element("path", class_="gap", d=f"M{x - 5:.1f} {y + 4:.1f}l4 -8m2 8l4 -8"))


def hatching(id: str) -> Html:
    """The pattern of what was saved."""
    return element(
        "pattern",
        element("rect", class_="under", width=5, height=5),
        element("line", class_="hatch", x1=0, y1=0, x2=0, y2=5),
        id=f"{id}-hatch",
        width=5,
        height=5,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )


Attributes = Mapping[str, object]
LONG = 60.0
"""Seconds from which a rest breaks the axis."""
HOUR = 3600.0
RESTS = {
    PeriodKind.PERSON: "person",
    PeriodKind.SIGNAL: "signal",
    PeriodKind.SIGNAL_OR_TIME: "signal",
    PeriodKind.RUN: "run",
    PeriodKind.ASLEEP: "asleep",
    PeriodKind.RETRYING: "retrying",
    PeriodKind.PAUSED: "paused",
    PeriodKind.HELD: "held",
    PeriodKind.FAILED: "failed",
    PeriodKind.LOST: "lost",
    PeriodKind.QUEUED: "queued",
}
"""The class of each rest."""
ALARMING = ("lost", "held", "failed")


def no_link(_: object) -> Attributes | None:
    return None


@dataclass(frozen=True)
class Links:
    """The links of a picture: the attributes of each, such as `href`."""

    event: Callable[[int], Attributes | None] = no_link
    """To the details of an event, by its number."""
    zoom: Callable[[Zoom], Attributes | None] = no_link


NO_LINKS = Links()


@dataclass(frozen=True)
class Drawing:
    """A picture of a timeline."""

    layout: Layout
    parts: TimelineParts
    links: Links
    selected: int | None
    zone: tzinfo
    id: str
    """Unique in the page: patterns are referred to by id."""

    def svg(self, title: str) -> Html:
        width, height = round(self.layout.width), round(self.layout.height)
        return element(
            "svg",
            element("title", title),
            element("defs", hatching(self.id)),
            *(part for strip in self.layout.strips for part in self._strip(strip)),
            # Links in an element with the role of an image are not accessible.
            role="img" if self.links is NO_LINKS else "group",
            aria_label=title,
            width=width,
            height=height,
            viewBox=f"0 0 {width} {height}",
            xmlns="http://www.w3.org/2000/svg",
        )

    def _strip(self, strip: PlacedStrip) -> Iterator[Html]:
        yield from self._lanes(strip)
        yield from self._axis(strip)
        yield from self._path(strip)
        for one in strip.stretches:
            if one.lane < 0:
                yield self._rest(one, strip.rest)
            elif one.stretch.count > 1:
                yield self._merged(one, strip.lanes)
            else:
                yield from self._segment(one, strip.lanes[one.lane])
        for mark in strip.moments:
            yield self._moment(mark, strip)
        last = strip.stretches[-1]
        if last.stretch.lasts:
            yield line("now", last.right, strip.top + AXIS - 6, last.right, strip.bottom)
            yield text(last.right + 3, strip.top + AXIS - 8, "now", "quiet", "end")

    # -- behind everything

    def _lanes(self, strip: PlacedStrip) -> Iterator[Html]:
        for lane in strip.lanes:
            box = {"x": 0, "y": lane.top + 1, "width": self.layout.width, "height": lane.height - 3}
            yield element("rect", class_="lane", rx=4, **box)
            yield text(8, lane.bar + 15, _worker(lane.name), title=lane.name)
        if any(one.lane < 0 for one in strip.stretches):
            yield text(8, strip.rest + 14, "at rest", "quiet")
        if strip.moments:
            yield text(8, strip.top + AXIS + 11, "events", "quiet")

    def _axis(self, strip: PlacedStrip) -> Iterator[Html]:
        y = strip.top + AXIS - 6
        yield line("axis", GUTTER, y, self.layout.width, y)
        shown = self.parts.stretches
        seconds = (shown[-1].until - shown[0].since).total_seconds() < HOUR
        for tick in strip.ticks:
            at = tick.at.astimezone(self.zone)
            date = f"{at.day} {at:%b} " if tick.with_date else ""
            words = f"{date}{at:%H:%M:%S}" if seconds else f"{date}{at:%H:%M}"
            yield line("axis", tick.x, y - 4, tick.x, y)
            yield text(tick.x, y - 8, words, "quiet", title=at.isoformat(" ", "milliseconds"))
        for one in strip.stretches:
            lasted = one.stretch.until - one.stretch.since
            if one.lane < 0 and lasted.total_seconds() >= LONG:
                yield axis_break((one.left + one.right) / 2, y)

    def _path(self, strip: PlacedStrip) -> Iterator[Html]:
        """The path of the run from lane to lane."""

        def middle(one: PlacedStretch) -> float:
            return strip.rest + REST / 2 if one.lane < 0 else strip.lanes[one.lane].bar + BAR / 2

        for one, after in zip(strip.stretches, strip.stretches[1:], strict=False):
            is_lost = PeriodKind.LOST in (one.stretch.kind, after.stretch.kind)
            look = "path lost" if is_lost else "path"
            yield line(look, one.right, middle(one), one.right, middle(after))

    # -- periods

    def _rest(self, one: PlacedStretch, y: float) -> Html:
        rest, look = one.stretch, RESTS.get(one.stretch.kind, "")
        left, width = one.left + 1.5, max(2.0, one.right - one.left - 3)
        box = {"x": left, "y": y, "width": width, "height": REST, "rx": REST / 2}
        label = rest.label
        if len(label) * CHARACTER > width - 6:
            label = shorten(duration(rest.until - rest.since), width)
        tone = "alarm" if look in ALARMING else None
        return self._link(
            self.links.event(rest.first),
            rest.first,
            rest.text,
            element("rect", class_=f"rest {look}", **box),
            text(left + width / 2, y + 14, label, tone, "middle"),
        )

    def _merged(self, one: PlacedStretch, lanes: tuple[Lane, ...]) -> Html:
        """Several periods as one block across the lanes."""
        part, top = one.stretch, lanes[0].bar
        look = "step many bad" if part.crashes else "step many"
        width, height = max(2.0, one.right - one.left - 2), lanes[-1].bar + BAR - top
        box = {"x": one.left + 1, "y": top, "width": width, "height": height, "rx": 4}
        label = text(one.left + 1 + width / 2, top + 15, part.label, "bold", "middle")
        link = self.links.zoom(Zoom(part.first, part.last))
        return self._link(link, None, part.text, element("rect", class_=look, **box), label)

    def _segment(self, one: PlacedStretch, lane: Lane) -> Iterator[Html]:
        part, y = one.stretch, lane.bar
        zoom = self.links.zoom(Zoom(part.first, part.last))
        header = text(one.left, lane.top + HEADER - 4, one.header, "bold")
        yield self._link(zoom, None, part.text, header)
        width = max(2.0, one.right - one.left)
        box = element("rect", class_="segment", x=one.left, y=y, width=width, height=BAR, rx=4)
        yield self._link(self.links.event(part.first), part.first, part.text, box)
        steps = [mark.right for mark in one.marks if mark.mark.kind is MarkKind.STEP]
        left = max(steps, default=one.left)
        if one.right - left > 1:  # the step that it is in, or ended in the middle of
            look = "going pulse" if part.lasts else "going"
            yield element("rect", class_=look, x=left, y=y, width=one.right - left, height=BAR)
        for mark in one.marks:
            if mark.mark.kind is MarkKind.STEP:
                yield self._step(mark, y)
            elif mark.mark.kind is MarkKind.INNER_STEP:
                tick = line("inner", mark.right, y + BAR - 6, mark.right, y + BAR)
                yield self._event(mark, tick)
            else:
                yield self._effect(mark, y + BAR + 4 + mark.row * ROW)
        if part.died:
            yield crack(one.right, y)

    def _step(self, one: PlacedMark, y: float) -> Html:
        mark, width = one.mark, max(1.0, one.right - one.left)
        look = f"step{' many' * (mark.count > 1)}{' bad' * (mark.look is not Look.PLAIN)}"
        box = element("rect", class_=look, x=one.left, y=y, width=width, height=BAR)
        edge = line("edge", one.right, y, one.right, y + BAR)
        name = text((one.left + one.right) / 2, y + 15, one.label, None, "middle")
        if mark.count > 1:
            link = self.links.zoom(Zoom(mark.first, mark.last))
            return self._link(link, None, mark.text, box, edge, name)
        return self._event(one, box, edge, name)

    def _effect(self, one: PlacedMark, y: float) -> Html:
        mark, is_saved = one.mark, one.mark.kind is MarkKind.SAVED
        is_sharp = mark.look in (Look.BAD, Look.CUT_OFF)
        box = element(
            "rect",
            class_="mark saved" if is_saved else f"mark {mark.look}",
            x=one.left,
            y=y,
            width=max(3.0, one.right - one.left),
            height=EFFECT,
            rx=None if is_sharp else EFFECT / 2,
            fill=f"url(#{self.id}-hatch)" if is_saved else None,
        )
        if not one.label:
            return self._event(one, box)
        words = f"saved {one.label}" if is_saved else one.label
        if one.is_before:
            return self._event(one, box, text(one.left - 4, y + 8.5, words, None, "end"))
        if is_saved:
            return self._event(one, box, text(one.right + 3, y + 8.5, words, "quiet"))
        outcome = sign(one.right + 7, y + EFFECT / 2, mark.look)
        return self._event(one, box, outcome, text(one.right + 14, y + 8.5, words))

    def _moment(self, one: PlacedMark, strip: PlacedStrip) -> Html:
        """A diamond; a triangle if it is bad."""
        x, y = one.left, strip.top + AXIS + one.row * ROW + 7
        corners = [(0, -5), (5, 0), (0, 5), (-5, 0)]
        if one.mark.look is Look.BAD:
            corners = [(-5, 5), (5, 5), (0, -5)]
        points = " ".join(f"{x + right:.1f},{y + down:.1f}" for right, down in corners)
        shape = element("polygon", class_=f"mark {one.mark.look}", points=points)
        stem = line("path", x, y + 5, x, strip.lanes[0].top) if strip.lanes else None
        label = text(x + 8, y + 4, one.label) if one.label else None
        if one.is_before and one.label:
            label = text(x - 8, y + 4, one.label, None, "end")
        return self._event(one, stem, shape, label)

    def _event(self, one: PlacedMark, *shapes: Html | None) -> Html:
        return self._link(self.links.event(one.mark.first), one.mark.first, one.mark.text, *shapes)

    def _link(
        self, attributes: Attributes | None, event: int | None, title: str, *shapes: Html | None
    ) -> Html:
        """Shapes with their title, as a link if there is one. The list below the picture has the
        same links for the keyboard."""
        look = "selected" if event is not None and event == self.selected else None
        inside = (element("title", title), *shapes)
        if attributes is None:
            return element("g", join(*inside), class_=look)
        return element("a", join(*inside), class_=look, tabindex="-1", **attributes)


def _worker(name: str) -> str:
    """A worker's name that fits its lane: the end of a long host's name, and the process."""
    return name if len(name) <= 16 else f"…{name[-15:]}"


LOOKS = {
    Look.GOOD: "effect done",
    Look.BAD: "effect failed",
    Look.UNKNOWN: "effect with an unknown outcome",
    Look.OPEN: "effect in progress, or to be retried",
    Look.CUT_OFF: "effect cut off by a crash",
}


def timeline_picture(
    parts: TimelineParts,
    *,
    title: str,
    links: Links = NO_LINKS,
    selected: int | None = None,
    zone: tzinfo = UTC,
    id: str = "timeline",
) -> Html:
    """The picture with its legend and its text. `selected` is the number of the event whose details
    are open; `id` must be unique in a page."""
    if not parts.stretches:
        return element("p", "Nothing has happened here yet.", class_="note")
    said = f"{title}: {summary(parts)}"
    picture = Drawing(lay_out(parts), parts, links, selected, zone, id).svg(said)
    region = element("div", picture, class_="scroll", tabindex="0", role="region", aria_label=title)
    legend = element("ul", *_legend(parts, id), class_="legend", aria_label="Legend")
    lines = element("ol", *(_sentence(one, links) for one in parts.stretches))
    text = element("details", element("summary", "The same as text"), lines, class_="as-text")
    return element("figure", region, legend, text, class_="timeline")


def summary(parts: TimelineParts) -> str:
    """A timeline in a few words."""
    driven = [one for one in parts.stretches if one.is_driven]
    segments = sum(one.segments for one in driven)
    workers = len({one.worker for one in driven if one.worker})
    crashes = sum(one.crashes for one in driven)
    died = f", {crashes} crash{'es' * (crashes != 1)}" if crashes else ""
    rests = len(parts.stretches) - len(driven)
    driven_by = f"{count(segments, 'segment')} by {count(workers, 'worker')}"
    return f"{driven_by}, {count(rests, 'rest')}{died}"


def _legend(parts: TimelineParts, id: str) -> Iterator[Html]:
    """What the shapes mean, of those that occur."""
    marks = {(mark.kind, mark.look) for one in parts.stretches for mark in one.marks}
    if any(kind is MarkKind.STEP for kind, _ in marks):
        box = {"x": 1, "y": 2, "width": 22, "height": 10}
        bar = element("rect", class_="segment", rx=2, **box)
        yield _key("step", bar, element("rect", class_="step", **box))
    for look, name in LOOKS.items():
        if (MarkKind.EFFECT, look) in marks:
            rounding = None if look in (Look.BAD, Look.CUT_OFF) else 4
            box = {"x": 1, "y": 3, "width": 12, "height": 8}
            yield _key(
                name, element("rect", class_=f"mark {look}", rx=rounding, **box), sign(19, 7, look)
            )
    if any(kind is MarkKind.SAVED for kind, _ in marks):
        box = {"x": 1, "y": 3, "width": 22, "height": 8, "rx": 4}
        shape = element("rect", class_="mark saved", fill=f"url(#{id}-hatch)", **box)
        yield _key("saved: from the record, not called again", shape)
    for kind in dict.fromkeys(one.kind for one in parts.stretches if not one.is_driven):
        box = {"x": 1, "y": 1, "width": 22, "height": 12, "rx": 6}
        yield _key(kind.value, element("rect", class_=f"rest {RESTS.get(kind, '')}", **box))


def _key(name: str, *shapes: Html) -> Html:
    shape = element("svg", *shapes, viewBox="0 0 24 14", width=24, height=14, aria_hidden="true")
    return element("li", shape, name)


def _sentence(one: Stretch, links: Links) -> Html:
    marks = [element("li", _said(mark.text, links.event(mark.first))) for mark in one.marks]
    inside = element("ul", *marks) if marks else None
    return element("li", _said(one.text, links.event(one.first)), inside)


def _said(text: str, link: Attributes | None) -> object:
    return text if link is None else element("a", text, **link)
