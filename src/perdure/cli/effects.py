"""`perdure effects`: what left the process; `perdure settle`: say what became of one of them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from typing import Any

from perdure.cli.place import opened
from perdure.effects import ops
from perdure.effects.book import HOW, Book
from perdure.errors import BadArgument, Error
from perdure.types import Settlement, moment

WHERE = "a journal's URL, or module:name of its Runtime (needed for encryption and own types)"


def add(commands: Any) -> None:
    """Add both commands."""
    show = commands.add_parser("effects", help="list effects; those that wait for a person first")
    show.add_argument("place", nargs="?", help=f"{WHERE}; default: PERDURE_URL")
    show.add_argument("--run", dest="run_id", metavar="ID", help="of one run")
    show.add_argument("--thread", metavar="ID", help="of one thread")
    show.add_argument(
        "--state", choices=[*map(str, Settlement), "all"], help="default: unknown, or all of a run"
    )
    show.add_argument("--limit", type=int, default=100, metavar="N", help="default 100")
    show.add_argument("--json", action="store_true", help="one JSON object per line")
    show.set_defaults(run=_effects, quiet=True)

    settle = commands.add_parser("settle", help="say what became of an effect nobody knows about")
    settle.add_argument("place", help=WHERE)
    settle.add_argument("key", help="of the effect, as `perdure effects` shows it")
    settle.add_argument("how", choices=list(HOW), help="it happened; call it; give it up")
    settle.add_argument("--result", metavar="JSON", help="of done: what it returned; of fail: why")
    settle.add_argument("--by", metavar="NAME", default=os.environ.get("USER"), help="who says so")
    settle.set_defaults(run=_settle, quiet=True)


def _effects(arguments: argparse.Namespace) -> int:
    one = arguments.run_id or arguments.thread
    state = arguments.state or (None if one else "unknown")
    with opened(arguments.place or "") as (journal, box, _):
        if arguments.run_id:
            rows = journal.do(ops.of_run(arguments.run_id))
            rows = [row for row in rows if state in (None, "all", row.state)][: arguments.limit]
        else:
            wanted = None if state == "all" else state
            page = ops.page(
                thread_id=arguments.thread, state=wanted, after=None, count=arguments.limit
            )
            rows = journal.do(page)
        for row in rows:
            try:
                record = ops.to_record(box, row)
                shown, result = dict(record.arguments), record.result
                error = None if record.error is None else str(record.error)
            except Error as unreadable:
                shown, result, error = {}, None, f"(cannot be read here: {unreadable})"
            if arguments.json:
                told = {
                    "key": row.key,
                    "name": row.name,
                    "state": row.state,
                    "run": row.run_id,
                    "thread": row.thread_id,
                    "attempts": row.attempts,
                    "arguments": shown,
                    "result": result,
                    "error": error,
                }
                print(json.dumps(told, default=str))
            else:
                print(f"{row.state:8} {row.key}  {row.name}({_told(shown)})")
                when = moment(row.created_at).isoformat(" ", "seconds")
                calls = f"{row.attempts} call{'s' * (row.attempts != 1)}"
                run = row.run_id or "none"
                print(f"         thread {row.thread_id}, run {run}, {calls} since {when}")
                if error:
                    print(f"         {error}")
                if row.state == Settlement.UNKNOWN:
                    place = arguments.place or "$PERDURE_URL"
                    command = shlex.join([place, row.key]).replace("'$PERDURE_URL'", place)
                    print(f"         perdure settle {command} done --result JSON | retry | fail")
        if not rows and not arguments.json:
            print("No effect waits for a person." if state == "unknown" else "There are none.")
        if state == "unknown" and not one and not arguments.json:
            still = ops.page(thread_id=None, state=Settlement.OPEN, after=None, count=1)
            if journal.do(still):
                print("Some are open: being called, or left by who called them. See --state open.")
    return 0


def _told(arguments: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return text if len(text) <= 200 else f"{text[:197]}..."


def _settle(arguments: argparse.Namespace) -> int:
    result = None
    if arguments.how == "done" and arguments.result is None:
        raise BadArgument("done needs --result: what the call returned, as JSON; null if nothing.")
    if arguments.result is not None:
        try:
            result = json.loads(arguments.result)
        except ValueError:
            if arguments.how == "done":
                quoted = shlex.quote(json.dumps(arguments.result))
                raise BadArgument(
                    f"--result {arguments.result!r} is no JSON; a text is {quoted}."
                ) from None
            result = arguments.result
    with opened(arguments.place) as (journal, box, clock):
        journal.run(Book(box, clock).settle(arguments.key, arguments.how, result, arguments.by))
    print(f"{arguments.key} is settled: {arguments.how}.")
    return 0
