"""Scores: of a run, a step or an effect, by number, category or text, at any time, with an event.

A score and its event are one batch.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.client import Client
from perdure.errors import BadArgument, NotFound
from perdure.journal.operation import Ambiguous
from perdure.types import EventKind, Run, Score, State
from tests.contract.test_dialects import asked
from tests.support.agents import Log, chain, driven, opened
from tests.support.raw import execute


@perdure.effect(name="scores.send")
def send(text: str) -> str:
    return text


def works(state: Log) -> Log:
    return {"log": [send("hello")]}


async def ended(rt: Any) -> Run:
    """A run that sent something, and ended."""
    run = await driven(rt, chain(works), {"log": []}, thread_id="t", name="works")
    done: Run = await rt.get(run.id)
    assert done.state is State.DONE
    return done


async def scored(rt: Any, run: Run) -> list[dict[str, Any]]:
    """What the events say of the scores of a run."""
    found = await rt.events(run.id)
    return [dict(one.data) for one in found if one.kind == EventKind.SCORED]


def said(score: Score) -> tuple[Any, ...]:
    return score.name, score.kind, score.value, score.label, score.comment


async def test_a_score_of_any_kind_is_given_weeks_later_by_another_process_and_changes_nothing_else(
    url: str,
) -> None:
    async with opened(url) as rt:
        run = await ended(rt)
        rt.clock.advance(timedelta(days=20))
        [effect] = await rt.effects(run_id=run.id)
        steps = [one for one in await rt.events(run.id) if one.kind == EventKind.STEP]
        step = steps[-1].data["checkpoint"]
        async with Client(url, clock=rt.clock) as client:
            for _ in range(2):  # saying the same again changes nothing
                await client.score(run.id, "reply", True, about="touch 1", by="ana")
                await client.score(run.id, "tone", "formal", effect=effect.key)
                await client.score(run.id, "note", comment="a secret of Bo", step=step)
            await client.score(run.id, "reply", 0.25, about="touch 1", by="ana")
        found = {one.name: one for one in await rt.scores(run.id)}
        reply, note, tone = found["reply"], found["note"], found["tone"]
        assert said(reply) == ("reply", "number", 0.25, None, None)
        assert said(tone) == ("tone", "category", None, "formal", None)
        assert said(note) == ("note", "text", None, None, "a secret of Bo")
        assert (reply.about, reply.by, tone.effect, note.step) == (
            "touch 1",
            "ana",
            effect.key,
            step,
        )
        assert await scored(rt, run) == [
            {"name": "reply", "value": 1.0, "about": "touch 1", "by": "ana"},
            {"name": "tone", "label": "formal", "effect": effect.key, "attempt": 1},
            {"name": "note", "step": step},
            {"name": "reply", "value": 0.25, "about": "touch 1", "by": "ana"},
        ]
        after = await rt.get(run.id)
        assert (after.state, after.updated_at, after.output) == (
            run.state,
            run.updated_at,
            run.output,
        )
        assert await rt.prune(older_than=timedelta(days=19)) == 1
        for table in ("scores", "events", "runs"):
            assert execute(url, f"SELECT * FROM perdure_{table}") == []


async def test_of_scores_given_at_once_the_last_counts_and_each_has_its_event(url: str) -> None:
    async with opened(url) as rt, Client(url, clock=rt.clock) as other:
        run = await ended(rt)
        clients = [rt, other]
        await asyncio.gather(
            *(clients[n % 2].score(run.id, "stars", n) for n in range(6)),
            *(clients[n % 2].score(run.id, "same", 1) for n in range(4)),
        )
        told = await scored(rt, run)
        stars = [one["value"] for one in told if one["name"] == "stars"]
        assert sorted(stars) == [0, 1, 2, 3, 4, 5]
        assert [one.value for one in await rt.scores(run.id) if one.name == "stars"] == stars[-1:]
        assert len(told) == len(stars) + 1


async def test_a_score_must_be_about_something_of_its_run(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        run = await ended(rt)
        other = await rt.start("works", {"log": []}, thread_id="other")
        await rt.tick()
        [effect] = await rt.effects(run_id=other.id)
        [*_, last] = [one for one in await rt.events(other.id) if one.kind == EventKind.STEP]
        checkpoint = last.data["checkpoint"]
        for error, wrong in (
            (NotFound, {"effect": "no-such-key"}),
            (BadArgument, {"effect": effect.key}),
            (NotFound, {"step": checkpoint}),
            (BadArgument, {"step": checkpoint, "about": "touch 1"}),
            (BadArgument, {"value": float("nan")}),
            (BadArgument, {"value": float("inf")}),
            (BadArgument, {"value": 10**400}),
            (BadArgument, {"value": ""}),
            (BadArgument, {"value": None}),
            (BadArgument, {"value": [1]}),
        ):
            with pytest.raises(error):
                await rt.score(run.id, "good", **{"value": 1.0, **wrong})
        with pytest.raises(NotFound):
            await rt.score("no-such-run", "good", 1.0)
        assert await scored(rt, run) == []
        execute(sqlite_url, "DELETE FROM perdure_checkpoints WHERE run_id = ?", other.id)
        await rt.score(other.id, "good", 1.0, step=checkpoint)  # pruned, but in the history
        assert len(await scored(rt, other)) == 1


def asks(state: Log) -> Log:
    decision = perdure.ask({"draft": "Dear Bo"})
    return {"log": [str(decision)]}


async def test_a_run_scored_while_it_waits_goes_on_in_an_encrypted_journal(sqlite_url: str) -> None:
    keys = {"k": b"k" * 32}
    async with opened(sqlite_url, encryption_keys=keys) as rt:
        run, wait = await asked(rt, chain(asks), {"log": []})
        await rt.score(run.id, "looks good", True)
        await rt.answer(wait.id, {"ok": True, "body": "Dear Bo!"})
        await rt.score(run.id, "late", "yes")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.DONE
        await rt.score(run.id, "note", comment="a secret")
        told = {one.name: one.label or one.value for one in await rt.scores(run.id)}
        assert told == {
            "looks good": 1.0,
            "late": "yes",
            "note": None,
        }
        execute(sqlite_url, "UPDATE perdure_scores SET label = 'approved' WHERE name = 'late'")
        [changed] = [one for one in await rt.scores(run.id) if one.name == "late"]
        assert changed.damaged


async def test_a_score_is_given_without_reading_the_others_of_its_run(
    monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    async with opened(sqlite_url) as rt:
        run = await ended(rt)
        with monkeypatch.context() as patch:
            patch.setattr("perdure.commands.scores.of_run", None)
            for value in (1, 1, 0):
                await rt.score(run.id, "sent", value)
        [score] = await rt.scores(run.id)
        assert score.value == 0
        assert len(await scored(rt, run)) == 2


async def test_a_claim_whose_reply_is_lost_is_found_although_its_run_was_scored_meanwhile(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(works), name="works")
        run = await rt.start("works", {"log": []}, thread_id="t")
        backend: Any = rt.journal._backend
        commit = backend.commit

        def lost(statements: Any) -> Any:
            rows = commit(statements)
            if statements[0].name == "claim":
                monkeypatch.undo()
                with Client(sqlite_url) as other:
                    other.blocking.score(run.id, "good", 1)
                raise Ambiguous("the reply is lost")
            return rows

        monkeypatch.setattr(backend, "commit", lost)
        assert (await rt.tick()).claimed == 1
        assert (await rt.get(run.id)).state is State.DONE
        kinds = [one.kind for one in await rt.events(run.id)]
        assert kinds[:3] == ["started", "claimed", "scored"]
        assert "recovered" not in kinds
