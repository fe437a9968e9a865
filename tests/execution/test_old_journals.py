"""A journal that an older perdure left in mid-life comes to its right end on the present code.

`tests/fixtures` has journals of version 0.1 on SQLite and PostgreSQL, and an encrypted one;
`tests/fixtures/make_journal.py` says what is in them. Each is copied, opened, and lives to its end
once: the clock moves, people answer, signals come. Each test says one promise about that life.
`WORLD` counts the calls that reach the far side.
"""

from __future__ import annotations

import ast
import io
import runpy
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

import perdure
from perdure.errors import AlreadyAnswered, BadAnswer, WrongKey
from perdure.langmem import ReflectionExecutor
from perdure.testing.postgres import Server
from tests.fixtures.journals import FILES, left, load_rows, opened, seen
from tests.support.databases import DATABASES
from tests.support.journal_graphs import LARGE, NAMESPACE, WORLD, chat, letter, reflect, talk, who
from tests.support.polling import until

DAY = timedelta(days=1)
AT_ONCE = [("ann", "soon"), ("cy", "held"), ("di", "cut")]
NEXT_DAY = [("bo", "last"), ("ed", "told"), ("fay", "new")]
"""Whose notes are written, and which, by when."""


@dataclass
class Life:
    """What was seen while a journal lived to its end."""

    at: datetime
    told: dict[str, Any]
    """What the old code read from the journal when it left it."""
    found: dict[str, Any]
    """What the present code read from it before it did anything."""
    healthy: list[str] = field(default_factory=list)
    """What `perdure doctor` said, before and after."""
    calls: dict[str, list[str]] = field(default_factory=dict)
    """What the far side was called with, by phase."""
    states: dict[str, dict[str, str]] = field(default_factory=dict)
    """The state of the last run of each thread, by phase."""
    log: dict[str, Any] = field(default_factory=dict)
    """What the last run of each thread gave back."""
    notes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """What reflections wrote, by phase."""
    was: dict[str, Any] = field(default_factory=dict)
    """Whatever else a test asks for."""

    def every_call(self) -> Counter[str]:
        return Counter(call for calls in self.calls.values() for call in calls)


class Living:
    """One journal, driven from phase to phase."""

    def __init__(self, url: str, kind: str) -> None:
        self.url, self.kind = url, kind
        at, told = left(kind)
        self.rt, self.graphs = opened(url, at, encrypted=kind == "encrypted")
        self.ask = self.rt.blocking
        self.store = InMemoryStore()
        WORLD.__init__()  # type: ignore[misc]
        self.life = Life(at, told, seen(self.rt))
        self.examine()

    def examine(self) -> None:
        """Ask `perdure doctor`."""
        self.life.healthy.append(command("doctor", "--at", self.url))

    def end_of(self, phase: str) -> None:
        """Drive what is due, and note what happened since the phase before."""
        before = sum(map(len, self.life.calls.values()))
        while self.ask.tick(limit=100).claimed:
            pass
        self.life.calls[phase] = WORLD.calls[before:]
        runs = reversed(self.ask.runs(limit=1000))
        self.life.states[phase] = {run.thread_id: run.state.value for run in runs}

    def wait_on(self, thread: str) -> Any:
        [found] = self.ask.waits(thread_id=thread)
        return found

    def run_on(self, thread: str) -> Any:
        return self.ask.runs(thread_id=thread)[0]

    def held_effect(self, thread: str) -> str:
        [found] = self.ask.effects(thread_id=thread, state="unknown")
        return str(found.key)

    def notes(self) -> list[tuple[str, str]]:
        """Whose, and what, reflections wrote."""
        found = self.store.search(("notes",), limit=100)
        return sorted((one.namespace[1], one.key) for one in found)

    def until(self, after: timedelta) -> None:
        self.rt.clock.move_to(self.life.at + after)


def command(*arguments: str) -> str:
    """How `python -m perdure` ended, and what it said; in this process, which is quicker."""
    said, given = io.StringIO(), sys.argv
    sys.argv = ["perdure", *arguments]
    try:
        with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as end:
            runpy.run_module("perdure", run_name="__main__")
    finally:
        sys.argv = given
    return f"{end.value.code} {said.getvalue()}"


def place(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


# -- the life of a journal


def answer_everything(living: Living) -> None:
    """At the very time the journal was left: nobody is due, but people and signals come."""
    ask, was = living.ask, living.life.was
    was["ticket"] = living.wait_on("approve-1").value["ticket"]
    asked = living.wait_on("approve-1")
    ask.answer(asked.id, "yes", by="ana")
    with pytest.raises(AlreadyAnswered):
        ask.answer(asked.id, "no")
    with pytest.raises(BadAnswer):
        ask.answer(living.wait_on("review-1").id, {"verdict": "perhaps"})
    ask.answer(living.wait_on("review-1").id, {"verdict": "send", "comment": "fine"})
    ask.answer(living.wait_on("trip-1").id, "Rome")
    branches = {wait.value["about"]: wait.id for wait in ask.waits(thread_id="fan-1")}
    ask.answer(branches["di"], "di agrees")
    ask.answer(living.wait_on("visit-1").id, "go home")
    ask.answer(living.wait_on("speaker-1").id, "yes")
    ask.signal("draft-1", "reply", "not now")
    was["bound"] = living.graphs["trip"].invoke(Command(resume="Oslo"), place("trip-2"))
    ask.signal("listen-1", "first", {"n": 1})
    ask.signal("listen-1", "second", {"n": 11})
    was["again"] = ask.signal("listen-3", "first", {"n": 3}, key="hook-3")
    ask.signal("listen-3", "second", {"n": 33})
    ask.start("listen", {}, thread_id="listen-2")
    for value in ("a", "b", "c"):
        ask.signal("turn-1", "go", value)
    was["same"] = ask.start("nap", {}, thread_id="nap-1", key="nap").id, living.run_on("nap-1").id
    ask.start("campaign", {}, thread_id="campaign-2")
    living.end_of("answered first")
    ask.answer(branches["ed"], "ed agrees")  # which was asked again, and is the same question


def settle_everything(living: Living) -> None:
    ask = living.ask
    ask.settle(living.held_effect("bill-10"), "done", "receipt 981", by="ana")
    ask.settle(living.held_effect("bill-20"), "retry")
    ask.resume(living.run_on("nap-2").id)
    ask.retry(living.run_on("fragile-1").id)
    for topic in ("booked", "told"):
        living.rt.deliver(topic, lambda message: WORLD.reach(message.topic, message.id))


def take_over(living: Living) -> None:
    """The lease of the process that was killed has run out."""
    WORLD.orders["lamp"] = "one lamp, found"
    living.until(timedelta(seconds=5))
    living.end_of("taken over")
    ask = living.ask
    ask.settle(living.held_effect("bill-30"), "fail", reason="the bank says no")
    ask.settle(living.held_effect("books-1"), "done", "A-17 is paid")
    living.end_of("settled")


def reflecting(living: Living) -> ReflectionExecutor:
    """An executor, which drives reflections beside the rest."""
    options: dict[str, Any] = {"store": living.store, "journal": living.rt, "name": "notes"}
    return ReflectionExecutor(reflect, NAMESPACE, retry=perdure.Retry(attempts=1), **options)


def reflect_at_once(living: Living) -> None:
    notes = living.life.notes
    with reflecting(living) as executor:
        WORLD.executor = executor
        living.ask.answer(living.wait_on("remember-1").id, "no")
        living.end_of("remembered")
        executor.submit(talk("new"), who("fay", "t"), after_seconds=86_400)
        until(lambda: len(living.notes()) == 1)
        notes["at once"] = living.notes()
        [held] = [one for one in executor.pending() if one.error]
        executor.retry(held.id)
        until(lambda: len(living.notes()) == 2)
        notes["retried"] = living.notes()
        living.until(timedelta(seconds=61))
        until(lambda: len(living.notes()) == 3)
        notes["after a minute"] = living.notes()


def reflect_later(living: Living) -> None:
    with reflecting(living) as executor:
        until(lambda: not executor.pending())
    living.life.notes["after a day"] = living.notes()
    living.end_of("reflected")


def pass_the_days(living: Living) -> None:
    clock = living.rt.clock
    living.until(timedelta(minutes=6))
    living.end_of("page")
    living.until(timedelta(hours=1))
    living.end_of("later")
    living.until(timedelta(hours=19))  # 8 o'clock in Berlin
    living.end_of("daily")
    living.life.was["scheduled"] = [
        (run.state.value, run.output) for run in living.ask.runs(graph="wake", since=clock.time)
    ]
    for days in (1, 2, 3, 4, 20):
        living.until(DAY * days)
        living.end_of(f"day {days}")


def converse(living: Living) -> None:
    """What only a saver wrote is read, and goes on, through the runtime's own."""
    saver: Any = living.rt.saver
    graph, was = chat().compile(checkpointer=saver), living.life.was
    history = list(graph.get_state_history(place("chat-1")))
    was["conversation"] = [message.id for message in history[0].values["messages"]]
    was["lengths"] = [len(one.values.get("messages", ())) for one in history]
    was["next"] = [one.next for one in history]
    said = HumanMessage("One more.", id="human-4")
    graph.invoke({"messages": [said]}, place("chat-1"))
    was["letter"] = (
        letter().compile(checkpointer=saver).invoke(Command(resume="signed"), place("letter-1"))
    )


def fork(living: Living) -> None:
    """Go back to a checkpoint of the old journal on a thread of its own."""
    old = living.life.told["checkpoints"]["nap-1"][0][1]
    first = living.ask.runs(thread_id="nap-1")[0]
    living.ask.fork(first.id, at=old, thread_id="forked")
    living.end_of("forked")
    living.rt.clock.advance(3 * DAY)
    living.end_of("forked and woken")


def read_again(living: Living) -> None:
    """The end, as another process reads it."""
    was = living.life.was
    rt, _ = opened(living.url, living.rt.clock.time, encrypted=living.kind == "encrypted")
    with rt:
        runs = rt.blocking.runs(limit=1000)
        living.life.log = {run.thread_id: run.output for run in reversed(runs)}
        was["unfinished"] = [run for run in runs if not run.ended]
        was["turns"] = [run.state.value for run in runs if run.thread_id == "turn-1"]
        was["open"] = rt.blocking.effects(state="open")
        was["waits"] = rt.blocking.waits()
        was["messages"] = rt.blocking.messages()
        was["end"] = seen(rt)
        was["kinds"] = {one.kind for run in runs for one in rt.blocking.events(run.id)}
        said = chat().compile(checkpointer=rt.saver).get_state(place("chat-1"))
        was["said"] = [one.id for one in said.values.get("messages", ())]
        was["keys"] = dict(WORLD.keys)


def live(url: str, kind: str) -> Life:
    living = Living(url, kind)
    with living.rt:
        answer_everything(living)
        settle_everything(living)
        living.end_of("answered")
        take_over(living)
        reflect_at_once(living)
        pass_the_days(living)
        reflect_later(living)
        converse(living)
        fork(living)
        read_again(living)
        living.examine()
        living.life.was["pruned"] = living.ask.prune(older_than=timedelta(0))
        living.life.was["left"] = living.ask.runs()
    return living.life


@pytest.fixture(scope="module", params=DATABASES[:2])
def life(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Life]:
    """A journal of version 0.1 that lived to its end on the present code."""
    if request.param == "sqlite":
        copy = tmp_path_factory.mktemp("old") / "journal.db"
        shutil.copy(FILES["sqlite"], copy)
        yield live(f"sqlite:///{copy}", "sqlite")
        return
    server: Server = request.getfixturevalue("postgres_server")
    server.start()
    url = server.database()
    load_rows(url)
    yield live(url, "postgres")
    server.drop(url)


# -- before anything is done


def same_part(found: Any, told: Any) -> Any:
    """Of what was found the part that was told: a later version may say more. Tokens are no longer
    among what continuing saved."""
    if isinstance(told, dict):
        return {name: same_part(found[name], one) for name, one in told.items()}
    if isinstance(told, str) and told.startswith("{'effects': ") and "'tokens': " in told:
        counts, before = ast.literal_eval(found), ast.literal_eval(told)
        assert {name: counts[name] for name in before if name != "tokens"}.items() <= before.items()
        return told
    if isinstance(told, list) and len(found) == len(told):
        return [same_part(*pair) for pair in zip(found, told, strict=True)]
    return found


def test_everything_reads_as_it_did_to_the_code_that_wrote_it(life: Life) -> None:
    assert same_part(life.found, life.told) == life.told


def test_doctor_finds_nothing_wrong_before_and_after(life: Life) -> None:
    assert len(life.healthy) == 2
    for said in life.healthy:
        assert said.startswith("0 ")
        assert "invariants hold" in said


# -- waits


def test_a_run_that_sleeps_wakes_at_its_time_and_not_before(life: Life) -> None:
    assert [life.states[phase]["nap-1"] for phase in ("day 2", "day 3")] == ["waiting", "done"]


def test_recorded_reads_give_what_they_gave_to_the_old_code(life: Life) -> None:
    assert life.log["nap-1"]["log"] == ["thought", "mail to ann", life.at.isoformat()]
    assert life.log["approve-1"]["log"] == [life.was["ticket"], "yes"]


def test_labels_metadata_and_scores_are_kept(life: Life) -> None:
    end, told = life.was["end"], life.told
    kept = [
        {name: one[name] for name in was}
        for one, was in zip(end["scores"], told["scores"], strict=True)
    ]
    assert kept == told["scores"]
    assert {(one["kind"], one["damaged"]) for one in end["scores"]} == {("number", None)}
    [nap] = [run for run in end["runs"] if run["thread_id"] == "nap-1"]
    assert nap["metadata"] == "{'team': 'blue', 'stage': 'thought', 'draft': 1}"


def test_a_person_answers_what_the_old_code_asked(life: Life) -> None:
    assert life.states["answered"]["approve-1"] == "done"
    assert life.log["trip-1"]["log"] == ["Rome"]


def test_a_schema_the_old_code_stored_still_checks_the_answer(life: Life) -> None:
    assert life.log["review-1"]["log"] == ["send fine"]


def test_a_question_nobody_answers_expires_at_its_time(life: Life) -> None:
    assert [life.states[phase]["review-2"] for phase in ("day 4", "day 20")] == ["waiting", "done"]
    assert life.log["review-2"]["log"] == ["drop too late"]


def test_a_call_of_a_bound_graph_left_waiting_is_resumed(life: Life) -> None:
    assert life.was["bound"] == {"log": ["Oslo"]}
    assert life.log["trip-2"] == {"log": ["Oslo"]}


def test_a_question_is_taken_back_by_its_signal(life: Life) -> None:
    assert life.log["draft-1"]["log"] == ["taken back"]


def test_a_signal_wakes_the_run_that_waits_for_it(life: Life) -> None:
    assert life.log["listen-1"]["log"] == ["first {'n': 1}, second {'n': 11}"]


def test_a_signal_kept_by_the_old_code_is_taken_by_a_new_run(life: Life) -> None:
    assert life.log["listen-2"]["log"] == ["first {'n': 2}, second nothing"]


def test_a_signal_that_was_delivered_is_not_delivered_or_accepted_again(life: Life) -> None:
    assert life.was["again"] is False
    assert life.log["listen-3"]["log"] == ["first {'n': 3}, second {'n': 33}"]


def test_runs_queued_on_a_thread_go_on_one_after_the_other(life: Life) -> None:
    assert life.log["turn-1"]["log"] == ["a", "b", "c"]
    assert life.was["turns"] == ["done", "done", "done"]


def test_a_run_that_starts_later_starts_at_its_time(life: Life) -> None:
    states = [life.states[phase]["nap-4"] for phase in ("page", "later", "day 3", "day 4")]
    assert states == ["pending", "waiting", "waiting", "done"]


def test_a_pending_run_is_driven_at_once(life: Life) -> None:
    assert life.log["wake-1"]["log"] == ["queued", "woken"]
    assert life.states["answered"]["wake-1"] == "done"


def test_a_key_that_was_used_gives_the_old_run(life: Life) -> None:
    asked, found = life.was["same"]
    assert asked == found


def test_a_subgraph_that_sleeps_wakes(life: Life) -> None:
    assert [life.states[phase]["nested-1"] for phase in ("day 1", "day 2")] == ["waiting", "done"]
    assert life.log["nested-1"]["log"] == ["mail to bo", "rested", "arrived"]


def test_branches_keep_what_they_did_and_asked_while_another_is_answered(life: Life) -> None:
    told = ["mail to cy", "di agrees", "ed agrees", "3 came back"]
    assert life.log["fan-1"]["log"] == told


def test_an_entrypoint_goes_on_without_its_task_being_made_again(life: Life) -> None:
    assert life.log["parcel-1"] == "1000 g"
    assert life.every_call()["weigh 500"] == 0


def test_values_of_a_users_own_types_come_back_as_they_were(life: Life) -> None:
    shipped = life.log["shipment-1"]
    assert shipped["log"] == ["7 RED High Street ('new', 'far')"]
    assert (shipped["order"].placed, shipped["order"].color.name) == (life.at, "RED")
    assert shipped["address"].tags == ("new", "far")


# -- effects


def test_a_recorded_effect_is_never_called_again(life: Life) -> None:
    calls = life.every_call()
    # To Ann only by nap-4, which had not begun, and the fork; the other mails were sent before.
    assert {call: n for call, n in calls.items() if call.startswith("send")} == {"send ann": 2}
    for recorded in ("reserve 4", "buy chair", "buy desk", "book 12a", "model 0"):
        assert calls[recorded] == 0


def test_an_effect_cut_off_is_called_again_with_the_same_key(life: Life) -> None:
    assert life.states["answered"]["dinner-1"] == "running"  # the lease is not over yet
    assert life.states["taken over"]["dinner-1"] == "done"
    assert life.log["dinner-1"]["log"] == ["table 4", "paid 30"]
    assert life.calls["taken over"].count("settle_bill 30") == 1
    [old] = [one for one in life.told["effects"] if one["name"] == "settle_bill"]
    assert life.was["keys"]["settle_bill"] == old["key"]


def test_the_far_side_is_asked_about_an_effect_cut_off_that_can_be_verified(life: Life) -> None:
    assert life.log["shop-1"]["log"] == ["one lamp, found"]
    assert life.every_call()["find_order lamp"] == 1
    assert life.every_call()["place_order lamp"] == 0


def test_an_unknown_effect_settled_as_done_is_not_called(life: Life) -> None:
    assert life.log["bill-10"]["log"] == ["receipt 981"]
    assert life.every_call()["charge 10"] == 0


def test_an_unknown_effect_settled_as_retry_is_called_once(life: Life) -> None:
    assert life.log["bill-20"]["log"] == ["receipt for 20"]
    assert life.every_call()["charge 20"] == 1


def test_an_effect_cut_off_is_held_for_a_person_if_it_says_so(life: Life) -> None:
    assert life.states["taken over"]["bill-30"] == "held"
    assert life.log["bill-30"]["log"][0].startswith("not charged: ")
    assert "the bank says no" in life.log["bill-30"]["log"][0]
    assert life.every_call()["charge 30"] == 0


def test_an_agent_of_langchain_goes_on_where_its_tool_was_cut_off(life: Life) -> None:
    assert life.states["taken over"]["books-1"] == "held"
    said = [message.text for message in life.log["books-1"]["messages"]]
    assert said == ["Pay A-17", "", "A-17 is paid", "All paid."]
    calls = life.every_call()
    assert (calls["model 0"], calls["model 1"], calls["pay_invoice A-17"]) == (0, 1, 0)


def test_a_models_recorded_answer_is_not_paid_for_again(life: Life) -> None:
    assert [message.text for message in life.log["speaker-1"]["messages"]] == [
        "Speak",
        "Well said.",
    ]
    assert life.every_call()["model 0"] == 0
    [run] = [run for run in life.was["end"]["runs"] if run["thread_id"] == "speaker-1"]
    assert "'model_calls': 1" in run["saved"]


def test_no_call_is_found_to_differ_from_its_record(life: Life) -> None:
    assert "differs" not in life.was["kinds"]


def test_a_postponed_effect_is_tried_again_when_it_is_due(life: Life) -> None:
    assert life.states["settled"]["page-1"] == "waiting"
    assert life.log["page-1"]["log"] == ["read news"]
    assert life.every_call()["fetch news"] == 1


def test_a_recorded_exception_comes_back_with_its_own_type(life: Life) -> None:
    assert life.log["visit-1"]["log"] == ["refused ('nobody is in', 3)", "too slow", "go home"]
    calls = life.every_call()
    assert (calls["knock 3"], calls["dawdle"]) == (0, 0)


def test_a_business_key_of_the_old_journal_guards_a_new_run(life: Life) -> None:
    assert life.log["campaign-2"]["log"] == ["letter 1 to fay"]
    assert life.every_call()["write_once fay 1"] == 0


def test_the_outbox_is_delivered_once_each_with_the_ids_it_had(life: Life) -> None:
    ids = {one["topic"]: one["id"] for one in life.told["messages"]}
    calls = life.every_call()
    assert {call for call in calls if call.startswith(("booked", "told"))} == {
        f"booked {ids['booked']}",
        f"told {ids['told']}",
    }
    assert calls[f"booked {ids['booked']}"] == calls[f"told {ids['told']}"] == 1
    assert life.was["messages"] == []


def test_no_effect_is_left_open_and_nothing_waits(life: Life) -> None:
    assert life.was["open"] == []
    assert life.was["waits"] == []
    assert life.was["unfinished"] == []


# -- control


def test_a_paused_run_rests_until_it_is_resumed(life: Life) -> None:
    assert life.states["answered"]["nap-2"] == "waiting"
    assert life.states["day 3"]["nap-2"] == "done"


def test_a_failed_run_is_tried_again_and_another_stays_failed(life: Life) -> None:
    assert life.log["fragile-1"]["log"] == ["mended"]
    [other] = [run for run in life.was["end"]["runs"] if run["thread_id"] == "fragile-2"]
    assert other["state"] == "failed"
    assert other["error"]["message"] == "it broke"


def test_a_run_being_cancelled_is_undone_last_things_first(life: Life) -> None:
    assert [call for call in life.every_call().elements() if call.startswith("refund")] == [
        "refund desk, receipt of desk",
        "refund chair, receipt of chair",
    ]
    assert life.states["answered first"]["purchase-1"] == "cancelled"


def test_a_cancelled_run_stays_cancelled(life: Life) -> None:
    assert life.states["day 20"]["nap-3"] == "cancelled"


def test_a_large_output_is_read_from_its_checkpoint(life: Life) -> None:
    assert life.log["report-1"] == {"text": LARGE}


def test_a_schedule_fires_at_its_time_once(life: Life) -> None:
    assert life.was["scheduled"] == [("done", {"log": ["d", "woken"]})]


def test_an_old_checkpoint_can_be_forked(life: Life) -> None:
    assert life.states["forked"]["forked"] == "waiting"
    assert life.log["forked"]["log"][:2] == ["thought", "mail to ann"]


def test_old_runs_can_be_pruned(life: Life) -> None:
    assert life.was["pruned"] == len(life.was["end"]["runs"])
    assert life.was["left"] == []


# -- reflections


def test_a_reflection_cut_off_while_it_wrote_is_finished_without_asking_again(life: Life) -> None:
    assert life.notes["at once"] == [("di", "cut")]
    assert life.every_call()["reflect cut"] == 0


def test_a_held_reflection_is_tried_again(life: Life) -> None:
    assert life.notes["retried"] == [("cy", "held"), ("di", "cut")]


def test_reflections_are_made_when_they_are_due_and_only_the_last_of_a_conversation(
    life: Life,
) -> None:
    assert life.notes["after a minute"] == AT_ONCE
    assert life.notes["after a day"] == sorted(AT_ONCE + NEXT_DAY)
    made = [call for call in life.every_call().elements() if call.startswith("reflect")]
    assert sorted(made) == [f"reflect {key}" for key in ("held", "last", "new", "soon", "told")]


def test_a_new_reflection_takes_the_place_of_an_old_one_of_its_conversation(life: Life) -> None:
    runs = life.was["end"]["runs"]
    assert [run["state"] for run in runs if "'fay'" in run["metadata"]] == ["cancelled", "done"]


def test_a_reflection_submitted_in_a_node_is_not_submitted_again_when_the_node_is(
    life: Life,
) -> None:
    assert life.log["remember-1"]["log"] == ["no"]
    runs = life.was["end"]["runs"]
    assert len([run for run in runs if "'ed'" in run["metadata"]]) == 1


# -- with only the saver


def test_a_conversation_of_the_saver_has_every_message_and_checkpoint(life: Life) -> None:
    told = [id for n in range(4) for id in (f"human-{n}", f"ai-{2 * n + 1}")]
    assert life.was["conversation"] == told
    assert life.was["lengths"] == [8, 7, 6, 6, 5, 4, 4, 3, 2, 2, 1, 0]
    assert life.was["next"] == [(), ("reply",), ("__start__",)] * 4


def test_a_conversation_of_the_saver_goes_on(life: Life) -> None:
    assert life.was["said"] == [*life.was["conversation"], "human-4", "ai-9"]


def test_an_effect_made_with_only_the_saver_is_not_called_after_its_interrupt(life: Life) -> None:
    assert life.was["letter"]["log"] == ["mail to gus", "signed"]
    assert life.every_call()["send gus"] == 0


# -- encrypted


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """The encrypted journal, lived to its end."""
    copy = tmp_path_factory.mktemp("old") / "encrypted.db"
    shutil.copy(FILES["encrypted"], copy)
    living = Living(f"sqlite:///{copy}", "encrypted")
    ask, was = living.ask, living.life.was
    with living.rt:
        asked = living.wait_on("approve-1")
        was["ticket"] = asked.value["ticket"]
        ask.answer(asked.id, "yes")
        ask.signal("listen-3", "second", {"n": 33})
        ask.start("listen", {}, thread_id="listen-2")
        for days in (0, 1, 3, 20):
            living.until(DAY * days)
            living.end_of(f"day {days}")
        read_again(living)
        living.examine()
    return living.life


def test_an_encrypted_journal_reads_as_it_did_to_the_code_that_wrote_it(encrypted: Life) -> None:
    assert same_part(encrypted.found, encrypted.told) == encrypted.told
    assert all(said.startswith("0 ") for said in encrypted.healthy)


def test_runs_of_an_encrypted_journal_come_to_their_end(encrypted: Life) -> None:
    log, at = encrypted.log, encrypted.at
    assert encrypted.was["unfinished"] == []
    assert log["nap-1"]["log"] == ["thought", "mail to ann", at.isoformat()]
    assert log["approve-1"]["log"] == [encrypted.was["ticket"], "yes"]
    assert log["listen-2"]["log"] == ["first {'n': 2}, second nothing"]
    assert log["listen-3"]["log"] == ["first {'n': 3}, second {'n': 33}"]
    assert log["shipment-1"]["log"] == ["7 RED High Street ('new', 'far')"]


def test_effects_of_an_encrypted_journal_are_not_called_again(encrypted: Life) -> None:
    assert encrypted.every_call() == {}


def test_an_encrypted_journal_does_not_open_without_its_key(tmp_path: Path) -> None:
    copy = tmp_path / "encrypted.db"
    shutil.copy(FILES["encrypted"], copy)
    with perdure.Saver(f"sqlite:///{copy}") as saver, pytest.raises(WrongKey):
        saver.get_tuple(place("nap-1"))
