"""`perdure import`: copy threads from one of LangGraph's own checkpointers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from perdure.cli.options import At
from perdure.cli.target import check_graph, client_at, import_object
from perdure.errors import BadArgument
from perdure.text import printable
from perdure.views.formatting import count

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.saver import Saver
    from perdure.thread_import import ImportedThread


def import_(
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="The file of a SqliteSaver, or the postgresql:// URL of a PostgresSaver.",
            show_default=False,
        ),
    ],
    at: At = None,
    thread: Annotated[
        list[str] | None, Option(metavar="ID", help="Import only this thread; repeatable.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        Option(
            metavar="MODULE:CLASS",
            help="Your own type that the states contain; repeatable. A Runtime in --at allows "
            "those of its graphs.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        Option(
            metavar="GRAPH",
            help="Start a run of GRAPH for each thread that waits for an answer, once.",
        ),
    ] = None,
) -> None:
    """Copy threads from one of LangGraph's checkpointers.

    You can run it again at any time: nothing is stored twice. A missing journal is
    created. It lists the threads that it could not import, with the reason, and then exits with 1.
    """
    from perdure.thread_import import import_threads

    if start is not None:
        check_graph(at, start)
    with client_at(at, create=True) as client:
        if start is not None:
            client.engine.resolve_graph(start, None)  # a typo is refused before the import
        saver = _saver_of(client, allow or [])
        done = import_threads(source, saver, threads=thread, progress=_print_progress)
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


def _saver_of(client: Client, allow: list[str]) -> Saver:
    from perdure.runtime import Runtime
    from perdure.saver import Saver

    if isinstance(client, Runtime):
        saver = client.saver
    else:
        saver = Saver(journal=client.journal)
        saver.serializer = client.engine.serializer  # with its keys, and the types it allows
        saver.start_afresh()
    saver.serializer.codec.allowlist.add(map(_type_at, allow))
    return saver


def _type_at(place: str) -> type:
    found = import_object(place)
    if not isinstance(found, type):
        raise BadArgument(f"--allow {place} is not a class but {found!r}.")
    return found


def _print_progress(one: ImportedThread, n: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{n}/{total} threads", end="\n" if n == total else "", file=sys.stderr)
