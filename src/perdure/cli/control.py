"""`perdure pause`, `resume`, `wake`, `cancel`, `retry` and `fork`: change the course of runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Exit, Option

from perdure.cli.options import (
    ID_HELP,
    IDS_HELP,
    At,
    By,
    DryRun,
    Graph,
    Metadata,
    Since,
    States,
    Thread,
    Until,
    Yes,
    actor,
)
from perdure.cli.output import (
    confirm_or_abort,
    one_line,
    paint_state,
    print_error,
    print_json,
)
from perdure.cli.parsing import parse_json
from perdure.cli.runs import parse_filters
from perdure.cli.target import client_at, runtime_at
from perdure.errors import BadArgument, Error
from perdure.text import printable
from perdure.views.formatting import count, graph_title

if TYPE_CHECKING:
    from perdure.client import BlockingClient
    from perdure.types import Run

    Act = Callable[[BlockingClient, str], Run]

Runs = Annotated[list[str], Argument(metavar="RUN", help=IDS_HELP)]
SomeRuns = Annotated[list[str] | None, Argument(metavar="RUN", help=IDS_HELP)]
UNFINISHED = ("pending", "running", "waiting", "paused", "held")
PREVIEWED = 5
"""Maximum number of runs in the preview of a bulk change."""
PROGRESS_FROM = 50
"""Number of runs from which a terminal shows progress."""


def pause(runs: Runs, at: At = None, by: By = None) -> None:
    """Pause runs until they are resumed.

    A run pauses at once, or after its current step. A run that cannot be paused is reported, and
    the exit code is 2; the others are paused.
    """
    _apply(at, runs, lambda client, run: client.pause(run, by=actor(by)))


def resume(runs: Runs, at: At = None, by: By = None) -> None:
    """Resume paused runs."""
    _apply(at, runs, lambda client, run: client.resume(run, by=actor(by)))


def wake(runs: Runs, at: At = None, by: By = None) -> None:
    """Wake sleeping runs now.

    Ends every `sleep` that a run is in. A run that waits for something else is refused.
    """
    _apply(at, runs, lambda client, run: client.wake(run, by=actor(by)), "woken")


def cancel(
    runs: SomeRuns = None,
    at: At = None,
    state: States = None,
    graph: Graph = None,
    thread: Thread = None,
    metadata: Metadata = None,
    since: Since = None,
    until: Until = None,
    reason: Annotated[str | None, Option(metavar="TEXT", help="Why, for the record.")] = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Cancel runs, by id or by options.

    A run ends at once, or after its current step. A worker undoes its effects that have a
    compensation, and its children are cancelled with it. Without ids it cancels all unfinished runs
    that the options select: it lists the first ones and asks for confirmation. Each run is a
    separate operation, so after an interruption the same command continues with the rest.
    """
    filters = parse_filters(state, graph, thread, metadata, since, until)

    def act(client: BlockingClient, run: str) -> Run:
        return client.cancel(run, reason=reason, by=actor(by))

    verb = Verb("cancel", "cancelled", UNFINISHED)
    _apply_to_selected(at, runs, filters, verb, act, dry_run=dry_run, yes=yes)


def retry(
    runs: SomeRuns = None,
    at: At = None,
    state: States = None,
    graph: Graph = None,
    thread: Thread = None,
    metadata: Metadata = None,
    since: Since = None,
    until: Until = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Retry failed or held runs, by id or by options.

    They continue from their last step. Without ids it retries all failed and held runs that the
    options select, after asking for confirmation as `perdure cancel` does.
    """
    filters = parse_filters(state, graph, thread, metadata, since, until)

    def act(client: BlockingClient, run: str) -> Run:
        return client.retry(run, by=actor(by))

    verb = Verb("retry", "retried", ("failed", "held"))
    _apply_to_selected(at, runs, filters, verb, act, dry_run=dry_run, yes=yes)


def fork(
    run: Annotated[str, Argument(metavar="RUN", help=ID_HELP)],
    at: At = None,
    checkpoint: Annotated[
        str | None,
        Option(
            metavar="ID",
            help="Checkpoint to start from; `perdure show --events` lists them.",
            show_default="the latest",
        ),
    ] = None,
    update: Annotated[
        str | None, Option(metavar="JSON|@FILE|-", help="Change the state first.")
    ] = None,
    as_node: Annotated[
        str | None,
        Option(metavar="NODE", help="Node that the update counts as; the run continues after it."),
    ] = None,
    thread: Annotated[
        str | None, Option(metavar="ID", help="The new thread.", show_default="a new id")
    ] = None,
    json: Annotated[
        bool, Option("--json", help="Print the new run as JSON, not only its id.")
    ] = False,
) -> None:
    """Start a run from a checkpoint of another.

    The new run is on a new thread, and the old one stays as it is. It needs the graphs: a Runtime
    or a project in --at. If the graph has changed and no longer has the run's place, pass
    --as-node.
    """
    change = None if update is None else parse_json("--update", update)
    with runtime_at(at) as runtime:
        source = runtime.blocking.find(run).id
        forked = runtime.blocking.fork(
            source, at=checkpoint, update=change, as_node=as_node, thread_id=thread
        )
    if json:
        print_json(forked)
    else:
        print(forked.id)


class Verb(NamedTuple):
    """A change to runs, for messages, and the states it applies to."""

    name: str
    done: str
    states: tuple[str, ...]


def _are_named(runs: list[str] | None, filters: dict[str, Any]) -> bool:
    """Whether runs are named, and not selected by options."""
    if bool(runs) == any(filters.values()):
        raise BadArgument(
            "Which runs? Give their ids, or select them with options such as --state and --graph"
            f"{'; not both' if runs else ''}. `perdure runs` takes the same options."
        )
    return bool(runs)


def _chosen_states(given: list[str] | None, verb: Verb) -> list[str]:
    wrong = [state for state in given or () if state not in verb.states]
    if wrong:
        names = ", ".join(verb.states)
        raise BadArgument(f"A {wrong[0]} run cannot be {verb.done}: --state takes {names}.")
    return given or [*verb.states]


def _apply_to_selected(
    at: str | None,
    runs: list[str] | None,
    filters: dict[str, Any],
    verb: Verb,
    act: Act,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Do something to the runs that are named, or to all that the options select."""
    if _are_named(runs, filters):
        _apply(at, runs or [], act)
    else:
        filters["state"] = _chosen_states(filters["state"], verb)
        _apply_to_all(at, filters, verb, act, dry_run=dry_run, yes=yes)


def _apply(at: str | None, prefixes: list[str], act: Act, done: str = "") -> None:
    """Do something to every run; one that refuses does not stop the others. Prints that it is
    `done`, or its state."""
    refused = False
    with client_at(at) as client:
        for prefix in prefixes:
            try:
                run = act(client.blocking, client.blocking.find(prefix).id)
            except Error as error:
                print_error(error)
                refused = True
            else:
                result = "asked to stop" if run.state == "running" else paint_state(run.state)
                print(f"{run.id} is {done or result}.")
    if refused:
        raise Exit(2)


def _apply_to_all(
    at: str | None, filters: dict[str, Any], verb: Verb, act: Act, *, dry_run: bool, yes: bool
) -> None:
    """Show which runs are selected, ask, and do something to each, newest first.

    Each is an operation of its own: what was done before an interruption stays done, and the same
    command again goes on with the rest.
    """
    from perdure.cli.run_lookup import PAGE, all_pages

    with client_at(at) as client:
        ask = client.blocking.runs
        pages = all_pages(lambda last: ask(**filters, after=last, limit=PAGE, output=False))
        found = _preview(pages, verb)
        if not found or dry_run:
            return
        confirm_or_abort(f"{verb.name.capitalize()} {count(len(found), 'run')}?", yes=yes)
        refused = 0
        for number, run_id in enumerate(found):
            _print_progress(number, len(found))
            try:
                act(client.blocking, run_id)
            except Error as error:  # it went on meanwhile
                print_error(error)
                refused += 1
        _print_progress(len(found), len(found))
    print(f"{count(len(found) - refused, 'run')} {verb.done}.")
    if refused:
        raise Exit(2)


def _preview(runs: Iterable[Run], verb: Verb) -> list[str]:
    """Print how many runs are selected, and the first of them. Returns their ids."""
    from datetime import UTC, datetime

    from perdure.commands.run_search import RunLine
    from perdure.views.waiting_for import line_note

    found: list[str] = []
    shown: list[str] = []
    now = datetime.now(UTC)
    for run in runs:
        found.append(run.id)
        if len(shown) < PREVIEWED:
            title = graph_title(run.graph, run.version)
            note = one_line(line_note(RunLine(run), now), 100)
            facts = (run.id, paint_state(run.state, 9), printable(title), printable(run.thread_id))
            shown.append("  ".join((*facts, note)).rstrip())
    if not found:
        print("No run matches.")
        return found
    print(f"{count(len(found), 'run')} to {verb.name}, newest first:")
    for line in shown:
        print(f"  {line}")
    if len(found) > len(shown):
        print(f"  … {len(found) - len(shown):,} more")
    return found


def _print_progress(number: int, whole: int) -> None:
    """Show the progress over a long list, on a terminal."""
    if whole > PROGRESS_FROM and sys.stderr.isatty() and (number % 20 == 0 or number == whole):
        end = "\n" if number == whole else ""
        print(f"\r{number:,} of {whole:,}", end=end, file=sys.stderr, flush=True)
