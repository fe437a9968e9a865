"""Plans about runs: accept, show, stop, go on, prune, and what schedules start.

A plan has no colour: the runtime awaits it, and a caller of a bound graph may block on it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from perdure.errors import BadArgument, NotFound, ThreadBusy, WrongState
from perdure.journal import Op, Plan
from perdure.journal.clock import Clock
from perdure.journal.ids import new_id
from perdure.operations import effects, events, runs, schedules, scores
from perdure.operations.effects import report
from perdure.operations.events import change
from perdure.operations.run_payload import UNREADABLE, describe, open_labels, open_setup, tags_of
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer, where_run, where_schedule
from perdure.service.validation import check_config, check_dict, check_tags
from perdure.types import (
    ENDED,
    Event,
    Run,
    RunError,
    Score,
    State,
    maybe_moment,
    milliseconds,
    moment,
)

log = logging.getLogger("perdure")

GRACE = timedelta(seconds=10)
PAGE = 100
SHORTEST_PREFIX = 6
"""Characters of a run's id that may stand for all of it."""


class Ledger:
    """The runs of a journal, for whoever asks for them."""

    def __init__(
        self,
        serializer: Serializer,
        clock: Clock,
        load: Callable[[str, str], Plan[Mapping[str, Any] | None]],
        forget: Callable[[str], None],
    ) -> None:
        """`load` gives the state at a checkpoint of a thread; `forget` is told of threads that are
        deleted."""
        self._serializer, self._clock = serializer, clock
        self._load, self._forget = load, forget

    # -- accepting

    def accept(
        self,
        graph: tuple[str, str],
        thread_id: str,
        setup: dict[str, Any],
        strategy: str,
        *,
        key: str | None = None,
        after: timedelta | datetime | None = None,
        reserve: float = 0.0,
        only: str | None = None,
    ) -> Plan[RunRow]:
        """Accept a run of a graph, given as (name, version), or find the one of this key.

        For `reserve` seconds it is kept for a caller who drives it himself. `only` names the state
        in which a run is stopped by the strategies `interrupt` and `rollback`.
        """
        now = self._clock.now()
        made = change(thread_id, new_id(), now)
        ready = (now if after is None else self._at("after", after)) + round(reserve * 1000)
        row: RunRow | None = yield runs.start(
            self._serializer,
            made,
            graph=graph[0],
            version=graph[1],
            key=key,
            ready_at=ready,
            due_at=ready,
            setup=self._serializer.dumps(setup, where_run("setup", made.run_id), "start"),
            strategy=strategy,
            only=only,
            grace=round(GRACE.total_seconds() * 1000),
        )
        if row is None:
            raise ThreadBusy(thread_id, "is not over")
        return row

    def _at(self, name: str, given: timedelta | datetime) -> int:
        if isinstance(given, timedelta):
            return self._clock.now() + round(given.total_seconds() * 1000)
        if getattr(given, "tzinfo", None) is not None:
            return milliseconds(given)
        raise BadArgument(f"{name} is a timedelta or a datetime with a time zone, not {given!r}.")

    # -- showing

    def find(self, run_id: str) -> Plan[RunRow]:
        row: RunRow | None = yield runs.find(str(run_id))
        if row is None:
            raise NotFound("run", str(run_id))
        return row

    def get(self, run_id: str, *, output: bool = True) -> Plan[Run]:
        row = yield from self.find(run_id)
        return (yield from self.show(row, output=output))

    def by_prefix(self, prefix: str) -> Plan[Run]:
        """The run with this id, or the only one whose id begins so, without its output."""
        if len(prefix) < SHORTEST_PREFIX:
            raise BadArgument(
                f"There is no run {prefix!r}: give its id, or at least {SHORTEST_PREFIX} "
                "characters of its beginning. `perdure runs` lists them."
            )
        rows: list[RunRow] = yield runs.of_prefix(prefix)
        if not rows:
            raise NotFound("run", prefix)
        if len(rows) > 1 and rows[0].id != prefix:
            raise BadArgument(f"More than one run begins with {prefix}; give more of its id.")
        return (yield from self.show(rows[0], output=False))

    def page(
        self,
        op: Callable[[tuple[int, str] | None, int], Op[list[RunRow]]],
        before: tuple[int, str] | None,
        limit: int,
        metadata: Mapping[str, Any],
        *,
        output: bool = True,
    ) -> Plan[list[Run]]:
        """Runs with all of this metadata. `op` reads the rows before a position, so many."""
        found: list[Run] = []
        while len(found) < limit:
            size = max(limit, PAGE) if metadata else limit
            rows: list[RunRow] = yield op(before, size)
            for row in rows:
                if metadata and not self._has(row, metadata):
                    continue
                found.append((yield from self.show(row, output=output)))
                if len(found) == limit:
                    break
            if len(rows) < size:
                break
            before = (rows[-1].created_at, rows[-1].id)
        return found

    def _has(self, row: RunRow, metadata: Mapping[str, Any]) -> bool:
        """Whether a run has all of this. It is sealed in its row, so no statement can tell."""
        try:
            has = {
                **(open_setup(self._serializer, row).get("metadata") or {}),
                **open_labels(self._serializer, row),
            }
        except UNREADABLE:
            return False
        return all(key in has and has[key] == value for key, value in metadata.items())

    def show(self, row: RunRow, *, output: bool = True) -> Plan[Run]:
        """A run as its users see it; its output is left unread unless it is wanted."""
        setup: dict[str, Any] = {}
        labels: dict[str, Any] = {}
        result = error = None
        try:
            setup = open_setup(self._serializer, row)
            labels = open_labels(self._serializer, row)
            if output:
                result = yield from self._output(row)
            if row.error is not None:
                told = self._serializer.loads(row.error, where_run("error", row.id))
                error = RunError(*(told[field.name] for field in fields(RunError)))
        except UNREADABLE as found:  # the other runs of a list can still be seen
            error = RunError(**describe(found))
        return Run(
            id=row.id,
            thread_id=row.thread_id,
            graph=row.graph,
            state=State(row.state),
            output=result,
            error=error,
            reason=row.reason,
            metadata={**(setup.get("metadata") or {}), **labels},
            tags=tuple(tags_of(row, setup)),
            created_at=moment(row.created_at),
            updated_at=moment(row.updated_at),
            due_at=maybe_moment(row.due_at),
            key=row.key,
            version=row.version,
            attempts=row.attempts,
            saved={
                "effects": row.saved_effects,
                "model_calls": row.saved_calls,
                "tokens": row.saved_tokens,
            },
        )

    def _output(self, row: RunRow) -> Plan[Any]:
        if row.output is None:
            return None
        kept = self._serializer.loads(row.output, where_run("output", row.id))
        if len(kept) == 1:
            return kept[0]
        checkpoint_id, channels, rest = kept
        values = yield from self._load(row.thread_id, checkpoint_id)
        if values is None:
            return None  # pruned
        if isinstance(channels, str):
            return values.get(channels)
        return rest | {channel: values[channel] for channel in channels if channel in values}

    def events(self, run_id: str, after: int, limit: int | None) -> Plan[list[Event]]:
        row = yield from self.find(run_id)
        found: list[Event] = []
        while limit is None or len(found) < limit:
            count = 1000 if limit is None else min(1000, limit - len(found))
            last = found[-1].n if found else after
            page = yield events.events(self._serializer, row.thread_id, row.id, last, count)
            found += page
            if len(page) < count:
                break
        return found

    # -- stopping and going on

    def stop(
        self,
        run_id: str,
        verb: str,
        state: State,
        grace: timedelta,
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> Plan[Run]:
        """Cancel or pause a run, at once or by telling its driver."""
        row = yield from self.find(run_id)
        found = (yield effects.of_run(row.id)) if verb == "cancel" else []
        made = change(row.thread_id, row.id, self._clock.now())
        done = yield runs.stop(
            self._serializer,
            made,
            effects=report(found),
            control=verb,
            state=state,
            grace=round(grace.total_seconds() * 1000),
            reason=reason,
            by=by,
        )
        row = yield from self.find(run_id)
        if not done and row.state != state:
            why = (
                "it is over."
                if State(row.state) in ENDED
                else "it rests already, until it is retried or cancelled."
                if row.state == State.HELD
                else "it is being cancelled."
            )
            raise WrongState(row.id, row.state, f"be {state.value}", why)
        return (yield from self.show(row))

    def go_on(self, run_id: str, states: tuple[State, ...], kind: str, why: str) -> Plan[Run]:
        """Make a run due that rests in one of these states."""
        row = yield from self.find(run_id)
        made = change(row.thread_id, row.id, self._clock.now())
        if not (yield runs.go_on(self._serializer, made, states, kind)):
            row = yield from self.find(run_id)
            raise WrongState(run_id, row.state, f"be {kind}", why)
        return (yield from self.get(run_id))

    def prune(
        self,
        older_than: timedelta,
        states: list[State],
        limit: int | None,
        *,
        dry_run: bool = False,
    ) -> Plan[int]:
        before = self._clock.now() - round(older_than.total_seconds() * 1000)
        if dry_run:
            return len((yield runs.old(states, before, limit or sys.maxsize)))
        count = 0
        while limit is None or count < limit:
            size = PAGE if limit is None else min(PAGE, limit - count)
            found = yield runs.old(states, before, size)
            for thread_id, run_id in found:
                yield runs.delete(thread_id, run_id)
                self._forget(thread_id)
            count += len(found)
            if len(found) < size:
                break
        return count

    # -- scores

    def score(
        self,
        run_id: str,
        name: str,
        value: float,
        *,
        about: str,
        comment: str | None,
        by: str | None,
    ) -> Plan[None]:
        row = yield from self.find(run_id)
        made = Score(row.id, name, value, about, moment(self._clock.now()), comment, by)
        if not (yield scores.put(self._serializer, row.thread_id, made)):
            raise NotFound("run", run_id)

    def scores(self, run_id: str) -> Plan[list[Score]]:
        row = yield from self.find(run_id)
        found: list[Score] = yield scores.of_run(self._serializer, row.thread_id, row.id)
        return found

    # -- schedules

    def schedule(
        self,
        graph: tuple[str, str],
        setup: dict[str, Any],
        *,
        name: str,
        cron: str,
        timezone: str,
        catch_up: bool | timedelta,
    ) -> Plan[None]:
        body = self._serializer.dumps(
            {**setup, "version": graph[1]}, where_schedule(name), "schedule"
        )
        yield schedules.put(
            name=name,
            graph=graph[0],
            cron=cron,
            timezone=timezone,
            catch_up=catch_up,
            next_at=schedules.next_slot(cron, timezone, self._clock.now()),
            body=body,
        )

    def fire(self, graphs: Collection[str]) -> Plan[int]:
        """Start what schedules of these graphs have due, and tell how many runs that were."""
        now, started = self._clock.now(), 0
        for row in (yield schedules.due(now)):
            if row.graph not in graphs:
                continue  # another application's, with other types and keys
            try:
                setup = self._serializer.loads(row.body, where_schedule(row.name))
            except UNREADABLE as error:
                log.warning("the schedule %r cannot be started: %s", row.name, error)
                continue
            graph = (row.graph, setup.pop("version"))
            due, following = schedules.due_slots(row, now)
            for slot in due:
                key = schedules.key(row.name, slot)
                yield from self.accept(graph, f"schedule:{key}", setup, "enqueue", key=key)
                started += 1
            yield schedules.move(row, following)
        return started


def make_setup(
    *,
    input: Any,
    metadata: Mapping[str, Any] | None,
    tags: Iterable[str],
    context: Any,
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a run is given at every segment."""
    setup: dict[str, Any] = {
        "metadata": check_dict("metadata", metadata),
        "tags": check_tags(tags),
        "config": check_config(config),
    }
    if input is not None:
        setup["input"] = input
    if context is not None:
        setup["context"] = context
    return setup
