"""`perdure reflections`: the memory work that is pending, running or held."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

from perdure.cli.effects import WHERE
from perdure.cli.place import opened
from perdure.reflections import Pending, Reflections
from perdure.types import State


def add(commands: Any) -> None:
    show = commands.add_parser(
        "reflections", help="list reflections that are not over; retry or cancel one"
    )
    show.add_argument("place", nargs="?", help=f"{WHERE}; default: PERDURE_URL")
    show.add_argument("--executor", metavar="NAME", help="of one executor")
    show.add_argument(
        "--state", choices=["pending", "waiting", "running", "held"], help="in one state"
    )
    show.add_argument("--limit", type=int, default=100, metavar="N", help="default 100")
    show.add_argument("--json", action="store_true", help="one JSON object per line")
    what = show.add_mutually_exclusive_group()
    what.add_argument("--retry", metavar="ID", help="let one that is held be tried again")
    what.add_argument("--cancel", metavar="ID", help="cancel one; nothing of it is written")
    show.set_defaults(run=_reflections, quiet=True)


def _reflections(arguments: argparse.Namespace) -> int:
    with opened(arguments.place or "") as (journal, box, clock):
        found = Reflections(box, clock)
        if arguments.retry:
            journal.run(found.retry(arguments.retry, arguments.executor))
            print(f"{arguments.retry} is tried again.")
            return 0
        if arguments.cancel:
            by = os.environ.get("USER")
            journal.run(found.cancel(arguments.cancel, arguments.executor, by))
            print(f"{arguments.cancel} is cancelled.")
            return 0
        shown, last = 0, None
        while shown < arguments.limit:
            page = journal.run(found.pending(arguments.executor, last, 500))
            if not page:
                break
            last = page[-1]
            for one in page:
                if arguments.state in (None, one.state) and shown < arguments.limit:
                    _show(one, arguments)
                    shown += 1
        if not shown and not arguments.json:
            print("No reflection is pending, running or held.")
    return 0


def _show(one: Pending, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(asdict(one), default=str))
        return
    where = "/".join(map(_printable, one.namespace)) or "no namespace"
    thread = "" if one.thread_id is None else f", thread {_printable(one.thread_id)}"
    print(f"{one.state:8} {one.id}  {one.executor}: {where}{thread}")
    since = one.submitted_at.isoformat(" ", "seconds")
    due = "" if one.due_at is None else f", due {one.due_at.isoformat(' ', 'seconds')}"
    tries = f", {one.attempts} attempt{'s' * (one.attempts != 1)}" if one.attempts else ""
    print(f"         submitted {since}{due if one.state is State.PENDING else ''}{tries}")
    if one.state is State.HELD:
        print(f"         {one.reason}")
        print(f"         perdure reflections {arguments.place or '$PERDURE_URL'} --retry {one.id}")
    elif one.error is not None:
        print(f"         {one.error}")


def _printable(text: str) -> str:
    """A user's text, which must not look like ours."""
    return text if text.isprintable() else repr(text)
