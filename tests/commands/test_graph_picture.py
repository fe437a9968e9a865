"""The picture of a graph: laid out without overlaps, with where the run is."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.views.graph_picture import (
    MOST_NODES,
    Edge,
    GraphLayout,
    GraphShape,
    Progress,
    graph_picture,
    lay_out,
)

HOSTILE = '"><script>alert(1)</script>'
SVG = "{http://www.w3.org/2000/svg}"


def shape(text: str) -> GraphShape:
    """A graph of lines such as `a > b`; `a ? b` is under a condition."""
    edges = [line.split() for line in text.split("; ")]
    made = tuple(Edge(source, target, how == "?") for source, how, target in edges)
    nodes = dict.fromkeys(name for one in made for name in (one.source, one.target))
    return GraphShape(tuple(nodes), made)


AGENT = shape("__start__ > agent; agent ? tools; tools > agent; agent ? __end__")


def place(layout: GraphLayout) -> dict[str, tuple[float, float]]:
    return {one.name: (one.x, one.y) for one in layout.nodes}


names = st.sampled_from([*"abcdefgh", "__end__"])
graphs = st.lists(st.tuples(names, names), min_size=1, max_size=24).map(
    lambda pairs: GraphShape(
        tuple(dict.fromkeys(name for pair in pairs for name in pair)),
        tuple(Edge(*pair) for pair in dict.fromkeys(pairs) if pair[0] != "__end__"),
    )
)


@given(graphs)
def test_any_graph_is_laid_out_without_overlaps_and_with_every_edge(given: GraphShape) -> None:
    layout = lay_out(given)
    assert {one.name for one in layout.nodes} == set(given.nodes)
    assert sorted(map(str, given.edges)) == sorted(str(one.edge) for one in layout.edges)
    for one, other in combinations(layout.nodes, 2):
        apart = abs(one.x - other.x) >= (one.width + other.width) / 2
        assert apart or one.y != other.y
    at = place(layout)
    for edge in layout.edges:
        if not edge.leads_back:
            assert at[edge.edge.source][1] < at[edge.edge.target][1]
    for one in layout.nodes:
        assert one.x - one.width / 2 >= 0
        assert one.x + one.width / 2 <= layout.width
        assert 0 < one.y < layout.height


def test_the_end_is_below_all_nodes_and_what_leads_back_goes_round() -> None:
    layout = lay_out(AGENT)
    at = place(layout)
    assert max(at, key=lambda name: at[name][1]) == "__end__"
    [back] = [one for one in layout.edges if one.leads_back]
    assert (back.edge.source, back.edge.target) == ("tools", "agent")
    assert back.points[1][0] > max(back.points[0][0], back.points[2][0])


def test_edges_do_not_cross_where_they_need_not() -> None:
    at = place(lay_out(shape("s > a; s > b; s > c; a > z; b > y; c > x; x > e; y > e; z > e")))
    order = sorted("abc", key=lambda name: at[name][0])
    below = sorted("xyz", key=lambda name: at[name][0])
    leads = {"a": "z", "b": "y", "c": "x"}
    assert [leads[name] for name in order] == below


def draw(*arguments: Any, **options: Any) -> ET.Element:
    return ET.fromstring(graph_picture(*arguments, title="Graph", **options))


def looks(picture: ET.Element) -> dict[str, str]:
    """The class of each node by its name."""
    found = {}
    for one in picture.iter():
        text = one.find(f"{SVG}text")
        if text is not None and one.find(f"{SVG}rect") is not None:
            found[text.text or ""] = one.get("class") or ""
    return found


def test_it_shows_what_ran_how_often_where_the_run_is_and_what_may_come() -> None:
    picture = draw(AGENT, Progress({"agent": 2, "tools": 1}, ("agent",)))
    assert looks(picture) == {"start": "ran", "agent": "now", "tools": "ran", "end": "next"}
    assert [one.text for one in picture.iter(f"{SVG}text") if one.get("class") == "times"] == ["×2"]
    [svg] = [one for one in picture.iter(f"{SVG}svg") if one.get("role")]
    assert "The run is at agent. It ran agent, tools." in (svg.get("aria-label") or "")
    over = draw(AGENT, Progress({"agent": 2, "tools": 1}, (), is_over=True))
    assert looks(over)["end"] == "ran"
    dashed = [one for one in picture.iter(f"{SVG}path") if "maybe" in (one.get("class") or "")]
    assert len(dashed) >= 2


def test_an_unknown_or_very_large_graph_is_a_list_of_nodes() -> None:
    unknown = graph_picture(None, Progress({"agent": 1}, ("agent",)), title="Graph")
    assert "<svg" not in unknown
    assert "agent</strong> ran 1 time — the run is here" in unknown
    large = GraphShape(tuple(f"n{n}" for n in range(MOST_NODES + 1)), ())
    assert "<svg" not in graph_picture(large, Progress(), title="Graph")


def test_no_name_becomes_markup() -> None:
    hostile = GraphShape(("a", HOSTILE), (Edge("a", HOSTILE, True, HOSTILE),))
    at = Progress({HOSTILE: 2}, (HOSTILE,), last={HOSTILE: 3})
    for given_shape in (hostile, None):
        for link in (lambda _: None, lambda n: {"href": f"?open={n}{HOSTILE}"}):
            html = graph_picture(given_shape, at, title=HOSTILE, link=link)
            assert "<script" not in html
            ET.fromstring(html)


@pytest.mark.parametrize("count", [0, 1])
def test_a_graph_of_almost_nothing_is_drawn(count: int) -> None:
    draw(GraphShape(("a",) * count, ()), Progress())
