"""Operations on scores: how well a run did. Pure, no I/O."""

from __future__ import annotations

from perdure.journal import Op, Statement, read_op
from perdure.serde import places
from perdure.serde.serializer import Serializer
from perdure.types import Score, milliseconds, moment


def put(serializer: Serializer, thread_id: str, score: Score) -> Op[bool]:
    """Store a score, replacing the one of the same name and part. False if the run is gone."""
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
    return Op(f"score {score.name!r}", [statement], lambda rows: bool(rows[0]), write=True)


def of_run(serializer: Serializer, thread_id: str, run_id: str) -> Op[list[Score]]:
    """The scores of a run, oldest first."""
    return read_op(
        "scores_of_run",
        {"thread_id": thread_id, "id": run_id},
        lambda rows: [
            Score(run_id, name, value, about, moment(at), *serializer.loads(body, place))
            for name, about, value, at, body in rows[0]
            for place in [places.of_score(thread_id, run_id, name, about, value, at)]
        ],
    )
