"""`perdure pause`, `resume`, `wake`, `cancel`, `retry` and `fork`: change the course of runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit

from perdure.cli.journal import selected
from perdure.cli.options import (
    AT,
    BY,
    DRY_RUN,
    ID_HELP,
    IDS_HELP,
    JSON_VALUE,
    REASON,
    YES,
    Json,
    actor,
    arg,
    flag,
    opt,
)
from perdure.cli.output import confirm_or_abort, one_line, paint_state, print_error, print_json
from perdure.cli.target import client_at, runtime_at
from perdure.errors import BadArgument, Error
from perdure.text import printable
from perdure.views.formatting import count, graph_title
from perdure.views.waiting_for import line_note

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run

RUNS = arg("RUN", IDS_HELP, nargs=-1, required=True)
SOME_RUNS = arg("RUN", IDS_HELP, nargs=-1)
UNFINISHED = ("pending", "running", "waiting", "paused", "held")
PREVIEWED = 5
"""Maximum number of runs in the preview of a bulk change."""


def pause(runs: tuple[str, ...] = RUNS, at: str | None = AT, by: str | None = BY) -> None:
    """Pause runs until they are resumed.

    A run pauses at once, or after its current step. A run that cannot be paused is reported, and
    the exit code is 2; the others are paused.
    """
    _apply(at, runs, "pause", by=by)


def resume(runs: tuple[str, ...] = RUNS, at: str | None = AT, by: str | None = BY) -> None:
    """Resume paused runs."""
    _apply(at, runs, "resume", by=by)


def wake(runs: tuple[str, ...] = RUNS, at: str | None = AT, by: str | None = BY) -> None:
    """Wake sleeping runs now.

    Ends every `sleep` that a run is in. A run that waits for something else is refused.
    """
    _apply(at, runs, "wake", "woken", by=by)


def cancel(
    runs: tuple[str, ...] = SOME_RUNS,
    at: str | None = AT,
    reason: str | None = REASON,
    by: str | None = BY,
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    **filters: Any,
) -> None:
    """Cancel runs, by id or by options.

    A run ends at once, or after its current step. A worker undoes its effects that have a
    compensation, and its children are cancelled with it. Without ids it cancels all unfinished runs
    that the options select: it lists the first ones and asks for confirmation. Each run is a
    separate operation, so after an interruption the same command continues with the rest.
    """
    if _are_named(runs, filters):
        _apply(at, runs, "cancel", by=by, reason=reason)
    else:
        words = {"by": by, "reason": reason}
        _apply_to_selected(at, filters, "cancel", "cancelled", UNFINISHED, words, dry_run, yes)


def retry(
    runs: tuple[str, ...] = SOME_RUNS,
    at: str | None = AT,
    by: str | None = BY,
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    **filters: Any,
) -> None:
    """Retry failed or held runs, by id or by options.

    They continue from their last step. Without ids it retries all failed and held runs that the
    options select, after asking for confirmation as `perdure cancel` does.
    """
    if _are_named(runs, filters):
        _apply(at, runs, "retry", by=by)
    else:
        states = ("failed", "held")
        _apply_to_selected(at, filters, "retry", "retried", states, {"by": by}, dry_run, yes)


def fork(
    run: str = arg("RUN", ID_HELP),
    at: str | None = AT,
    checkpoint: str | None = opt(
        "ID",
        "Checkpoint to start from; `perdure show --events` lists them.",
        show_default="the latest",
    ),
    update: Any = opt(JSON_VALUE, "Change the state first.", type=Json()),
    as_node: str | None = opt(
        "NODE", "Node that the update counts as; the run continues after it."
    ),
    thread: str | None = opt("ID", "The new thread.", show_default="a new id"),
    json: bool = flag("Print the new run as JSON, not only its id."),
) -> None:
    """Start a run from a checkpoint of another.

    The new run is on a new thread, and the old one stays as it is. It needs the graphs: a Runtime
    or a project in --at. If the graph has changed and no longer has the run's place, pass
    --as-node.
    """
    with runtime_at(at) as runtime:
        source = runtime.blocking.find(run).id
        forked = runtime.blocking.fork(
            source, at=checkpoint, update=update, as_node=as_node, thread_id=thread
        )
    if json:
        print_json(forked)
    else:
        print(forked.id)


def _are_named(runs: tuple[str, ...], filters: dict[str, Any]) -> bool:
    """Whether runs are named, and not selected by options."""
    if bool(runs) == any(filters.values()):
        raise BadArgument(
            "Which runs? Give their ids, or select them with options such as --state and --graph"
            f"{'; not both' if runs else ''}. `perdure runs` takes the same options."
        )
    return bool(runs)


def _method(client: Client, verb: str, by: str | None, **words: Any) -> Callable[[str], Run]:
    """What a verb does to a run, by its id."""
    return lambda run_id: getattr(client.blocking, verb)(run_id, by=actor(by), **words)


def _apply(
    at: str | None, prefixes: tuple[str, ...], verb: str, done: str = "", **words: Any
) -> None:
    """Do something to every run; one that refuses does not stop the others. Prints that it is
    `done`, or its state."""
    refused = False
    with client_at(at) as client:
        act = _method(client, verb, **words)
        for prefix in prefixes:
            try:
                run = act(client.blocking.find(prefix).id)
            except Error as error:
                print_error(error)
                refused = True
            else:
                result = "asked to stop" if run.state == "running" else paint_state(run.state)
                print(f"{run.id} is {done or result}.")
    if refused:
        raise Exit(2)


def _apply_to_selected(
    at: str | None,
    filters: dict[str, Any],
    verb: str,
    done: str,
    states: tuple[str, ...],
    words: dict[str, Any],
    dry_run: bool,
    yes: bool,
) -> None:
    """Show which runs are selected, ask, and do something to each, newest first.

    Each is an operation of its own: what was done before an interruption stays done, and the same
    command again goes on with the rest.
    """
    if wrong := [state for state in filters["state"] or () if state not in states]:
        names = ", ".join(states)
        raise BadArgument(f"A {wrong[0]} run cannot be {done}: --state takes {names}.")
    filters["state"] = filters["state"] or [*states]
    from perdure.commands.run_search import RunLine

    with client_at(at) as client:
        ids: list[str] = []
        first: list[Run] = []
        for run in selected(client, filters):
            ids.append(run.id)
            if len(first) < PREVIEWED:
                first.append(run)
        if not ids:
            print("No run matches.")
            return
        print(f"{count(len(ids), 'run')} to {verb}, newest first:")
        for run in first:
            title = printable(graph_title(run.graph, run.version))
            note = one_line(line_note(RunLine(run), datetime.now(UTC)), 100)
            facts = (run.id, paint_state(run.state, 9), title, printable(run.thread_id), note)
            print("  " + "  ".join(facts).rstrip())
        if len(ids) > len(first):
            print(f"  … {len(ids) - len(first):,} more")
        if dry_run:
            return
        confirm_or_abort(f"{verb.capitalize()} {count(len(ids), 'run')}?", yes=yes)
        act, refused = _method(client, verb, **words), 0
        for run_id in ids:
            try:
                act(run_id)
            except Error as error:  # it went on meanwhile
                print_error(error)
                refused += 1
    print(f"{count(len(ids) - refused, 'run')} {done}.")
    if refused:
        raise Exit(2)
