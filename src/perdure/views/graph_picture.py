"""A graph as a picture: the nodes that ran and how often, the current ones, the possible next ones.

Nodes and edges come from LangGraph's drawable graph. An unknown or very large graph is shown as a
list of the nodes that ran. A subgraph is one node. The layout is in layers from top to bottom. Back
edges are removed first; a node is one layer below the lowest node that leads to it (longest path).
An edge across several layers has a bend in each. The order within a layer follows the neighbours
above and below, in a few sweeps, so that few edges cross (barycenter). Back edges are curves at the
side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from perdure.commands.events import is_input
from perdure.langgraph_port.checkpoint_names import END, START
from perdure.types import Event, EventKind
from perdure.views.markup import Html, element

NODE, LAYER = 30.0, 66.0
"""Height of a node, and from one layer to the next."""
CHARACTER, PADDING, NARROWEST = 6.9, 26.0, 64.0
LONGEST_NAME = 26
APART, BEND = 22.0, 14.0
"""Space between two nodes of a layer; width of a bend."""
MARGIN, LOOP = 14.0, 26.0
"""Free space around; how far a curve that leads back goes to the right, for each further one."""
SWEEPS = 12


@dataclass(frozen=True)
class Edge:
    """An edge of a graph."""

    source: str
    target: str
    conditional: bool = False
    label: str = ""


@dataclass(frozen=True)
class GraphShape:
    """The nodes and edges of a graph."""

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]

    @classmethod
    def of(cls, drawing: Mapping[str, Sequence[Mapping[str, object]]]) -> GraphShape:
        """That of LangGraph's drawable graph, as JSON."""
        nodes = tuple(dict.fromkeys(str(one["id"]) for one in drawing["nodes"]))
        edges = (
            Edge(
                str(one["source"]),
                str(one["target"]),
                bool(one.get("conditional")),
                str(one.get("data") or ""),
            )
            for one in drawing["edges"]
        )
        known = set(nodes)
        return cls(nodes, tuple(one for one in edges if {one.source, one.target} <= known))


@dataclass(frozen=True)
class PlacedNode:
    """A node: its centre, and how wide it is."""

    name: str
    x: float
    y: float
    width: float


@dataclass(frozen=True)
class PlacedEdge:
    """An edge, as the points it goes through."""

    edge: Edge
    points: tuple[tuple[float, float], ...]
    leads_back: bool = False


@dataclass(frozen=True)
class GraphLayout:
    """A graph that is laid out."""

    width: float
    height: float
    nodes: tuple[PlacedNode, ...]
    edges: tuple[PlacedEdge, ...]


Cell = tuple[str, int]
"""What has a place in a layer: a node, with -1, or the bend of an edge by its number."""


def lay_out(shape: GraphShape) -> GraphLayout:
    """Place the nodes and edges of a graph."""
    back = _back_edges(shape)
    forward = [n for n in range(len(shape.edges)) if n not in back]
    layer = _layers(shape, forward)
    columns, chains = _with_bends(shape, forward, layer)
    _order(columns, chains)
    x = _across(columns, chains)
    nodes = {
        name: PlacedNode(name, x[name, -1], _y(layer[name]), _width((name, -1)))
        for name in shape.nodes
    }
    edges = [_forward(shape.edges[n], chains[n], x, layer, nodes) for n in forward]
    edges += list(_backward([shape.edges[n] for n in sorted(back)], nodes))
    ends = [one.x + side * one.width / 2 for one in nodes.values() for side in (-1, 1)]
    ends += [point[0] for one in edges for point in one.points]
    left, right = min(ends, default=0.0) - MARGIN, max(ends, default=0.0) + MARGIN
    moved = tuple(replace(one, points=tuple((x - left, y) for x, y in one.points)) for one in edges)
    height = _y(max(layer.values(), default=0)) + NODE / 2 + MARGIN
    placed = tuple(replace(one, x=one.x - left) for one in nodes.values())
    return GraphLayout(right - left, height, placed, moved)


def _y(layer: int) -> float:
    return MARGIN + NODE / 2 + layer * LAYER


def _width(cell: Cell) -> float:
    name, bend = cell
    if bend >= 0:
        return BEND
    return max(NARROWEST, min(len(name), LONGEST_NAME) * CHARACTER + PADDING)


# -- layers


def _back_edges(shape: GraphShape) -> set[int]:
    """The numbers of edges that lead to a node on the way to their source, in depth-first order."""
    leaving: dict[str, list[int]] = {}
    for n, edge in enumerate(shape.edges):
        leaving.setdefault(edge.source, []).append(n)
    back: set[int] = set()
    done: set[str] = set()
    for root in shape.nodes:
        if root in done:
            continue
        path, on_path = [(root, iter(leaving.get(root, ())))], {root}
        while path:
            name, rest = path[-1]
            number = next(rest, None)
            if number is None:
                path.pop()
                on_path.discard(name)
                done.add(name)
                continue
            target = shape.edges[number].target
            if target in on_path:
                back.add(number)
            elif target not in done:
                path.append((target, iter(leaving.get(target, ()))))
                on_path.add(target)
    return back


def _layers(shape: GraphShape, forward: Iterable[int]) -> dict[str, int]:
    """The layer of each node: the longest path to it."""
    edges = [shape.edges[n] for n in forward]
    waiting = dict.fromkeys(shape.nodes, 0)
    leaving: dict[str, list[str]] = {}
    for edge in edges:
        waiting[edge.target] += 1
        leaving.setdefault(edge.source, []).append(edge.target)
    layer = dict.fromkeys(shape.nodes, 0)
    ready = [name for name, number in waiting.items() if not number]
    for name in ready:
        for target in leaving.get(name, ()):
            layer[target] = max(layer[target], layer[name] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if END in layer:  # below all others, so that nothing leads past it
        layer[END] = max([-1, *(one for name, one in layer.items() if name != END)]) + 1
    return layer


def _with_bends(
    shape: GraphShape, forward: Sequence[int], layer: Mapping[str, int]
) -> tuple[list[list[Cell]], dict[int, list[Cell]]]:
    """The cells of each layer, and for each edge those that it goes through."""
    columns: list[list[Cell]] = [[] for _ in range(max(layer.values(), default=0) + 1)]
    for name in shape.nodes:
        columns[layer[name]].append((name, -1))
    chains: dict[int, list[Cell]] = {}
    for n in forward:
        edge = shape.edges[n]
        chain: list[Cell] = [(edge.source, -1)]
        for at in range(layer[edge.source] + 1, layer[edge.target]):
            bend = (f"{at}", n)
            columns[at].append(bend)
            chain.append(bend)
        chains[n] = [*chain, (edge.target, -1)]
    return columns, chains


# -- order and place in a layer


@dataclass
class _Neighbours:
    above: dict[Cell, list[Cell]] = field(default_factory=dict)
    below: dict[Cell, list[Cell]] = field(default_factory=dict)

    @classmethod
    def of(cls, chains: Mapping[int, Sequence[Cell]]) -> _Neighbours:
        found = cls()
        for chain in chains.values():
            for one, other in pairwise(chain):
                found.below.setdefault(one, []).append(other)
                found.above.setdefault(other, []).append(one)
        return found


def _order(columns: list[list[Cell]], chains: Mapping[int, Sequence[Cell]]) -> None:
    """Sort each layer by the mean place of its neighbours, down and up again, and keep the order
    with the fewest crossings."""
    near = _Neighbours.of(chains)
    best, fewest = [list(one) for one in columns], _crossings(columns, near)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        numbers = range(1, len(columns)) if down else range(len(columns) - 2, -1, -1)
        beside = near.above if down else near.below
        for n in numbers:
            other = columns[n - 1 if down else n + 1]
            place = {cell: at for at, cell in enumerate(other)}
            own = {cell: float(at) for at, cell in enumerate(columns[n])}
            mean = {cell: _mean(beside.get(cell, ()), place, own[cell]) for cell in columns[n]}
            columns[n].sort(key=lambda cell: mean[cell])
        if (found := _crossings(columns, near)) < fewest:
            best, fewest = [list(one) for one in columns], found
    columns[:] = best


def _mean(cells: Iterable[Cell], place: Mapping[Cell, float], otherwise: float) -> float:
    found = [place[cell] for cell in cells]
    return sum(found) / len(found) if found else otherwise


def _crossings(columns: Sequence[Sequence[Cell]], near: _Neighbours) -> int:
    total = 0
    for upper, lower in pairwise(columns):
        place = {cell: at for at, cell in enumerate(lower)}
        ends = [sorted(place[one] for one in near.below.get(cell, ())) for cell in upper]
        for n, left in enumerate(ends):
            total += sum(a > b for right in ends[n + 1 :] for a in left for b in right)
    return total


def _across(
    columns: Sequence[Sequence[Cell]], chains: Mapping[int, Sequence[Cell]]
) -> dict[Cell, float]:
    """The place of each cell from left to right: near its neighbours, in the order of its layer."""
    near = _Neighbours.of(chains)
    x: dict[Cell, float] = {}
    for column in columns:
        x |= _packed(column, dict.fromkeys(column, 0.0))
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for column in columns if down else reversed(columns):
            beside = near.above if down else near.below
            wanted = {cell: _mean(beside.get(cell, ()), x, x[cell]) for cell in column}
            x |= _packed(column, wanted)
    return x


def _packed(column: Sequence[Cell], wanted: Mapping[Cell, float]) -> dict[Cell, float]:
    """The cells of a layer as near to where they should be as their widths allow."""
    # From the left and from the right, each pushes the next one on; the middle of both is fair.
    left: dict[Cell, float] = {}
    edge = None
    for cell in column:
        at = wanted[cell] if edge is None else max(wanted[cell], edge + _width(cell) / 2)
        left[cell], edge = at, at + _width(cell) / 2 + APART
    right: dict[Cell, float] = {}
    edge = None
    for cell in reversed(column):
        at = wanted[cell] if edge is None else min(wanted[cell], edge - _width(cell) / 2)
        right[cell], edge = at, at - _width(cell) / 2 - APART
    return {cell: (left[cell] + right[cell]) / 2 for cell in column}


# -- edges


def _forward(
    edge: Edge,
    chain: Sequence[Cell],
    x: Mapping[Cell, float],
    layer: Mapping[str, int],
    nodes: Mapping[str, PlacedNode],
) -> PlacedEdge:
    source, target = nodes[edge.source], nodes[edge.target]
    points = [(source.x, source.y + NODE / 2)]
    points += [(x[cell], _y(layer[edge.source] + n)) for n, cell in enumerate(chain[1:-1], 1)]
    return PlacedEdge(edge, (*points, (target.x, target.y - NODE / 2)))


def _backward(edges: Sequence[Edge], nodes: Mapping[str, PlacedNode]) -> Iterator[PlacedEdge]:
    """Curves at the side where fewer nodes are in their way, the longest outside."""
    tall = sorted(edges, key=lambda one: abs(nodes[one.source].y - nodes[one.target].y))
    for n, edge in enumerate(tall):
        source, target = nodes[edge.source], nodes[edge.target]
        between = [one for one in nodes.values() if target.y <= one.y <= source.y]
        side = 1 if _in_the_way(nodes, edge, 1) <= _in_the_way(nodes, edge, -1) else -1
        begin = (source.x + side * source.width / 2, source.y)
        end = (target.x + side * target.width / 2, target.y)
        if edge.source == edge.target:
            end, outside = (end[0], end[1] - NODE / 2 + 5), begin[0] + side * LOOP
        else:
            edge_of_all = max((side * one.x + one.width / 2 for one in between), default=0.0)
            outside = side * (edge_of_all + LOOP * (n + 2) / 2)
        yield PlacedEdge(edge, (begin, (outside, (begin[1] + end[1]) / 2), end), leads_back=True)


def _in_the_way(nodes: Mapping[str, PlacedNode], edge: Edge, side: int) -> int:
    """How many nodes are beside the ends of an edge, on that side."""
    ends = [nodes[edge.source], nodes[edge.target]]
    return sum(
        one.y == end.y and side * (one.x - end.x) > 0 for one in nodes.values() for end in ends
    )


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
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        path += f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    return path


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
