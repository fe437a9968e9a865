"""What a node asks of a client is an effect: it happens once, however often the node runs again.

Outside of a run a verb is its plan, and LangGraph is not loaded. The key of the effect makes a
second attempt harmless: a run or a signal has it as its own key, any other change is numbered by it
(`verbs.call_key`, `verbs.call_number`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from perdure.commands import run_reads
from perdure.commands.connection import Connection
from perdure.commands.evaluation_policy import JUDGING
from perdure.journal import Journal, Plan
from perdure.types import Record, Run
from perdure.verbs import CALL, Recorded

_IS_PARALLEL: ContextVar[bool | None] = ContextVar("perdure_is_parallel", default=None)
"""What the caller of a blocking method knows of its position in its node."""


class RecordingConnection(Connection):
    """A connection whose verbs are effects where a node calls them: the engine of a client."""

    async def perform(
        self, call: Recorded[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if call.effect_name is None:
            return await call.run(self, args, kwargs)
        if not _is_in_run():
            self.refuse_in_evaluation(f"perdure.{call.effect_name}")
            return await call.run(self, args, kwargs)
        from perdure.effects.decorator import aperform

        effect = replace(_effect(call), is_parallel=_IS_PARALLEL.get())
        result = await aperform(effect, (self, *args), kwargs)
        if not call.returns_run:
            return result
        # Older journals have no result of a call that changed an existing run.
        run_id = result or (args[0] if args else kwargs["run_id"])
        return await self.journal.arun(run_reads.get.plan(self, run_id))

    def refuse_in_evaluation(self, name: str) -> None:
        """A graph with a checkpointer of its own, in a run of an evaluation, changes no other
        run."""
        segments = sys.modules.get("perdure.execution.segment")  # else no graph of ours runs
        if segments is not None and (segments.EVALUATED or JUDGING.get()):
            from perdure.effects.simulation import refuse_in_evaluation

            refuse_in_evaluation(name)

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        from perdure.checkpoint.cache import CheckpointCache  # LangGraph takes seconds to import
        from perdure.checkpoint.reader import Reader

        reader = Reader(self.serializer, CheckpointCache(1, 0))
        return (yield from reader.state_at(thread_id, checkpoint_id))


@functools.cache
def _effect(call: Recorded[..., Any]) -> Any:
    """The effect that a verb is in a node."""
    from perdure.effects.decorator import Effect

    async def function(on: Connection, /, *args: Any, **kwargs: Any) -> Any:
        token = CALL.set(_CallOfNode())
        try:
            return await call.run(on, args, kwargs)
        finally:
            CALL.reset(token)

    function.__signature__ = call.signature  # type: ignore[attr-defined]
    function.__module__ = "perdure.client"  # the digests of calls in older journals have it
    keep = _id_of if call.returns_run else call.keep
    record = Record(without=(*call.without, "self"), result=keep)
    name = f"perdure.{call.effect_name}"
    found = Effect.of(function, record=record, name=name, retry=None, verify=call.verify)
    return replace(found, spec=replace(found.spec, in_journal=True))


def _id_of(run: Run) -> str:
    return run.id


class _CallOfNode:
    """The recorded call that this code runs in."""

    def key(self) -> str:
        from perdure.effects.context import key

        return key()

    def number(self) -> int | None:
        from perdure.effects.context import current

        context = current()
        if context is None or context.owner is None:
            return None
        return int.from_bytes(hashlib.blake2b(context.key.encode(), digest_size=8).digest()) >> 2

    def parent(self, journal: Journal, *, ignores_parent_cancel: bool) -> Plan[Any]:
        from perdure.effects.task import parent_of_call

        return parent_of_call(journal, ignores_parent_cancel=ignores_parent_cancel)


@contextlib.contextmanager
def calling_from_node() -> Iterator[None]:
    """While a blocking method hands its call to another thread, where the node is not seen."""
    if not _is_in_run():
        yield
        return
    from perdure.effects.task import is_parallel

    token = _IS_PARALLEL.set(is_parallel())
    try:
        yield
    finally:
        _IS_PARALLEL.reset(token)


def _is_in_run() -> bool:
    if "perdure.saver" not in sys.modules:  # then no graph of ours runs, and nothing has to load
        return False
    from perdure.langgraph_port.configs import current_configurable

    if not current_configurable():
        return False
    from perdure.effects.task import is_in_run

    return is_in_run()
