"""A driver that lost its lease writes nothing more: whatever it was in the middle of, however long
it was away, and whatever its agent's code catches. Nobody beside it notices."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Annotated, TypedDict

import pytest

import perdure
import perdure.testing
from perdure.commands import claims
from perdure.commands.claims import LeaseTimes
from perdure.commands.runs import RunRow
from perdure.execution.segment_end import end_segment
from perdure.execution.segment_start import begin_segment
from perdure.journal import Refused
from perdure.testing import TemporaryRuntime
from perdure.types import EventKind, State
from tests.contract.test_fence import chain
from tests.contract.test_fence import rt as rt
from tests.support.agents import driven


class Mine(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


# -- what the fence refuses


async def test_an_answer_that_a_fenced_driver_saw_is_handed_over_by_its_successor(
    rt: TemporaryRuntime,
) -> None:
    def work(state: Mine) -> Mine:
        return {"log": [perdure.ask("may I?")]}

    run = await driven(rt, chain(work), {"log": []}, thread_id="t")
    [wait] = await rt.waits()
    driver, graph = rt.engine, rt.engine.graphs.chosen()["g@"]
    now = rt.clock.now()

    def claim(worker: str, now: int) -> RunRow:
        op = claims.claim_run(rt.saver.serializer, worker, LeaseTimes(now, now + 3000), "t", run.id)
        row: RunRow | None = rt.journal.do(op)
        assert row is not None
        return row

    # One worker claims and is stopped before it looks at the answers; the next one claims, and
    # finds none.
    old = claim("elsewhere:1:old", now)
    new = claim("elsewhere:2:new", now + 60_000)
    begun = rt.journal.run(begin_segment(driver, new, graph))
    await rt.answer(wait.id, "yes")
    # The first one wakes, finds the answer, and would hand it over.
    with pytest.raises(Refused):
        rt.journal.run(begin_segment(driver, old, graph))
    # The second one has asked again meanwhile, and rests.
    assert not isinstance(begun, claims.SegmentEnd)
    rt.journal.run(
        end_segment(driver, new, claims.SegmentEnd(State.WAITING, EventKind.WAITING, {}))
    )
    assert not (await rt.doctor()).findings
    rt.clock.advance(timedelta(minutes=5))
    await rt.tick()
    found = await rt.get(run.id)
    assert (found.state, found.output) == (State.DONE, {"log": ["yes"]})


# -- what an agent's code can do about it


# -- processes that were stopped, or that stand still
