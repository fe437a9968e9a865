"""Events can be added and deleted, but every database refuses to change them."""

from __future__ import annotations

import pytest

from perdure.types import State
from tests.support.agents import chain, opened
from tests.support.controls import echo, said
from tests.support.raw import execute


async def test_no_statement_changes_an_event(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        run = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        before = await rt.events(run.id)
        for change in ("at = 1", "kind = 'answer'", "body = NULL", "n = n + 100"):
            with pytest.raises(Exception, match="an event is never changed"):
                execute(url, f"UPDATE perdure_events SET {change} WHERE thread_id = 't'")
        assert await rt.events(run.id) == before
        assert (await rt.get(run.id)).state is State.DONE
        assert (await rt.erase("t"))["events"] == len(before)
