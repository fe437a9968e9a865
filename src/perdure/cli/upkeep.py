"""`perdure prune`, `doctor` and `migrate`: look after a journal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from perdure.cli.place import At, opened, url_of
from perdure.errors import BadArgument


def prune(
    older_than: Annotated[
        str,
        typer.Option(metavar="30d", help="That ended longer ago than this.", show_default=False),
    ],
    at: At = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="done, failed or cancelled; repeatable. Default: all."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most so many.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell how many; delete nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs that ended, with their history; a thread without runs loses its state."""
    from perdure.cli.given import read_duration
    from perdure.cli.tell import count
    from perdure.operations import runs
    from perdure.service.validation import check_limit, check_state
    from perdure.types import ENDED

    age = read_duration("--older-than", older_than)
    states = {check_state(one) for one in state} if state else set(ENDED)
    if not states <= ENDED:
        raise BadArgument("Only runs that ended can be pruned: done, failed, cancelled.")
    most = None if limit is None else check_limit(limit)
    with opened(at) as client:
        before = client.services.clock.now() - round(age.total_seconds() * 1000)
        found = len(client.journal.do(runs.ended_before(states, before, most or sys.maxsize)))
        if dry_run:
            print(f"{count(found, 'run')} would be deleted.")
            return
        if found and not yes:
            if not sys.stdin.isatty():
                raise BadArgument(
                    f"{count(found, 'run')} would be deleted. Say --yes, since nobody can be asked."
                )
            if not typer.confirm(f"Delete {count(found, 'run')}?"):
                raise typer.Abort()
        gone = client.blocking.prune(older_than=age, states=states, limit=most) if found else 0
    print(f"{count(gone, 'run')} deleted.")


def doctor(
    at: At = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per finding.")] = False,
) -> None:
    """Check what must be true of a journal. Exit 1 if something is not."""
    from perdure.cli.tell import print_json, printable
    from perdure.operations.invariants import INVARIANTS, examine, remarks

    url = url_of(at)
    with opened(at) as client:
        findings = client.journal.do(examine())
    for finding in findings:
        if json:
            print_json(finding._asdict())
        else:
            thread, detail = printable(finding.thread_id), printable(finding.detail)
            print(f"{finding.problem}: thread {thread!r}, {finding.id} ({detail})")
    if not json:
        for remark in remarks(url):
            print(f"note: {remark}")
        if findings:
            print(f"{len(findings)} found; none of this should happen. Please report it.")
        else:
            print(f"All {len(INVARIANTS)} invariants hold.")
    if findings:
        raise typer.Exit(1)


def migrate(
    at: At = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if there is something to do.")
    ] = False,
) -> None:
    """Make a journal, or bring its schema up to date."""
    from perdure.journal import version
    from perdure.journal.migrate import migrations

    newest = max(migrations())
    found = version(url_of(at))
    if check:
        if found is None:
            print("There is no journal yet; `perdure migrate` makes it.")
        elif found < newest:
            print(f"The schema is {found}, this perdure needs {newest}: run `perdure migrate`.")
        else:
            print(f"The schema is {found}, the newest.")
        if found != newest:
            raise typer.Exit(1)
        return
    with opened(at, new=True):
        pass
    if found == newest:
        print(f"The schema is {found}, the newest; nothing to do.")
    else:
        print(f"The schema is {newest} now, after {found or 'none'}.")
