"""`perdure effects`: list effects; `perdure settle`: decide one with an unknown outcome."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from perdure.cli.options import ID_HELP, At, By, Json, Limit, Place, Thread, actor
from perdure.cli.output import (
    command_for,
    display_width,
    line_width,
    one_line,
    paint,
    paint_state,
    print_json,
)
from perdure.cli.parsing import parse_json
from perdure.cli.target import client_at, one_place
from perdure.errors import BadArgument
from perdure.text import printable
from perdure.times import utc_time
from perdure.views.formatting import call_arguments, count

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import EffectRecord


def effects(
    place: Place = None,
    at: At = None,
    run: Annotated[
        str | None, Option(metavar="ID", help=f"Only effects of this run. {ID_HELP}")
    ] = None,
    thread: Thread = None,
    state: Annotated[
        Literal["open", "done", "failed", "unknown", "again", "all"] | None,
        Option(help="Only this state.", show_default="unknown; all with --run or --thread"),
    ] = None,
    limit: Limit = 100,
    json: Json = False,
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
        some_open = listed_all and ask.effects(state="open", limit=1)
    for record in found:
        if json:
            print_json(record)
        else:
            _print(record, at)
    if json:
        return
    if not found:
        print("No effect has an unknown outcome." if state == "unknown" else "No effect matches.")
    if some_open:
        print("Some are open: being called, or left by a worker that died. See --state open.")


def _print(record: EffectRecord, at: str | None) -> None:
    from perdure.views.event_wording import NextStep, Verb

    shown = one_line(call_arguments(record.name, record.arguments))
    call = printable(f"{record.key}  {record.name}")
    fits = line_width(9) >= display_width(f"{call}({shown})")
    print(f"{paint_state(record.state, 8)} {call}{f'({shown})' if fits else ''}")
    if not fits:
        print(f"         {one_line(shown, line_width(9))}")
    calls = f"{count(record.attempts, 'call')} since {utc_time(record.created_at)}"
    print(f"         thread {printable(record.thread_id)}, run {record.run_id or 'none'}, {calls}")
    if record.damaged:
        print(f"         {paint(one_line(record.damaged, 1000), 'red')}")
    if record.error:
        print(f"         {one_line(str(record.error), 1000)}")
    if record.state == "unknown":
        print(f"         {command_for(NextStep(Verb.SETTLE, (record.key,)), at)}")


def settle(
    key: Annotated[
        str,
        Argument(
            metavar="KEY", help="Key from `perdure effects`, or at least its first 4 characters."
        ),
    ],
    how: Annotated[
        Literal["done", "retry", "fail"],
        Argument(
            metavar="done|retry|fail",
            help="done: it happened; retry: call it again; fail: give up on it.",
        ),
    ],
    at: At = None,
    result: Annotated[
        str | None,
        Option(
            metavar="JSON|@FILE|-",
            help="What the call returned; null for nothing. `done` needs it, the others refuse it.",
        ),
    ] = None,
    reason: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            help="Why, for the record. With fail, the message of the error in the node.",
        ),
    ] = None,
    by: By = None,
) -> None:
    """Settle an effect with an unknown outcome.

    A held run continues when its last unknown effect is settled. A failed run also needs `perdure
    retry RUN`, which is printed. An effect settled as `fail` can be settled as `retry` or `done`
    later.
    """
    from perdure.cli.run_lookup import find_id

    value = _parse_result(how, result)
    with client_at(at) as client:
        key = find_id(client, "effect", key)
        client.blocking.settle(key, how, value, by=actor(by), reason=reason)
        print(f"{key} is settled: {how}.")
        if how != "fail":
            _print_retry(client, key, at)


def _print_retry(client: Client, key: str, at: str | None) -> None:
    """Print how the run of an effect goes on, if it does not by itself: it has failed."""
    from perdure.commands import effects
    from perdure.errors import NotFound
    from perdure.types import State
    from perdure.views.event_wording import NextStep, Verb

    row = client.journal.do(effects.find(key))
    try:
        run = client.blocking.get(row.run_id, output=False) if row and row.run_id else None
    except NotFound:  # deleted meanwhile
        return
    if run is not None and run.state is State.FAILED:
        retry = command_for(NextStep(Verb.RETRY, (run.id,)), at)
        print(f"Its run failed, and goes on when it is retried:\n{retry}")


def _parse_result(how: str, result: str | None) -> Any:
    if how != "done":
        if result is not None:
            raise BadArgument(f"{how} takes no --result. Say why with --reason.")
        return None
    if result is None:
        raise BadArgument("done needs --result: what the call returned, as JSON; null for nothing.")
    return parse_json("--result", result, f" A text is {shlex.quote(json.dumps(result))}.")
