"""Plans for people: list effects, settle one of unknown outcome."""

from __future__ import annotations

from typing import Any, Literal

from perdure.commands import effect_payload, effects
from perdure.commands.connection import Connection
from perdure.commands.effects import SETTLED_BY, EffectRow
from perdure.commands.events import actor_data, change, release
from perdure.errors import BadArgument, EffectFailed, NotFound, NotSettled
from perdure.journal import Plan, Statement, with_params
from perdure.journal.clock import host_time
from perdure.journal.names import check_id, check_text, maybe_id
from perdure.times import position_after
from perdure.types import EffectRecord, EffectState, EventKind, State
from perdure.verbs import PAGE, check_limit, check_member, verb

STATES = {"done": EffectState.DONE, "retry": EffectState.AGAIN, "fail": EffectState.FAILED}
"""The state an effect gets, by how a person settles it."""


def _check_decision(how: str, result: Any, by: str | None, reason: str | None) -> None:
    if how not in STATES:
        raise BadArgument(f"An effect is settled as 'done', 'retry' or 'fail', not as {how!r}.")
    if how == "retry" and result is not None:
        raise BadArgument("An effect that is to be called again has no result yet.")
    if how == "fail" and result is not None:
        raise BadArgument("An effect that failed has no result. Say why it failed with reason=.")
    if by is not None:
        check_text("by", by)
    if reason is not None and not isinstance(reason, str):
        raise BadArgument(f"reason must be a str, not {type(reason).__name__}.")


def _why_not(row: EffectRow) -> str:
    if row.state == EffectState.AGAIN:
        return "its run is about to call it"
    return (
        "that is settled" if row.state == EffectState.DONE else "its run is being driven just now"
    )


@verb(name="effects")
def list_effects(
    on: Connection,
    run_id: str | None = None,
    *,
    thread_id: str | None = None,
    state: EffectState | str | None = None,
    after: EffectRecord | None = None,
    limit: int = PAGE,
) -> Plan[list[EffectRecord]]:
    """List effects: of a run, of a thread, or in a state; oldest first.

    An effect is a call that left the process, or was about to. Effects of graphs that only have
    a `Saver` are listed too, with an empty `run_id`. An effect whose row cannot be read is
    listed with the reason in `EffectRecord.damaged`.

        unknown = await client.effects(state="unknown")

    Effects with the state `unknown` wait for `settle`.

    Args:
        run_id: Effects of this run.
        thread_id: Effects of this thread.
        state: Effects in this state: `open`, `done`, `failed`, `unknown` or `again`.
        after: The last effect of the previous page.
        limit: Maximum number of effects to return, 100 by default.

    Raises:
        BadArgument: The state is unknown.
    """
    run_id, thread_id = maybe_id("run", run_id), maybe_id("thread", thread_id)
    if state is not None:
        state = check_member(EffectState, "an effect's state", state)
    count = check_limit(limit)
    position = None if after is None else (position_after(after.created_at), after.key)
    if run_id is None:
        page = effects.page(thread_id=thread_id, state=state, after=position, count=count)
        rows: list[EffectRow] = yield page
    else:
        rows = [
            row
            for row in (yield effects.of_run(run_id))
            if state in (None, row.state)
            and thread_id in (None, row.thread_id)
            and (position is None or (row.created_at, row.key) > position)
        ][:count]
    return [effects.to_record(on.serializer, row) for row in rows]


@verb(effect=True)
def settle(
    on: Connection,
    key: str,
    how: Literal["done", "retry", "fail"],
    result: Any = None,
    *,
    by: str | None = None,
    reason: str | None = None,
) -> Plan[None]:
    """Settle an effect with an unknown outcome, once a person has found out what happened.

    The run continues once none of its effects is unknown. An effect that is `open` or `failed`
    can be settled too, if its run is not being driven; a run that failed also needs `retry`.
    The `settled` event records `by` and `reason`.

        await client.settle(effect.key, "done", {"payment": "p-17"}, by="ana")

    If the process dies before this returns, the effect may or may not be settled; if it is,
    calling again raises `NotSettled`.

    Args:
        key: The key of the effect.
        how: `done`: it happened. `retry`: it did not happen, and is called again. `fail`: it
            did not happen, and is not called again; the node gets `EffectFailed`.
        result: With `done`, what the call would have returned.
        by: Who decides.
        reason: Why. With `fail`, the message of the error.

    Raises:
        NotSettled: The effect has an outcome, or its run is being driven. Nothing was changed.
        NotFound: The journal has no effect with this key.
        BadArgument: `how` is unknown, or `result` is passed with `retry` or `fail`.
    """
    _check_decision(how, result, by, reason)
    row: EffectRow | None = yield effects.find(check_id("effect", key))
    if row is None:
        raise NotFound("effect", key)
    outcome = None
    if how == "done":
        outcome = effect_payload.dump_result(on.serializer, row, result)
    elif how == "fail":
        error = EffectFailed(row.key, f"{SETTLED_BY} {by or 'a person'}", reason or "failed")
        outcome = effect_payload.dump_error(on.serializer, row, STATES[how], error, ())
    made = change(row.thread_id, row.run_id, on.clock.now())
    params = {**made.params, "key": row.key, "state": STATES[how].value, "outcome": outcome}
    params |= {"attempts": row.attempts, **host_time(on.clock).params}
    data = {"name": row.name, "key": row.key, "state": STATES[how].value, **actor_data(by)}
    statements = [
        *with_params(params, "lock_thread", "lock_run", "decide_effect", "record_decision"),
        made.event(on.serializer, EventKind.SETTLED, data | ({"reason": reason} if reason else {})),
        # If it was the last that its held run waited for, the run is due. Not "retried": that would
        # call again what a person just settled as failed.
        *release(on.serializer, made, (State.HELD,), EventKind.RESUMED),
    ]
    if not (yield made.op(f"settle {row.key}", statements, 2, Statement("find_decision", params))):
        row = (yield effects.find(row.key)) or row
        raise NotSettled(row.key, f"it is {row.state}: {_why_not(row)}.")
    on.wake()
