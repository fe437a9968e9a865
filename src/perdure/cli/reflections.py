"""`perdure reflections`: the memory work that is pending, running or held."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perdure.cli.place import At, opened, typed
from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.service.reflections import Pending


def reflections(
    at: At = None,
    executor: Annotated[str | None, typer.Option(metavar="NAME", help="Of one executor.")] = None,
    state: Annotated[
        Literal["pending", "waiting", "running", "held"] | None, typer.Option(help="In one state.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many.")] = 100,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    retry: Annotated[
        str | None, typer.Option(metavar="ID", help="Let one that is held be tried again.")
    ] = None,
    cancel: Annotated[
        str | None, typer.Option(metavar="ID", help="Cancel one; nothing of it is written.")
    ] = None,
) -> None:
    """List reflections that are not over; retry or cancel one."""
    from itertools import islice

    from perdure.cli.lookup import every
    from perdure.cli.tell import print_json
    from perdure.service.reflections import Reflections
    from perdure.service.validation import check_limit

    if retry and cancel:
        raise BadArgument("One of --retry and --cancel at a time.")
    with opened(at) as client:
        journal, found = (
            client.journal,
            Reflections(client.services.serializer, client.services.clock),
        )
        if retry:
            journal.run(found.retry(retry, executor))
            print(f"{retry} is tried again.")
            return
        if cancel:
            journal.run(found.cancel(cancel, executor, os.environ.get("USER")))
            print(f"{cancel} is cancelled.")
            return
        pending = every(lambda last: journal.run(found.pending(executor, last, 500)))
        wanted = (one for one in pending if state in (None, one.state))
        shown = 0
        for one in islice(wanted, check_limit(limit)):
            shown += 1
            if json:
                print_json(one)
            else:
                _show(one, typed(at))
    if not shown and not json:
        print("No reflection is pending, running or held.")


def _show(one: Pending, place: str) -> None:
    from perdure.cli import tell
    from perdure.types import State

    where = "/".join(map(tell.printable, one.namespace)) or "no namespace"
    thread = "" if one.thread_id is None else f", thread {tell.printable(one.thread_id)}"
    print(f"{tell.paint_state(one.state, 8)} {one.id}  {one.executor}: {where}{thread}")
    due = "" if one.due_at is None else f", due {tell.stamp(one.due_at)}"
    tries = f", {tell.count(one.attempts, 'attempt')}" if one.attempts else ""
    since = tell.stamp(one.submitted_at)
    print(f"         submitted {since}{due if one.state is State.PENDING else ''}{tries}")
    if one.state is State.HELD:
        print(f"         {tell.shown(one.reason or '', 1000)}")
        print(f"         perdure reflections --retry {one.id}{place}")
    elif one.error is not None:
        print(f"         {tell.shown(str(one.error), 1000)}")
