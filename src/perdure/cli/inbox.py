"""People and the runs that wait for them: `inbox`, `answer`, `withdraw`, `link`, `signal`,
`effects` and `settle`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import click

from perdure.cli.options import (
    ABSENT,
    AT,
    BY,
    COUNT,
    DURATION,
    ID_HELP,
    JSON,
    JSON_VALUE,
    LIMIT,
    PLACE,
    REASON,
    THREAD,
    Json,
    actor,
    arg,
    choice,
    opt,
)
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
from perdure.cli.target import client_at, find_id, one_place
from perdure.commands import workers
from perdure.errors import BadArgument, NotFound
from perdure.text import json_default, printable
from perdure.times import utc_time
from perdure.types import EffectRecord, Run, State
from perdure.views import waiting_for
from perdure.views.event_wording import NextStep, Verb
from perdure.views.formatting import call_arguments, count

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.views.waiting_for import InboxItem

MOST_LINES = 12
"""Lines shown of a question; --json has all of it."""
SECTIONS = {
    "answer": ("a", "question", "questions"),
    "settle": ("an", "effect with an unknown outcome", "effects with an unknown outcome"),
    "retry": ("a", "held run", "held runs"),
}
EFFECT_STATES = ("open", "done", "failed", "unknown", "again", "all")


def inbox(
    place: str | None = PLACE,
    at: str | None = AT,
    thread: str | None = THREAD,
    limit: int = opt("N", "List at most N of each kind.", default=20, type=COUNT),
    json: bool = JSON,
) -> None:
    """List what needs a person.

    Lists open questions, oldest first; effects with an unknown outcome; held runs; and graphs with
    due runs that no worker seems to have. Each comes with the command that lets the run continue.
    With --json, `needs` is `answer`, `settle`, `retry` or `worker`, and the other fields are those
    of the `Wait`, `EffectRecord` or `Run`.
    """
    at = one_place(place, at)
    with client_at(at) as client:
        items = client.blocking.inbox(thread_id=thread, limit=limit + 1)
        unknown = [] if thread else client.journal.run(workers.unknown_graphs(client.engine))
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


def answer(
    wait: str = arg("WAIT", f"From `perdure inbox`. {ID_HELP}"),
    value: Any = arg(
        JSON_VALUE,
        "The answer, as JSON.",
        required=False,
        default=ABSENT,
        type=Json("The answer", " For an answer in plain text: --text TEXT."),
    ),
    at: str | None = AT,
    text: str | None = opt("TEXT", "The answer as plain text instead of JSON."),
    by: str | None = BY,
) -> None:
    """Answer a run's question.

    An answer is checked against the question's schema, and accepted once.
    """
    if (value is ABSENT) == (text is None):
        raise BadArgument("An answer is JSON, @FILE, - for stdin, or --text TEXT; give one.")
    with client_at(at) as client:
        wait = find_id(client, "wait", wait)
        client.blocking.answer(wait, value if text is None else text, by=actor(by))
    print(f"{wait} is answered.")


def withdraw(
    wait: str = arg("WAIT", f"From `perdure show`. {ID_HELP}"),
    at: str | None = AT,
    by: str | None = BY,
    reason: str | None = REASON,
) -> None:
    """Take back an answer that made its run fail.

    The question is open again, and the run asks it again. The command is refused while the run is
    being driven, and once the run has used the answer; then the error names the checkpoint to fork
    the run from.
    """
    with client_at(at) as client:
        wait = find_id(client, "wait", wait)
        client.blocking.withdraw(wait, by=actor(by), reason=reason)
    print(f"The answer to {wait} is withdrawn; the question is open again.")


def link(
    wait: str = arg("WAIT", f"From `perdure inbox`. {ID_HELP}"),
    to: str = opt(
        "NAME",
        "The person it is for. The answer is recorded under this name.",
        required=True,
    ),
    at: str | None = AT,
    expires: timedelta = opt(
        "7d",
        "How long the link works; at most until the question expires.",
        default="7d",
        type=DURATION,
    ),
) -> None:
    """Print a link that lets a person answer a question.

    It works once and without signing in. Opening it decides nothing. It needs `PERDURE_PUBLIC_URL`,
    or the `public_url` of the Runtime in --at.
    """
    with client_at(at) as client:
        wait = find_id(client, "wait", wait)
        print(client.blocking.link(wait, to=to, expires=expires))


def signal(
    thread: str = arg("THREAD", "The thread that receives it."),
    name: str = arg("NAME", "Name of the signal."),
    value: Any = arg(
        JSON_VALUE, "Its value; null by default.", required=False, type=Json("The value")
    ),
    at: str | None = AT,
    key: str | None = opt("KEY", "Idempotency key: a second signal with it is ignored."),
) -> None:
    """Send a signal to a thread.

    It is stored until a run of the thread waits for a signal of this name.
    """
    with client_at(at) as client:
        stored = client.blocking.signal(thread, name, value, key=key)
    print("Sent." if stored else f"A signal with the key {key} was sent before; nothing changed.")


def effects(
    place: str | None = PLACE,
    at: str | None = AT,
    run: str | None = opt("ID", f"Only effects of this run. {ID_HELP}"),
    thread: str | None = THREAD,
    state: str | None = choice(
        "Only this state.", EFFECT_STATES, show_default="unknown; all with --run or --thread"
    ),
    limit: int = LIMIT,
    json: bool = JSON,
) -> None:
    """List effects with their keys and arguments.

    Without options it lists those with an unknown outcome, which a person has to settle.
    """
    state = state or ("all" if run or thread else "unknown")
    at = one_place(place, at)
    wanted = None if state == "all" else state
    with client_at(at) as client:
        ask = client.blocking
        run_id = ask.find(run).id if run else None
        found = ask.effects(run_id, thread_id=thread, state=wanted, limit=limit)
        listed_all = state == "unknown" and not run and not thread
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


def settle(
    key: str = arg("KEY", "Key from `perdure effects`, or at least its first 4 characters."),
    how: Literal["done", "retry", "fail"] = arg(
        "done|retry|fail",
        "done: it happened; retry: call it again; fail: give up on it.",
        type=click.Choice(("done", "retry", "fail")),
    ),
    at: str | None = AT,
    result: Any = opt(
        JSON_VALUE,
        "What the call returned; null for nothing. `done` needs it, the others refuse it.",
        default=ABSENT,
        show_default=False,
        type=Json(hint=" A text is {}."),
    ),
    reason: str | None = opt(
        "TEXT", "Why, for the record. With fail, the message of the error in the node."
    ),
    by: str | None = BY,
) -> None:
    """Settle an effect with an unknown outcome.

    A held run continues when its last unknown effect is settled. A failed run also needs `perdure
    retry RUN`, which is printed. An effect settled as `fail` can be settled as `retry` or `done`
    later.
    """
    if how != "done" and result is not ABSENT:
        raise BadArgument(f"{how} takes no --result. Say why with --reason.")
    if how == "done" and result is ABSENT:
        raise BadArgument("done needs --result: what the call returned, as JSON; null for nothing.")
    value = None if result is ABSENT else result
    with client_at(at) as client:
        key = find_id(client, "effect", key)
        client.blocking.settle(key, how, value, by=actor(by), reason=reason)
        print(f"{key} is settled: {how}.")
        run = None if how == "fail" else _run_of_effect(client, key)
    if run is not None and run.state is State.FAILED:
        retry = command_for(NextStep(Verb.RETRY, (run.id,)), at)
        print(f"Its run failed, and goes on when it is retried:\n{retry}")


def _run_of_effect(client: Client, key: str) -> Run | None:
    from perdure.commands import effects

    row = client.journal.do(effects.find(key))
    try:
        return client.blocking.get(row.run_id, output=False) if row and row.run_id else None
    except NotFound:  # deleted meanwhile
        return None
