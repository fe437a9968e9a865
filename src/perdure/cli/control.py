"""`perdure pause`, `resume`, `cancel`, `retry` and `fork`: say how runs go on, or do not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.place import At, opened, opened_runtime
from perdure.errors import Error

if TYPE_CHECKING:
    from perdure.client import BlockingClient
    from perdure.types import Run

Runs = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Ids, or at least 6 characters of each.")
]
By = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who says so. Default: USER.", show_default=False)
]


def pause(runs: Runs, at: At = None, by: By = None) -> None:
    """Let runs rest until they are resumed."""
    who = by or os.environ.get("USER")
    _each(at, runs, lambda client, run: client.pause(run, by=who))


def resume(runs: Runs, at: At = None) -> None:
    """Let paused runs go on."""
    _each(at, runs, lambda client, run: client.resume(run))


def cancel(
    runs: Runs,
    at: At = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; kept with it.")] = None,
    by: By = None,
) -> None:
    """End runs; what they did is kept, or undone by their effects' compensations."""
    who = by or os.environ.get("USER")
    _each(at, runs, lambda client, run: client.cancel(run, reason=reason, by=who))


def retry(runs: Runs, at: At = None) -> None:
    """Try runs again that failed or are held, from their last step."""
    _each(at, runs, lambda client, run: client.retry(run))


def fork(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Its id, or at least 6 characters of it.")
    ],
    at: At = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="ID", help="From which one; default: the latest.")
    ] = None,
    update: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="Changes its state first.")
    ] = None,
    as_node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Whose result the update is.")
    ] = None,
    thread: Annotated[
        str | None, typer.Option(metavar="ID", help="The new thread; default: a new id.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The new run as JSON.")] = False,
) -> None:
    """Start a run on a new thread from a checkpoint of this one. Needs the Runtime in --at."""
    from perdure.cli.given import read_json
    from perdure.cli.lookup import whole_id
    from perdure.cli.tell import print_json

    change = None if update is None else read_json("--update", update)
    with opened_runtime(at) as runtime:
        made = runtime.blocking.fork(
            whole_id(runtime, run), at=checkpoint, update=change, as_node=as_node, thread_id=thread
        )
    if json:
        print_json(made)
    else:
        print(made.id)


def _each(at: str | None, ids: list[str], act: Callable[[BlockingClient, str], Run]) -> None:
    """Do it to every run; one that refuses does not keep the others from it."""
    from perdure.cli.lookup import whole_id
    from perdure.cli.tell import paint_state, sentence

    refused = False
    with opened(at) as client:
        for id in ids:
            try:
                run = act(client.blocking, whole_id(client, id))
            except Error as error:
                print(f"perdure: {sentence(error)}", file=sys.stderr)
                refused = True
            else:
                told = "asked to stop" if run.state == "running" else paint_state(run.state)
                print(f"{run.id} is {told}.")
    if refused:
        raise typer.Exit(2)
