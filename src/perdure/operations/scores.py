"""Operations on scores: how well a run, or a part of it, did. Pure, no I/O.

A score and its event are one batch: a crash leaves both or neither. Which of two callers wins:

    two scores of one name and part  put_score: one replaces what it saw, the other looks again
    an answer and its withdrawal     withdraw_scores: in the batch that withdraws the answer
    a score and the end of its run   neither: a score changes nothing that decides about a run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.errors import UNREADABLE, Damaged
from perdure.journal import Op, Row, Statement, read_op, with_params
from perdure.operations.answer_decisions import Decision
from perdure.operations.events import Change, actor_data, actor_name, change
from perdure.operations.stored_rows import first, stored
from perdure.serde import places
from perdure.serde.places import Place
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds, moment
from perdure.types import EventKind, PromptVersion, Score, ScoreKind

DECISION = "decision"
"""The name of the score for a person's decision."""
EDIT_DISTANCE = "edit_distance"
"""The name of the score for how much a person changed, from 0 (nothing) to 1 (everything)."""
KINDS = frozenset(ScoreKind)
TARGETS = ("step", "effect", "question")
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


def of_answer(
    serializer: Serializer,
    made: Change,
    wait_id: str,
    decisions: Sequence[Decision],
    by: str | None,
    prompts: Sequence[PromptVersion],
) -> list[Statement]:
    """The statements that store the decisions of an answer as scores, for the batch of the answer,
    which is refused if that was not accepted."""
    statements: list[Statement] = []
    for n, one in enumerate(decisions, 1):
        about = wait_id if len(decisions) == 1 else f"{wait_id} {n}"
        score = Score(
            made.run_id,
            DECISION,
            None,
            about,
            moment(made.now),
            one.comment,
            by,
            ScoreKind.CATEGORY,
            one.label.value,
            question=wait_id,
            action=one.action,
            call=one.call,
            prompts=tuple(prompts),
        )
        statements += _put(serializer, _next(made), score, None)
        if one.distance is not None:
            edited = replace(
                score,
                name=EDIT_DISTANCE,
                value=one.distance,
                kind=ScoreKind.NUMBER,
                label=None,
                comment=None,
            )
            statements += _put(serializer, _next(made), edited, None)
    return statements


def _next(made: Change) -> Change:
    """Another change of the same run at the same time."""
    return change(made.thread_id, made.run_id, made.now)


def _put(
    serializer: Serializer, made: Change, score: Score, seen: int | None, attempt: int | None = None
) -> list[Statement]:
    """The statements that store a score and its event."""
    value = (score.value or 0.0) + 0.0  # SQLite has no -0.0
    target = next((name for name in TARGETS if getattr(score, name) is not None), "")
    target_id = getattr(score, target) if target else ""
    columns = (value, made.now, score.kind.value, score.label, target, target_id)
    place = places.of_score(made.thread_id, score.run_id, score.name, score.about, *columns)
    more = {name: text for name in ("action", "call") if (text := getattr(score, name))}
    comment = serializer.redacted_text(score.comment)
    said = [comment, actor_name(score.by), *([more] if more else [])]
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
        "body": serializer.dumps(said, place, "the score", own=True),
    }
    return [
        *with_params(params, "put_score", "count_score"),
        made.event(serializer, EventKind.SCORED, _event_data(score, attempt)),
        *with_params(params, "insert_score_prompts", "trace_changed"),
    ]


def _event_data(score: Score, attempt: int | None) -> dict[str, Any]:
    """The data of a score's event: names, numbers and categories, without the comment."""
    data: dict[str, Any] = {"name": score.name, "value": score.value, "label": score.label}
    targets = {"step": score.step, "effect": score.effect, "wait": score.question}
    if score.about not in targets.values():
        data["about"] = score.about
    data |= targets | {"attempt": attempt, "action": score.action, "call": score.call}
    data |= {"prompts": [list(one) for one in score.prompts], **actor_data(score.by)}
    return {name: value for name, value in data.items() if value not in (None, "", [])}


def of_run(serializer: Serializer, thread_id: str, run_id: str) -> Op[list[tuple[Score, int]]]:
    """The scores of a run, oldest first, each with the number of its last change."""

    def result(rows: Sequence[Sequence[Row]]) -> list[tuple[Score, int]]:
        prompts: dict[tuple[str, str], list[PromptVersion]] = {}
        for name, about, prompt, version in rows[1]:
            prompts.setdefault((name, about), []).append(PromptVersion(prompt, version))
        every = [stored(ScoreRow, row) for row in rows[0]]
        return [
            (_to_score(serializer, thread_id, run_id, row, prompts), row.change) for row in every
        ]

    params = {"thread_id": thread_id, "id": run_id}
    return Op("scores_of_run", with_params(params, "scores_of_run", "prompts_of_scores"), result)


def find(
    serializer: Serializer, thread_id: str, run_id: str, name: str, about: str
) -> Op[tuple[Score, int] | None]:
    """A score of a run, without its prompt versions, and the number of its last change."""

    def result(rows: Sequence[Sequence[Row]]) -> tuple[Score, int] | None:
        row = first(ScoreRow, rows)
        return (
            None if row is None else (_to_score(serializer, thread_id, run_id, row, {}), row.change)
        )

    params = {"thread_id": thread_id, "id": run_id, "name": name, "about": about}
    return read_op("find_score", params, result)


def bare(run_id: str, row: ScoreRow, prompts: Sequence[PromptVersion] = ()) -> Score:
    """A score without what is serialised: who gave it, and a comment."""
    kind = ScoreKind(row.kind) if row.kind in KINDS else ScoreKind.NUMBER
    return Score(
        run_id,
        row.name,
        float(row.value) if kind is ScoreKind.NUMBER else None,
        row.about,
        moment(row.at),
        kind=kind,
        label=row.label,
        prompts=tuple(prompts),
        **({row.target: row.target_id} if row.target in TARGETS else {}),
    )


def whole(serializer: Serializer, thread_id: str, run_id: str, row: ScoreRow) -> Score:
    """A score with all of it but its prompt versions. One that cannot be read has `damaged`."""
    return _to_score(serializer, thread_id, run_id, row, {})


def is_step(thread_id: str, run_id: str, checkpoint_id: str) -> Op[bool]:
    """Whether an existing checkpoint belongs to a run."""
    params = {"thread_id": thread_id, "id": run_id, "step": checkpoint_id}
    return read_op("step_of_run", params, lambda rows: bool(rows[0]))


def _to_score(
    serializer: Serializer,
    thread_id: str,
    run_id: str,
    row: ScoreRow,
    prompts: Mapping[tuple[str, str], Sequence[PromptVersion]],
) -> Score:
    """A score as its users see it. One that cannot be read has `damaged`."""
    score, value = bare(run_id, row, prompts.get((row.name, row.about), ())), float(row.value)
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
        case [comment, by, dict() as more] if more.keys() <= {"action", "call"}:
            return {"comment": comment, "by": by, **more}
    raise Damaged(place.name, "it has other parts")
