"""How much of a sweep a test runs: every point with `PERDURE_EVERY_POINT=1`, a sample otherwise.

`make test-all` sets the variable. The sample is the same in every run, so a failure repeats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

EVERY_POINT = os.environ.get("PERDURE_EVERY_POINT") == "1"


def sample(points: Sequence[T], few: int, name: Callable[[T], str] = str) -> list[T]:
    """Every point, or an even sample of `few` in their order.

    The sample always has the first and the last point, and the first one of each name that stands
    around an effect or a commit: there a crash decides what has happened and what is stored.
    """
    if EVERY_POINT or len(points) <= few:
        return list(points)
    chosen = {0, len(points) - 1}
    seen: set[str] = set()
    for n, point in enumerate(points):
        if (said := name(point)).startswith(("effect ", "commit.")) and said not in seen:
            seen.add(said)
            chosen.add(n)
    left = few - len(chosen)
    for n in range(1, left + 1):
        even = n * (len(points) - 1) // (left + 1)
        chosen.add(next(at for at in (*range(even, len(points)), *range(even)) if at not in chosen))
    return [points[n] for n in sorted(chosen)]


def parts(number: int) -> range:
    """The parts of a sweep, which test processes share; a sample is too small to divide."""
    return range(number if EVERY_POINT else 1)


def examples(number: int, few: int) -> int:
    """How many examples of a random test: `number` for every point, `few` for a sample."""
    return number if EVERY_POINT else few
