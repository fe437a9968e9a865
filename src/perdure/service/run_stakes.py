"""A plan that reads what an action on runs affects: effects, children, later runs."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.journal import Plan
from perdure.operations import runs
from perdure.operations.run_payload import maybe_control
from perdure.operations.runs import AtStake
from perdure.types import EffectState, Run
from perdure.views.consequences import Stakes


def read_stakes(found: Sequence[Run]) -> Plan[list[tuple[Run, Stakes]]]:
    """These runs with what is at stake, in one read. Deleted runs are left out."""
    at_stake: dict[str, AtStake] = (yield runs.at_stake(run.id for run in found)) if found else {}
    return [(run, _stakes(at_stake[run.id])) for run in found if run.id in at_stake]


def _stakes(found: AtStake) -> Stakes:
    def names(*states: EffectState) -> tuple[str, ...]:
        return tuple(name for state, name in found.effects if state in states)

    return Stakes(
        maybe_control(found.control),
        undoable=names(EffectState.DONE),
        failed=names(EffectState.FAILED),
        unknown=names(EffectState.OPEN, EffectState.UNKNOWN),
        children=found.children,
        is_passed=found.is_passed,
    )
