"""Operations on scores: how well a run did. Pure, no I/O."""

from __future__ import annotations

from perdure.journal import Op, Statement, read_op
from perdure.serde.serializer import Serializer, where_score
from perdure.types import Score, milliseconds, moment


def put(serializer: Serializer, thread_id: str, score: Score) -> Op[bool]:
    """Store a score, replacing the one of the same name and part. False if the run is gone."""
    where = where_score(score.run_id, score.name, score.about)
    params = {
        "thread_id": thread_id,
        "id": score.run_id,
        "name": score.name,
        "about": score.about,
        "value": score.value,
        "now": milliseconds(score.at),
        "body": serializer.dumps([score.comment, score.by], where, "the score"),
    }
    statement = Statement("put_score", params)
    return Op(f"score {score.name!r}", [statement], lambda rows: bool(rows[0]), write=True)


def of_run(serializer: Serializer, thread_id: str, run_id: str) -> Op[list[Score]]:
    """The scores of a run, oldest first."""
    return read_op(
        "scores_of_run",
        {"thread_id": thread_id, "id": run_id},
        lambda rows: [
            Score(run_id, name, value, about, moment(at), *serializer.loads(body, where))
            for name, about, value, at, body in rows[0]
            for where in [where_score(run_id, name, about)]
        ],
    )
