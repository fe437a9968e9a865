"""The store of a graph in a run of an evaluation: it can be read, and is not written.

A store is not an effect: real runs would see what a node writes to it. So a write is refused,
unless the evaluation has a rule for `store`: a value skips the write, "real" makes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langgraph.store.base import BaseStore, Op, PutOp, Result

from perdure.effects.simulation import refuse
from perdure.segments.evaluation_policy import REAL, VALUE
from perdure.segments.segment import Segment

STORE = "store"


class GuardedStore(BaseStore):
    """A store that a segment of an evaluation only reads."""

    def __init__(self, store: BaseStore, segment: Segment, mode: str) -> None:
        self._store, self._segment, self._mode = store, segment, mode
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config

    @classmethod
    def of(cls, store: BaseStore, segment: Segment) -> BaseStore:
        """The store for a segment; guarded if the run is part of an evaluation."""
        if segment.evaluation is None:
            return store
        mode = segment.evaluation.rule(STORE, reads=False)[0]
        return store if mode == REAL else cls(store, segment, mode)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        wanted = [*ops]
        reads = self._reads(wanted)
        return _in_place(wanted, self._store.batch(reads) if reads else [])

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        wanted = [*ops]
        reads = self._reads(wanted)
        return _in_place(wanted, await self._store.abatch(reads) if reads else [])

    def _reads(self, ops: list[Op]) -> list[Op]:
        """The operations that only read. Raises `EffectRefused` if there are others."""
        reads: list[Op] = [one for one in ops if not isinstance(one, PutOp)]
        if len(reads) < len(ops) and self._mode != VALUE:
            refuse(self._segment, STORE, "a write to it is there for real runs, too")
        return reads


def _in_place(ops: list[Op], results: Any) -> list[Result]:
    """The results of the reads in their places, and None for each write."""
    found = iter(results)
    return [None if isinstance(one, PutOp) else next(found) for one in ops]
