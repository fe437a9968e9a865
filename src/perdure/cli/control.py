"""`perdure pause`, `resume`, `cancel`, `retry` and `fork`: change the course of runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import At, By
from perdure.cli.output import paint_state, print_error, print_json
from perdure.cli.parsing import parse_json
from perdure.cli.target import client_at, runtime_at
from perdure.errors import Error

if TYPE_CHECKING:
    from perdure.client import BlockingClient
    from perdure.types import Run

Runs = Annotated[
    list[str], Argument(metavar="RUN...", help="Ids, or at least 6 characters of each.")
]


def pause(runs: Runs, at: At = None, by: By = None) -> None:
    """Pause runs until they are resumed."""
    _apply(at, runs, lambda client, run: client.pause(run, by=by))


def resume(runs: Runs, at: At = None) -> None:
    """Resume paused runs."""
    _apply(at, runs, lambda client, run: client.resume(run))


def cancel(
    runs: Runs,
    at: At = None,
    reason: Annotated[str | None, Option(metavar="TEXT", help="Why; stored with the run.")] = None,
    by: By = None,
) -> None:
    """Cancel runs. Effects with a compensation are undone."""
    _apply(at, runs, lambda client, run: client.cancel(run, reason=reason, by=by))


def retry(runs: Runs, at: At = None) -> None:
    """Retry failed or held runs from their last step."""
    _apply(at, runs, lambda client, run: client.retry(run))


def fork(
    run: Annotated[str, Argument(metavar="RUN", help="Its id, or at least 6 characters of it.")],
    at: At = None,
    checkpoint: Annotated[str | None, Option(metavar="ID", help="Default: the latest.")] = None,
    update: Annotated[str | None, Option(metavar="JSON|@FILE|-", help="Update the state.")] = None,
    as_node: Annotated[str | None, Option(metavar="NODE", help="Node it counts as.")] = None,
    thread: Annotated[
        str | None, Option(metavar="ID", help="New thread; default: a new id.")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print the new run as JSON.")] = False,
) -> None:
    """Start a run on a new thread from a checkpoint of this one. Needs the Runtime in --at."""
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


def _apply(at: str | None, prefixes: list[str], act: Callable[[BlockingClient, str], Run]) -> None:
    """Do something to every run; one that refuses does not stop the others."""
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
                print(f"{run.id} is {result}.")
    if refused:
        raise Exit(2)
