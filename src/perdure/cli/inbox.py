"""What needs a person: `inbox` and `effects`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from perdure.cli.options import At, Count, Limit, Lines, OfThread
from perdure.cli.output import (
    command_for,
    display_width,
    line_width,
    one_line,
    paint,
    paint_state,
    print_all,
    print_json,
    value_lines,
)
from perdure.cli.target import client_at
from perdure.commands import workers
from perdure.text import json_default, printable
from perdure.times import utc_time
from perdure.types import EffectRecord
from perdure.views import waiting_for
from perdure.views.event_wording import NextStep, Verb
from perdure.views.formatting import call_arguments, count

if TYPE_CHECKING:
    from perdure.views.waiting_for import InboxItem

MOST_LINES = 12
"""Lines shown of a question; --json has all of it."""
SECTIONS = {
    "answer": ("a", "question", "questions"),
    "settle": ("an", "effect with an unknown outcome", "effects with an unknown outcome"),
    "retry": ("a", "held run", "held runs"),
}


def inbox(
    at: At = None, *, thread_id: OfThread = None, limit: Count = 20, json: Lines = False
) -> None:
    """List what needs a person.

    Lists open questions, oldest first; effects with an unknown outcome; held runs; and graphs with
    due runs that no worker seems to have. Each comes with the command that lets the run continue.
    With --json, `needs` is `answer`, `settle`, `retry` or `worker`, and the other fields are those
    of the `Wait`, `EffectRecord` or `Run`.

    Args:
        limit: List at most N of each kind.
    """
    with client_at(at) as client:
        items = client.blocking.inbox(thread_id=thread_id, limit=limit + 1)
        unknown = [] if thread_id else client.journal.run(workers.unknown_graphs(client.engine))
    if not items and not unknown and not json:
        print("Nothing needs a person.")
    for verb in SECTIONS:
        found = [item for item in items if item.action.verb == verb]
        if json:
            for item in found[:limit]:
                print_json({"needs": verb} | json_default(item.record))
        elif found:
            _print_section(found, limit, at)
    for graph in unknown:
        if json:
            print_json({"needs": "worker"} | json_default(graph))
        else:
            number = f"{count(graph.runs, 'run')} {'is' if graph.runs == 1 else 'are'} due"
            print(f"{number}: {printable(waiting_for.no_worker(graph))}.")


def _print_section(items: list[InboxItem], limit: int, at: str | None) -> None:
    article, one, several = SECTIONS[items[0].action.verb]
    listed, more = len(items[:limit]), "more than " if len(items) > limit else ""
    number = f"{more}{listed}" if more or listed > 1 else article
    print(paint(f"{number} {one if listed == 1 else several}", "bold"))
    for item in items[:limit]:
        print(f"\n  {paint(printable(item.title), 'cyan')}  {printable(item.note)}")
        for line in value_lines(item.shown, MOST_LINES):
            print(f"    {line}")
        if item.accepts:
            print(f"    answers: {one_line(item.accepts, line_width(13))}")
        print(paint(f"  {command_for(item.action, at)}", "dim"))
    print()


def effects(
    at: At = None,
    *,
    run_id: str | None = None,
    thread_id: OfThread = None,
    state: Literal["open", "done", "failed", "unknown", "again", "all"] | None = None,
    limit: Limit = 100,
    json: Lines = False,
) -> None:
    """List effects with their keys and arguments.

    Without options it lists those with an unknown outcome, which a person has to settle.

    Args:
        run_id: Only effects of this run, by its id or at least its first 4 characters.
        state: Only this state. By default unknown; with --run or --thread all.
    """
    state = state or ("all" if run_id or thread_id else "unknown")
    wanted = None if state == "all" else state
    with client_at(at) as client:
        ask = client.blocking
        run_id = ask.find(run_id).id if run_id else None
        found = ask.effects(run_id, thread_id=thread_id, state=wanted, limit=limit)
        listed_all = state == "unknown" and not run_id and not thread_id
        some_open = listed_all and not json and ask.effects(state="open", limit=1)
    none = "No effect has an unknown outcome." if state == "unknown" else "No effect matches."
    print_all(found, lambda records: _print_effects(records, at), json=json, none=none)
    if some_open:
        print("Some are open: being called, or left by a worker that died. See --state open.")


def _print_effects(records: Sequence[EffectRecord], at: str | None) -> None:
    for record in records:
        arguments = one_line(call_arguments(record.name, record.arguments))
        call = printable(f"{record.key}  {record.name}")
        fits = line_width(9) >= display_width(f"{call}({arguments})")
        calls = f"{count(record.attempts, 'call')} since {utc_time(record.created_at)}"
        lines = [
            "" if fits else one_line(arguments, line_width(9)),
            f"thread {printable(record.thread_id)}, run {record.run_id or 'none'}, {calls}",
            paint(one_line(record.damaged, 1000), "red") if record.damaged else "",
            one_line(str(record.error), 1000) if record.error else "",
        ]
        if record.state == "unknown":
            lines.append(command_for(NextStep(Verb.SETTLE, (record.key,)), at))
        print(f"{paint_state(record.state, 8)} {call}{f'({arguments})' if fits else ''}")
        for line in filter(None, lines):
            print(f"         {line}")
