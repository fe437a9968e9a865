"""Reflections in the browser: what is pending, running and held; retry and cancel."""

from __future__ import annotations

from datetime import timedelta

from perdure.commands.reflections import accept
from perdure.langmem.reflector import ReflectionRequest
from perdure.runtime import Runtime
from perdure.types import State
from tests.support.raw import execute
from tests.support.ui import Person


def submit(rt: Runtime, *namespace: str, executor: str = "memories") -> str:
    """A reflection that is due in an hour; its id."""
    thread = ReflectionRequest({}, namespace, "chat").thread(executor)
    made = {"namespace": list(namespace), "thread_id": "chat"}
    plan = accept(
        rt.engine,
        executor,
        thread,
        {},
        metadata=made,
        key="-".join(namespace)[:100],
        after=timedelta(hours=1),
    )
    return rt.journal.run(plan)


def hold(rt: Runtime, id: str, reason: str = "the model refused") -> None:
    held = f"UPDATE perdure_runs SET state = 'held', due_at = NULL, reason = '{reason}'"
    execute(rt.url, f"{held} WHERE id = '{id}'")


def test_without_reflections_the_page_says_so(person: Person) -> None:
    assert "No reflection is pending, running or held." in person.get("/reflections").text


def test_held_ones_come_first_with_the_reason(rt: Runtime, person: Person) -> None:
    submit(rt, "users", "ada")
    hold(rt, submit(rt, "users", "bob"))
    page = person.get("/reflections")
    assert page.text.index("users / bob") < page.text.index("users / ada")
    assert "the model refused" in page.text
    assert "all 2 held 1 running 0 pending 1" in page.text
    assert "users / ada" not in person.get("/reflections?state=held").text


def test_they_are_listed_by_executor(rt: Runtime, person: Person) -> None:
    submit(rt, "users", "ada")
    submit(rt, "users", "bob", executor="summaries")
    page = person.get("/reflections").submit("/reflections", executor="summaries")
    assert ("users / bob" in page.text, "users / ada" in page.text) == (True, False)


def test_a_held_one_is_retried(rt: Runtime, person: Person) -> None:
    id = submit(rt, "users", "ada")
    hold(rt, id)
    page = person.get("/reflections")
    assert "Reflection retried." in page.submit("/reflections/retry").text
    assert rt.blocking.get(id).state is State.PENDING
    assert rt.blocking.events(id)[-1].data["via"] == "browser"
    assert page.submit("/reflections/retry").status == 409  # it is not held any more


def test_one_is_cancelled_and_the_event_says_by_whom(rt: Runtime, person: Person) -> None:
    id = submit(rt, "users", "ada")
    assert "It writes nothing" in person.get("/reflections").submit("/reflections/cancel").text
    assert rt.blocking.get(id).state is State.CANCELLED
    assert rt.blocking.events(id)[-1].data["by"]


def test_the_run_of_another_graph_is_not_a_reflection(rt: Runtime, person: Person) -> None:
    submit(rt, "users", "ada")
    page = person.get("/reflections")
    run = rt.blocking.start("letter")
    assert page.submit("/reflections/cancel", id=run.id).status == 404
    assert rt.blocking.get(run.id).state is State.PENDING
