"""Compensations: when a run is cancelled its effects are undone, the last one first.

Each compensation is an effect itself, with its own intent and outcome, so it is made once however
often the worker dies. A cancelled run with something to undo is due like any other, and stays to be
cancelled (`control`) until all is undone. A compensation that fails, or whose outcome is unknown,
holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from perdure.commands import effects
from perdure.commands.claims import SegmentEnd
from perdure.commands.effects import EffectRow, Owner, UndoState
from perdure.commands.runs import RunRow
from perdure.effects.call import Bound, Call
from perdure.effects.decorator import EFFECTS, Effect
from perdure.effects.matching import CallPosition
from perdure.effects.settlement import settle
from perdure.effects.spec import EffectSpec
from perdure.effects.task import TaskContext
from perdure.errors import Closed, EffectHeld, Postponed, Unavailable, WriteLost
from perdure.journal import Plan, Refused
from perdure.journal.clock import Clock
from perdure.saver import Saver
from perdure.serde.redaction import redact
from perdure.types import EffectState, EventKind, State


def undo_effects(saver: Saver, clock: Clock, run: RunRow) -> Plan[SegmentEnd]:
    """Make every compensation of a cancelled run that is still to be made. Gives how it ends."""
    rows: list[EffectRow] = yield effects.of_run(run.id)
    for row in sorted(rows, key=lambda row: row.settled, reverse=True):
        if row.state != EffectState.DONE or row.undo != UndoState.POSSIBLE:
            continue
        try:
            yield from _undo(saver, clock, run, row)
        except EffectHeld as held:
            return _held(str(held), row)
        except Postponed as later:
            return SegmentEnd(State.PENDING, EventKind.RELEASED, {}, due_at=later.until)
        except (Unavailable, WriteLost, Closed, Refused):  # the journal's, not the effect's
            raise
        except Exception as error:
            why = redact(f"{type(error).__name__}: {error}")
            return _held(f"effect {row.name!r} could not be undone: {why}", row)
    rows = yield effects.of_run(run.id)
    return SegmentEnd(State.CANCELLED, EventKind.CANCELLED, effects.report(rows))


def _undo(saver: Saver, clock: Clock, run: RunRow, row: EffectRow) -> Plan[None]:
    effect = EFFECTS.get(row.name)
    if effect is None or effect.spec.compensate is None:
        raise LookupError(
            f"this worker has no effect {row.name!r} with compensate=: import the module that "
            "defines it, then retry the run"
        )
    serializer, owner = saver.serializer, Owner(run.thread_id, run.id, run.token)
    [result, *_] = row.load_outcome(serializer)
    id, journal = effects.compensation_task(run.id, row.key), saver.journal
    task = TaskContext(owner, id, journal, serializer, clock, can_postpone=True)
    spec = EffectSpec(f"undo {row.name}", retry=effect.spec.retry, unknown=effect.spec.unknown)
    arguments = {"result": result, "arguments": row.load_arguments(serializer)}
    position = CallPosition(1, is_parallel=False)  # it is the only call of its task
    bind, function = partial(_bind, effect), effect.spec.compensate
    yield from settle(Call(task, spec, function, bind, arguments, position))
    yield effects.mark_undone(owner, row, clock.now())


def _bind(effect: Effect, call: Mapping[str, Any]) -> Bound:
    """A compensation's arguments: the result, then the arguments of the effect."""
    parameters = effect.signature.parameters.values() if effect.signature is not None else ()
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = call["arguments"]
    if any(one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL) for one in parameters):
        args, kwargs = effect.bind(call["arguments"])
    return (call["result"], *args), kwargs


def _held(reason: str, row: EffectRow) -> SegmentEnd:
    data = {"reason": reason, "effects": [row.key]}
    reason = f"it is being cancelled, but {reason}"
    return SegmentEnd(State.HELD, EventKind.HELD, data, reason=reason)
