"""Acknowledged changes that the database lost: stored by the process that missed them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perdure.commands.events import change
from perdure.errors import Loss, WentBack
from perdure.journal import Op, Row, Statement, read_op
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds, moment
from perdure.types import EventKind

KEPT = 30 * 24 * 3_600_000
"""Milliseconds for which a loss is listed."""

MOST = 1_000
"""Maximum number of losses that a diagnosis lists."""


def store(serializer: Serializer, error: WentBack, now: int) -> list[Op[None]]:
    """Store what is missing, and say so in the history of each run that is left."""
    ops = [_write("forget_losses", [Statement("forget_losses", {"before": now - KEPT})])]
    for loss in error.losses:
        params: dict[str, Any] = {
            "thread_id": loss.thread_id,
            "run_id": loss.run_id or "",
            "what": loss.what,
        }
        params |= {"acknowledged_at": milliseconds(loss.acknowledged_at), "now": now}
        statements = [Statement("insert_loss", {**params, "reason": error.why})]
        if loss.run_id is not None:
            made = change(loss.thread_id, loss.run_id, now)
            statements.append(Statement("count_note", {**made.params, "name": None, "about": None}))
            statements.append(made.event(serializer, EventKind.REWOUND, {"reason": error.why}))
        ops.append(_write("insert_loss", statements))
    return ops


def _write(name: str, statements: Sequence[Statement]) -> Op[None]:
    return Op(name, statements, lambda rows: None, write=True)


def listed() -> Op[list[Loss]]:
    """What was lost in the last 30 days, the last changes first."""
    return read_op("losses", {"id": None, "count": MOST}, lambda rows: _losses(rows[0]))


def of_run(run_id: str) -> Op[Loss | None]:
    """What was lost of a run."""
    params = {"id": run_id, "count": 1}
    return read_op("losses", params, lambda rows: next(iter(_losses(rows[0])), None))


def _losses(rows: Iterable[Row]) -> list[Loss]:
    return [
        Loss(str(thread_id), str(run_id) or None, str(what), moment(at), moment(noticed_at))
        for thread_id, run_id, what, at, noticed_at in rows
    ]
