"""Operations on scores: how well a run, or a part of it, did. Pure, no I/O.

A score and its event are one batch: a crash leaves both or neither. Which of two callers wins:

    two scores of one name and part  put_score: one replaces what it saw, the other looks again
    a score and the end of its run   neither: a score changes nothing that decides about a run
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.errors import UNREADABLE, Damaged
from perdure.journal import Op, Row, Statement, read_op, with_params
from perdure.operations.events import Change, actor_data, actor_name, change
from perdure.operations.stored_rows import first, stored
from perdure.serde import places
from perdure.serde.places import Place
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds, moment
from perdure.types import EventKind, PromptVersion, Score, ScoreKind

KINDS = frozenset(ScoreKind)
TARGETS = ("step", "effect")
"""What a score can be about, besides its run and a named part of it; fields of `Score`."""
UNSEEN = -1
"""The change number of a score that does not exist."""


class ScoreRow(NamedTuple):
    """A score as it is stored."""

    name: str
    about: str
    value: float
    at: int
    body: bytes
    kind: str
    label: str | None
    target: str
    target_id: str
    change: int


def put(
    serializer: Serializer, thread_id: str, score: Score, seen: int, attempt: int | None = None
) -> Op[bool]:
    """Store a score with its event, in place of the one whose change was `seen`. `attempt` is that
    of the effect it is about. False: another process changed that score meanwhile, or the run is
    gone."""
    made = change(thread_id, score.run_id, milliseconds(score.at))
    lock = with_params(made.params, "lock_run")  # before the score: an answer has that order, too
    return Op(
        f"score {score.name!r}",
        [*lock, *_put(serializer, made, score, seen, attempt)],
        lambda rows: bool(rows[1] if len(rows) > 1 else rows[0]),
        write=True,
        key=made.key,
    )


def _put(
    serializer: Serializer, made: Change, score: Score, seen: int | None, attempt: int | None = None
) -> list[Statement]:
    """The statements that store a score and its event."""
    value = (score.value or 0.0) + 0.0  # SQLite has no -0.0
    target = next((name for name in TARGETS if getattr(score, name) is not None), "")
    target_id = getattr(score, target) if target else ""
    columns = (value, made.now, score.kind.value, score.label, target, target_id)
    place = places.of_score(made.thread_id, score.run_id, score.name, score.about, *columns)
    body: list[Any] = [serializer.redacted_text(score.comment), actor_name(score.by)]
    if score.prompts:
        body.append({"prompts": [list(one) for one in score.prompts]})
    params = {
        **made.params,
        "name": score.name,
        "about": score.about,
        "value": value,
        "kind": score.kind.value,
        "label": score.label,
        "target": target,
        "target_id": target_id,
        "seen": seen,
        "body": serializer.dumps(body, place, "the score", own=True),
    }
    return [
        *with_params(params, "put_score", "count_score"),
        made.event(serializer, EventKind.SCORED, _event_data(score, attempt)),
        Statement("trace_changed", params),
    ]


def _event_data(score: Score, attempt: int | None) -> dict[str, Any]:
    """The data of a score's event: names, numbers and categories, without the comment."""
    data: dict[str, Any] = {"name": score.name, "value": score.value, "label": score.label}
    targets = {"step": score.step, "effect": score.effect}
    if score.about not in targets.values():
        data["about"] = score.about
    data |= targets | {"attempt": attempt}
    data |= {"prompts": [list(one) for one in score.prompts], **actor_data(score.by)}
    return {name: value for name, value in data.items() if value not in (None, "", [])}


def of_run(serializer: Serializer, thread_id: str, run_id: str) -> Op[list[tuple[Score, int]]]:
    """The scores of a run, oldest first, each with the number of its last change."""

    def result(rows: Sequence[Sequence[Row]]) -> list[tuple[Score, int]]:
        every = [stored(ScoreRow, row) for row in rows[0]]
        return [(_to_score(serializer, thread_id, run_id, row), row.change) for row in every]

    return read_op("scores_of_run", {"thread_id": thread_id, "id": run_id}, result)


def find(
    serializer: Serializer, thread_id: str, run_id: str, name: str, about: str
) -> Op[tuple[Score, int] | None]:
    """A score of a run, and the number of its last change."""

    def result(rows: Sequence[Sequence[Row]]) -> tuple[Score, int] | None:
        row = first(ScoreRow, rows)
        if row is None:
            return None
        return _to_score(serializer, thread_id, run_id, row), row.change

    params = {"thread_id": thread_id, "id": run_id, "name": name, "about": about}
    return read_op("find_score", params, result)


def is_step(thread_id: str, run_id: str, checkpoint_id: str) -> Op[bool]:
    """Whether an existing checkpoint belongs to a run."""
    params = {"thread_id": thread_id, "id": run_id, "step": checkpoint_id}
    return read_op("step_of_run", params, lambda rows: bool(rows[0]))


def _to_score(serializer: Serializer, thread_id: str, run_id: str, row: ScoreRow) -> Score:
    """A score as its users see it. One that cannot be read has `damaged`."""
    kind = ScoreKind(row.kind) if row.kind in KINDS else ScoreKind.NUMBER
    value = float(row.value)
    score = Score(
        run_id,
        row.name,
        value if kind is ScoreKind.NUMBER else None,
        row.about,
        moment(row.at),
        kind=kind,
        label=row.label,
        step=row.target_id if row.target == "step" else None,
        effect=row.target_id if row.target == "effect" else None,
    )
    columns = (value, row.at, row.kind, row.label, row.target, row.target_id)
    place = places.of_score(thread_id, run_id, row.name, row.about, *columns)
    try:
        return replace(score, **_load(serializer, row, place))
    except UNREADABLE as error:
        return replace(score, damaged=str(error))


def _load(serializer: Serializer, row: ScoreRow, place: Place) -> dict[str, Any]:
    match serializer.loads(row.body, place, list):
        case [comment, by]:
            return {"comment": comment, "by": by}
        case [comment, by, dict() as more]:  # older ones have the tool that an answer was about
            prompts = tuple(PromptVersion(*one) for one in more.get("prompts", ()))
            return {"comment": comment, "by": by, "prompts": prompts}
    raise Damaged(place.name, "it has other parts")
