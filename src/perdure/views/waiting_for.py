"""What a run is waiting for: in a few words, for a line of a list, and in sentences with the next
step, for its page and the inbox.

    ana, to approve send_email, until Friday 14:00 (2d 3h left)
    the signal reply, until 12 Nov 09:00 (12d left)
    the clock, tomorrow 09:00 (in 18h 20m)
    its turn: after run 01a1e0e9-17b9-7a71-a92c-88b86dbc9293
    a worker: due for 3m
    a person: held, the outcome of charge is unknown
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from perdure.commands.answer_dialects import Dialect, dialect_of
from perdure.commands.effects import SETTLED_BY
from perdure.commands.inbox import SOON
from perdure.commands.run_search import RunLine
from perdure.commands.waits import Answer
from perdure.commands.workers import UnknownGraphName
from perdure.times import utc_time
from perdure.types import Control, EffectRecord, EffectState, Kind, Run, State, Wait, WaitRecord
from perdure.views.event_wording import MOST_RUNS, FormatTime, NextStep, Tone, Verb, name_runs
from perdure.views.formatting import (
    age,
    arguments,
    calendar_time,
    count,
    duration,
    graph_title,
    shorten,
)
from perdure.views.question import question_of
from perdure.views.schema_words import example_answer, summarise_schema

if TYPE_CHECKING:
    from perdure.commands.waits import Answer
    from perdure.commands.workers import UnknownGraphName


LATE = timedelta(seconds=5)
"""How long a run may be due before that is worth a line."""


@dataclass(frozen=True)
class InboxItem:
    """Something that is stuck until a person acts."""

    record: Wait | EffectRecord | Run
    """The question, effect or run."""
    title: str
    """A line that names it."""
    note: str
    """Since when, and until when."""
    shown: Any
    """What the person decides about: a question, the arguments of a call, a reason."""
    action: NextStep
    """The next step: its `verb` is `answer`, `settle` or `retry`."""
    accepts: str = ""
    """The answers that fit, in a line."""


@dataclass(frozen=True)
class Blocker:
    """One reason why a run does not go on now."""

    text: str
    tone: Tone = Tone.PLAIN
    shown: Any = None
    """The question to a person."""
    action: NextStep | None = None


def inbox(
    waits: Iterable[Wait], effects: Sequence[EffectRecord], held: Iterable[Run], now: datetime
) -> list[InboxItem]:
    """What needs a person, each once: a held run with unknown effects goes on when they are
    settled, so only its effects are listed."""
    unsettled = {one.run_id for one in effects}
    return [
        *(_question(one, now) for one in waits),
        *(_unknown(one, now) for one in effects),
        *(_held(one, now) for one in held if one.id not in unsettled),
    ]


def _question(wait: Wait, now: datetime) -> InboxItem:
    expires = f", expires {age(wait.expires_at, now)}" if wait.expires_at else ""
    note = f"asked {age(wait.created_at, now)} ago{expires}"
    schema, dialect = wait.response_schema, _dialect(wait)
    accepts = "" if schema is None else summarise_schema(schema) or str(schema)
    accepts = accepts if dialect is None else dialect.summary
    shown = wait.damaged or _shown(wait)
    return InboxItem(wait, wait.thread_id, note, shown, answer_action(wait), accepts)


def _unknown(effect: EffectRecord, now: datetime) -> InboxItem:
    title, note = f"{effect.name}  {effect.thread_id}", f"unknown for {age(effect.updated_at, now)}"
    error = effect.damaged or (str(effect.error) if effect.error else None)
    shown = {**effect.arguments, **({"error": error} if error else {})}
    return InboxItem(effect, title, note, shown, NextStep(Verb.SETTLE, (effect.key,)))


def _held(run: Run, now: datetime) -> InboxItem:
    title, note = f"{run.graph}  {run.thread_id}", f"held {age(run.updated_at, now)} ago"
    return InboxItem(run, title, note, run.reason or "", NextStep(Verb.RETRY, (run.id,)))


def _dialect(wait: Wait) -> Dialect | None:
    return dialect_of(wait.value) if wait.response_schema is None else None


def _shown(wait: Wait) -> Any:
    """The question of a wait. Of a HumanInTheLoopMiddleware the calls that it would let pass."""
    if _dialect(wait) is None or "action_requests" not in wait.value:
        return wait.value
    return "\n".join(map(_call, wait.value["action_requests"]))


def _call(action: Mapping[str, Any]) -> str:
    name, args, text = (action.get(one) for one in ("name", "args", "description"))
    call = f"{name}({arguments(args) if isinstance(args, Mapping) else args})"
    described = str(text or "").removesuffix(f"\n\nTool: {name}\nArgs: {args}")
    return "\n  ".join((call, *described.splitlines()))


def answer_action(wait: Wait) -> NextStep:
    """Answer a wait, with an answer that its schema or dialect accepts if there are choices."""
    if (dialect := _dialect(wait)) is not None:
        example = json.dumps(dialect.example, ensure_ascii=False, default=str)
        return NextStep(Verb.ANSWER, (wait.id,), example)
    return NextStep(Verb.ANSWER, (wait.id,), example_answer(wait.response_schema) or "JSON")


def blockers(
    run: Run,
    waits: Iterable[WaitRecord],
    effects: Iterable[EffectRecord],
    now: datetime,
    unknown_graphs: Iterable[UnknownGraphName] = (),
    answers: Mapping[str, Answer] = MappingProxyType({}),
    format_time: FormatTime = utc_time,
) -> list[Blocker]:
    """Why a run does not go on now, and what would make it. Empty for one that does, or is done."""
    waits, effects = list(waits), list(effects)
    found = [
        _open_wait(one, format_time)
        for one in waits
        if one.state == "open" and _waits_for(run, one, now)
    ]
    found += [Blocker(one.damaged, Tone.BAD) for one in effects if one.damaged]
    unknown = [one for one in effects if one.state is EffectState.UNKNOWN]
    for one in unknown:
        text = f"effect {one.name} has an unknown outcome"
        found.append(Blocker(text, Tone.BAD, action=NextStep(Verb.SETTLE, (one.key,))))
    if run.error is not None and run.state is not State.DONE:
        found.append(Blocker(str(run.error), Tone.BAD))
    if run.reason and run.reason != str(run.error) and not unknown:
        cancelled = "cancelled: " if run.state is State.CANCELLED else ""
        found.append(Blocker(f"{cancelled}{run.reason}"))
    if run.state in (State.HELD, State.FAILED) and not unknown:
        found += [_given_up(one) for one in effects if _is_given_up(one, run)]
        text = f"it stays {run.state} until it is retried"
        found.append(Blocker(text, action=NextStep(Verb.RETRY, (run.id,))))
        last = [one for one in waits if _is_last_answer(one) and one.id in answers]
        found += [_answered(one, answers[one.id]) for one in last]
    if run.state is State.PAUSED:
        text = "paused until it is resumed"
        found.append(Blocker(text, action=NextStep(Verb.RESUME, (run.id,))))
    return found + _unclaimed(run, now, unknown_graphs)


def _waits_for(run: Run, wait: WaitRecord, now: datetime) -> bool:
    """Whether an open wait is what a run waits for: no clock wakes one that is held or paused."""
    if run.ended or wait.kind is not Kind.CLOCK:
        return not run.ended
    late = wait.wake_at is not None and wait.wake_at < now
    return run.state not in (State.HELD, State.PAUSED) and not late


def _is_given_up(effect: EffectRecord, run: Run) -> bool:
    """Whether a run failed because a person settled an effect as failed."""
    told = "" if run.error is None else f"{run.error.message}\n{run.error.traceback}"
    settled = f"Effect {effect.key} failed: {SETTLED_BY} "
    return effect.state is EffectState.FAILED and settled in told


def _given_up(effect: EffectRecord) -> Blocker:
    text = f"effect {effect.name} was settled as failed: a retry alone fails again. To call it"
    return Blocker(text, action=NextStep(Verb.SETTLE, (effect.key,), "retry"))


def _is_last_answer(wait: WaitRecord) -> bool:
    """Whether a person's answer is one that its run may have failed with."""
    is_answer = wait.kind is Kind.HUMAN and wait.state == "applied" and wait.answer is not None
    if wait.expires_at is None or wait.answered_at is None:
        return is_answer
    return is_answer and wait.answered_at < wait.expires_at


def _answered(wait: WaitRecord, answer: Answer) -> Blocker:
    text = f"it may have failed with the answer of {wait.answered_by or 'someone'}"
    action = NextStep(Verb.WITHDRAW, (wait.id,))
    if not answer.can_withdraw:
        text += ". That can no longer be withdrawn; a fork asks again"
        place = () if answer.checkpoint_id is None else (answer.checkpoint_id,)
        action = NextStep(Verb.FORK, (wait.run_id, *place))
    return Blocker(text, shown=wait.answer, action=action)


def _open_wait(wait: WaitRecord, format_time: FormatTime) -> Blocker:
    if wait.damaged:
        return Blocker(wait.damaged, Tone.BAD)
    if wait.kind is Kind.CLOCK and wait.wake_at is not None:
        action = NextStep(Verb.WAKE, (wait.run_id,))
        return Blocker(f"asleep until {format_time(wait.wake_at)}", action=action)
    until = f", until {format_time(wait.expires_at)}" if wait.expires_at else ""
    if wait.kind is Kind.SIGNAL:
        action = NextStep(Verb.SIGNAL, (wait.thread_id, wait.name or ""))
        about = {name: one for name, one in wait.value.items() if name != "signal"} or None
        return Blocker(f"waits for the signal {wait.name}{until}", shown=about, action=action)
    if wait.kind is Kind.RUN:
        return Blocker(f"waits for {name_runs(wait.value['join'])}{until}")
    return Blocker(f"asks a person{until}", shown=_shown(wait), action=answer_action(wait))


def no_worker(graph: UnknownGraphName) -> str:
    """Why runs of a graph may wait. The journal knows what was driven, not which workers are up."""
    name = graph_title(graph.graph, graph.version)
    return (
        f"perhaps no worker has this graph: no run of {name!r} was driven lately."
        f"{graph.suggestion} If none has, start a worker that registers it, or cancel the run"
    )


def _unclaimed(
    run: Run, now: datetime, unknown_graphs: Iterable[UnknownGraphName]
) -> list[Blocker]:
    """Why no worker drives a run that could be driven."""
    if is_lost(run, now):
        text = "its worker was lost, and no other one has taken it over: start perdure worker PLACE"
        return [Blocker(text, Tone.BAD)]
    if run.state not in (State.PENDING, State.WAITING):
        return []
    if run.due_at is None:
        behind = run.state is State.PENDING
        return [Blocker("starts after the run before it on its thread")] if behind else []
    late = now - run.due_at
    if late < LATE:
        return []
    for one in unknown_graphs:
        if (one.graph, one.version) == (run.graph, run.version):
            return [Blocker(f"due for {duration(late)}: {no_worker(one)}", Tone.BAD)]
    text = f"due for {duration(late)}, and no worker has claimed it: start perdure worker PLACE"
    return [Blocker(text)]


QUOTED = 60
"""Maximum number of characters of a question in a line."""

ASKED_AS = ("prompt", "message", "title", "text")
"""Fields that hold the question, in values without words to the person."""


class Awaited(StrEnum):
    """Who or what a run is waiting for."""

    PERSON = "person"
    SIGNAL = "signal"
    RUNS = "runs"
    CLOCK = "clock"
    TURN = "turn"
    """The run before it on its thread."""
    WORKER = "worker"
    STEP = "step"
    """The current step, after which the run was asked to stop."""


@dataclass(frozen=True)
class WaitingFor:
    """What a run is waiting for."""

    kind: Awaited
    what: str
    """Who or what: `a person, to approve send_email`."""
    detail: str = ""
    """When, or why: `until Friday 14:00 (in 2d)`, `due for 3m`."""
    at: datetime | None = None
    """When the wait ends by itself."""
    more: int = 0
    """How many other waits the run has."""
    wait_id: str | None = None
    signal: str = ""
    """The name of the signal that it waits for."""
    runs: tuple[str, ...] = ()
    """The runs that it waits for."""
    is_urgent: bool = False
    """Whether it expires soon, or has a problem."""

    @property
    def text(self) -> str:
        """All of it in one line."""
        timed = self.kind in (Awaited.PERSON, Awaited.SIGNAL, Awaited.RUNS, Awaited.CLOCK)
        joint = ", " if timed and self.at is not None else ": "
        more = f" and {count(self.more, 'more wait')}" if self.more else ""
        return f"{self.what}{joint}{self.detail}{more}" if self.detail else f"{self.what}{more}"


def line_note(
    line: RunLine,
    now: datetime,
    unknown_graphs: Iterable[UnknownGraphName] = (),
    zone: tzinfo = UTC,
) -> str:
    """What a run is waiting for, or why it ended, in a few words. Empty if it is driven or done.

    Without its waits it is less exact.
    """
    if (awaited := waiting_for(line, now, unknown_graphs, zone)) is not None:
        return awaited.text
    return ended_note(line.run)


def ended_note(run: Run) -> str:
    """Why a run failed or was cancelled."""
    return str(run.reason or run.error or "") if run.ended and run.state is not State.DONE else ""


def waiting_for(
    line: RunLine,
    now: datetime,
    unknown_graphs: Iterable[UnknownGraphName] = (),
    zone: tzinfo = UTC,
) -> WaitingFor | None:
    """What a run is waiting for. None if a worker drives it, or it has ended."""
    run = line.run
    match run.state:
        case State.RUNNING:
            return _driven(line, now)
        case State.HELD | State.PAUSED:
            return _stopped(line)
        case State.PENDING | State.WAITING:
            return _resting(line, now, unknown_graphs, zone)
    return None


def is_lost(run: Run, now: datetime) -> bool:
    """Whether the lease of a run's worker has expired: the worker died, or is silent."""
    return run.state is State.RUNNING and run.due_at is not None and run.due_at <= now


def no_graph(graph: UnknownGraphName) -> str:
    """Why runs of a graph may wait, in a few words."""
    return f"perhaps no worker has this graph.{graph.suggestion}"


def _driven(line: RunLine, now: datetime) -> WaitingFor | None:
    run = line.run
    if is_lost(run, now) and run.due_at is not None:
        detail = f"its worker was lost {age(run.due_at, now)} ago"
        return WaitingFor(Awaited.WORKER, "a worker", detail, is_urgent=True)
    if line.control is None:
        return None
    done = "cancelled" if line.control is Control.CANCEL else "paused"
    return WaitingFor(Awaited.STEP, "its current step", f"then it is {done}")


def _stopped(line: RunLine) -> WaitingFor:
    """A run that continues only when a person acts."""
    run, why = line.run, str(line.run.reason or line.run.error or "")
    if line.unknown:
        names = _named(line.unknown)
        why = f"the outcome of {names} is unknown"
    detail = f"{run.state.value}{f', {why}' if why else ''}"
    return WaitingFor(Awaited.PERSON, "a person", detail, is_urgent=run.state is State.HELD)


def _resting(
    line: RunLine, now: datetime, unknown_graphs: Iterable[UnknownGraphName], zone: tzinfo
) -> WaitingFor:
    run = line.run
    if run.due_at is not None and run.due_at <= now:
        return _due(run, age(run.due_at, now), unknown_graphs)
    if run.state is State.WAITING and line.waits:
        return _wait(line.waits[0], max(line.open_waits, len(line.waits)) - 1, now, zone)
    if run.due_at is not None:
        return _clock(run.due_at, now, zone)
    if run.state is State.PENDING:
        runs = () if line.ahead is None else (line.ahead,)
        detail = f"after run {line.ahead}" if line.ahead else "after the run before it"
        return WaitingFor(Awaited.TURN, "its turn", detail, runs=runs)
    return WaitingFor(Awaited.PERSON, "a person, a signal or a run")


def _due(run: Run, late: str, unknown_graphs: Iterable[UnknownGraphName]) -> WaitingFor:
    for one in unknown_graphs:
        if run.state is State.PENDING and (one.graph, one.version) == (run.graph, run.version):
            detail = f"due for {late}, {no_graph(one)}"
            return WaitingFor(Awaited.WORKER, "a worker", detail, is_urgent=True)
    return WaitingFor(Awaited.WORKER, "a worker", f"due for {late}")


def _clock(at: datetime, now: datetime, zone: tzinfo, more: int = 0) -> WaitingFor:
    detail = f"{calendar_time(at, now, zone)} ({age(at, now)})"
    return WaitingFor(Awaited.CLOCK, "the clock", detail, at, more)


def _wait(wait: Wait, more: int, now: datetime, zone: tzinfo) -> WaitingFor:
    if wait.kind is Kind.CLOCK and wait.wake_at is not None:
        return _clock(wait.wake_at, now, zone, more)
    until, at = "", wait.expires_at
    if at is not None:
        until = f"until {calendar_time(at, now, zone)} ({_left(at, now)})"
    soon = at is not None and at - now < SOON
    if wait.damaged:
        detail = f"its question cannot be read: {wait.damaged}"
        return WaitingFor(Awaited.PERSON, "a person", detail, None, more, wait.id, is_urgent=True)
    if wait.kind is Kind.SIGNAL:
        name = wait.name or ""
        what = f"the signal {name}"
        return WaitingFor(Awaited.SIGNAL, what, until, at, more, wait.id, name, is_urgent=soon)
    if wait.kind is Kind.RUN:
        runs = joined_runs(wait)
        what = f"run {runs[0]}" if len(runs) == 1 else count(len(runs), "run")
        return WaitingFor(Awaited.RUNS, what, until, at, more, wait.id, runs=runs, is_urgent=soon)
    what = f"{wait.assignee or 'a person'}, {what_is_asked(wait)}"
    return WaitingFor(Awaited.PERSON, what, until, at, more, wait.id, is_urgent=soon)


def _left(at: datetime, now: datetime) -> str:
    return f"{duration(at - now)} left" if at > now else "overdue"


def joined_runs(wait: Wait) -> tuple[str, ...]:
    """The ids of the runs that a wait is for."""
    found = wait.value.get("join") if isinstance(wait.value, Mapping) else None
    return tuple(map(str, found)) if isinstance(found, Sequence) else ()


def what_is_asked(wait: Wait) -> str:
    """What a person should do about a question: `to approve send_email`."""
    question = question_of(wait)
    if question.actions:
        return f"to approve {_named([one.tool for one in question.actions])}"
    asked = question.words or _question_in(question.shown)
    return f"to answer “{shorten(asked, QUOTED)}”" if asked.strip() else "to answer"


def _question_in(value: Any) -> str:
    """The text of a question, if its value has one."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        found = (value.get(name) for name in ASKED_AS)
        return next((one for one in found if isinstance(one, str) and one.strip()), "")
    return ""


def _named(names: Sequence[str]) -> str:
    """A few names, each once: `charge, mail and 2 more`."""
    every = [*dict.fromkeys(shorten(name, QUOTED) for name in names)]
    if len(every) > MOST_RUNS:
        return f"{', '.join(every[:MOST_RUNS])} and {len(every) - MOST_RUNS} more"
    *first, last = every or ["it"]
    return f"{', '.join(first)} and {last}" if first else last
