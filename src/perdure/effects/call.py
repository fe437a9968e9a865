"""One call of an effect, and its record: found, or stored as an intent, then its outcome.

Everything that a call writes about itself is here. `settlement.py` decides what to write, and when
the function is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from perdure.commands import effect_payload, effects
from perdure.commands.effect_payload import INJECTED
from perdure.commands.effects import NOTHING_SAVED, EffectRow, How, Mark, Unconfirmed, UndoState
from perdure.effects.matching import ALL, CallPosition, Match
from perdure.effects.spec import EffectSpec
from perdure.effects.task import TaskContext, digest, effect_key
from perdure.errors import EffectHeld, OrderChanged, Postponed
from perdure.journal import Plan
from perdure.journal.names import random_number
from perdure.serde.redaction import secrets_in
from perdure.times import moment
from perdure.types import EffectState, EventKind, PromptVersion

log = logging.getLogger("perdure")

MAX_PAUSE = 5.0
"""Longest pause, in seconds, that a process waits out; a longer one becomes a wait of the run."""


class ModelUsage(NamedTuple):
    """What the result of a model call cost."""

    calls: int
    tokens: int
    model: str
    input_tokens: int
    output_tokens: int

    def as_event(self) -> dict[str, Any]:
        """For the event of the effect."""
        parts = ("model", "input_tokens", "output_tokens")
        return {name: getattr(self, name) for name in parts if getattr(self, name)}


Bound = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional arguments, and those by name."""


@dataclass
class Call:
    """One call of an effect in a task.

    Attributes:
        function: What is called; something else in a run of an evaluation.
        bind: Splits recorded arguments into those by position and those by name.
        call_id: What identifies the call in place of its arguments.
        module: Where its function is: another one may have the same name.
        usage_of: What a result cost.
        row: As it is stored, or about to be.
        other: What may be this call, made with wrong arguments in an abandoned attempt.
        may_be_another: Whether the record may be of a call on another object, or with another
            secret: no argument equals a recorded one, and not all are recorded.
        prompts: Prompt versions that its task had read before it, and it has read itself.
        is_simulated: Whether `function` stands in for the effect.
        _stored: The arguments that are stored.
        interrupts_before: Interrupts of the task before the function was called.
    """

    task: TaskContext
    spec: EffectSpec
    function: Callable[..., Any]
    bind: Callable[[Mapping[str, Any]], Bound]
    arguments: Mapping[str, Any]
    position: CallPosition
    business_key: str | None = None
    call_id: str | None = None
    module: str = ""
    usage_of: Callable[[Any], ModelUsage] | None = None
    row: EffectRow = field(init=False)
    other: EffectRow | None = field(default=None, init=False)
    may_be_another: bool = field(default=False, init=False)
    prompts: dict[PromptVersion, None] = field(default_factory=dict, init=False)
    is_simulated: bool = field(default=False, init=False)
    _stored: dict[str, Any] = field(default_factory=dict, init=False)
    _encoded: bytes = field(default=b"", init=False)
    _digest: str = field(default="", init=False)
    interrupts_before: int = field(default=0, init=False)

    @property
    def is_of_another_run(self) -> bool:
        owner = self.task.owner
        return (self.row.thread_id, self.row.run_id) != (owner.thread_id, owner.run_id)

    # -- find it, or store an intent

    def find(self) -> Plan[EffectRow | None]:
        """Look up what is stored for this call. `row` is what to store if there is nothing."""
        task, spec, owner = self.task, self.spec, self.task.owner
        self._stored = effect_payload.stored_arguments(spec.record, self.arguments)
        if task.segment is not None:
            task.segment.secrets.update(self._secrets)
        self._encoded = effect_payload.encode_arguments(task.serializer, spec.name, self._stored)
        self._stored = task.serializer.redacted(self._stored)
        by_arguments = self._encoded + self.module.encode()
        identified_by = by_arguments if self.call_id is None else self.call_id.encode()
        self._digest = digest(identified_by)
        self.prompts.update(dict.fromkeys(task.prompts_read()))
        if self.business_key is not None:
            key = f"{spec.name}:{self.business_key}"
            scope, task_id, match = f"key {key}", "", Match(0, None)
        else:
            match = yield from self._match()
            scope, task_id = owner.thread_id, task.id
            key = effect_key(scope, task_id, spec.name, match.n)
        self.other = match.other
        self.may_be_another = match.equal <= 0 and self._has_unrecorded
        self.row = EffectRow(
            scope=scope,
            task=task_id,
            name=spec.name,
            n=match.n,
            key=key,
            thread_id=owner.thread_id,
            run_id=owner.run_id,
            checkpoint_id=task.checkpoint_id,
            state=EffectState.OPEN.value,
            intent=random_number(),
            attempts=1,
            digest=self._digest,
            undo=(UndoState.NONE if spec.compensate is None else UndoState.POSSIBLE).value,
            mark=(Mark.MAY_STAY_OPEN if spec.may_stay_open else Mark.NONE).value,
            created_at=task.now,
            unconfirmed=int(match.unconfirmed),
        )
        if self.business_key is None:
            return match.row
        guarded: EffectRow | None = yield effects.guarded(self.row.place, key)
        return guarded

    def _match(self) -> Plan[Match]:
        """Find the record. Raises `OrderChanged` if another call of this attempt matched it."""
        task = self.task
        if task.abandoned is not None:
            raise task.abandoned  # the agent's code swallowed it
        yield from task.load_records()
        match = task.records.match_record(
            self.spec.name,
            self._digest,
            self._equal_arguments,
            self.position,
            match_open=self.spec.unknown == "hold",
            shares_withdrawn=self.spec.shares_withdrawn,
        )
        if match.row is not None and match.min_equal:
            yield task.guarded(effects.raise_min_equal(task.owner, match.row, match.min_equal))
            task.abandoned = OrderChanged(match.row.key, match.row.name)
            raise task.abandoned
        row = match.row
        if row is not None and row.unconfirmed == Unconfirmed.YES and not match.unconfirmed:
            task.journal.defer(task.guarded(effects.confirm(task.owner, row)))
        return match

    def store_intent(self) -> Plan[EffectRow | None]:
        """Store the intent, after every checkpoint before it. Gives the row that another process
        stored first, if one did."""
        task, row = self.task, self.row
        blob = effect_payload.dump_arguments(task.serializer, row, self._encoded, self._stored)
        self.row = row = row._replace(arguments=blob)
        yield from task.wait_for_checkpoints()
        if self.spec.transactional:
            return None
        intent = task.guarded(effects.store_intent(task.owner, row))
        if task.segment is not None:  # nothing is done from a state that could not be stored
            intent = intent._replace(prepare=task.segment.check_stored)
        if self.spec.reads and not task.is_sync:
            task.journal.defer(intent)
        elif not (yield intent):
            row = yield effects.at(row.place)
        task.records.remember(row)
        return None if row is self.row else row

    def take_over(self, attempts: int) -> Plan[bool]:
        """Replace the intent by one of our own. False: another process was faster."""
        task, intent = self.task, random_number()
        op = effects.take_over(task.owner, self.row, intent, attempts, task.now)
        self.row = yield task.guarded(op)
        task.records.remember(self.row)
        return self.row.intent == intent

    # -- what is stored

    @property
    def _has_unrecorded(self) -> bool:
        """Whether something that decides what the call does is not recorded."""
        if self.spec.reads or self.spec.in_journal:
            return False
        return any(name not in self._stored and name not in INJECTED for name in self.arguments)

    def _equal_arguments(self, row: EffectRow) -> int:
        """How many arguments equal the recorded ones: `ALL`, or how many that distinguish calls; -1
        if the record cannot be this call's."""
        if row.digest == self._digest:
            return ALL
        if self.call_id is not None:
            return 0
        try:
            recorded, present = row.load_arguments(self.task.serializer), self._stored
            if recorded == present:
                return ALL
            if any(recorded.get(name) != present.get(name) for name in self.spec.identity):
                return -1
            common = [name for name in present if name in recorded]
            equal = sum(
                bool(recorded[name] == present[name]) and self._tells_apart(present[name])
                for name in common
            )
            # It did not happen, and is left to its own call. But one that a wait inside it ended is
            # half done, and what it called must be found.
            is_undone = row.state == EffectState.AGAIN and row.due_at is None
            return -1 if is_undone and not equal and self._has_unrecorded else equal
        except Exception:  # they cannot be read or compared
            return 0

    def _tells_apart(self, value: Any) -> bool:
        """A flag says nothing about which call this is; neither does a recorded read, which comes
        back in the same order whatever the calls are."""
        if value is None or isinstance(value, bool):
            return False
        return not any(read in str(value) for read in self.task.recorded_reads())

    def has_arguments(self, row: EffectRow) -> bool:
        """Whether a call in another run had the same arguments."""
        return bool(row.load_arguments(self.task.serializer) == self._stored)

    def recorded_arguments(self) -> dict[str, Any]:
        """The stored arguments; those that are not stored come from the present call."""
        serializer = self.task.serializer
        recorded = self.row.load_arguments(serializer)
        return effect_payload.complete(serializer, recorded, self.arguments)

    def replay_result(self) -> Any:
        """The recorded result, counted as saved."""
        if self.is_of_another_run:
            data = {"name": self.row.name, "key": self.row.key, "state": self.row.state}
            how = f"in run {self.row.run_id or 'of no runtime'}"
            self._add_event(EventKind.EFFECT, {**data, "how": how})
        outcome = self.row.load_outcome(self.task.serializer)
        result, usage, interrupts = outcome if len(outcome) == 3 else (outcome[0], None, 0)
        self._note_saved(*(usage or (0, 0)))
        self.position.skip_interrupts(interrupts)
        return result

    def replay_error(self) -> Exception:
        """The recorded exception, counted as saved."""
        self._note_saved(0, 0)
        stored = self.row.load_outcome(self.task.serializer)
        self.position.skip_interrupts(stored.get("asked", 0))
        return effect_payload.mark_recorded(effect_payload.restore_error(self.row.key, stored))

    # -- write how far it is

    def done(self, result: Any, *, wait: bool = True, how: How | None = None) -> Plan[Any]:
        """Store the result. `wait=False`: with the next commit, because the far side has the key
        and recognises a second call. `how`: if it was not simply called."""
        task, row, keep = self.task, self.row, self.spec.record.result
        try:
            result = keep(result) if keep is not None else result
            usage = None if self.usage_of is None else self.usage_of(result)
            cost = None if usage is None else (usage.calls, usage.tokens)
            interrupts = self.position.interrupts_so_far() - self.interrupts_before
            blob = effect_payload.dump_result(task.serializer, row, result, cost, interrupts)
        except Exception as error:
            self.row = row._replace(mark=Mark.FINAL.value)  # it happened, and must not again
            return (yield from self.failed(error))
        data: dict[str, Any] = {} if how is None else {"how": how.value}
        if usage is not None:
            data["usage"] = usage.as_event()
        yield from self._settle(EffectState.DONE, blob, data, wait=wait)
        return task.serializer.redacted(result)  # as a replay gives it

    def failed(self, error: Exception) -> Plan[None]:
        """Store a final exception, and raise it."""
        data = {"error": self.describe(error)}
        outcome = self.dump_error(EffectState.FAILED, error)
        yield from self._settle(EffectState.FAILED, outcome, data)
        raise effect_payload.mark_recorded(error)

    def _settle(
        self, state: EffectState, outcome: bytes, data: dict[str, Any], *, wait: bool = True
    ) -> Plan[None]:
        task, is_soon = self.task, self.spec.reads and not self.task.is_sync
        if task.segment is not None:
            task.segment.progress.move()
        # What would cost most to lose is not left to the next commit.
        wait = not is_soon and (wait or self.spec.unknown == "hold" or task.is_sync)
        if not (yield from self.write(state, outcome, data, wait=wait)):
            why = "another process took it over, and what this one did is not recorded"
            raise EffectHeld(self.row.key, self.row.name, why)
        if is_soon:
            task.journal.commit_soon()

    def write(
        self,
        state: EffectState,
        outcome: bytes | None,
        data: dict[str, Any] | None,
        due_at: int | None = None,
        *,
        wait: bool = False,
    ) -> Plan[bool]:
        """Store a new state, with an event if there is data: with the next commit, or now if `wait`
        is set. False: another process took the call over."""
        task = self.task
        self.row = self.row._replace(state=state.value, outcome=outcome, due_at=due_at)
        task.records.remember(self.row)
        event, saved = None, NOTHING_SAVED
        if data is not None:
            begun = {"attempt": self.row.attempts, "begun_at": moment(self.row.created_at)}
            event = (task.serializer, {**begun, **data, **self.prompts_in_event()})
            if task.segment is not None:
                saved = task.segment.progress.take_saved()
        op = effects.write_state(task.owner, self.row, task.now, event=event, saved=saved)
        op = task.guarded(op)
        if wait:
            return bool((yield op))
        task.journal.defer(op)
        return True

    def prompts_in_event(self) -> dict[str, list[list[str]]]:
        """What the event of this call says of the prompts that it has read."""
        return {"prompts": [list(one) for one in sorted(self.prompts)]} if self.prompts else {}

    def hold(self, why: str, error: BaseException | None) -> Plan[None]:
        """Store that the outcome is unknown, and raise `EffectHeld`: a person settles it."""
        outcome = None if error is None else self.dump_error(EffectState.UNKNOWN, error)
        yield from self.write(EffectState.UNKNOWN, outcome, {"why": why}, wait=True)
        raise EffectHeld(self.row.key, self.row.name, why)

    def hold_uncalled(self, other: EffectRow) -> Plan[None]:
        """Store this call without making it, and raise `EffectHeld`: a person says whether `other`,
        which was made, stands for it."""
        task, row, now = self.task, self.row, self.task.now
        why = (
            f"an abandoned attempt, whose order of calls had changed, made it with other arguments "
            f"as {other.key}. If that stands for this call, settle this one as done; to make this "
            "one too, settle it as retry"
        )
        blob = effect_payload.dump_arguments(task.serializer, row, self._encoded, self._stored)
        self.row = row = row._replace(
            arguments=blob, state=EffectState.UNKNOWN.value, unconfirmed=0
        )
        yield from task.wait_for_checkpoints()
        event = (task.serializer, {"why": why})
        yield task.guarded(effects.store_unknown(task.owner, row, other, now, event))
        raise EffectHeld(row.key, row.name, why)

    # -- until the next attempt

    def pause_until(self, due_at: int) -> Plan[None]:
        """Wait here, or give the process back by raising `Postponed`."""
        seconds, segment = max(0, due_at - self.task.now) / 1000, self.task.segment
        closing = segment is not None and segment.closing
        if closing or (seconds > MAX_PAUSE and self.task.postpones):
            raise Postponed(self.row.key, self.row.name, due_at, self.row.attempts)
        if seconds > 0:
            yield seconds

    # -- errors, counts and events

    @property
    def _secrets(self) -> set[str]:
        """What is not stored of the arguments, and must not be in an error's text either."""
        left_out = [self.arguments[name] for name in self.arguments if name not in self._stored]
        texts = {one for one in left_out if isinstance(one, str) and len(one) > 3}
        hides = effect_payload.names_of_secrets(self.task.serializer)
        return texts | set(secrets_in(dict(self.arguments), hides))

    def dump_error(self, state: EffectState, error: BaseException) -> bytes:
        interrupts = self.position.interrupts_so_far() - self.interrupts_before
        return effect_payload.dump_error(
            self.task.serializer, self.row, state, error, self._secrets, interrupts
        )

    def describe(self, error: BaseException) -> str:
        message = effect_payload.describe(self.task.serializer, error, self._secrets)["message"]
        return f"{type(error).__name__}: {message}"

    def report_other_arguments(self) -> None:
        """Add an event if the arguments differ from the recorded ones."""
        row = self.row
        withdrawn = row.state == EffectState.AGAIN and self.spec.shares_withdrawn
        if withdrawn or self._equal_arguments(row) == ALL:
            return
        if row.task:
            noted = effects.note_provisional_match(self.task.owner, row, self._digest)
            self.task.journal.defer(self.task.guarded(noted))
        self._add_event(EventKind.DIFFERS, {"name": row.name, "key": row.key})

    def _note_saved(self, model_calls: int, tokens: int) -> None:
        if self.task.segment is not None:
            name, key = self.row.name, self.row.key
            self.task.segment.progress.note_saved(
                name, key, self.task.namespace, model_calls, tokens
            )

    def _add_event(self, kind: EventKind, data: dict[str, Any]) -> None:
        task = self.task
        if task.owner.run_id:
            op = effects.add_event(task.owner, task.serializer, task.now, kind, data)
            task.journal.defer(task.guarded(op))
        else:
            log.info("effect %s: %s", kind, data)
