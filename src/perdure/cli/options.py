"""Arguments and options that several commands share, and their completion in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from perdure.types import Actor

STATES = ("pending", "running", "waiting", "paused", "held", "done", "failed", "cancelled")


def complete_state(incomplete: str) -> list[str]:
    return [state for state in STATES if state.startswith(incomplete)]


def complete_graph(incomplete: str) -> list[str]:
    """The graphs of the newest runs in the default journal. Never raises."""
    from perdure.cli.target import client_at

    try:
        with client_at(None) as client:
            newest = client.blocking.runs(limit=100, output=False)
    except Exception:  # a shell that completes must not show an error
        return []
    return sorted({run.graph for run in newest if run.graph.startswith(incomplete)})


def actor(name: str | None) -> Actor:
    """Who runs the command, for the record."""
    from perdure.types import Actor

    return Actor(name or "", via="command line")


ID_HELP = "Id, or at least its first 4 characters."
IDS_HELP = "Ids, or at least the first 4 characters of each."

At = Annotated[
    str | None,
    Option(
        "--at",
        "-a",
        metavar="PLACE",
        help="The journal: a URL, module:name of a Runtime, or a folder with a langgraph.json. "
        "An encrypted journal, or one with types of your own, needs the Runtime.",
        show_default="PERDURE_URL, or the project here",
    ),
]
Place = Annotated[str | None, Argument(metavar="PLACE", help="The same as --at.")]
RuntimeAt = Annotated[
    str | None,
    Option(
        "--at",
        "-a",
        metavar="PLACE",
        help="The Runtime, as module:name, or a folder with a langgraph.json.",
        show_default="PERDURE_URL if it names a Runtime, or the project here",
    ),
]
By = Annotated[str | None, Option(metavar="NAME", envvar="USER", help="Your name, for the record.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object per line.")]
Limit = Annotated[int, Option(metavar="N", help="List at most N.")]
Concurrency = Annotated[int, Option(metavar="N", help="Segments to drive at once.")]
LogJson = Annotated[
    bool,
    Option("--log-json", help="Log each event as a line of JSON to stderr, without content."),
]

Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask. Required without a terminal.")]
DryRun = Annotated[bool, Option("--dry-run", help="List them, and change nothing.")]

# The selection of runs, for `runs`, `export`, `cancel` and `retry`.
States = Annotated[
    list[str] | None,
    Option(
        metavar="STATE", help="Only runs in this state; repeatable.", autocompletion=complete_state
    ),
]
Graph = Annotated[
    str | None,
    Option(metavar="NAME", help="Only runs of this graph.", autocompletion=complete_graph),
]
Thread = Annotated[str | None, Option(metavar="ID", help="Only this thread.")]
Metadata = Annotated[
    list[str] | None,
    Option(
        "--metadata",
        "--label",
        metavar="KEY=VALUE",
        help="Only runs with this metadata or label; repeatable. The value is JSON, or else "
        "plain text. SQL cannot search metadata, so runs are read one by one.",
    ),
]
Since = Annotated[
    str | None,
    Option(metavar="3d|TIME", help="Only runs accepted since then: a time, or how long ago."),
]
Until = Annotated[
    str | None,
    Option(metavar="3d|TIME", help="Only runs accepted before then: a time, or how long ago."),
]
