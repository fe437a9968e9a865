"""Operations on scores: how well a run did. Pure, no I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from perdure.errors import UNREADABLE, Damaged
from perdure.journal import Op, Statement, read_op
from perdure.operations.stored_rows import stored
from perdure.serde import places
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds, moment
from perdure.types import Score


class ScoreRow(NamedTuple):
    """A score as it is stored."""

    name: str
    about: str
    value: float
    at: int
    body: bytes


def put(serializer: Serializer, thread_id: str, score: Score) -> Op[None]:
    """Store a score, replacing the one of the same name and part; not if the run is gone."""
    value, at = score.value + 0.0, milliseconds(score.at)  # SQLite has no -0.0
    place = places.of_score(thread_id, score.run_id, score.name, score.about, value, at)
    params = {
        "thread_id": thread_id,
        "id": score.run_id,
        "name": score.name,
        "about": score.about,
        "value": value,
        "now": at,
        "body": serializer.dumps([score.comment, score.by], place, "the score"),
    }
    statement = Statement("put_score", params)
    return Op(f"score {score.name!r}", [statement], lambda rows: None, write=True)


def of_run(serializer: Serializer, thread_id: str, run_id: str) -> Op[list[Score]]:
    """The scores of a run, oldest first."""
    return read_op(
        "scores_of_run",
        {"thread_id": thread_id, "id": run_id},
        lambda rows: [
            _to_score(serializer, thread_id, run_id, stored(ScoreRow, row)) for row in rows[0]
        ],
    )


def _to_score(serializer: Serializer, thread_id: str, run_id: str, row: ScoreRow) -> Score:
    """A score as its users see it. One that cannot be read has `damaged`."""
    value = float(row.value)
    score = Score(run_id, row.name, value, row.about, moment(row.at))
    place = places.of_score(thread_id, run_id, row.name, row.about, value, row.at)
    try:
        match serializer.loads(row.body, place, list):
            case [comment, by]:
                return replace(score, comment=comment, by=by)
        raise Damaged(place.name, "it has other parts")
    except UNREADABLE as error:
        return replace(score, damaged=str(error))
