"""Operations on turns: one run at a time works in a scope, such as a namespace of memories."""

from __future__ import annotations

from perdure.journal import Op, Plan, Statement, read_op


def take_turn(scope: str, run_id: str) -> Plan[bool]:
    """Take the turn in a scope. False if a run that is driven now has it."""
    params = {"name": _entry(scope), "run_id": run_id}
    yield Op("take_turn", [Statement("take_turn", params)], lambda rows: None, write=True)
    return bool((yield _is_turn_of(scope, run_id)))


def has_turn(scope: str, run_id: str) -> Plan[bool]:
    """Whether this run still has the turn, after everybody who is taking it right now."""
    lock = Statement("lock_turn", {"name": _entry(scope)})
    yield Op("lock_turn", [lock], lambda rows: None, write=True)
    return bool((yield _is_turn_of(scope, run_id)))


def _is_turn_of(scope: str, run_id: str) -> Op[bool]:
    return read_op("entry", {"name": _entry(scope)}, lambda rows: run_id in [r[0] for r in rows[0]])


def _entry(scope: str) -> str:
    return f"turn {scope}"
