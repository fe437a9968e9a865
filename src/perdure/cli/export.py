"""`perdure export`: runs, or their records, as JSON Lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from perdure.cli.options import IDS_HELP, At, Graph, Metadata, Since, States, Thread, Until
from perdure.cli.output_file import output_file
from perdure.cli.runs import parse_filters
from perdure.cli.target import client_at
from perdure.errors import BadArgument
from perdure.text import json_text
from perdure.views.formatting import count

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run


class Table(StrEnum):
    """What `--what` writes a line for."""

    RUNS = "runs"
    EVENTS = "events"
    EFFECTS = "effects"
    WAITS = "waits"
    SCORES = "scores"


def export(
    run: Annotated[
        list[str] | None,
        Argument(metavar="RUN", help=IDS_HELP, show_default="all runs"),
    ] = None,
    at: At = None,
    state: States = None,
    graph: Graph = None,
    thread: Thread = None,
    metadata: Metadata = None,
    since: Since = None,
    until: Until = None,
    what: Annotated[Table | None, Option(help="Write one line for each of these.")] = None,
    output: Annotated[
        str | None,
        Option("--output", "-o", metavar="FILE", help="Write to this file.", show_default="stdout"),
    ] = None,
) -> None:
    """Write runs with all their records as JSON Lines.

    The newest run comes first. Each line is an object with `run` and its output, `events`, `waits`,
    `effects`, `scores` and `children`. With --what, each line is one run, event, effect, wait or
    score.
    """
    filters = parse_filters(state, graph, thread, metadata, since, until)
    if run and any(filters.values()):
        raise BadArgument("Name runs, or select them with options; not both.")
    with client_at(at) as client, output_file("--output", output) as file:
        ids = [client.blocking.find(prefix).id for prefix in run or ()] or None
        selected = _selected(client, ids, filters)
        written = 0
        for written, line in enumerate(_lines(client, what, selected), 1):  # noqa: B007 - the count
            file.write(json_text(line).encode() + b"\n")
    if output:
        noun = "run" if what is None else what.value.removesuffix("s")
        print(f"{count(written, noun)} written to {output}.")


def _lines(client: Client, what: Table | None, runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    """One object per line; one run at a time is in memory."""
    from perdure.cli.run_lookup import report_run, run_reporter

    reporter = run_reporter(client)
    for one in runs:
        if what is Table.RUNS:
            yield vars(one)
            continue
        report = report_run(client, one, reporter).as_json()
        if what is None:
            yield report
            continue
        part = {"run_id": one.id, "thread_id": one.thread_id, "graph": one.graph}
        yield from ({**part, **vars(row)} for row in report[what])


def _selected(client: Client, ids: list[str] | None, filters: dict[str, Any]) -> Iterator[Run]:
    from perdure.cli.run_lookup import PAGE, all_pages

    ask = client.blocking
    pages = all_pages(lambda last: ask.runs(**filters, after=last, limit=PAGE, output=False))
    for id in ids or (one.id for one in pages):
        yield ask.get(id)
