"""`perdure start`: accept a run for good, and wait for its end if asked to."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perdure.cli.place import At, check_graph, opened, typed

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run

PAUSE = 0.2
"""Seconds between two looks at a run that is waited for."""


def start(
    graph: Annotated[str, typer.Argument(metavar="GRAPH", help="The name of a graph.")],
    at: At = None,
    input: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="What it is started with.")
    ] = None,
    thread: Annotated[
        str | None, typer.Option(metavar="ID", help="Its thread; default: a new one.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key again gives the same run.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Kept with it; the value is JSON or a text."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Kept with it.")] = None,
    after: Annotated[
        str | None, typer.Option(metavar="3d|TIME", help="Begin after that long, or at a time.")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Of the graph; default: that of the Runtime in --at."),
    ] = None,
    strategy: Annotated[
        Literal["enqueue", "reject", "interrupt", "rollback"],
        typer.Option(help="What if the thread has a run under way."),
    ] = "enqueue",
    wait: Annotated[
        bool, typer.Option("--wait", help="Until it has ended; exit 1 if it did not end done.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The run as JSON, not only its id.")] = False,
) -> None:
    """Start a run, and print its id. Workers bring it to its end."""
    from perdure.cli.given import read_after, read_json, read_pairs
    from perdure.cli.tell import print_json
    from perdure.types import State

    given = None if input is None else read_json("--input", input)
    later = None if after is None else read_after("--after", after)
    labels = read_pairs("--metadata", metadata or ())
    check_graph(at, graph)
    with opened(at, new=True) as client:
        run = client.blocking.start(
            graph,
            given,
            thread_id=thread,
            key=key,
            metadata=labels,
            tags=tag or (),
            after=later,
            version=version,
            multitask_strategy=strategy,
        )
        if not json:
            print(run.id, flush=True)
        if wait:
            run = _follow(client, run.id, at)
        if json:
            print_json(client.blocking.get(run.id) if wait else run)
        if wait and run.state is not State.DONE:
            raise typer.Exit(1)


def _follow(client: Client, run_id: str, at: str | None) -> Run:
    """Tell on stderr what becomes of a run, until it has ended or needs a person's retry."""
    from perdure.cli.lookup import look
    from perdure.cli.timeline import is_news, tell_event
    from perdure.types import State

    seen = 0
    while True:
        run = look(client, run_id)
        for event in client.blocking.events(run_id, after=seen):
            seen = event.n
            if not is_news(event):
                continue
            text, _ = tell_event(event)
            print(f"{event.at:%H:%M:%S} {text}", file=sys.stderr)
            if event.kind == "wait" and event.data.get("kind") == "human":
                answer = f"perdure answer {event.data['wait']} JSON{typed(at)}"
                print(f"         {answer}", file=sys.stderr)
        if run.ended or run.state is State.HELD:
            return run
        time.sleep(PAUSE)
