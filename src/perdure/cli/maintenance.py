"""`perdure prune`, `erase`, `doctor` and `migrate`: look after a journal."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import At, Place, Yes
from perdure.cli.output import confirm_or_abort, print_json
from perdure.cli.parsing import parse_duration
from perdure.cli.target import client_at, one_place
from perdure.text import printable, printable_lines
from perdure.views.formatting import count


def prune(
    older_than: Annotated[
        str | None,
        Option(
            metavar="30d",
            help="Delete runs that ended more than this long ago.",
            show_default="the retention= of the Runtime; required for a URL",
        ),
    ] = None,
    place: Place = None,
    at: At = None,
    state: Annotated[
        list[str] | None,
        Option(
            metavar="STATE",
            help="Only this state: done, failed or cancelled; repeatable.",
            show_default="all three",
        ),
    ] = None,
    limit: Annotated[int | None, Option(metavar="N", help="Delete at most N runs.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Count them, and delete nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Delete old runs with their history.

    A thread without runs loses its checkpoints. It asks first. Effects with a business key are
    kept: they still prevent a second call.
    """
    from perdure.commands.validation import check_limit, check_member
    from perdure.errors import BadArgument
    from perdure.types import ENDED, Retention, State

    states = [check_member(State, "a state", one) for one in state or ENDED]
    most = None if limit is None else check_limit(limit)
    with client_at(one_place(place, at)) as client:
        if older_than is not None:
            ages = dict.fromkeys(states, parse_duration("--older-than", older_than))
        else:
            policy: Retention | None = getattr(client, "retention", None)
            if policy is None:
                raise BadArgument(
                    "How old? Give --older-than 30d, or the place of a runtime that has retention=."
                )
            ages = {state: age for state, age in policy.ages.items() if state in states}

        def prune(*, dry_run: bool = False) -> int:
            done = 0
            for age in sorted({*ages.values()}):
                of_age = [state for state in ages if ages[state] == age]
                left = None if most is None else most - done
                if left != 0:
                    done += client.blocking.prune(
                        older_than=age, states=of_age, limit=left, dry_run=dry_run
                    )
            return done

        found = prune(dry_run=True)
        if dry_run:
            print(f"{count(found, 'run')} would be deleted.")
            return
        if found:
            confirm_or_abort(f"Delete {count(found, 'run')}?", yes=yes)
        deleted = prune() if found else 0
    print(f"{count(deleted, 'run')} deleted.")


def erase(
    thread: Annotated[str, Argument(metavar="THREAD", help="Id of the thread.")],
    at: At = None,
    yes: Yes = False,
) -> None:
    """Delete every row of a thread.

    It asks first, and prints how many rows it deleted from each table. On SQLite it then rewrites
    the file, so that the deleted bytes are gone. A thread with an unfinished run is refused: cancel
    the run first.
    """
    with client_at(at) as client:
        confirm_or_abort(f"Erase thread {printable(thread)!r} for good?", yes=yes)
        deleted = client.blocking.erase(thread)
        scrubbed = client.blocking.scrub()
    for table, rows in deleted.items():
        print(f"{rows:>8}  {table}")
    print(f"{count(sum(deleted.values()), 'row')} deleted.")
    if not scrubbed:
        print("The database frees the deleted rows itself; its backups keep them.")


def doctor(
    place: Place = None,
    at: At = None,
    json: Annotated[bool, Option("--json", help="Print one JSON object per finding.")] = False,
) -> None:
    """Check the invariants of a journal.

    Reads one snapshot of every run while others use the journal, so it takes a while on a large
    one. It looks for two running runs on a thread, runs that are out of turn or forgotten, waits
    that can never end, unused answers, gaps in a history, settled effects without an outcome,
    signals taken twice, and runs that should have been woken. It changes nothing, except that an
    old schema is migrated. Exits with 1 if it finds something: that is a bug in perdure, please
    report it. One exception: perdure 0.1 could leave a run held after its last effect was settled;
    `perdure retry RUN` lets it continue.
    """
    with client_at(one_place(place, at)) as client:
        diagnosis = client.blocking.doctor()
    for finding in diagnosis.findings:
        if json:
            print_json(finding._asdict())
        else:
            thread, detail = printable(finding.thread_id), printable(finding.detail)
            print(f"{finding.problem}: thread {thread!r}, {printable(finding.id)} ({detail})")
    found = len(diagnosis.findings)
    if not json:
        for remark in diagnosis.remarks:
            print(f"note: {printable_lines(remark)}")
        if found:
            print(f"{found} found. Each is a bug in perdure: please report it.")
        else:
            print(f"All {diagnosis.checked} invariants hold.")
    if found:
        raise Exit(1)


def migrate(
    place: Place = None,
    at: At = None,
    check: Annotated[
        bool, Option("--check", help="Change nothing. Exits with 1 if a migration is needed.")
    ] = False,
) -> None:
    """Create a journal, or migrate its schema.

    A worker does the same when it starts.
    """
    from perdure.journal.migrate import migrations

    newest, at = max(migrations()), one_place(place, at)
    found = client_at(at, create=True).schema_version()
    if check:
        if found is None:
            print("There is no journal yet; `perdure migrate` makes it.")
        elif found < newest:
            print(f"The schema is {found}, this perdure needs {newest}: run `perdure migrate`.")
        else:
            print(f"The schema is {found}, the newest.")
        if found != newest:
            raise Exit(1)
        return
    with client_at(at, create=True):
        pass
    if found == newest:
        print(f"The schema is {found}, the newest; nothing to do.")
    elif found is None:
        print(f"The journal is created, with schema {newest}.")
    else:
        print(f"The schema is migrated from {found} to {newest}.")
