"""`perdure reflections`: pending, running and held memory work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from perdure.cli.options import At, Json, Limit, Place, actor
from perdure.cli.output import at_option, one_line, paint_state, print_json
from perdure.cli.target import client_at, one_place
from perdure.errors import BadArgument
from perdure.text import printable
from perdure.times import utc_time
from perdure.views.formatting import count

if TYPE_CHECKING:
    from perdure.commands.reflections import Pending


def reflections(
    place: Place = None,
    at: At = None,
    executor: Annotated[
        str | None, Option(metavar="NAME", help="Only reflections of this executor.")
    ] = None,
    state: Annotated[
        Literal["pending", "waiting", "running", "held"] | None, Option(help="Only this state.")
    ] = None,
    limit: Limit = 100,
    json: Json = False,
    retry: Annotated[str | None, Option(metavar="ID", help="Retry this held reflection.")] = None,
    cancel: Annotated[
        str | None, Option(metavar="ID", help="Cancel this reflection. It then writes nothing.")
    ] = None,
) -> None:
    """List unfinished reflections; retry or cancel one.

    Reflections are the memory work of LangMem executors. They are listed oldest first.
    """
    from itertools import islice

    from perdure.cli.run_lookup import PAGE, all_pages, find_id
    from perdure.commands.validation import check_limit

    if retry and cancel:
        raise BadArgument("Pass one of --retry and --cancel, not both.")
    at, by = one_place(place, at), actor(os.environ.get("USER"))
    with client_at(at) as client:
        journal, plans = client.journal, client.reflections
        if retry:
            retry = find_id(client, "reflection", retry)
            journal.run(plans.retry(retry, executor, by))
            print(f"{retry} is retried.")
            return
        if cancel:
            cancel = find_id(client, "reflection", cancel)
            journal.run(plans.cancel(cancel, executor, by))
            print(f"{cancel} is cancelled.")
            return
        pages = all_pages(lambda last: journal.run(plans.pending(executor, last, PAGE)))
        matching = (one for one in pages if state in (None, one.state))
        found = list(islice(matching, check_limit(limit)))
    for one in found:
        if json:
            print_json(one)
        else:
            _print(one, at)
    if not found and not json:
        print("No reflection is pending, running or held.")


def _print(one: Pending, at: str | None) -> None:
    from perdure.types import State

    namespace = "/".join(map(printable, one.namespace)) or "no namespace"
    thread = "" if one.thread_id is None else f", thread {printable(one.thread_id)}"
    print(f"{paint_state(one.state, 8)} {one.id}  {printable(one.executor)}: {namespace}{thread}")
    pending = one.state is State.PENDING
    due = f", due {utc_time(one.due_at)}" if pending and one.due_at else ""
    tries = f", {count(one.attempts, 'attempt')}" if one.attempts else ""
    print(f"         submitted {utc_time(one.submitted_at)}{due}{tries}")
    if one.state is State.HELD:
        print(f"         {one_line(one.reason or '', 1000)}")
        print(f"         perdure reflections --retry {one.id}{at_option(at)}")
    elif one.error is not None:
        print(f"         {one_line(str(one.error), 1000)}")
