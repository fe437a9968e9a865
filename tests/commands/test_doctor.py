"""The doctor finds each kind of damage, says which, and nothing in a journal that is well."""

import operator
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

import perdure
from perdure.cli import main
from perdure.commands import claims, health
from perdure.commands.claims import LeaseTimes
from perdure.testing import runtime
from perdure.testing.runtimes import TemporaryRuntime
from tests.support.raw import execute


class Told(TypedDict):
    what: str
    heard: Annotated[list[Any], operator.add]


def hear(state: Told) -> dict[str, Any]:
    what = state["what"]
    if what == "ask":
        return {"heard": [perdure.ask("ok?")]}
    if what == "ask in time":
        return {"heard": [perdure.ask("ok?", expires=timedelta(hours=1), default="no")]}
    if what == "sleep":
        perdure.sleep(timedelta(hours=2))
    if what == "wait":
        return {"heard": [perdure.wait_for("reply")]}
    if what.startswith("join "):
        return {"heard": [perdure.join(what.removeprefix("join "))]}
    if what == "fail":
        raise ValueError(what)
    return {"heard": [what]}


def build() -> Any:
    builder = StateGraph(Told)
    builder.add_node("hear", hear)
    builder.add_edge(START, "hear")
    builder.add_edge("hear", END)
    return builder


@pytest.fixture
def rt(url: str) -> Iterator[TemporaryRuntime]:
    with runtime(url) as rt:
        rt.register(build(), name="g", retry=perdure.Retry(attempts=1))
        yield rt


def start(rt: TemporaryRuntime, what: str, thread_id: str, **options: Any) -> str:
    input = {"what": what, "heard": []}
    return rt.blocking.start("g", input, thread_id=thread_id, **options).id


def keep_busy(rt: TemporaryRuntime) -> dict[str, str]:
    """Runs in every state, at least one of each, by what they are."""
    made = {
        "paused": start(rt, "ask", "paused"),
        "failed": start(rt, "fail", "failed"),
        "cancelled": start(rt, "ask", "cancelled"),
        "asks": start(rt, "ask", "asks"),
        "asks in time": start(rt, "ask in time", "asks in time"),
        "sleeps": start(rt, "sleep", "sleeps"),
        "listens": start(rt, "wait", "listens"),
        "heard": start(rt, "wait", "heard"),
        "done": start(rt, "nothing", "done"),
        "answered": start(rt, "ask", "answered"),
    }
    rt.blocking.tick()
    made["joins"] = start(rt, f"join {made['asks']}", "joins")
    made["behind"] = start(rt, "nothing", "asks")
    made["later"] = start(rt, "nothing", "later", after=timedelta(days=1))
    rt.blocking.pause(made["paused"])
    rt.blocking.cancel(made["cancelled"])
    rt.blocking.signal("heard", "reply", "yes", key="once")
    rt.blocking.signal("nobody", "reply", "kept")
    rt.blocking.tick()
    [wait] = rt.blocking.waits(thread_id="answered")
    rt.blocking.answer(wait.id, "yes")
    made["driven"] = start(rt, "nothing", "driven")
    now = rt.clock.now()
    driven = claims.claim_run(
        rt.engine.serializer, "w", LeaseTimes(now, now + 3000), "driven", made["driven"]
    )
    assert rt.journal.do(driven) is not None
    return made


def find(rt: TemporaryRuntime) -> list[health.Violation]:
    return rt.journal.do(health.examine())


class Damage(NamedTuple):
    """What is done to a journal by hand, and what is to be found: whose, and which run."""

    invariant: str
    run: str
    statements: tuple[str, ...]
    too: tuple[str, ...] = ()
    """Other invariants that do not hold then either."""


RUN = "UPDATE perdure_runs SET {} WHERE thread_id = '{}'"
WAIT = "UPDATE perdure_waits SET {} WHERE thread_id = '{}'"
DAMAGES = {
    "an effect is settled without an outcome": Damage(
        "doctor_no_outcome",
        "asks",
        (
            """INSERT INTO perdure_effects
            (scope, task, name, n, key, thread_id, run_id, checkpoint_id, state, intent, attempts,
             digest, undo, mark, settled, created_at, updated_at, arguments)
            SELECT 'asks', 't', 'send', 0, id, 'asks', id, '', 'done', 1, 1, '', 0, 0, 0, 0, 0,
                   setup
            FROM perdure_runs WHERE thread_id = 'asks' AND n = 1""",
        ),
    ),
    "a run is held for nothing": Damage(
        "doctor_held_settled",
        "listens",
        (
            """INSERT INTO perdure_events (thread_id, run_id, n, at, kind, change, body)
            SELECT thread_id, id, events + 1, 0, 'settled', 0, setup FROM perdure_runs
            WHERE thread_id = 'listens'""",
            RUN.format("state = 'held', events = events + 1", "listens"),
        ),
    ),
    "a second run is driven": Damage(
        "doctor_two_running",
        "asks",
        (RUN.format("state = 'running', due_at = CASE WHEN n = 1 THEN 0 END", "asks"),),
    ),
    "a run is due before its turn": Damage(
        "doctor_out_of_turn", "behind", (RUN.format("due_at = 5", "asks") + " AND n = 2",)
    ),
    "a pending run is never due": Damage(
        "doctor_forgotten", "later", (RUN.format("due_at = NULL", "later"),)
    ),
    "a running one has no end of its lease": Damage(
        "doctor_forgotten", "driven", (RUN.format("due_at = NULL", "driven"),)
    ),
    "a wait is gone": Damage(
        "doctor_no_wait", "asks", ("DELETE FROM perdure_waits WHERE thread_id = 'asks'",)
    ),
    "a wait is closed while its run waits": Damage(
        "doctor_no_wait", "listens", (WAIT.format("state = 'closed'", "listens"),)
    ),
    "a sleeper is never woken": Damage(
        "doctor_clock_missed", "sleeps", (RUN.format("due_at = NULL", "sleeps"),)
    ),
    "a sleeper is woken too late": Damage(
        "doctor_clock_missed", "sleeps", (RUN.format("due_at = due_at + 1", "sleeps"),)
    ),
    "a question never expires": Damage(
        "doctor_clock_missed", "asks in time", (RUN.format("due_at = NULL", "asks in time"),)
    ),
    "an answer wakes nobody": Damage(
        "doctor_answer_unused",
        "answered",
        (RUN.format("due_at = NULL", "answered"),),
        ("doctor_no_wait",),
    ),
    "an answer that was handed over wakes nobody": Damage(
        "doctor_answer_unused",
        "answered",
        (RUN.format("due_at = NULL", "answered"), WAIT.format("state = 'applied'", "answered")),
        ("doctor_no_wait",),
    ),
    "a run that ended is due": Damage(
        "doctor_ended_due", "done", (RUN.format("due_at = 5", "done"),)
    ),
    "a run that ended is leased": Damage(
        "doctor_ended_due", "failed", (RUN.format("worker = 'w'", "failed"),)
    ),
    "a run that ended asks": Damage(
        "doctor_ended_due", "cancelled", (WAIT.format("state = 'open'", "cancelled"),)
    ),
    "an event is gone": Damage(
        "doctor_gap", "done", ("DELETE FROM perdure_events WHERE thread_id = 'done' AND n = 2",)
    ),
    "the last event is gone": Damage(
        "doctor_gap",
        "done",
        ("DELETE FROM perdure_events WHERE thread_id = 'done' AND kind = 'done'",),
    ),
    "an event has another number": Damage(
        "doctor_gap",
        "done",
        (
            """INSERT INTO perdure_events (thread_id, run_id, n, at, kind, change, body)
            SELECT thread_id, run_id, 99, at, kind, change, body FROM perdure_events
            WHERE thread_id = 'done' AND n = 2""",
            "DELETE FROM perdure_events WHERE thread_id = 'done' AND n = 2",
        ),
    ),
    "all events are gone": Damage(
        "doctor_gap", "done", ("DELETE FROM perdure_events WHERE thread_id = 'done'",)
    ),
    "a signal's wait is gone": Damage(
        "doctor_signal_twice", "heard", ("DELETE FROM perdure_waits WHERE thread_id = 'heard'",)
    ),
    "a signal wakes nobody": Damage(
        "doctor_signal_unused",
        "listens",
        ("UPDATE perdure_signals SET thread_id = 'listens' WHERE thread_id = 'nobody'",),
    ),
    "a signal wakes somebody only when he gives up": Damage(
        "doctor_signal_unused",
        "listens",
        (
            "UPDATE perdure_signals SET thread_id = 'listens' WHERE thread_id = 'nobody'",
            RUN.format("due_at = updated_at + 1", "listens"),
        ),
    ),
    "a run that is waited for has ended": Damage(
        "doctor_join_unused",
        "joins",
        (
            WAIT.format("state = 'closed'", "asks"),
            RUN.format("state = 'done', events = events", "asks") + " AND state = 'waiting'",
        ),
        ("doctor_forgotten",),  # nor was the run behind it made due
    ),
    "a signal's wait has another answer": Damage(
        "doctor_signal_twice", "heard", (WAIT.format("answered_by = 'clock'", "heard"),)
    ),
}


@pytest.mark.smoke
def test_a_busy_journal_that_is_well_has_no_findings(rt: TemporaryRuntime) -> None:
    made = keep_busy(rt)
    states = {rt.blocking.get(id).state.value for id in made.values()}
    assert states == set(perdure.types.State) - {"held"}
    assert find(rt) == []
    rt.clock.advance(timedelta(days=2))
    assert find(rt) == []  # nobody was there to drive: late, but not forgotten
    rt.blocking.signal("listens", "reply", "at last")
    [wait] = rt.blocking.waits(thread_id="asks")
    rt.blocking.answer(wait.id, "at last")
    assert find(rt) == []
    rt.blocking.tick()
    assert find(rt) == []


def test_a_waiting_run_that_is_late_and_then_poked_is_no_finding(rt: TemporaryRuntime) -> None:
    id = start(rt, "sleep", "t")
    rt.blocking.tick()
    rt.clock.advance(timedelta(hours=3))
    rt.blocking.signal("t", "unheard")
    rt.blocking.pause(id)
    rt.blocking.resume(id)
    assert find(rt) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named(rt: TemporaryRuntime, url: str, damage: str) -> None:
    made = keep_busy(rt)
    invariant, run, statements, too = DAMAGES[damage]
    for statement in statements:
        execute(url, statement)
    found = {finding.problem: finding for finding in find(rt)}
    assert set(found) == {health.INVARIANTS[name] for name in (invariant, *too)}
    finding = found[health.INVARIANTS[invariant]]
    assert finding.thread_id == rt.blocking.get(made[run]).thread_id
    if invariant == "doctor_signal_twice":
        [(signal,)] = execute(url, "SELECT id FROM perdure_signals WHERE thread_id = 'heard'")
        assert finding.id == signal
    elif invariant != "doctor_two_running":
        assert finding.id == made[run]


def test_every_invariant_has_a_damage_that_it_finds() -> None:
    assert {damage.invariant for damage in DAMAGES.values()} == set(health.INVARIANTS)


def test_the_command_says_what_is_wrong_and_with_which_run(
    rt: TemporaryRuntime, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = keep_busy(rt)
    assert main(["doctor", "--at", url]) == 0
    capsys.readouterr()
    execute(url, RUN.format("due_at = NULL", "sleeps"))
    assert main(["doctor", "--at", url]) == 1
    assert made["sleeps"] in capsys.readouterr().out
