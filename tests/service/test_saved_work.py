"""Saved work is what came from the record, each replay counted once whatever kills the process; and
each crash is shown with what it cost."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure.cli import main
from perdure.errors import BadArgument
from perdure.journal.operation import Ambiguous
from perdure.operations import claims
from perdure.operations.claims import LeaseTimes
from perdure.service.views.saved_work import Work, recoveries
from perdure.times import milliseconds
from perdure.types import Event, State
from tests.support.agents import Log, chain, opened
from tests.support.entries import faulty
from tests.support.fork_server import ForkServer
from tests.support.langchain_child import TOKENS
from tests.support.saved_child import THREAD


@pytest.mark.slow
def test_each_replay_is_counted_once_and_each_crash_has_its_cost(
    sqlite_url: str, fork_server: ForkServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the model's node, then twice in `spend`, once before anything was stored."""
    kills = [("effect pay.after", 1), ("effect pay.after", 2), ("effect pay.before", 1), ("", 0)]
    for point, n in kills:
        ended = fork_server.run("saved_child:drive", url=sqlite_url, point=point, n=n)
        assert ended.status == (-9 if point else 0), point
    with perdure.Client(sqlite_url) as client:
        ask = client.blocking
        [run], [child] = ask.runs(thread_id=THREAD), ask.runs(thread_id="child")
        saved, events = ask.saved(run.id), ask.events(run.id)
        total = ask.saved(graph="agent")  # the child may be lost with its parent
        others = [ask.saved(graph="none"), ask.saved(until=run.created_at)]
        keys = [one.key for one in ask.effects(run.id) if one.name == "pay"]
    assert (run.state, child.state) == (State.DONE, State.DONE)
    assert saved.recoveries is not None
    first, second, third = saved.recoveries
    assert [one.segment for one in saved.recoveries] == [2, 3, 4]
    assert [(one.step, one.nodes) for one in saved.recoveries] == [
        (2, ("model",)),
        (3, ("spend",)),
        (3, ("spend",)),
    ]
    assert [one.called_again for one in saved.recoveries] == [(keys[0],), (), (keys[1],)]
    assert first.kept == Work(3, 1, TOKENS)
    assert (first.kept_steps, second.kept_steps, third.kept_steps) == (1, 2, 2)
    # The subgraph was at its end: it was not run again, and nothing of it was replayed.
    assert [one.saved for one in saved.recoveries] == [Work(1), Work(), Work(4)]
    assert all(one.lost_worker != one.worker for one in saved.recoveries)
    assert all(one.lost > timedelta(0) for one in saved.recoveries)
    # The row, the events and the total say the same.
    assert saved.work == Work(**run.saved) == Work(5)
    assert sum(event.data.get("saved", {}).get("effects", 0) for event in events) == 5
    assert (total.runs, total.work, total.crashes, total.lost, total.recoveries) == (
        1,
        saved.work,
        3,
        saved.lost,
        None,
    )
    assert {(one.runs, one.crashes) for one in others} == {(0, 0)}
    # So does the command line.
    assert main(["saved", "--graph", "agent", "--at", sqlite_url]) == 0
    assert capsys.readouterr().out.startswith("5 effects saved in 1 run; 3 crashes, ")
    assert main(["saved", run.id, "--at", sqlite_url]) == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()[3:]] == ["#1", "#2", "#3"]
    assert main(["saved", run.id, "--json", "--at", sqlite_url]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["lost"] for one in told["recoveries"]] == [
        one.lost.total_seconds() for one in saved.recoveries
    ]
    assert main(["show", run.id, "--at", sqlite_url]) == 0
    assert "lost, 2 effects called again" in capsys.readouterr().out


async def test_totals_count_each_replay_once_when_replies_are_lost(url: str) -> None:
    """A worker is lost before the first step, and every second reply while a node runs again."""

    def work(state: Log) -> Log:
        return {"log": [look("x"), perdure.ask("go on?")]}

    @perdure.effect
    def look(what: str) -> str:
        return what

    async with opened(url) as rt:
        rt.register(chain(work), name="g")
        run = await rt.start("g", {"log": []})
        now = milliseconds(await rt.now())
        claim = claims.claim(rt.engine.serializer, "dead:1:x", LeaseTimes(now, now), ["g@"], 1)
        claimed = await rt.journal.ado(claim)
        assert len(claimed) == 1
        rt.clock.advance(timedelta(minutes=5))
        await rt.tick()
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        faults = faulty(rt.journal)
        faults.after = [Ambiguous("no reply"), None] * 50
        await rt.tick()
        faults.after = []
        saved, total = await rt.saved(run.id), await rt.saved(graph="g", since=run.created_at)
    assert saved.work == total.work == Work(1)
    assert (saved.crashes, saved.lost) == (total.crashes, total.lost) == (1, timedelta(minutes=5))
    with pytest.raises(BadArgument, match="not both"):
        await rt.saved(run.id, graph="g")


AT = datetime(2030, 1, 1, tzinfo=UTC)


def history(*kinds: tuple[str, dict[str, Any]]) -> list[Event]:
    """Events one second after the other."""
    return [
        Event(n, AT + timedelta(seconds=n), kind, data) for n, (kind, data) in enumerate(kinds, 1)
    ]


def test_an_effect_left_open_by_a_crash_differs_from_one_that_failed_before() -> None:
    """What failed, was settled by a person or began later would have been called anyway."""
    begun = {"begun_at": AT}
    after = {"begun_at": AT + timedelta(minutes=1)}
    again = {"state": "done", "how": "called again"}
    [crash] = recoveries(
        history(
            ("started", {}),
            ("claimed", {"worker": "a:1:x"}),
            ("effect", {"key": "retried", "state": "open", **begun}),
            ("effect", {"key": "settled", "state": "unknown", **begun}),
            ("answer", {"wait": "w"}),
            ("recovered", {"worker": "b:2:y"}),
            ("effect", {"key": "retried", **again, **begun}),
            ("settled", {"key": "settled", "state": "again"}),
            ("effect", {"key": "settled", **again, **begun}),
            ("effect", {"key": "later", **again, **after}),
            ("effect", {"key": "lost", **again, **begun, "saved": {"effects": 2}}),
            ("effect", {"key": "asked", "state": "done", "how": "verified", **begun}),
            ("waiting", {"saved": {"effects": 1, "model_calls": 1, "tokens": 5}}),
            ("claimed", {"worker": "c:3:z"}),
            ("effect", {"key": "held", "state": "unknown", **begun, "saved": {"effects": 9}}),
        )
    )
    assert (crash.called_again, crash.verified, crash.held) == (("lost",), ("asked",), ("held",))
    assert crash.saved == Work(3, 1, 5)
    assert (crash.lost_worker, crash.worker, crash.segment) == ("a:1", "b:2", 2)
    assert (crash.step, crash.lost) == (None, timedelta(seconds=1))


def test_a_run_without_a_crash_has_no_recovery_and_a_damaged_event_is_passed_over() -> None:
    damaged = Event(3, AT, "step", {}, "checksum")
    events = [*history(("started", {}), ("claimed", {"worker": "a:1:x"})), damaged]
    assert recoveries(events) == ()
