"""Plans about scores: give one to a run, a step or an effect; list those of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from perdure.commands import effects, events, runs
from perdure.commands.connection import Connection
from perdure.commands.effects import EffectRow
from perdure.commands.events import actor_data, actor_name, change
from perdure.commands.runs import RunRow
from perdure.errors import UNREADABLE, BadArgument, Damaged, NotFound
from perdure.journal import (
    CONFIRM,
    Op,
    Plan,
    Statement,
    first_as,
    read_op,
    rows_as,
    with_params,
)
from perdure.journal.names import check_id, check_text
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds, moment
from perdure.types import Event, EventKind, PromptVersion, Score, ScoreKind
from perdure.verbs import check_name, recorded, verb

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


def place_of(
    thread_id: str,
    run_id: str,
    name: str,
    about: str,
    value: float,
    at: int,
    *other: str | None,
) -> Place:
    """Where the comment of a score belongs. That of a number about a run or a named part of it is
    as it was before there were others."""
    columns: tuple[Any, ...] = (thread_id, value, at)
    if other != ("number", None, "", ""):
        columns += other
    return Place(f"score {name!r} of {about!r} of run {run_id}", columns)


def put(
    serializer: Serializer, thread_id: str, score: Score, seen: int, attempt: int | None = None
) -> Op[bool]:
    """Store a score with its event, in place of the one whose change was `seen`. `attempt` is that
    of the effect it is about. False: another process changed that score meanwhile, or the run is
    gone."""
    made = change(thread_id, score.run_id, milliseconds(score.at))
    value = (score.value or 0.0) + 0.0  # SQLite has no -0.0
    target = next((name for name in TARGETS if getattr(score, name) is not None), "")
    target_id = getattr(score, target) if target else ""
    columns = (value, made.now, score.kind.value, score.label, target, target_id)
    place = place_of(thread_id, score.run_id, score.name, score.about, *columns)
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
    statements = [  # the run before the score: an answer has that order, too
        *with_params(params, "lock_run", "put_score", "record_note"),
        made.event(serializer, EventKind.SCORED, _event_data(score, attempt)),
        Statement("trace_changed", params),
    ]
    return made.op(f"score {score.name!r}", statements, 1)


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

    return read_op(
        "scores_of_run",
        {"thread_id": thread_id, "id": run_id},
        lambda rows: [
            (_to_score(serializer, thread_id, run_id, row), row.change)
            for row in rows_as(ScoreRow)(rows)
        ],
    )


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
    place = place_of(thread_id, run_id, row.name, row.about, *columns)
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


MAX_NUMBER = 1e300

PAGE = 500
"""Events read at once."""


def check_score(
    name: str, value: Any, targets: dict[str, Any], comment: str | None, by: str | None
) -> tuple[float | str | None, str | dict[str, str]]:
    """The value of a score, and what it is about, as they are stored. `targets` has `about`, `step`
    and `effect`. Raises `BadArgument`."""
    check_name("name", name)
    for label, text in (("comment", comment), ("by", by)):
        if text is not None:
            check_text(label, text)
    passed = {target: id for target, id in targets.items() if id not in (None, "")}
    if len(passed) > 1:
        raise BadArgument(f"A score is about one of {', '.join(passed)}: pass one of them.")
    [(target, id)] = passed.items() or [("about", "")]
    about = check_text(target, id if target == "about" else check_id(target, id))
    return _check_value(name, value, comment), about if target == "about" else {target: about}


def _check_value(name: str, value: Any, comment: str | None) -> float | str | None:
    if isinstance(value, (int, float)) and abs(value) <= MAX_NUMBER:
        return float(value)
    if isinstance(value, str) and value:
        return check_text("value", value)
    if value is None and comment:
        return None
    if value is None:
        raise BadArgument(f"Score {name!r} has neither a value nor a comment: pass one.")
    raise BadArgument(
        f"A score must be a number or a text that names a category, not {str(value)[:40]!r}."
    )


def _find_run(run_id: str) -> Plan[RunRow]:
    row: RunRow | None = yield runs.find(check_id("run", run_id))
    if row is None:
        raise NotFound("run", run_id)
    return row


def _check_target(
    run: RunRow, history: list[Event], step: str | None, effect: str | None
) -> Plan[int | None]:
    """Raise unless what a score is about is there, and of this run. Returns the number of the
    effect's last attempt. A step that was pruned is still in the history."""
    if effect is not None:
        row: EffectRow | None = yield effects.find(effect)
        if row is None:
            raise NotFound("effect", effect)
        if row.run_id != run.id:
            whose = f"of run {row.run_id}" if row.run_id else "of no run"
            raise BadArgument(f"Effect {effect} is {whose}, not of run {run.id}.")
        return row.attempts
    if step is not None and all(event.data.get("checkpoint") != step for event in history):
        raise NotFound(f"step of run {run.id}", step)
    return None


def _prompts_read(
    history: list[Event], step: str | None, effect: str | None
) -> tuple[PromptVersion, ...]:
    """The prompt versions that a step or effect has read so far, or else all that the run has:
    their events name them."""
    read = {
        PromptVersion(*version)
        for event in history
        if step in (None, event.data.get("checkpoint")) and effect in (None, event.data.get("key"))
        for version in event.data.get("prompts", ())
    }
    return tuple(sorted(read))


def _steps_and_effects(on: Connection, run: RunRow) -> Plan[list[Event]]:
    """The events of a run that name prompts."""
    history: list[Event] = []
    while True:
        after = history[-1].n if history else 0
        kinds = EventKind.STEP, EventKind.EFFECT
        page: list[Event] = yield events.events_of(
            on.serializer, run.thread_id, run.id, after, PAGE, kinds=kinds
        )
        history += page
        if len(page) < PAGE:
            return history


@recorded("score")
def _score(
    on: Connection,
    run_id: str,
    name: str,
    value: float | str | None,
    about: str | dict[str, str],
    comment: str | None,
    by: str | None,
) -> Plan[None]:
    """Store a score with its event. One that is there already changes nothing."""
    row = yield from _find_run(run_id)
    targets = about if isinstance(about, dict) else {}
    step, effect = targets.get("step"), targets.get("effect")
    history = yield from _steps_and_effects(on, row)
    attempt = yield from _check_target(row, history, step, effect)
    kind = ScoreKind.NUMBER
    if not isinstance(value, float):
        kind = ScoreKind.TEXT if value is None else ScoreKind.CATEGORY
    made = Score(
        row.id,
        name,
        value if isinstance(value, float) else None,
        about if isinstance(about, str) else next(iter(about.values())),
        moment(on.clock.now()),
        on.serializer.redacted_text(comment),
        by,
        kind,
        on.serializer.redacted_text(value) if isinstance(value, str) else None,
        step=step,
        effect=effect,
        prompts=_prompts_read(history, step, effect),
    )
    plain = replace(made, by=events.actor_name(by))
    place = {"thread_id": row.thread_id, "id": row.id, "name": name, "about": made.about}
    while True:
        stored: ScoreRow | None = yield read_op("find_score", place, first_as(ScoreRow))
        if stored is not None:
            before = _to_score(on.serializer, row.thread_id, row.id, stored)
            if replace(before, at=made.at, prompts=made.prompts) == plain:
                yield CONFIRM
                return
        seen = UNSEEN if stored is None else stored.change
        if (yield put(on.serializer, row.thread_id, made, seen, attempt)):
            return
        yield from _find_run(run_id)


@verb()
async def score(
    on: Connection,
    run_id: str,
    name: str,
    value: float | str | None = None,
    *,
    about: str = "",
    step: str | None = None,
    effect: str | None = None,
    comment: str | None = None,
    by: str | None = None,
) -> None:
    """Record how well a run did: a number, a category, or only a comment.

    A run can be scored at any time, even weeks after its end. A score is about the whole run,
    unless one of `about`, `step` and `effect` is given. A later score with the same name, for the
    same part, replaces the earlier one; giving the same score again changes nothing. Scores are
    deleted with their run.

        await client.score(run.id, "replied", True, about="touch-2")
        await client.score(run.id, "tone", "too formal", effect=sent.key, by="ana")

    The score and its event `scored` are one commit; nothing else about the run changes, not even
    `updated_at`, so `prune` is not delayed.

    Args:
        run_id: The id of the run.
        name: The name of the score, up to 256 bytes.
        value: A number, true or false, or text that names a category. Without a value the
            comment is the score.
        about: A part of the run, by a name of your choice.
        step: The step with this checkpoint id: `checkpoint` in the data of its event.
        effect: The effect with this key.
        comment: Why, up to 64 KiB of text. It is not in the event.
        by: Who gave the score.

    Raises:
        NotFound: The journal has no such run, or the run has no such step or effect.
        BadArgument: The score has neither a value nor a comment, or is about more than one
            part.
    """
    targets = {"about": about, "step": step, "effect": effect}
    stored, part = check_score(name, value, targets, comment, by)
    await _score(on, run_id, name, stored, part, comment, by)


@verb(name="scores")
def list_scores(on: Connection, run_id: str) -> Plan[list[Score]]:
    """List the scores of a run, oldest first.

    Args:
        run_id: The id of the run.

    Raises:
        NotFound: The journal has no run with this id.
    """
    row = yield from _find_run(run_id)
    scores: list[tuple[Score, int]] = yield of_run(on.serializer, row.thread_id, row.id)
    return [score for score, _ in scores]
