"""Finds calls of perdure that block an event loop: of a database, a file, a socket or a clock."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from blockbuster import BlockBuster, BlockingError


@contextmanager
def nothing_blocks() -> Iterator[None]:
    """Whatever perdure does on an event loop inside of this block must not block it.

    What is found is noted and raised where it happens; the caller may handle what is
    raised, so the block fails at its end, with the places.
    """
    found: list[str] = []

    def note(self: BlockingError, function: str) -> None:
        Exception.__init__(self, f"Blocking call to {function}")
        frames = [one for one in traceback.extract_stack() if "/perdure/" in one.filename]
        places = [f"{one.filename.rpartition('/perdure/')[2]}:{one.lineno}" for one in frames]
        found.append(f"{function} at {' > '.join(places[-4:])}")

    buster = BlockBuster("perdure")
    for name in [name for name in buster.functions if name.startswith("threading.Lock")]:
        # Locks are held for microseconds; whether one is just then is chance.
        del buster.functions[name]
    for function in buster.functions.values():  # the rules of a time zone are read once
        function.can_block_in("perdure/operations/schedules.py", "slots")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockingError, "__init__", note)
        buster.activate()
        try:
            yield
        finally:
            buster.deactivate()
    assert not found, "\n".join(dict.fromkeys(found))
