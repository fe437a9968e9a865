"""`perdure export`: runs with everything that belongs to them, or a flat table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from typer import Argument, Option

from perdure.cli.options import IDS_HELP, At, Graph, Metadata, Since, States, Thread, Until
from perdure.cli.output_file import output_file
from perdure.cli.runs import parse_filters
from perdure.cli.target import client_at
from perdure.errors import BadArgument
from perdure.service.views.formatting import count
from perdure.service.views.json_text import json_default, json_text
from perdure.service.views.tables import Column, Row, Table, columns
from perdure.service.views.terminal_text import printable

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run


class Format(StrEnum):
    """How a table is written."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


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
    what: Annotated[
        Table | None, Option(help="Write a flat table with a row for each of these.")
    ] = None,
    format: Annotated[
        Format | None,
        Option(
            help="Format of the table. parquet needs the extra `frames`.",
            show_default="from the extension of FILE, else jsonl",
        ),
    ] = None,
    content: Annotated[
        bool,
        Option(
            "--content",
            help="Include what people, models and tools wrote: inputs, outputs, arguments, "
            "answers, errors.",
        ),
    ] = False,
    output: Annotated[
        str | None,
        Option("--output", "-o", metavar="FILE", help="Write to this file.", show_default="stdout"),
    ] = None,
) -> None:
    """Write runs with all their records, or a flat table.

    Runs are written newest first, as JSON Lines: each object has `run` with its output, `events`,
    `waits`, `effects`, `scores` and `children`. With --what it writes a table.
    """
    filters = parse_filters(state, graph, thread, metadata, since, until)
    if run and any(filters.values()):
        raise BadArgument("Name runs, or select them with options; not both.")
    if what is None and (format not in (None, Format.JSONL) or content):
        raise BadArgument("--format and --content need a table: pass --what, such as --what runs.")
    chosen = format or (_format_of(output) if what is not None else Format.JSONL)
    if chosen is Format.PARQUET and output is None:
        raise BadArgument("Parquet is not text: pass --output FILE.")
    with client_at(at) as client, output_file("--output", output) as file:
        ids = [client.blocking.find(prefix).id for prefix in run or ()] or None
        if what is None:
            written = _write_reports(client, file, ids, filters)
        else:
            written = _write_table(client, file, what, chosen, ids, filters, content)
    if output:
        noun = "run" if what is None else what.value.removesuffix("s")
        print(f"{count(written, noun)} written to {output}.")


def _write_reports(
    client: Client, file: BinaryIO, ids: list[str] | None, filters: dict[str, Any]
) -> int:
    """Each run as one object; one run at a time is in memory."""
    from perdure.cli.run_lookup import report_run, run_reporter

    written, reporter = 0, run_reporter(client)
    for one in _selected(client, ids, filters):
        file.write(json_text(report_run(client, one, reporter).as_json()).encode() + b"\n")
        written += 1
    return written


def _selected(client: Client, ids: list[str] | None, filters: dict[str, Any]) -> Iterator[Run]:
    from perdure.cli.run_lookup import PAGE, all_pages

    ask = client.blocking
    pages = all_pages(lambda last: ask.runs(**filters, after=last, limit=PAGE, output=False))
    for id in ids or (one.id for one in pages):
        yield ask.get(id)


def _write_table(
    client: Client,
    file: BinaryIO,
    what: Table,
    format: Format,
    ids: list[str] | None,
    filters: dict[str, Any],
    content: bool,
) -> int:
    """The rows of a table; one batch of them at a time is in memory."""
    from perdure.service.records import Cursor
    from perdure.service.run_selection import select_runs

    which = select_runs(ids=ids) if ids else select_runs(**filters)
    cursor, written = Cursor(which), 0
    with WRITERS[format](file, columns(what, content=content)) as write:
        while not cursor.is_end:
            plan = client.services.records.batch(what, cursor, content=content)
            rows, cursor = client.journal.run(plan)
            write(rows)
            written += len(rows)
    return written


Write = Callable[[list[Row]], object]


@contextlib.contextmanager
def _json_lines(file: BinaryIO, shown: Sequence[Column]) -> Iterator[Write]:
    yield lambda rows: file.writelines(json_text(row).encode() + b"\n" for row in rows)


@contextlib.contextmanager
def _csv(file: BinaryIO, shown: Sequence[Column]) -> Iterator[Write]:
    import csv
    import io

    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(one.name for one in shown)
    shown_to_person = file.isatty()
    yield lambda rows: writer.writerows(
        [_cell(value, shown_to_person) for value in row.values()] for row in rows
    )
    text.detach()


def _cell(value: Any, shown_to_person: bool) -> Any:
    """A value as in JSON, without quotes."""
    if shown_to_person and isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json_default(value) if isinstance(value, datetime) else value


@contextlib.contextmanager
def _parquet(file: BinaryIO, shown: Sequence[Column]) -> Iterator[Write]:
    from perdure.service.frames import ParquetFile

    table = ParquetFile(file, shown)
    try:
        yield table.write
    finally:
        table.close()


WRITERS = {Format.JSONL: _json_lines, Format.CSV: _csv, Format.PARQUET: _parquet}


def _format_of(path: str | None) -> Format:
    ending = os.path.splitext(path or "")[1].removeprefix(".").lower()
    return Format(ending) if ending in tuple(Format) else Format.JSONL
