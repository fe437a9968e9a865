"""A family of runs whose process is killed with SIGKILL at any named point comes to the same end:
each child was started once, the signal was sent once, no parent sleeps for ever, and a cancelled
parent leaves no child behind."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.contract.test_killed_anywhere import kills
from tests.support.fork_server import Ended, ForkServer
from tests.support.sweep import parts, sample

pytestmark = pytest.mark.slow

PARTS = parts(4)

FAMILIES: dict[str, tuple[list[Any], list[list[str]]]] = {
    "plain": (
        ["done", ["ana done", "ben done", ["hello", "no more"]]],
        [["listen", "done"], ["work", "done"], ["work", "done"]],
    ),
    "coroutine": (
        ["done", ["ana done", "ben done", ["hello", "no more"]]],
        [["listen", "done"], ["work", "done"], ["work", "done"]],
    ),
    "asks": (
        ["cancelled", None],
        [["ask", "cancelled"], ["ask", "cancelled"], ["middle", "cancelled"]],
    ),
}
"""How each family ends: the parent with its value, and its descendants."""


def play(server: ForkServer, url: str, graph: str, thread: str, **order: Any) -> Ended:
    asked = {"kill": None, "again": False, **order}
    ended = server.run("family_child:live", url=url, graph=graph, thread=thread, **asked)
    assert ended.status in (0, -signal.SIGKILL), f"{thread}: a child ended by itself"
    return ended


def check(ended: Ended, graph: str) -> None:
    parent, family = FAMILIES[graph]
    assert ended.one("ended") == parent
    assert ended.one("family") == family
    assert ended.one("findings") == []


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("story", ["joined", "cancelled"])
def test_a_family_killed_at_any_point_comes_to_the_same_end(
    fork_server: ForkServer, url: str, story: str, part: int
) -> None:
    # Coroutines on the one database, plain functions on the other: what is written is the same.
    starts = "coroutine" if url.startswith("postgresql") else "plain"
    graph = "asks" if story == "cancelled" else starts
    whole = play(fork_server, url, graph, "whole")
    check(whole, graph)
    points = kills(whole.one("points"))
    assert {"insert_run", "insert_join", "poke_joiners", "let_go"} <= {
        point.partition(".")[0] for point, _ in points
    }
    wanted = sample(points, 9, lambda point: point[0])[part :: len(PARTS)]
    for number, (point, n) in enumerate(wanted):
        play(fork_server, url, graph, f"{number}", kill=(point, n))
        try:
            check(play(fork_server, url, graph, f"{number}", again=True), graph)
        except AssertionError as error:
            raise AssertionError(f"killed at {point}, time {n}: {error}") from error
