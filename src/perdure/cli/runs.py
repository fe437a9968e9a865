"""`perdure runs`: a list of runs, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.complete import complete_graph, complete_state
from perdure.cli.place import At, opened
from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run

HEADERS = ("RUN", "STATE", "GRAPH", "THREAD", "AGE", "NOTE")
NARROW = 110
"""Columns of a terminal below which a run takes two lines."""


States = Annotated[
    list[str] | None,
    typer.Option(metavar="STATE", help="In this state; repeatable.", autocompletion=complete_state),
]
Graph = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of this graph.", autocompletion=complete_graph)
]
Thread = Annotated[str | None, typer.Option(metavar="ID", help="On this thread.")]
Metadata = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="With this metadata; repeatable.")
]
Since = Annotated[str | None, typer.Option(metavar="3d|TIME", help="Accepted since then.")]
Until = Annotated[str | None, typer.Option(metavar="3d|TIME", help="Accepted before then.")]


def runs(
    at: At = None,
    state: States = None,
    graph: Graph = None,
    thread: Thread = None,
    metadata: Metadata = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second.")] = False,
) -> None:
    """List runs, newest first."""
    from perdure.cli import tell
    from perdure.cli.lookup import PAGE, every
    from perdure.service.validation import check_limit

    check_limit(limit)
    wanted = filters(state, graph, thread, metadata, since, until)
    if watch and (json or not tell.is_terminal()):
        raise BadArgument("--watch is for a terminal; without one, list them again.")
    with opened(at) as client:
        if watch:
            _watch(client, wanted, limit)
            return
        if json:
            ask, size = client.blocking.runs, min(limit, PAGE)
            pages = every(lambda last: ask(**wanted, after=last, limit=size, output=False))
            for _, run in zip(range(limit), pages, strict=False):
                tell.print_json(without_output(run))
            return
        found = client.blocking.runs(**wanted, limit=limit + 1, output=False)
        if not found:
            print("There is no such run." if any(wanted.values()) else "There is no run yet.")
            return
        print(_table(found[:limit]))
        if len(found) > limit:
            print(tell.paint(f"There are more than {limit}; see --limit.", "dim"))


def filters(
    state: list[str] | None,
    graph: str | None,
    thread: str | None,
    metadata: list[str] | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    """What narrows a list of runs down, as `Client.runs` takes it."""
    from perdure.cli.given import read_ago, read_pairs

    return {
        "state": state or None,
        "graph": graph,
        "thread_id": thread,
        "metadata": read_pairs("--metadata", metadata or ()),
        "since": None if since is None else read_ago("--since", since),
        "until": None if until is None else read_ago("--until", until),
    }


def without_output(run: Run) -> dict[str, Any]:
    """What a list tells of a run: all but its output, which is not read for it."""
    return {name: value for name, value in vars(run).items() if name != "output"}


def _table(found: list[Run]) -> str:
    from perdure.cli import tell

    rows = [
        (run.id, run.state, _named(run), run.thread_id, tell.age(run.created_at), note(run))
        for run in found
    ]
    if tell.is_terminal() and tell.width() < NARROW:
        return "\n".join(line for row in rows for line in _two_lines(*map(tell.printable, row)))
    return tell.table(HEADERS, rows, shrinks=(3, 2, 5), styles={1: tell.OF_STATE})


def _two_lines(id: str, state: str, graph: str, thread: str, age: str, note: str) -> list[str]:
    from perdure.cli import tell

    room = tell.width()
    rest = "  ".join(filter(None, (f"{age:>4}", thread, note)))
    return [
        f"{id}  {tell.paint_state(state, 9)}  {tell.fit(graph, room - 49)}",
        tell.paint(tell.fit(f"  {rest}", room), "dim"),
    ]


def _named(run: Run) -> str:
    return f"{run.graph}@{run.version}".removesuffix("@")


def note(run: Run) -> str:
    """Why a run is in its state, or what comes next, in a few words."""
    from perdure.cli.tell import age
    from perdure.types import State

    match run.state:
        case State.WAITING | State.PENDING if run.due_at is not None:
            due = age(run.due_at)
            return f"due {due}" if due.startswith("in ") else f"due since {due}"
        case State.WAITING:
            return "for a person or a signal"
        case State.PENDING:
            return "after the run before it"
        case State.DONE:
            return ""
    return str(run.reason or run.error or "")


def _watch(client: Client, wanted: dict[str, Any], limit: int) -> None:
    import contextlib
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def drawn() -> Text:
        lines = 2 if console.width < NARROW else 1
        rows = max(1, min(limit, (console.height - 2) // lines))
        found = client.blocking.runs(**wanted, limit=rows, output=False)
        return Text.from_ansi(_table(found) if found else "There is no such run.", no_wrap=True)

    console = Console()
    with (
        contextlib.suppress(KeyboardInterrupt),
        # What is drawn asks stdout whether it is a terminal: it has to stay what it is.
        Live(
            drawn(),
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live,
    ):
        while True:
            time.sleep(1)
            live.update(drawn(), refresh=True)
