"""What runs beside the runs: `workers` and `drain`, `schedules`, `reflections`, and `tokens`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from perdure.cli.options import At, Limit, Lines, Parameter, actor
from perdure.cli.output import (
    at_option,
    format_table,
    one_line,
    paint,
    paint_state,
    print_all,
    print_json,
)
from perdure.cli.target import client_at, find_id
from perdure.commands import reflections as reflection_plans
from perdure.commands import tokens
from perdure.errors import BadArgument
from perdure.text import printable
from perdure.times import utc_time
from perdure.types import Schedule, State, WorkerInfo
from perdure.views.formatting import age, count

if TYPE_CHECKING:
    from perdure.commands.reflections import Pending

PAGE = 200
ReflectionId = Annotated[str | None, Parameter(metavar="ID")]


# -- workers


def workers(at: At = None, *, json: Lines = False) -> None:
    """List the processes that drive runs.

    Shows how many runs each drives, its concurrency, its start and its graphs. A worker sends a
    heartbeat every ten seconds (every thirty on D1), and is silent after three missed ones. A tick,
    or the caller of a bound graph, is listed while it drives something.
    """
    with client_at(at) as client:
        found, now = client.blocking.workers(), client.blocking.now()

    def show(found: Sequence[WorkerInfo]) -> None:
        headers = ("WORKER", "STATE", "DRIVES", "STARTED", "GRAPHS")
        print(format_table(headers, [_worker_row(one, now) for one in found], shrinks=(4,)))

    print_all(found, show, json=json, none="No worker has announced itself, and no run is driven.")


def _worker_row(one: WorkerInfo, now: datetime) -> tuple[str, ...]:
    state = one.state.value
    if state == "silent" and one.seen_at is not None:
        state = f"silent for {age(one.seen_at, now)}"
    drives = str(one.driven) + (f" of {one.concurrency}" if one.concurrency else "")
    started = "" if one.started_at is None else age(one.started_at, now)
    graphs = one_line(", ".join(one.graphs), 60) if one.graphs else "(not announced)"
    return printable(f"{one.host}:{one.pid}"), state, drives, started, graphs


# -- schedules


def schedules(at: At = None, *, json: Lines = False) -> None:
    """List schedules, with the time of their next run.

    `schedule`, `enable-schedule` and `unschedule` change them.
    """
    with client_at(at) as client:
        found = client.blocking.schedules()
    print_all(found, _print_schedules, json=json, none="There is no schedule.")


def _print_schedules(found: Sequence[Schedule]) -> None:
    rows = [
        (
            one.name,
            one.graph,
            one.cron,
            one.timezone,
            utc_time(one.next_at) if one.enabled else "disabled",
            str(one.missed),
        )
        for one in found
    ]
    print(format_table(("NAME", "GRAPH", "CRON", "ZONE", "NEXT", "MISSED"), rows, shrinks=(0, 1)))
    for one in found:
        if one.problem:
            print(paint(one_line(f"{one.name}: {one.problem}", 1000), "red"))


# -- reflections


def reflections(
    at: At = None,
    *,
    executor: str | None = None,
    state: Literal["pending", "waiting", "running", "held"] | None = None,
    limit: Limit = 100,
    json: Lines = False,
    retry: ReflectionId = None,
    cancel: ReflectionId = None,
) -> None:
    """List unfinished reflections; retry or cancel one.

    Reflections are the memory work of LangMem executors. They are listed oldest first.

    Args:
        executor: Only reflections of this executor.
        state: Only this state.
        retry: Retry this held reflection.
        cancel: Cancel this reflection. It then writes nothing.
    """
    if retry and cancel:
        raise BadArgument("Pass one of --retry and --cancel, not both.")
    by = actor(os.environ.get("USER"))
    with client_at(at) as client:
        journal, on = client.journal, client.engine
        if retry:
            retry = find_id(client, "reflection", retry)
            journal.run(reflection_plans.retry(on, retry, executor, by))
            print(f"{retry} is retried.")
            return
        if cancel:
            cancel = find_id(client, "reflection", cancel)
            journal.run(reflection_plans.cancel(on, cancel, executor, by))
            print(f"{cancel} is cancelled.")
            return
        found: list[Pending] = []
        last: Pending | None = None
        while len(found) < limit and (
            page := journal.run(reflection_plans.pending(on, executor, last, PAGE))
        ):
            last = page[-1]
            matching = (one for one in page if state in (None, one.state))
            found += islice(matching, limit - len(found))
    none = "No reflection is pending, running or held."
    print_all(found, lambda found: _print_reflections(found, at), json=json, none=none)


def _print_reflections(found: Sequence[Pending], at: str | None) -> None:
    for one in found:
        namespace = "/".join(map(printable, one.namespace)) or "no namespace"
        thread = "" if one.thread_id is None else f", thread {printable(one.thread_id)}"
        executor = printable(one.executor)
        print(f"{paint_state(one.state, 8)} {one.id}  {executor}: {namespace}{thread}")
        is_pending = one.state is State.PENDING
        due = f", due {utc_time(one.due_at)}" if is_pending and one.due_at else ""
        tries = f", {count(one.attempts, 'attempt')}" if one.attempts else ""
        print(f"         submitted {utc_time(one.submitted_at)}{due}{tries}")
        if one.state is State.HELD:
            print(f"         {one_line(one.reason or '', 1000)}")
            print(f"         perdure reflections --retry {one.id}{at_option(at)}")
        elif one.error is not None:
            print(f"         {one_line(str(one.error), 1000)}")


# -- tokens


def create(
    name: str,
    *,
    at: At = None,
    scope: tuple[str, ...] = (),
    expires: timedelta | None = None,
    json: Lines = False,
) -> None:
    """Create a token and print it.

    It cannot be shown again: the journal stores only its hash. The name of a revoked token can be
    used again. A missing journal is created.

    Args:
        name: A name, such as the program that uses it.
        scope: What it may do: read, start, answer or admin; at least one, repeatable.
        expires: How long it is valid; by default forever.
    """
    with client_at(at, create=True) as client:
        token = client.journal.run(tokens.create(client.engine, name, scope, expires=expires))
        known = client.journal.run(tokens.list_tokens(client.engine))
        usable = [one for one in known if one.revoked_at is None]
    if not any("admin" in one.scopes for one in usable):
        print(
            "perdure: note: no token has the scope admin. Once there are tokens, the address that "
            "the server prints does not sign in. For yourself: perdure tokens create NAME "
            "--scope admin.",
            file=sys.stderr,
        )
    if json:
        print_json({"name": name, "token": token})
    else:
        print(token)


def list_(*, at: At = None, json: Lines = False) -> None:
    """List tokens, including revoked ones.

    Shows name, scopes, and when each was created, expires and was last used.
    """
    with client_at(at) as client:
        found = client.journal.run(tokens.list_tokens(client.engine))

    def show(found: Sequence[Any]) -> None:
        rows = []
        for one in found:
            times = (one.created_at, one.expires_at, one.used_at, one.revoked_at)
            texts = ("" if time is None else utc_time(time) for time in times)
            rows.append((one.name, " ".join(one.scopes), *texts))
        headers = ("NAME", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED")
        print(format_table(headers, rows, shrinks=(0,)))

    none = "There is no token. Create one: perdure tokens create NAME --scope read."
    print_all(found, show, json=json, none=none)


def revoke(name: str, *, at: At = None) -> None:
    """Revoke a token.

    Servers refuse it within three seconds.

    Args:
        name: Its name.
    """
    with client_at(at) as client:
        client.journal.run(tokens.revoke(client.engine, name))
    print(f"{printable(name)} is revoked.")
