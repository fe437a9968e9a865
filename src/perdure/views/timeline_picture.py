"""The timeline of a run as a picture: who drove it when, what it did, its rests and crashes.

Colours are the page's own by class (`picture_style`), so one drawing serves light and dark. Meaning
never rests on colour alone. Below the picture are its legend, and the same as a list of sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, tzinfo

from perdure.views.formatting import count
from perdure.views.markup import Html, element
from perdure.views.timeline_drawing import NO_LINKS, RESTS, Attributes, Drawing, Links
from perdure.views.timeline_layout import lay_out
from perdure.views.timeline_marks import Look, MarkKind
from perdure.views.timeline_parts import Stretch, TimelineParts
from perdure.views.timeline_shapes import sign

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
