"""Expensive sums are computed once for everyone, and again when they are outdated."""

from __future__ import annotations

import asyncio
import gc

import pytest

from perdure.server.ui import kept
from perdure.server.ui.kept import KeptSums
from tests.support.agents import NOON


class Counter:
    def __init__(self) -> None:
        self.made = 0

    async def __call__(self) -> int:
        self.made += 1
        await asyncio.sleep(0)
        return self.made


async def test_concurrent_viewers_compute_a_sum_once() -> None:
    sums, count = KeptSums(), Counter()
    found = await asyncio.gather(*(sums.get("a", count, NOON) for _ in range(20)))
    assert {value for value, _ in found} == {1}
    assert (await sums.get("b", count, NOON))[0] == 2


async def test_an_outdated_sum_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LEAST", 0.0)
    monkeypatch.setattr(kept, "SHARE", 0)
    sums, count = KeptSums(), Counter()
    assert (await sums.get("a", count, NOON))[0] == 1
    assert (await sums.get("a", count, NOON))[0] == 2


async def test_a_failed_sum_is_retried() -> None:
    sums, count = KeptSums(), Counter()

    async def fail() -> int:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await sums.get("a", fail, NOON)
    assert (await sums.get("a", count, NOON))[0] == 1


async def test_nothing_is_left_of_sums_that_could_not_be_made() -> None:
    sums = KeptSums()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ConnectionError

    asked = [sums.get(f"{n % 50}", fail, NOON) for n in range(200)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(one) for one in found} == {ConnectionError}
    del found
    await asyncio.sleep(0)  # the event loop lets go of the tasks
    gc.collect()
    assert vars(sums) == vars(KeptSums())


async def test_the_number_of_sums_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST", 2)
    sums, count = KeptSums(), Counter()
    for name in "abc":
        await sums.get(name, count, NOON)
    assert (await sums.get("a", count, NOON))[0] == 4
