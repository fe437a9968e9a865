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


ID_HELP = "Its id, or at least 4 characters of it."
IDS_HELP = "Ids, or at least 4 characters of each."

At = Annotated[
    str | None,
    Option(
        "--at",
        "-a",
        metavar="PLACE",
        help="The journal: its URL, module:name of its Runtime (needed for encryption and your "
        "own types), or a folder with a langgraph.json. Default: PERDURE_URL, or the project here.",
    ),
]
Place = Annotated[str | None, Argument(metavar="PLACE", help="The same as --at.")]
RuntimeAt = Annotated[
    str | None,
    Option(
        "--at",
        "-a",
        metavar="PLACE",
        help="The Runtime, as module:name, or a folder with a langgraph.json. Default: the project "
        "here.",
    ),
]
By = Annotated[str | None, Option(metavar="NAME", envvar="USER", help="Who does it.")]
Json = Annotated[bool, Option("--json", help="One JSON object per line.")]
Limit = Annotated[int, Option(metavar="N", help="List at most N.")]
Concurrency = Annotated[int, Option(metavar="N", help="Segments at once.")]
LogJson = Annotated[
    bool, Option("--log-json", help="Log each event as a line of JSON, without content.")
]

Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, Option("--dry-run", help="List them; change nothing.")]

# The selection of runs, for `runs`, `export`, `cancel` and `retry`.
States = Annotated[
    list[str] | None,
    Option(metavar="STATE", help="In this state; repeatable.", autocompletion=complete_state),
]
Graph = Annotated[
    str | None, Option(metavar="NAME", help="Of this graph.", autocompletion=complete_graph)
]
Thread = Annotated[str | None, Option(metavar="ID", help="Of this thread.")]
Metadata = Annotated[
    list[str] | None,
    Option(
        "--metadata",
        "--label",
        metavar="KEY=VALUE",
        help="With this metadata or label; repeatable.",
    ),
]
Since = Annotated[str | None, Option(metavar="3d|TIME", help="Accepted since then.")]
Until = Annotated[str | None, Option(metavar="3d|TIME", help="Accepted before then.")]
