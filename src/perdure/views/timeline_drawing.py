"""Draws a laid-out timeline as SVG: no library, no script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo

from perdure.views.formatting import duration
from perdure.views.markup import Html, element, join
from perdure.views.timeline import PeriodKind
from perdure.views.timeline_layout import (
    AXIS,
    BAR,
    EFFECT,
    HEADER,
    REST,
    ROW,
    Lane,
    Layout,
    PlacedMark,
    PlacedStretch,
    PlacedStrip,
)
from perdure.views.timeline_marks import Look, MarkKind
from perdure.views.timeline_parts import TimelineParts, Zoom
from perdure.views.timeline_scale import CHARACTER, GUTTER, shorten
from perdure.views.timeline_shapes import (
    axis_break,
    crack,
    hatching,
    line,
    sign,
    text,
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
