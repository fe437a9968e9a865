"""A plain model, SQLite and PostgreSQL agree on every run, whatever happens in whatever order.

Runs follow a script that is their input. Some segments are driven by a runtime, some by drivers
of our own that stop between two of their steps, for good or to go on when they are no longer
wanted: what such a one still writes must change nothing.
"""

import functools
import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from perdure import errors
from perdure.commands import claims, health, waits
from perdure.commands.claims import LeaseTimes
from tests.execution.runtime_model import (
    BROKEN,
    LEASE,
    Asked,
    Doer,
    Driving,
    Model,
    Part,
    Side,
    tell,
)
from tests.support import sweep

PICKS = st.integers(0, 20)
PARTS = st.sampled_from(
    [
        ("step",),
        ("ask",),
        ("ask", 30),
        ("twice",),
        ("sleep", 30),
        ("wait", "x"),
        ("wait", "y", 30),
        ("pair",),
        ("fail",),
    ]
)
THREADS = st.sampled_from(["a", "a", "b"])
_examples = itertools.count()


class Runtimes(RuleBasedStateMachine):
    def __init__(self, sides: list[Side]) -> None:
        super().__init__()
        self.sides = sides
        self.model = Model()
        self.example = next(_examples)
        self.numbers = itertools.count()
        self.leases: list[Driving] = []
        for side in sides:
            side.clear()
        self.move_to(max(side.clock.now() for side in sides))

    def move_to(self, now: int) -> None:
        self.model.now = now
        for side in self.sides:
            side.clock._at = now

    def pick_run(self, pick: int) -> Doer:
        """A run: mostly one that is not over."""
        every = list(self.model.runs.values())
        open_ = [run for run in every if not run.ended]
        return open_[pick % len(open_)] if open_ and pick % 4 else every[pick % len(every)]

    def leases_(self, driven: bool) -> list[Driving]:
        return [lease for lease in self.leases if bool(lease.driven) is driven]

    def refused(self, kind: type[Exception] | None, call: Any) -> Any:
        if kind is None:
            return call()
        with pytest.raises(kind):
            call()
        return None

    # what users do

    @rule(
        thread=THREADS,
        key=st.sampled_from([None, None, None, "k"]),
        script=st.lists(PARTS, min_size=1, max_size=3) | st.just([]),
        strategy=st.sampled_from(["enqueue"] * 3 + ["reject", "interrupt", "rollback"]),
        after=st.sampled_from([0, 0, 0, 20]),
    )
    def start(
        self, thread: str, key: str | None, script: list[Part], strategy: Any, after: int
    ) -> None:
        name, thread = f"r{next(self.numbers)}", f"{thread}{self.example}"
        expected = self.model.start(name, thread, key, script, strategy, 1000 * after)
        if ("fail",) in script:
            BROKEN.add(name)
        for side in self.sides:
            input = {"run": name, "script": [list(part) for part in script], "at": 0, "log": []}

            def call(side: Side = side, input: Any = input) -> Any:
                return side.rt.blocking.start(
                    "script",
                    input,
                    thread_id=thread,
                    key=key,
                    multitask_strategy=strategy,
                    after=timedelta(seconds=after),
                )

            run = self.refused(None if expected else errors.ThreadBusy, call)
            if expected:
                assert side.ids.setdefault(expected, run.id) == run.id

    @precondition(lambda self: any(run.waits for run in self.model.runs.values()))
    @rule(pick=PICKS, value=st.sampled_from(["yes", "no"]))
    def answer(self, pick: int, value: str) -> None:
        every = [(run, w) for run in self.model.runs.values() for w in run.waits.values()]
        asked = [pair for pair in every if pair[1].kind == "human" and pair[1].state == "open"]
        every = asked if asked and pick % 4 else every
        self.answer_one(*every[pick % len(every)], value)

    def answer_one(self, run: Doer, wait: Asked, value: str = "yes") -> None:
        shown = f"{run.name} {wait.place[0]} {wait.n}"
        kind = self.model.answer(run, wait, value)
        for side in self.sides:
            rows = side.journal.do(waits.of_run(side.ids[run.name]))
            bodies = {row.id: waits.load_body(side.driver.serializer, row) for row in rows}
            [id] = [
                row.id
                for row in rows
                if (
                    bodies[row.id].value == shown
                    if wait.kind == "human"
                    else (row.kind, row.name, row.wake_at or row.expires_at)
                    == (wait.kind, wait.name, wait.wake_at)
                )
            ][:1]
            self.refused(kind, lambda s=side, id=id: s.rt.blocking.answer(id, value, by="ana"))

    @rule(
        thread=THREADS,
        name=st.sampled_from(["x", "x", "y"]),
        key=st.sampled_from([None, "once"]),
    )
    def signal(self, thread: str, name: str, key: str | None) -> None:
        thread, value = f"{thread}{self.example}", f"s{next(self.numbers)}"
        new = self.model.signal(thread, name, key, value)
        for side in self.sides:
            assert side.rt.blocking.signal(thread, name, value, key=key) is new
        self.move_to(self.model.now + 1)  # which of two of one moment is first, nobody promised

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICKS, verb=st.sampled_from(["cancel", "pause"]))
    def stop(self, pick: int, verb: str) -> None:
        run = self.pick_run(pick)
        done = self.model.stop(run, verb, "cancelled" if verb == "cancel" else "paused")
        for side in self.sides:
            call = functools.partial(getattr(side.rt.blocking, verb), side.ids[run.name])
            self.refused(None if done else errors.WrongState, call)

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICKS, repair=st.booleans())
    def continue_run(self, pick: int, repair: bool) -> None:
        """Resume what is paused, retry what failed, and try it with others."""
        every = list(self.model.runs.values())
        stuck = [run for run in every if run.state in ("paused", "failed", "held")] or every
        run = stuck[pick % len(stuck)]
        if repair:
            BROKEN.discard(run.name)
        self.go_on_with(run, "retry" if run.state in ("failed", "held") else "resume")

    def go_on_with(self, run: Doer, verb: str) -> None:
        states = ("paused",) if verb == "resume" else ("failed", "held")
        done = self.model.continue_run(run, states, "resumed" if verb == "resume" else "retried")
        for side in self.sides:
            call = functools.partial(getattr(side.rt.blocking, verb), side.ids[run.name])
            self.refused(None if done else errors.WrongState, call)

    @rule(seconds=st.sampled_from([1, 4, 15, 40]))
    def time_passes(self, seconds: int) -> None:
        self.move_to(self.model.now + 1000 * seconds)

    # what drives

    @rule()
    def tick(self) -> None:
        while due := self.model.due():
            for run in due:
                lease = self.model.claim(run, "tick", [])
                self.model.drive(lease)
                self.model.finish(lease)
        for side in self.sides:
            side.rt.blocking.tick(limit=1000)

    @precondition(lambda self: self.model.due())
    @rule(suspect=st.booleans())
    def claim_what_is_due(self, suspect: bool) -> None:
        """All that is due; or else what was left behind twice, which is claimed apart."""
        worker = f"w{next(self.numbers)}"
        due = [
            run
            for run in self.model.due()
            if (run.state == "running" and run.attempts >= 2) is suspect
        ]
        claimed = []
        for side in self.sides:
            now, serializer = side.clock.now(), side.driver.serializer
            op = claims.claim(
                serializer, worker, LeaseTimes(now, now + LEASE), ["script@"], 100, suspect=suspect
            )
            claimed.append({row.id: row for row in side.journal.do(op)})
            assert set(claimed[-1]) == {side.ids[run.name] for run in due}
        for run in due:
            rows = [c[s.ids[run.name]] for c, s in zip(claimed, self.sides, strict=True)]
            self.leases.append(self.model.claim(run, worker, rows))

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICKS)
    def claim_one(self, pick: int) -> None:
        self.claim(self.pick_run(pick))

    def claim(self, run: Doer) -> None:
        worker = f"w{next(self.numbers)}"
        free = self.model.can_claim(run)
        rows = []
        for side in self.sides:
            now, serializer, id = side.clock.now(), side.driver.serializer, side.ids[run.name]
            op = claims.claim_run(serializer, worker, LeaseTimes(now, now + LEASE), run.thread, id)
            rows.append(side.journal.do(op))
            assert (rows[-1] is not None) is free
        if free:
            self.leases.append(self.model.claim(run, worker, [row for row in rows if row]))

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS, drives=st.booleans(), answered=st.booleans())
    def overtake(self, pick: int, drives: bool, answered: bool) -> None:
        """A driver takes longer than its lease, and another one is there."""
        run = self.model.runs[self.leases[pick % len(self.leases)].run]
        self.move_to(self.model.now + LEASE)
        self.claim(run)
        if drives and not self.leases[-1].driven:
            self.drive_one(self.leases[-1])
        for wait in list(run.waits.values()) if answered else []:
            if wait.state == "open" and wait.kind == "human":
                self.answer_one(run, wait)

    @precondition(lambda self: self.leases or self.model.due())
    @rule(pick=PICKS, to_the_end=st.booleans())
    def drive(self, pick: int, to_the_end: bool) -> None:
        """A driver comes as far as letting go, if it is still its turn."""
        found = self.leases_(driven=False)
        if not found:
            due = self.model.due()
            if not due:
                return
            self.claim(due[pick % len(due)])
            found = self.leases_(driven=False)
        lease = found[pick % len(found)]
        self.drive_one(lease)
        if to_the_end:
            self.end_segment(lease)

    def drive_one(self, lease: Driving) -> None:
        if self.model.holds(lease):
            self.model.drive(lease)
        elif lease.control is None and not self.model.is_deadly(lease) and not lease.begun:
            self.model.undo(self.model.runs[lease.run])  # which has to be done anyway
        lease.driven = [side.drive(row) for side, row in zip(self.sides, lease.rows, strict=True)]

    @precondition(lambda self: self.leases_(driven=True))
    @rule(pick=PICKS)
    def finish(self, pick: int) -> None:
        """A driver that was driving lets go; nothing happens if it is no longer its turn."""
        found = self.leases_(driven=True)
        self.end_segment(found[pick % len(found)])

    def end_segment(self, lease: Driving) -> None:
        self.leases.remove(lease)
        expected = "lost" if lease.ending is None else self.model.finish(lease)
        for side, row, driven in zip(self.sides, lease.rows, lease.driven, strict=True):
            assert side.finish(row, *driven) == expected

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS)
    def renew(self, pick: int) -> None:
        lease = self.leases[pick % len(self.leases)]
        until, run = self.model.now + LEASE, self.model.runs[lease.run]
        if run.state == "running" and run.worker == lease.worker:
            run.due = until
        for side in self.sides:
            side.journal.do(claims.renew(lease.worker, LeaseTimes(0, until), [side.ids[lease.run]]))

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS, notice=st.booleans())
    def crash(self, pick: int, notice: bool) -> None:
        """A driver is gone; others on its host notice it, or else its lease runs out."""
        lease = self.leases.pop(pick % len(self.leases))
        if notice:
            for run in self.model.runs.values():
                if (run.worker, run.state) == (lease.worker, "running"):
                    assert run.due is not None
                    run.due = min(run.due, self.model.now)
            for side in self.sides:
                side.journal.do(claims.expire(lease.worker, self.model.now))

    # what must be true

    @invariant()
    def the_databases_say_what_the_model_says(self) -> None:
        expected = tell(self.model)
        for side in self.sides:
            for found, wanted in zip(side.tell(), expected, strict=True):
                assert found == wanted

    @invariant()
    def the_doctor_finds_nothing(self) -> None:
        for side in self.sides:
            assert side.journal.do(health.examine()) == []

    def teardown(self) -> None:
        """Whatever happened, every run can be brought to an end, with what it was given."""
        BROKEN.clear()
        for _ in range(20):
            for run in self.model.runs.values():
                if run.state in ("paused", "held"):
                    self.go_on_with(run, "resume" if run.state == "paused" else "retry")
            for run in list(self.model.runs.values()):
                for wait in list(run.waits.values()):
                    if wait.state == "open" and wait.kind == "human":
                        self.answer_one(run, wait)
            for thread in {run.thread[0] for run in self.model.runs.values()}:
                for name in ("x", "y"):
                    self.signal(thread, name, None)
            self.time_passes(40)
            self.tick()
            self.the_databases_say_what_the_model_says()
            self.the_doctor_finds_nothing()
            if all(run.ended for run in self.model.runs.values()):
                break
        for run in self.model.runs.values():
            assert run.ended
            for side in self.sides:
                found = side.rt.blocking.get(side.ids[run.name])
                assert found.output == (None if run.output is None else found.output)
                if run.output is not None:
                    assert found.output["log"] == run.output
        BROKEN.clear()


def check(urls: list[str], examples: int, steps: int) -> None:
    sides = [Side(url) for url in urls]
    try:
        run_state_machine_as_test(
            lambda: Runtimes(sides),  # type: ignore[arg-type]  # any factory will do
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        for side in sides:
            side.close()


def test_random_operations_leave_what_a_plain_model_says(sqlite_url: str) -> None:
    check([sqlite_url], examples=8, steps=20)


@pytest.mark.slow
def test_many_random_operations_leave_what_a_plain_model_says(
    sqlite_url: str, served_url: str
) -> None:
    few = 8 if served_url.startswith("d1") else 25
    check([sqlite_url, served_url], examples=sweep.examples(100, few), steps=40)
