"""Plans about scores: give one to a run, a step or an effect; list those of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perdure.errors import BadArgument, NotFound
from perdure.journal import CONFIRM, Plan
from perdure.journal.clock import Clock
from perdure.journal.names import check_id, check_text
from perdure.operations import effects, events, runs, scores
from perdure.operations.effects import EffectRow
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer
from perdure.service.validation import check_name
from perdure.times import moment
from perdure.types import Event, EventKind, PromptVersion, Score, ScoreKind

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
    given = {target: id for target, id in targets.items() if id not in (None, "")}
    if len(given) > 1:
        raise BadArgument(f"A score is about one of {', '.join(given)}: pass one of them.")
    [(target, id)] = given.items() or [("about", "")]
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


class ScoreService:
    """Plans about the scores of a journal."""

    def __init__(self, serializer: Serializer, clock: Clock) -> None:
        self._serializer, self._clock = serializer, clock

    def score(
        self,
        run_id: str,
        name: str,
        value: float | str | None,
        about: str | dict[str, str],
        comment: str | None,
        by: str | None,
    ) -> Plan[None]:
        """Store a score with its event. One that is there already changes nothing."""
        row = yield from self._find_run(run_id)
        targets = about if isinstance(about, dict) else {}
        attempt = yield from self._check_target(row, **targets)
        kind = ScoreKind.NUMBER
        if not isinstance(value, float):
            kind = ScoreKind.TEXT if value is None else ScoreKind.CATEGORY
        made = Score(
            row.id,
            name,
            value if isinstance(value, float) else None,
            about if isinstance(about, str) else next(iter(about.values())),
            moment(self._clock.now()),
            self._serializer.redacted_text(comment),
            by,
            kind,
            self._serializer.redacted_text(value) if isinstance(value, str) else None,
            step=targets.get("step"),
            effect=targets.get("effect"),
            prompts=(yield from self._prompts_read(row, **targets)),
        )
        plain = replace(made, by=events.actor_name(by))
        while True:
            found: tuple[Score, int] | None = yield scores.find(
                self._serializer, row.thread_id, row.id, name, made.about
            )
            before, seen = found or (None, scores.UNSEEN)
            if before is not None and replace(before, at=made.at, prompts=made.prompts) == plain:
                yield CONFIRM
                return
            if (yield scores.put(self._serializer, row.thread_id, made, seen, attempt)):
                return
            yield from self._find_run(run_id)

    def scores(self, run_id: str) -> Plan[list[Score]]:
        row = yield from self._find_run(run_id)
        found: list[tuple[Score, int]] = yield scores.of_run(
            self._serializer, row.thread_id, row.id
        )
        return [score for score, _ in found]

    def _find_run(self, run_id: str) -> Plan[RunRow]:
        row: RunRow | None = yield runs.find(check_id("run", run_id))
        if row is None:
            raise NotFound("run", run_id)
        return row

    def _check_target(
        self, run: RunRow, step: str | None = None, effect: str | None = None
    ) -> Plan[int | None]:
        """Raise unless what a score is about is there, and of this run. Returns the number of the
        effect's last attempt."""
        if effect is not None:
            found: EffectRow | None = yield effects.find(effect)
            if found is None:
                raise NotFound("effect", effect)
            if found.run_id != run.id:
                whose = f"of run {found.run_id}" if found.run_id else "of no run"
                raise BadArgument(f"Effect {effect} is {whose}, not of run {run.id}.")
            return found.attempts
        if step is not None and not (yield from self._is_step(run, step)):
            raise NotFound(f"step of run {run.id}", step)
        return None

    def _is_step(self, run: RunRow, checkpoint_id: str) -> Plan[bool]:
        """Whether a run made this checkpoint. One that was pruned is still in the history."""
        if (yield scores.is_step(run.thread_id, run.id, checkpoint_id)):
            return True
        steps = yield from self._events(run, EventKind.STEP)
        return any(event.data.get("checkpoint") == checkpoint_id for event in steps)

    def _prompts_read(
        self, run: RunRow, step: str | None = None, effect: str | None = None
    ) -> Plan[tuple[PromptVersion, ...]]:
        """The prompt versions that a step or effect has read so far, or else all that the run has:
        their events name them."""
        history = yield from self._events(run, EventKind.STEP, EventKind.EFFECT)
        read = {
            PromptVersion(*version)
            for event in history
            if step in (None, event.data.get("checkpoint"))
            and effect in (None, event.data.get("key"))
            for version in event.data.get("prompts", ())
        }
        return tuple(sorted(read))

    def _events(self, run: RunRow, *kinds: EventKind) -> Plan[list[Event]]:
        found: list[Event] = []
        page: list[Event] | None = None
        while page is None or len(page) == PAGE:
            after = page[-1].n if page else 0
            page = yield events.events(self._serializer, run.thread_id, run.id, after, PAGE)
            found += [event for event in page if event.kind in kinds]
        return found
