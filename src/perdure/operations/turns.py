"""Operations on turns: one run at a time works in a scope, such as a namespace of memories."""

from __future__ import annotations

from perdure.journal import Op, Plan, Statement


def take_turn(scope: str, run_id: str) -> Plan[bool]:
    """Take the turn in a scope. False if a run that is driven now has it."""
    params = {"scope": scope, "run_id": run_id}
    yield Op("take_turn", [Statement("take_turn", params)], lambda rows: None, write=True)
    turn = yield Op("turn_of", [Statement("turn_of", params)], lambda rows: rows[0][0][0])
    return bool(turn == run_id)


def has_turn(scope: str, run_id: str) -> Op[bool]:
    """Whether this run still has the turn."""
    statement = Statement("lock_turn", {"scope": scope})
    return Op("has_turn", [statement], lambda rows: [run_id] in map(list, rows[0]), write=True)
