"""Look after a journal: `doctor`, `migrate`, `export` and `import`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

from click.exceptions import Exit

from perdure.cli.options import At, Lines, Parameter, RunIds
from perdure.cli.output import print_json
from perdure.cli.target import check_graph, client_at, import_object
from perdure.errors import BadArgument
from perdure.text import json_text, printable, printable_lines
from perdure.views.formatting import count

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.saver import Saver
    from perdure.thread_import import ImportedThread
    from perdure.types import Run

File = Annotated[str | None, Parameter(metavar="FILE", names=("--output", "-o"))]
PAGE = 200


def doctor(at: At = None, *, json: Lines = False) -> None:
    """Check the invariants of a journal.

    Reads one snapshot of every run while others use the journal, so it takes a while on a large
    one. It looks for two running runs on a thread, runs that are out of turn or forgotten, waits
    that can never end, unused answers, gaps in a history, settled effects without an outcome,
    signals taken twice, and runs that should have been woken. It changes nothing, except that an
    old schema is migrated. Exits with 1 if it finds something: that is a bug in perdure, please
    report it. One exception: an early version could leave a run held after its last effect was
    settled; `perdure retry RUN` lets it continue.
    """
    with client_at(at) as client:
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


def migrate(at: At = None, *, check: bool = False) -> None:
    """Create a journal, or migrate its schema.

    A worker does the same when it starts.

    Args:
        check: Change nothing. Exits with 1 if a migration is needed.
    """
    client = client_at(at, create=True)
    found, newest = client.schema_version(), client.newest_schema()
    if check and found is None:
        print("There is no journal yet; `perdure migrate` makes it.")
    elif check and found != newest:
        print(
            f"The schema is {found}, this version of perdure needs {newest}: run `perdure migrate`."
        )
    elif check:
        print(f"The schema is {found}, the newest.")
    if check:
        raise Exit(found != newest)
    with client:
        pass
    if found == newest:
        print(f"The schema is {found}, the newest; nothing to do.")
    elif found is None:
        print(f"The journal is created, with schema {newest}.")
    else:
        print(f"The schema is migrated from {found} to {newest}.")


def export(
    run: RunIds = (),
    *,
    at: At = None,
    what: Literal["runs", "events", "effects", "waits", "scores"] | None = None,
    output: File = None,
    **filters: Any,
) -> None:
    """Write runs with all their records as JSON Lines.

    The newest run comes first. Each line is an object with `run` and its output, `events`, `waits`,
    `effects`, `scores` and `children`. With --what, each line is one run, event, effect, wait or
    score.

    Args:
        what: Write one line for each of these.
        output: Write to this file; by default to stdout.
    """
    if run and any(filters.values()):
        raise BadArgument("Name runs, or select them with options; not both.")
    with client_at(at) as client, _output_file(output) as file:
        named = [client.blocking.find(prefix).id for prefix in run]
        ids = named or (one.id for one in selected(client, filters))
        written = 0
        for written, line in enumerate(_lines(client, what, ids), 1):  # noqa: B007 - the count
            file.write(json_text(line).encode() + b"\n")
    if output:
        print(f"{count(written, (what or 'runs').removesuffix('s'))} written to {output}.")


def selected(client: Client, filters: dict[str, Any], page: int = PAGE) -> Iterator[Run]:
    """The runs that options select, without outputs, newest first, read page by page."""
    last, page = None, min(page, PAGE)
    while found := client.blocking.runs(**filters, after=last, limit=page, output=False):
        yield from found
        last = found[-1]


def _lines(client: Client, what: str | None, ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    """One object per line; one run at a time is in memory."""
    from perdure.commands.run_reads import RunReporter

    reporter = RunReporter(client.engine)
    for one in map(client.blocking.get, ids):
        if what == "runs":
            yield vars(one)
            continue
        report = client.blocking.run(reporter.report(one)).as_json()
        if what is None:
            yield report
            continue
        part = {"run_id": one.id, "thread_id": one.thread_id, "graph": one.graph}
        yield from ({**part, **vars(row)} for row in report[what])


@contextlib.contextmanager
def _output_file(path: str | None) -> Iterator[BinaryIO]:
    """The file at a path, which only its owner can read; stdout without one."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            yield file
    except OSError as error:
        raise BadArgument(f"--output {path}: {error.strerror or error}.") from error


def import_(
    source: str,
    *,
    at: At = None,
    thread: tuple[str, ...] = (),
    allow: Annotated[tuple[str, ...], Parameter(metavar="MODULE:CLASS")] = (),
    start: Annotated[str | None, Parameter(metavar="GRAPH")] = None,
) -> None:
    """Copy threads from one of LangGraph's checkpointers.

    You can run it again at any time: nothing is stored twice. A missing journal is
    created. It lists the threads that it could not import, with the reason, and then exits with 1.

    Args:
        source: The file of a SqliteSaver, or the postgresql:// URL of a PostgresSaver.
        thread: Import only this thread; repeatable.
        allow: Your own type that the states contain; repeatable. A Runtime in --at allows those of
            its graphs.
        start: Start a run of GRAPH for each thread that waits for an answer, once.
    """
    from perdure.thread_import import import_threads

    if start is not None:
        check_graph(at, start)
    with client_at(at, create=True) as client:
        if start is not None:
            client.engine.resolve_graph(start, None)  # a typo is refused before the import
        saver = _saver_of(client, allow)
        threads = list(thread) or None
        done = import_threads(source, saver, threads=threads, progress=_print_progress)
        for one in done.waiting if start is not None else ():
            key = f"import:{one.id}"
            client.blocking.start(str(start), None, thread_id=one.id, key=key)
    for one in done.refused:
        print(f"not imported: thread {printable(one.id)!r}: {printable(one.refused or '')}")
    imported = len(done.threads) - len(done.refused)
    print(
        f"{count(imported, 'thread')} imported, {count(done.checkpoints, 'new checkpoint')}; "
        f"{count(len(done.waiting), 'thread')} waiting; {len(done.refused)} not imported."
    )
    if any("is not allowed" in (one.refused or "") for one in done.refused):
        print("Allow types with --allow MODULE:CLASS, or name the Runtime of their graph in --at.")
    if start is not None and done.waiting:
        print(
            f"Each that waits has a run of {printable(start)}. Its question is in `perdure inbox` "
            "once a worker has driven it."
        )
    if done.refused:
        raise Exit(1)


def _saver_of(client: Client, allow: Iterable[str]) -> Saver:
    from perdure.runtime import Runtime
    from perdure.saver import Saver

    if isinstance(client, Runtime):
        saver = client.saver
    else:
        saver = Saver(journal=client.journal)
        saver.serializer = client.engine.serializer  # with its keys, and the types it allows
        saver.start_afresh()
    for place in allow:
        found = import_object(place)
        if not isinstance(found, type):
            raise BadArgument(f"--allow {place} is not a class but {found!r}.")
        saver.serializer.allowlist.add([found])
    return saver


def _print_progress(one: ImportedThread, n: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{n}/{total} threads", end="\n" if n == total else "", file=sys.stderr)
