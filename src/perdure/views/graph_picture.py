"""A graph as a picture: the nodes that ran and how often, the current ones, the possible next ones.

Nodes and edges come from LangGraph's drawable graph. An unknown or very large graph is shown as a
list of the nodes that ran. A subgraph is one node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from perdure.commands.events import is_input
from perdure.langgraph_port.checkpoint_names import END, START
from perdure.types import Event, EventKind
from perdure.views.graph_layout import (
    LONGEST_NAME,
    NODE,
    GraphShape,
    PlacedEdge,
    PlacedNode,
    lay_out,
)
from perdure.views.markup import Html, element

MOST_NODES, MOST_EDGES = 80, 300
"""Maximum size of a picture; a larger graph is a list."""
NAMES = {START: "start", END: "end"}
Attributes = Mapping[str, object]


@dataclass(frozen=True)
class Progress:
    """The progress of a run in its graph."""

    ran: Mapping[str, int] = field(default_factory=dict)
    """How often each node ran."""
    now: Collection[str] = ()
    """The current nodes: running or waiting."""
    is_over: bool = False
    last: Mapping[str, int] = field(default_factory=dict)
    """The number of the last event of each node."""


def progress(events: Iterable[Event], now: Collection[str] = (), *, is_over: bool) -> Progress:
    """The progress of a run, from its events and its current nodes."""
    ran: Counter[str] = Counter()
    last: dict[str, int] = {}
    for event in events:
        is_step = event.kind == EventKind.STEP and not event.damaged and not event.data.get("ns")
        if is_step and not is_input(event.data):
            for node in event.data.get("nodes") or ():
                ran[str(node)] += 1
                last[str(node)] = event.n
    return Progress(ran, () if is_over else tuple(now), is_over, last)


def graph_picture(
    shape: GraphShape | None,
    at: Progress,
    *,
    title: str,
    link: Callable[[int], Attributes | None] = lambda _: None,
) -> Html:
    """The picture, or a list if there is no shape. `link` leads to the event of a node's last
    step."""
    if shape is None or len(shape.nodes) > MOST_NODES or len(shape.edges) > MOST_EDGES:
        return _as_list(shape, at, link)
    layout, drawing = lay_out(shape), _Drawing(at, _next(shape, at), link)
    said = f"{title}. {drawing.said(shape)}"
    picture = element(
        "svg",
        element("title", said),
        element("defs", _arrow()),
        *(drawing.edge(one) for one in layout.edges),
        *(drawing.node(one) for one in layout.nodes),
        role="group" if at.last and link(1) is not None else "img",
        aria_label=said,
        width=round(layout.width),
        height=round(layout.height),
        viewBox=f"0 0 {layout.width:.0f} {layout.height:.0f}",
        xmlns="http://www.w3.org/2000/svg",
    )
    region = element("div", picture, class_="scroll", tabindex="0", role="region", aria_label=title)
    return element("figure", region, drawing.legend(shape), class_="graph")


def _next(shape: GraphShape, at: Progress) -> frozenset[str]:
    """The nodes that may follow the current ones."""
    after = {one.target for one in shape.edges if one.source in at.now}
    return frozenset(after - set(at.now))


def _as_list(
    shape: GraphShape | None, at: Progress, link: Callable[[int], Attributes | None]
) -> Html:
    names = list(dict.fromkeys([*at.ran, *at.now, *(shape.nodes if shape is not None else ())]))
    lines = [_line(name, at, link) for name in names if name not in NAMES]
    why = "This graph is not registered here." if shape is None else "This graph is large."
    note = element("p", f"{why} These are the nodes that the run has reached.", class_="note")
    return element("div", note, element("ul", *lines[:MOST_NODES]), class_="graph-list")


def _line(name: str, at: Progress, link: Callable[[int], Attributes | None]) -> Html:
    ran = at.ran.get(name, 0)
    note = f" ran {ran} time{'s' * (ran != 1)}" if ran else " has not run"
    where = " — the run is here" if name in at.now else ""
    to = link(at.last[name]) if name in at.last else None
    shown = element("strong", name) if to is None else element("a", name, **to)
    return element("li", shown, note, where)


@dataclass(frozen=True)
class _Drawing:
    at: Progress
    next: Collection[str]
    link: Callable[[int], Attributes | None]

    def state(self, name: str) -> str:
        if name in self.at.now:
            return "now"
        if name == START or self.at.ran.get(name) or (name == END and self.at.is_over):
            return "ran"
        return "next" if name in self.next else "other"

    def node(self, one: PlacedNode) -> Html:
        state, ran = self.state(one.name), self.at.ran.get(one.name, 0)
        name = NAMES.get(one.name, one.name)
        shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        left, top = one.x - one.width / 2, one.y - NODE / 2
        rounding = NODE / 2 if one.name in NAMES else 7
        box = {"x": left, "y": top, "width": one.width, "height": NODE, "rx": rounding}
        shapes: list[object] = [
            element("title", self.words(one.name)),
            element("rect", class_="node", **box),
            element("text", shown, x=one.x, y=one.y + 4, text_anchor="middle"),
        ]
        if state == "now":
            shapes.append(element("circle", class_="here pulse", cx=left, cy=one.y, r=5))
        if ran > 1:
            count = f"×{ran}"
            shapes.append(
                element(
                    "text", count, class_="times", x=left + one.width, y=top - 3, text_anchor="end"
                )
            )
        to = self.link(self.at.last[one.name]) if one.name in self.at.last else None
        if to is None:
            return element("g", *shapes, class_=state)
        return element("a", *shapes, class_=state, **to)

    def edge(self, one: PlacedEdge) -> Html:
        edge = one.edge
        went = self.state(edge.source) == "ran" and self.state(edge.target) in ("ran", "now")
        look = f"edge{' maybe' * edge.conditional}{' went' * went}"
        why = f", if {edge.label}" if edge.label else ", conditional" * edge.conditional
        ends = [NAMES.get(name, name) for name in (edge.source, edge.target)]
        said = f"{' to '.join(ends)}{why}"
        path = _loop(one.points) if one.leads_back else _curve(one.points)
        return element(
            "g",
            element("title", said),
            element("path", class_=look, d=path, marker_end="url(#graph-arrow)"),
        )

    def words(self, name: str) -> str:
        ran = self.at.ran.get(name, 0)
        told = {
            "now": "the run is here",
            "ran": f"ran {ran} time{'s' * (ran != 1)}" if ran else "reached",
            "next": "may come next",
            "other": "has not run",
        }
        return f"{NAMES.get(name, name)}: {told[self.state(name)]}"

    def said(self, shape: GraphShape) -> str:
        """The picture in a sentence."""
        parts = []
        if self.at.now:
            parts.append(f"The run is at {', '.join(self.at.now)}.")
        if ran := [name for name in shape.nodes if self.at.ran.get(name)]:
            parts.append(f"It ran {', '.join(ran)}.")
        return " ".join(parts) or "No node has run yet."

    def legend(self, shape: GraphShape) -> Html:
        found = {self.state(name) for name in shape.nodes}
        names = {
            "now": "the run is here",
            "ran": "ran",
            "next": "may come next",
            "other": "has not run",
        }
        keys = [_key(state, name) for state, name in names.items() if state in found]
        if any(one.conditional for one in shape.edges):
            line = element("path", class_="edge maybe", d="M1 7h22")
            key = element("svg", line, viewBox="0 0 24 14", width=24, height=14, aria_hidden="true")
            keys.append(element("li", key, "conditional"))
        return element("ul", *keys, class_="legend", aria_label="Legend")


def _key(state: str, name: str) -> Html:
    box = element("rect", class_="node", x=1, y=1, width=22, height=12, rx=4)
    inside = element("g", box, class_=state)
    key = element("svg", inside, viewBox="0 0 24 14", width=24, height=14, aria_hidden="true")
    return element("li", key, name)


Points = tuple[tuple[float, float], ...]


def _curve(points: Points) -> str:
    """A smooth line downwards through these points."""
    return "".join(_pieces(points))


def _pieces(points: Points) -> Iterator[str]:
    yield f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        yield f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"


def _loop(points: Points) -> str:
    """A curve to the right and back."""
    (x1, y1), (out, _), (x2, y2) = points
    return f"M{x1:.1f} {y1:.1f}C{out:.1f} {y1:.1f} {out:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"


def _arrow() -> Html:
    return element(
        "marker",
        element("path", class_="arrow", d="M0 0L7 3.5L0 7z"),
        id="graph-arrow",
        viewBox="0 0 7 7",
        refX=6,
        refY=3.5,
        markerWidth=7,
        markerHeight=7,
        orient="auto",
    )
