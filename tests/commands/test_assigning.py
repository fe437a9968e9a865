"""Questions are assigned to people and commented on, and every decision is listed, newest first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.commands import answering
from perdure.errors import (
    AlreadyAnswered,
    AlreadyAssigned,
    BadArgument,
    NotFound,
    WaitClosed,
    WaitExpired,
    WrongWait,
)
from perdure.serde.redaction import Redaction
from perdure.testing import TemporaryRuntime
from perdure.types import Actor, EventKind, Kind, Run, State, Wait
from perdure.views.event_wording import view_event
from tests.commands.plans import interrupted
from tests.support.agents import Log, chain, opened
from tests.support.controls import HOUR, ONCE, approve, echo, fail, nap, said

BO = Actor("bo", via="browser", address="10.0.0.7")


async def asked(rt: TemporaryRuntime, thread_id: str = "t", graph: str = "g") -> tuple[Run, Wait]:
    run = await rt.start(graph, said(), thread_id=thread_id)
    await rt.tick()
    [wait] = await rt.waits(run_id=run.id, kind="human")
    return run, wait


async def words(rt: Any, run: Run, *kinds: EventKind) -> list[str]:
    return [view_event(event).text for event in await rt.events(run.id, kinds=kinds)]


async def test_a_question_is_claimed_handed_over_and_unassigned(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="g")
        run, wait = await asked(rt)
        before = await rt.get(run.id)
        assert (wait.graph, wait.assignee) == ("g", None)
        await rt.assign(wait.id, "ana", by="ana")
        await rt.assign(wait.id, "ana", by="ana")  # it is hers: no second event
        with pytest.raises(AlreadyAssigned, match="assigned to ana") as refused:
            await rt.assign(wait.id, "bo", by=BO)
        assert refused.value.assignee == "ana"
        with pytest.raises(AlreadyAssigned):
            await rt.assign(wait.id, "bo", by=BO, expected="cyd")
        await rt.assign(wait.id, "bo", by=BO, expected="ana")
        assert [one.assignee for one in await rt.waits()] == ["bo"]
        await rt.assign(wait.id, "cyd", by=BO)  # his own
        with pytest.raises(AlreadyAssigned):
            await rt.assign(wait.id, None, by=BO)
        await rt.assign(wait.id, None, by="cyd")
        assert [one.assignee for one in await rt.waits()] == [None]
        assert await words(rt, run, EventKind.ASSIGNED) == [
            "assigned to ana by ana",
            "assigned to bo by bo (browser, 10.0.0.7)",
            "assigned to cyd by bo (browser, 10.0.0.7)",
            "released by cyd",
        ]
        after = await rt.get(run.id)
        assert (after.state, after.updated_at, after.due_at) == (
            before.state,
            before.updated_at,
            before.due_at,
        )
        await rt.assign(wait.id, "ana", by="ana")
        await rt.answer(wait.id, "yes", by="bo")  # anybody may
        await rt.tick()
        assert (await rt.get(run.id)).state is State.DONE
        [record] = await rt.wait_history(run.id)
        assert (record.assignee, record.answered_by) == ("ana", "bo")


def test_a_question_released_while_somebody_claims_it_is_theirs(url: str) -> None:
    with TemporaryRuntime(url) as rt:
        rt.register(chain(approve), name="g")
        rt.blocking.start("g", said(), thread_id="t")
        rt.blocking.tick()
        [wait] = rt.blocking.waits()
        rt.blocking.assign(wait.id, "ana", by="ana")
        interrupted(
            rt.journal,
            answering.assign.plan(rt.engine, wait.id, "bo", by=BO),
            f"assign {wait.id}",
            lambda: rt.blocking.assign(wait.id, None, by="ana"),
        )
        assert [one.assignee for one in rt.blocking.waits()] == ["bo"]


async def test_only_one_of_two_people_can_claim_a_question(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="g")
        run, wait = await asked(rt)
        names = ["ana", "bo", "cyd", "dan"]
        found = await asyncio.gather(
            *(rt.assign(wait.id, name, by=name) for name in names), return_exceptions=True
        )
        lost = [one for one in found if isinstance(one, AlreadyAssigned)]
        assert (len(lost), found.count(None)) == (3, 1)
        [wait] = await rt.waits()
        assert wait.assignee == names[found.index(None)]
        assert len(await rt.events(run.id, kinds=["assigned"])) == 1


async def test_only_an_open_question_to_a_person_is_assigned(sqlite_url: str) -> None:
    def soon(state: Log) -> Any:
        return said(str(perdure.ask("quick?", expires=HOUR)))

    async with opened(sqlite_url) as rt:
        rt.register(chain(approve), name="g")
        rt.register(chain(soon), name="soon")
        rt.register(chain(nap), name="nap")
        await rt.start("nap", said(), thread_id="asleep")
        _, wait = await asked(rt)
        [clock] = await rt.waits(kind="clock")
        with pytest.raises(WrongWait):
            await rt.assign(clock.id, "ana")
        with pytest.raises(NotFound):
            await rt.assign("nothing", "ana")
        await rt.answer(wait.id, "yes", by="bo")
        with pytest.raises(AlreadyAnswered, match="bo"):
            await rt.assign(wait.id, "ana")
        run, wait = await asked(rt, "u", "soon")
        rt.clock.advance(2 * HOUR)
        with pytest.raises(WaitExpired):
            await rt.assign(wait.id, "ana")
        run, wait = await asked(rt, "v")
        await rt.cancel(run.id)
        with pytest.raises(WaitClosed):
            await rt.assign(wait.id, "ana")
        assert await rt.events(run.id, kinds=["assigned"]) == []


async def test_questions_are_listed_by_graph_and_by_person(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="g")
        rt.register(chain(approve), name="h")
        rt.register(chain(nap), name="nap")
        threads = {}
        for number, graph in enumerate(["g", "h", "g", "h", "nap"]):
            await rt.start(graph, said(), thread_id=f"t{number}")
            rt.clock.advance(timedelta(seconds=1))
        await rt.tick()
        for one in await rt.waits(kind="human"):
            threads[one.thread_id] = one
        await rt.assign(threads["t0"].id, "ana")
        await rt.assign(threads["t1"].id, "ana")

        async def listed(**which: Any) -> list[str]:
            return [one.thread_id for one in await rt.waits(**which)]

        every = ["t0", "t1", "t2", "t3", "t4"]
        assert sorted(await listed()) == every
        assert sorted(await listed(kind="human")) == every[:4]
        assert await listed(kind="clock") == ["t4"]
        assert sorted(await listed(graph="g")) == ["t0", "t2"]
        assert sorted(await listed(assignee="ana")) == ["t0", "t1"]
        assert sorted(await listed(assignee="")) == ["t2", "t3"]
        assert await listed(assignee="ana", graph="h") == ["t1"]
        assert await listed(assignee="", graph="h") == ["t3"]
        assert await listed(assignee="bo") == []
        assert await listed(thread_id="t1", assignee="ana") == ["t1"]
        assert await listed(thread_id="t1", assignee="") == []
        assert await listed(run_id=threads["t0"].run_id, graph="g", assignee="ana") == ["t0"]
        assert await listed(run_id=threads["t0"].run_id, graph="h") == []
        with pytest.raises(BadArgument, match="human"):
            await rt.waits(kind="clock", graph="g")
        found, page = [], await rt.waits(limit=2)
        while page:
            found += [one.thread_id for one in page]
            page = await rt.waits(limit=2, after=page[-1])
        assert sorted(found) == every
        assert await rt.wait_counts() == {
            Kind.HUMAN: 4,
            Kind.CLOCK: 1,
            Kind.SIGNAL: 0,
            Kind.RUN: 0,
        }
        assert (await rt.wait_counts(3))[Kind.HUMAN] == 3


async def test_a_comment_is_in_the_history_and_changes_nothing_else(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="g")
        run, wait = await asked(rt)
        before = await rt.get(run.id)
        await rt.comment(run.id, "Asked finance.", wait_id=wait.id, by=BO)
        await rt.comment(run.id, "Two\nlines", by="ana")
        about, whole = await rt.events(run.id, kinds=[EventKind.COMMENT])
        assert about.data["wait"] == wait.id
        assert "wait" not in whole.data
        assert view_event(about).text == "comment by bo (browser, 10.0.0.7): Asked finance."
        assert (view_event(whole).text, view_event(whole).lines) == (
            "comment by ana: Two",
            ("lines",),
        )
        assert await rt.get(run.id) == before
        await rt.answer(wait.id, "yes")
        await rt.tick()
        await rt.comment(run.id, "It is over.")
        assert (await rt.get(run.id)).state is State.DONE
        other, _ = await asked(rt, "u")
        for where, about_wait in (("nothing", None), (run.id, "nothing"), (other.id, wait.id)):
            with pytest.raises(NotFound):
                await rt.comment(where, "?", wait_id=about_wait)
        with pytest.raises(BadArgument, match="not be empty"):
            await rt.comment(run.id, "  ")
        assert not (await rt.doctor()).findings


async def test_a_comment_is_redacted_and_a_name_is_not(sqlite_url: str) -> None:
    async with opened(sqlite_url, redact=Redaction(patterns=["ana"])) as rt:
        rt.register(chain(approve), name="g")
        run, wait = await asked(rt)
        await rt.comment(run.id, "ana knows", by="ana")
        await rt.assign(wait.id, "ana", by="ana")
        comment, assigned = await rt.events(run.id, kinds=["comment", "assigned"])
        assert "ana" not in comment.data["text"]
        assert (comment.data["by"], assigned.data["to"]) == ("ana", "ana")


async def test_a_node_assigns_and_comments_once(sqlite_url: str) -> None:
    raised = False

    async def node(state: Log) -> Any:
        nonlocal raised
        await rt.assign(wait.id, "ana", by="agent")
        await rt.comment(run.id, "look here", wait_id=wait.id, by="agent")
        if not raised:
            raised = True
            raise ConnectionError
        return said("done")

    async with opened(sqlite_url) as rt:
        rt.register(chain(approve), name="g")
        again = perdure.Retry(first=timedelta(0))
        rt.register(chain(node), name="agent", retry=again)
        run, wait = await asked(rt)
        other = await rt.start("agent", said(), thread_id="agent")
        await rt.tick()
        assert (await rt.get(other.id)).output == said("done")
        assert len(await rt.events(run.id, kinds=["assigned", "comment"])) == 2
        assert {one.name for one in await rt.effects(other.id)} == {
            "perdure.assign",
            "perdure.comment",
        }


async def test_runs_are_counted_by_state_up_to_a_limit(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="echo")
        rt.register(chain(approve), name="g")
        rt.register(chain(fail), name="fails", retry=ONCE)
        for number in range(3):
            for graph in ("echo", "g", "fails"):
                await rt.start(graph, said(), thread_id=f"{graph} {number}")
        await rt.tick()
        await rt.start("echo", said(), thread_id="new")
        expected = dict.fromkeys(State, 0) | {
            State.DONE: 3,
            State.WAITING: 3,
            State.FAILED: 3,
            State.PENDING: 1,
        }
        assert await rt.run_counts() == expected
        assert await rt.run_counts(2) == {state: min(2, n) for state, n in expected.items()}


async def test_a_list_of_runs_is_the_same_by_whichever_index_it_is_made(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="echo")
        rt.register(chain(approve), name="g")
        rt.register(chain(fail), name="fails", retry=ONCE)
        for number in range(3):
            for graph in ("echo", "g", "fails"):
                await rt.start(graph, said(), thread_id=f"{graph} {number}")
                rt.clock.advance(timedelta(seconds=1))
        await rt.tick()
        await rt.start("echo", said(), thread_id="new")
        await rt.start("g", said(), thread_id="g 0")
        every = await rt.runs(output=False)
        assert len(every) == 11
        for states in (None, *([one] for one in State), ["pending", "failed"], ["done", "waiting"]):
            for only in (None, "g", "echo"):
                wanted = [
                    run
                    for run in every
                    if only in (None, run.graph) and (states is None or run.state in states)
                ]
                found, page = [], await rt.runs(state=states, graph=only, limit=2, output=False)
                while page:
                    found += page
                    page = await rt.runs(
                        state=states, graph=only, limit=2, after=page[-1], output=False
                    )
                assert found == wanted, (states, only)
