"""Runs that are killed at any named point come to the same end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from perdure.testing import points
from perdure.types import Durability
from tests.support.fork_server import Ended, ForkServer
from tests.support.runtime_child import Ledger
from tests.support.sweep import parts, sample

pytestmark = pytest.mark.slow


PARTS = parts(4)


BY_THE_CLOCK = ("workers.", "renew.", "leases.", "expire.")
"""Statements of a thread that looks around four times a second: how often they come is chance."""


NODES = ("think", "approve", "nap", "listen", "again")


class Judge:
    """Has stories played on one journal, and killed."""

    def __init__(self, fork_server: ForkServer, url: str, folder: Path, **options: Any) -> None:
        self._server, self._url, self._folder = fork_server, url, folder
        self._options = options

    def ledger(self, thread: str) -> Ledger:
        return Ledger(self._folder / f"{thread}.ledger")

    def run(
        self, thread: str, words: str, *, kill: tuple[str, int] | None = None, again: bool = False
    ) -> Ended:
        ended = self._server.run(
            "runtime_child:crash",
            url=self._url,
            thread=thread,
            words=words,
            ledger=str(self._folder / f"{thread}.ledger"),
            kill=kill,
            again=again,
            **self._options,
        )
        assert ended.status in (0, -signal.SIGKILL), f"{thread}: a child ended by itself"
        return ended


def kills(counts: dict[str, int]) -> list[tuple[str, int]]:
    """The first and the last time of each point; of what only reads, one side is enough."""
    wanted = []
    writing = set(points(writes_only=True))
    for point, count in sorted(counts.items()):
        if point.endswith(".after") and point not in writing:
            continue
        times = {1} if point.startswith(BY_THE_CLOCK) else {1, count}
        wanted += [(point, n) for n in sorted(times)]
    return wanted


def check(judge: Judge, part: int) -> None:
    """Kill at the points of this part, and go on in another process."""
    whole = judge.run(f"whole-{part}", "first")
    end = whole.one("ended")[2]
    assert end == ["think", "approve first", "nap", "listen first first", "again nothing"]
    assert judge.ledger(f"whole-{part}").count() == dict.fromkeys(end, 1)
    counts = whole.one("points")
    assert counts.keys() <= set(points())
    assert {"commit.before", "commit.after"} <= counts.keys()
    assert len(counts) > 80, "both sides of what starts, claims, steps, waits, wakes and ends"
    unreached = 0
    wanted = sample(kills(counts), 10, lambda point: point[0])[part :: len(PARTS)]
    for number, (point, n) in enumerate(wanted):
        thread = f"{part}-{number}"
        killed = judge.run(thread, "first", kill=(point, n))
        unreached += killed.status == 0
        before = judge.ledger(thread).count()
        resumed = judge.run(thread, "second", again=True)
        assert resumed.status == 0
        try:
            nothing_is_lost(killed, resumed)
            the_end_is_right(killed, resumed)
            nothing_is_done_twice(resumed, before, judge.ledger(thread).count())
        except AssertionError as error:
            raise AssertionError(f"killed at {point}, time {n}: {error}") from error
    # When two statements go into one commit is chance at the edges.
    assert unreached <= len(wanted) // 10, f"{unreached} of {len(wanted)} points were not reached"


def nothing_is_lost(killed: Ended, resumed: Ended) -> None:
    runs = resumed.one("runs")
    started = [id for [id] in killed.all("started")]
    assert set(started) <= set(runs), "start() returned, and the run is lost"
    assert resumed.one("started") == resumed.one("ended")[0]
    assert set(runs) <= {resumed.one("started")}, "one key made two runs"
    log = resumed.one("ended")[2]
    if killed.all("answered"):
        assert "approve first" in log, "answer() returned, and the node got another answer"
        assert not resumed.all("answered")
    early, late = next(line for line in log if line.startswith("listen")).split()[1:]
    for name, value in (("early", early), ("late", late)):
        if [name] in killed.all("signalled"):
            assert value == "first", f"signal({name!r}) returned, and another one was delivered"
            assert [name] not in resumed.all("signalled"), f"{name!r} was kept twice"
        if [name] in resumed.all("signalled"):
            assert value == "second"


def the_end_is_right(killed: Ended, resumed: Ended) -> None:
    _, state, log = resumed.one("ended")
    assert state == "done"
    assert [line.split()[0] for line in log] == list(NODES)
    assert log[-1] == "again nothing", "a signal was delivered twice"
    events = resumed.one("events")
    assert [n for n, _ in events] == list(range(1, len(events) + 1))
    kinds = [kind for _, kind in events]
    assert (kinds[0], kinds[-1]) == ("started", "done")
    for kind, times in (("done", 1), ("woke", 1), ("answer", 1), ("signal", 2), ("expired", 1)):
        assert kinds.count(kind) == times, f"{kind} in {kinds}"
    assert kinds.count("wait") == 5, kinds
    assert kinds.count("recovered") <= 1
    assert resumed.one("findings") == []


def nothing_is_done_twice(resumed: Ended, before: dict[str, int], after: dict[str, int]) -> None:
    for line in resumed.one("on disk"):
        assert before[line] == after[line] == 1, f"{line!r} was on disk, and was done again"
    for node in NODES:
        times = sum(n for line, n in after.items() if line.split()[0] == node)
        assert times in (1, 2), f"{node} was done {times} times"
    repeated = {line.split()[0] for line, n in after.items() if n > 1}
    assert len(repeated) <= 2, f"one kill had more than a step done again: {repeated}"


@pytest.mark.parametrize("part", PARTS)
def test_a_story_killed_at_any_point_comes_to_the_same_end(
    fork_server: ForkServer, url: str, tmp_path: Path, part: int
) -> None:
    # Coroutines on the one database, plain functions on the other: what is written is the same.
    in_loop = url.startswith("postgresql")
    check(Judge(fork_server, url, tmp_path, durability="auto", in_loop=in_loop), part)


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_story_killed_at_any_commit_comes_to_the_same_end_in_each_mode(
    fork_server: ForkServer, sqlite_url: str, tmp_path: Path, durability: Durability
) -> None:
    judge = Judge(fork_server, sqlite_url, tmp_path, durability=durability, in_loop=False)
    whole = judge.run("whole", "first")
    commits = whole.one("points")["commit.after"]
    for number in sample(range(1, commits + 1, 4), 4):
        killed = judge.run(f"{number}", "first", kill=("commit.after", number))
        before = judge.ledger(f"{number}").count()
        resumed = judge.run(f"{number}", "second", again=True)
        nothing_is_lost(killed, resumed)
        the_end_is_right(killed, resumed)
        nothing_is_done_twice(resumed, before, judge.ledger(f"{number}").count())
