"""Compensations: what a run did is undone when it is cancelled, last things first.

Each is an effect itself, with its own intent and outcome, so it is made once however often the
worker dies. A run that is cancelled with something to undo is due like any other, and stays to be
cancelled (`control`) until all is undone; what fails, or whose outcome nobody knows, holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.effects.context import Inside
from perdure.effects.decorator import known
from perdure.effects.filing import Spec
from perdure.effects.identity import Desk, Line
from perdure.effects.invocation import Calling, Functions
from perdure.effects.settlement import Settling
from perdure.errors import EffectHeld, Postponed
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.operations import effects
from perdure.operations.claims import SegmentEnd
from perdure.operations.effects import EffectRow, Owner
from perdure.operations.runs import RunRow
from perdure.saver import Saver
from perdure.serde.serializer import where_effect
from perdure.types import EffectState, EventKind, State


class Undo:
    """Undoes what a run did, for whoever drives its end."""

    def __init__(self, saver: Saver, clock: Clock) -> None:
        self._saver, self._clock = saver, clock

    def all(self, row: RunRow) -> Plan[SegmentEnd]:
        """Make every compensation that is still to be made. Gives how the run ends."""
        found: list[EffectRow] = yield effects.of_run(row.id)
        done = [one for one in found if one.state == EffectState.DONE and not effects.is_undo(one)]
        for one in sorted(done, key=lambda one: one.settled, reverse=True):
            if one.undo != 1:
                continue
            try:
                yield from self._one(row, one)
            except EffectHeld as held:
                return _held(str(held), one)
            except Postponed as later:
                return SegmentEnd(State.PENDING, EventKind.RELEASED, {}, due_at=later.until)
            except Exception as error:
                return _held(
                    f"effect {one.name!r} could not be undone: {type(error).__name__}: {error}", one
                )
        found = yield effects.of_run(row.id)
        return SegmentEnd(State.CANCELLED, EventKind.CANCELLED, effects.report(found))

    def _one(self, row: RunRow, one: EffectRow) -> Plan[None]:
        made = known(one.name)
        if made is None or made.spec.compensate is None:
            raise LookupError(
                f"no effect {one.name!r} with compensate= is known to this worker: import the "
                "module it is in, then retry the run"
            )
        serializer, owner = self._saver.serializer, Owner(row.thread_id, row.id, row.token)
        [result, *_] = serializer.loads(one.outcome or b"", where_effect("outcome", one.key))
        arguments = serializer.loads(one.arguments, where_effect("arguments", one.key))
        journal = self._saver.journal
        task, name = f"{effects.UNDO}{row.id} {one.key}", f"undo {one.name}"
        desk = Desk(
            owner, task, journal, serializer, self._clock, None, "", loaded=True, resting=True
        )
        before = yield effects.at(row.thread_id, task, name, 0)
        if before is not None:
            desk.know(before)
        spec = Spec(name, retry=made.spec.retry, unknown=made.spec.unknown)
        caller = _Compensation(spec, made.spec.compensate, made.signature, owner, journal)
        line = Line(1, number=0)
        yield from Settling(
            desk, spec, {"result": result, "arguments": arguments}, line, caller
        ).run()
        yield effects.undone(owner, one, self._clock.now())


class _Compensation(Functions):
    """Calls a compensation: with the result, then the arguments that were recorded."""

    def call(self, key: str, arguments: Mapping[str, Any], timeout: float | None) -> Calling:
        args, kwargs = self._split(arguments["arguments"])
        parameters = () if self.signature is None else self.signature.parameters.values()
        if not any(one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL) for one in parameters):
            args, kwargs = (), dict(arguments["arguments"])
        args, inside = (arguments["result"], *args), Inside(key, self.owner)
        return Calling(self.spec.name, self.function, args, kwargs, inside, timeout)


def _held(reason: str, one: EffectRow) -> SegmentEnd:
    data = {"reason": reason, "effects": [one.key]}
    return SegmentEnd(
        State.HELD, EventKind.HELD, data, reason=f"it is being cancelled, but {reason}"
    )
