"""`perdure export`: runs with all that there is of them, as JSON Lines."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from perdure.cli.place import At, opened
from perdure.cli.runs import Graph, Metadata, Since, States, Thread, Until, filters
from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run


def export(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]", help="Ids, or at least 6 characters of each; default: all."
        ),
    ] = None,
    at: At = None,
    state: States = None,
    graph: Graph = None,
    thread: Thread = None,
    metadata: Metadata = None,
    since: Since = None,
    until: Until = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Default: stdout.")
    ] = None,
) -> None:
    """Write runs with their events, waits, effects and scores, one JSON object per line."""
    from perdure.cli.lookup import whole
    from perdure.cli.tell import count, plain

    wanted = filters(state, graph, thread, metadata, since, until)
    if run and any(wanted.values()):
        raise BadArgument("Name runs, or narrow them down with options; not both.")
    with opened(at) as client, _opened_file(output) as file, _counted() as told:
        written = 0
        for one in _chosen(client, run or [], wanted):
            file.write(json.dumps(whole(client, one), default=plain) + "\n")
            written += 1
            told(written)
    if output:
        print(f"{count(written, 'run')} written to {output}.")


def _chosen(client: Client, ids: list[str], wanted: dict[str, Any]) -> Iterator[Run]:
    from perdure.cli.lookup import PAGE, every, whole_id

    ask = client.blocking
    if ids:
        yield from [ask.get(whole_id(client, id)) for id in ids]
    else:
        yield from every(lambda last: ask.runs(**wanted, after=last, limit=PAGE))


@contextlib.contextmanager
def _opened_file(path: str | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise BadArgument(f"--output {path}: {error.strerror or error}.") from error


@contextlib.contextmanager
def _counted() -> Iterator[Any]:
    """How many there are so far, on stderr, if that is a terminal and stdout is not."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda written: None
        return

    def tell(written: int) -> None:
        if written % 100 == 0:
            print(f"\r{written:,} runs", end="", file=sys.stderr, flush=True)

    yield tell
    print("\r\x1b[K", end="", file=sys.stderr)
