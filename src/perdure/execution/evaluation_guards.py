"""What keeps a run of an evaluation in the process: answers of its example, and guards.

No person is asked, and nothing is waited for: everything such a run waits for is due at once. A
sleep or a deadline ends; a question gets the next answer of the example, a wait for a signal the
signal of that name. A wait without an answer or a deadline fails the run. The answers are in the
setup of the run, and its waits say how many of them were given, so any driver goes on with the next
one.

A store is not an effect: real runs would see what a node writes to it. So a write is refused,
unless the evaluation has a rule for `store`: a value skips the write, "real" makes it.

Under `perdure.langchain.Durable()` tool calls are effects, and simulated or refused as such. For
any other agent a tool is plain code that LangChain calls. LangChain calls `ToolGuard` first, which
refuses the tool unless it only reads or its function is an effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.store.base import BaseStore, Op, PutOp, Result

from perdure.commands import waits
from perdure.commands.answer_dialects import check_fits
from perdure.commands.evaluation_policy import REAL, VALUE, EvaluationPolicy
from perdure.commands.waits import WaitRow
from perdure.effects.decorator import is_effect_tool
from perdure.effects.simulation import check_tool, refuse
from perdure.errors import BadAnswer, Unanswered
from perdure.execution.drive import Drive
from perdure.execution.segment import Segment
from perdure.langgraph_port.call_stack import tool_being_called
from perdure.serde.serializer import Serializer
from perdure.types import Kind, WaitState


class ExampleAnswers:
    """The answers that a run of an evaluation can be given."""

    BY: ClassVar[str] = "example"

    def __init__(self, run_id: str, policy: EvaluationPolicy, taken: int) -> None:
        self._run_id, self._policy, self._taken = run_id, policy, taken

    @classmethod
    def of(cls, drive: Drive, found: list[WaitRow]) -> ExampleAnswers | None:
        """The answers for this run. None if it is not part of an evaluation."""
        policy = drive.evaluation
        if policy is None:
            return None
        taken = sum(_is_question(wait) and wait.answered_by == cls.BY for wait in found)
        return cls(drive.row.id, policy, taken)

    def take(self, wait: WaitRow, serializer: Serializer) -> tuple[Any] | None:
        """The answer to a wait, if the example has one. Raises `Unanswered` if it does not fit."""
        if wait.interrupt_id.startswith("breakpoint:"):
            return (None,)
        if wait.kind == Kind.SIGNAL and (name := wait.name or "") in self._policy.signals:
            return (self._policy.signals[name],)
        if not _is_question(wait) or self._taken >= len(self._policy.answers):
            return None
        value, body = self._policy.answers[self._taken], waits.load_body(serializer, wait)
        try:
            check_fits(wait.id, body.value, body.schema, value)
        except BadAnswer as error:
            problem = f"cannot be given answer {self._taken + 1} of its example: {error}"
            raise Unanswered(self._run_id, problem, "Change the answer.") from error
        self._taken += 1
        return (value,)

    def check(self, found: list[WaitRow]) -> None:
        """Raise `Unanswered` if the run still waits for something that nothing will answer."""
        for wait in found:
            if wait.state != WaitState.OPEN or wait.interrupt_id.startswith("effect:"):
                continue
            if wait.kind == Kind.HUMAN:
                problem = (
                    f"asks question {self._taken + 1}, and its example has {self._taken} answers"
                )
                raise Unanswered(self._run_id, problem, "Add one to Example(answers=[...]).")
            if wait.kind == Kind.SIGNAL:
                problem = f"waits for the signal {wait.name!r}, which its example does not have"
                hint = f"Add it: Example(signals={{{wait.name!r}: value}})."
                raise Unanswered(self._run_id, problem, hint)
            if wait.kind == Kind.RUN:
                raise Unanswered(
                    self._run_id, "waits for runs that have not ended", "Give join() a timeout=."
                )


def _is_question(wait: WaitRow) -> bool:
    return wait.kind == Kind.HUMAN and not wait.interrupt_id.startswith("breakpoint:")


STORE = "store"


class GuardedStore(BaseStore):
    """A store that a segment of an evaluation only reads."""

    def __init__(self, store: BaseStore, segment: Segment, mode: str) -> None:
        self._store, self._segment, self._mode = store, segment, mode
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config

    @classmethod
    def of(cls, store: BaseStore, policy: EvaluationPolicy, segment: Segment) -> BaseStore:
        """The store for a segment of an evaluation."""
        mode = policy.rule(STORE, reads=False)[0]
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


class ToolGuard(BaseCallbackHandler):
    """Refuses tools in a segment of an evaluation."""

    raise_error = True
    run_inline = True

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def on_tool_start(self, serialized: Mapping[str, Any], input_str: str, **more: Any) -> None:
        name = str((serialized or {}).get("name", ""))
        hints = more.get("metadata") or {}
        hints = {**hints, **(hints.get("annotations") or {})}
        reads = hints.get("readOnlyHint") is True or is_effect_tool(tool_being_called())
        check_tool(self._segment, name, reads=reads)
