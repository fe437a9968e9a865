"""`perdure export`: runs with everything that belongs to them, as JSON Lines."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from typer import Argument, Option

from perdure.cli.options import IDS_HELP, At, Graph, Metadata, Since, States, Thread, Until
from perdure.cli.output import json_default
from perdure.cli.runs import parse_filters
from perdure.cli.target import client_at
from perdure.errors import BadArgument
from perdure.service.views.formatting import count

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run


def export(
    run: Annotated[
        list[str] | None,
        Argument(metavar="RUN", help=f"{IDS_HELP} Default: all."),
    ] = None,
    at: At = None,
    state: States = None,
    graph: Graph = None,
    thread: Thread = None,
    metadata: Metadata = None,
    since: Since = None,
    until: Until = None,
    output: Annotated[
        str | None, Option("--output", "-o", metavar="FILE", help="Default: stdout.")
    ] = None,
) -> None:
    """Write runs with their events, waits, effects and scores, one JSON object per line."""
    from perdure.cli.run_lookup import report_run

    filters = parse_filters(state, graph, thread, metadata, since, until)
    written = 0
    with client_at(at) as client, open_file(output) as file:
        for one in selected(client, run or [], filters):
            report = report_run(client, one).as_json()
            file.write(json.dumps(report, default=json_default) + "\n")
            written += 1
    if output:
        print(f"{count(written, 'run')} written to {output}.")


def selected(client: Client, prefixes: list[str], filters: dict[str, Any]) -> Iterator[Run]:
    """Runs by the beginning of their ids, or by their properties."""
    from perdure.cli.run_lookup import PAGE, all_pages

    if prefixes and any(filters.values()):
        raise BadArgument("Name runs, or select them with options; not both.")
    ask = client.blocking
    if prefixes:
        yield from [ask.get(ask.find(prefix).id) for prefix in prefixes]
    else:
        yield from all_pages(lambda last: ask.runs(**filters, after=last, limit=PAGE))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def open_file(path: str | None, option: str = "--output") -> Iterator[TextIO]:
    """A file that only its owner can read, or stdout."""
    if path is None:
        yield sys.stdout
        return
    try:
        with open(path, "w", encoding="utf-8", opener=_private) as file:
            yield file
    except OSError as error:
        raise BadArgument(f"{option} {path}: {error.strerror or error}.".lstrip()) from error
