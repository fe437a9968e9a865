"""What recovery did not repeat, and what each crash cost: from the events of a run, pure.

A crash is a segment without an end: the next claim is a `recovered` event. The last event before it
is the last sign of the lost worker. From then on the worker may have gone on for a while, or hung,
and its lease had to run out; the journal has no event of that, so all of it is time lost.

The step that was under way runs again. Of its effects, those with an outcome come from the record
(`saved`). One that was begun and has none is called again, verified, or held for a person. What was
done in steps before, and in this one, is `kept`: a run that started over would do all of it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from perdure.operations.effects import How
from perdure.service.views.event_wording import worker_name
from perdure.types import EffectState, Event, EventKind

CLAIMS = (EventKind.CLAIMED, EventKind.RECOVERED)
SETTLED = (EffectState.DONE, EffectState.FAILED)
MODEL = "model"
"""The name of the effect that the middleware makes of a model call."""


@dataclass(frozen=True)
class Work:
    """An amount of work."""

    effects: int = 0
    """Effects."""
    model_calls: int = 0
    """Model calls among them."""
    tokens: int = 0
    """Tokens of those model calls."""

    def plus(self, other: Work) -> Work:
        return Work(
            self.effects + other.effects,
            self.model_calls + other.model_calls,
            self.tokens + other.tokens,
        )


@dataclass(frozen=True)
class Recovery:
    """One crash of a run: what it cost, and what was saved."""

    segment: int
    """The number of the segment that took over; the lost one is the one before."""
    worker: str
    """The worker that took over: its host and process."""
    lost_worker: str
    """The worker that was lost."""
    last_sign: datetime
    """The last event before the worker was lost."""
    recovered_at: datetime
    """When the next worker claimed the run."""
    step: int | None
    """The step in progress, which ran again; None if no step was stored before."""
    nodes: tuple[str, ...] = ()
    """The nodes of that step, once it is stored."""
    called_again: tuple[str, ...] = ()
    """Keys of effects whose outcome was lost with the worker, and that were called again."""
    verified: tuple[str, ...] = ()
    """Keys of effects whose outcome was lost, and found by asking the far side."""
    held: tuple[str, ...] = ()
    """Keys of effects whose outcome was lost, and that a person has to settle."""
    saved: Work = field(default_factory=Work)
    """What the segment that took over got from the record instead of calling again."""
    kept: Work = field(default_factory=Work)
    """Work done before the crash, which starting over would have repeated."""
    kept_steps: int = 0
    """The steps before the crash."""

    @property
    def lost(self) -> timedelta:
        """The time from the last sign of the lost worker to the claim of the next."""
        return max(timedelta(0), self.recovered_at - self.last_sign)


@dataclass(frozen=True)
class SavedWork:
    """Work that recovery did not repeat, in one run or in many, and what crashes cost."""

    runs: int
    """Number of runs that saved something or were recovered."""
    work: Work
    """What came from the record: when a node ran again after a crash, a wait or a retry."""
    crashes: int
    """Number of crashes."""
    lost: timedelta
    """The time from the last sign of each lost worker to the next claim, added up."""
    recoveries: tuple[Recovery, ...] | None = None
    """Each crash of a run, in order. None for the total of several runs."""


def recoveries(events: Iterable[Event]) -> tuple[Recovery, ...]:
    """Each crash in the history of a run, in order."""
    fold = _Fold()
    for event in events:
        if not event.damaged:
            fold.add(event)
    return tuple(fold.found)


@dataclass
class _Fold:
    """The history so far."""

    found: list[Recovery] = field(default_factory=list)
    segments: int = 0
    worker: str = ""
    last: datetime | None = None
    step: int | None = None
    """The last step of the graph itself; a subgraph inside a step goes on from its own last one."""
    steps: int = 0
    kept: Work = field(default_factory=Work)
    states: dict[str, str] = field(default_factory=dict)
    """The state of each effect by its key, as its last event says."""

    def add(self, event: Event) -> None:
        if event.kind in CLAIMS:
            self._claim(event)
        if event.kind == EventKind.STEP and not event.data.get("ns"):
            self._step(event.data)
        elif event.kind in (EventKind.EFFECT, EventKind.SETTLED):
            self._effect(event)
        if self.found and self.found[-1].segment == self.segments:
            saved: Mapping[str, Any] = event.data.get("saved") or {}
            counts = [saved.get(name, 0) for name in ("effects", "model_calls", "tokens")]
            self._change(saved=self.found[-1].saved.plus(Work(*counts)))
        self.last = event.at

    def _claim(self, event: Event) -> None:
        self.segments += 1
        worker = worker_name(event.data)
        if event.kind == EventKind.RECOVERED:
            crash = Recovery(
                segment=self.segments,
                worker=worker,
                lost_worker=self.worker,
                last_sign=self.last or event.at,
                recovered_at=event.at,
                step=None if self.step is None else self.step + 1,
                kept=self.kept,
                kept_steps=self.steps,
            )
            self.found.append(crash)
        self.worker = worker

    def _step(self, data: Mapping[str, Any]) -> None:
        self.step, nodes = data.get("step"), tuple(data.get("nodes") or ())
        self.steps += bool(nodes)
        self.found = [
            replace(one, nodes=nodes) if one.step == self.step and not one.nodes else one
            for one in self.found
        ]

    def _effect(self, event: Event) -> None:
        data, key = event.data, str(event.data.get("key"))
        state, known = str(data.get("state")), self.states.get(key)
        self.states[key] = state
        if state in SETTLED and known not in SETTLED:
            usage: Mapping[str, Any] = data.get("usage") or {}
            tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
            self.kept = self.kept.plus(Work(1, int(data.get("name") == MODEL), tokens))
        if known is None and self.found and self._was_open(data):
            crash = self.found[-1]
            if state == EffectState.UNKNOWN:
                self._change(held=(*crash.held, key))
            elif data.get("how") == How.CALLED_AGAIN:
                self._change(called_again=(*crash.called_again, key))
            elif data.get("how") == How.VERIFIED:
                self._change(verified=(*crash.verified, key))

    def _was_open(self, data: Mapping[str, Any]) -> bool:
        """Whether an effect was begun before the last crash."""
        begun = data.get("begun_at")
        return begun is not None and begun <= self.found[-1].recovered_at

    def _change(self, **changes: Any) -> None:
        self.found[-1] = replace(self.found[-1], **changes)
