"""Runs as commands look at them: without what they gave back, which may be large, unless it is
wanted; and everything that there is of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from perdure.client import Client
from perdure.errors import BadArgument, NotFound
from perdure.operations import runs, waits
from perdure.operations.run_payload import UNREADABLE
from perdure.serde.serializer import where_wait
from perdure.types import Run, maybe_moment

T = TypeVar("T")
SHORTEST = 6
"""Characters of an id that may stand for all of it."""
PAGE = 200


def look(client: Client, run_id: str) -> Run:
    """A run as it is now, without its output."""
    ledger = client.services.runs
    return client.journal.run(ledger.show(client.journal.run(ledger.find(run_id)), output=False))


def find(client: Client, given: str | None, thread_id: str | None) -> Run:
    """A run by its id or the beginning of it, or the newest of a thread."""
    if (given is None) == (thread_id is None):
        raise BadArgument("Which run? Give its id, or --thread for the newest run of a thread.")
    if given is None:
        newest = client.blocking.runs(thread_id=thread_id, limit=1, output=False)
        if not newest:
            raise NotFound("run of the thread", str(thread_id))
        return newest[0]
    return look(client, whole_id(client, given))


def whole_id(client: Client, given: str) -> str:
    """The id of the run that was meant: all of it was given, or the beginning of only one."""
    if len(given) < SHORTEST:
        raise BadArgument(
            f"There is no run {given!r}: give its id, or at least {SHORTEST} characters of its "
            "beginning. `perdure runs` lists them."
        )
    found = client.journal.do(runs.find_by_prefix(given))
    if not found:
        raise NotFound("run", given)
    if len(found) > 1 and found[0].id != given:
        raise BadArgument(f"More than one run begins with {given}; give more of it.")
    return found[0].id


def every(page: Callable[[T | None], list[T]]) -> Iterator[T]:
    """All there is, page by page; `page` gives what comes after one of them."""
    last: T | None = None
    while found := page(last):
        yield from found
        last = found[-1]


def whole(client: Client, run: Run) -> dict[str, Any]:
    """A run with its history, waits, effects and scores. What cannot be read here is told."""
    told: dict[str, Any] = {"run": run}
    parts: dict[str, Callable[[], list[Any]]] = {
        "events": lambda: client.blocking.events(run.id),
        "waits": lambda: waits_of(client, run.id),
        "effects": lambda: effects_of(client, run.id),
        "scores": lambda: client.blocking.scores(run.id),
    }
    for name, read in parts.items():
        try:
            told[name] = read()
        except UNREADABLE as error:
            told[name] = []
            told["unreadable"] = f"{told.get('unreadable', '')} {error}".strip()
    return told


def effects_of(client: Client, run_id: str) -> list[Any]:
    ask = client.blocking.effects
    return list(every(lambda last: ask(run_id, after=last, limit=PAGE)))


def waits_of(client: Client, run_id: str) -> list[dict[str, Any]]:
    """Every wait a run ever had, with its answer."""
    serializer, found = client.services.serializer, []
    for row in client.journal.do(waits.of_run(run_id)):
        answer = row.answer
        found.append(
            vars(waits.to_wait(serializer, row))
            | {
                "state": row.state,
                "answered_at": maybe_moment(row.answered_at),
                "answered_by": row.answered_by,
                "answer": None
                if answer is None
                else serializer.loads(answer, where_wait("answer", row.id)),
            }
        )
    return found
