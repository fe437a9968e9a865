"""`perdure inbox`: what needs a person; `answer`, `link` and `signal`: reply to runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from perdure.cli.options import ID_HELP, At, By, Json, Place, Thread, actor
from perdure.cli.output import (
    command_for,
    line_width,
    one_line,
    paint,
    print_json,
    value_lines,
)
from perdure.cli.parsing import parse_json
from perdure.cli.target import client_at, one_place
from perdure.errors import BadArgument
from perdure.text import json_default, printable
from perdure.views.formatting import count

if TYPE_CHECKING:
    from perdure.views.attention import InboxItem

TEXT_HINT = " For an answer in plain text: --text TEXT."
MOST_LINES = 12
"""Lines shown of a question; --json has all of it."""
SECTIONS = {
    "answer": ("a", "question", "questions"),
    "settle": ("an", "effect with an unknown outcome", "effects with an unknown outcome"),
    "retry": ("a", "held run", "held runs"),
}


def inbox(
    place: Place = None,
    at: At = None,
    thread: Thread = None,
    limit: Annotated[int, Option(metavar="N", help="List at most N of each kind.")] = 20,
    json: Json = False,
) -> None:
    """List what needs a person.

    Lists open questions, oldest first; effects with an unknown outcome; held runs; and graphs with
    due runs that no worker seems to have. Each comes with the command that lets the run continue.
    With --json, `needs` is `answer`, `settle`, `retry` or `worker`, and the other fields are those
    of the `Wait`, `EffectRecord` or `Run`.
    """
    from perdure.commands.validation import check_limit
    from perdure.views import attention

    check_limit(limit)
    at = one_place(place, at)
    with client_at(at) as client:
        items = client.blocking.inbox(thread_id=thread, limit=limit + 1)
        unknown = [] if thread else client.journal.run(client.services.runs.unknown_graphs())
    if not items and not unknown and not json:
        print("Nothing needs a person.")
    for verb in SECTIONS:
        found = [item for item in items if item.action.verb == verb]
        if json:
            for item in found[:limit]:
                print_json({"needs": verb} | json_default(item.record))
        elif found:
            _print_section(found, limit, at)
    for graph in unknown:
        if json:
            print_json({"needs": "worker"} | json_default(graph))
        else:
            number = f"{count(graph.runs, 'run')} {'is' if graph.runs == 1 else 'are'} due"
            print(f"{number}: {printable(attention.no_worker(graph))}.")


def _print_section(items: list[InboxItem], limit: int, at: str | None) -> None:
    article, one, several = SECTIONS[items[0].action.verb]
    shown, more = len(items[:limit]), "more than " if len(items) > limit else ""
    number = f"{more}{shown}" if more or shown > 1 else article
    print(paint(f"{number} {one if shown == 1 else several}", "bold"))
    for item in items[:limit]:
        print()
        _print_item(item, at)
    print()


def _print_item(item: InboxItem, at: str | None) -> None:
    print(f"  {paint(printable(item.title), 'cyan')}  {printable(item.note)}")
    for line in value_lines(item.shown, MOST_LINES):
        print(f"    {line}")
    if item.accepts:
        print(f"    answers: {one_line(item.accepts, line_width(13))}")
    print(paint(f"  {command_for(item.action, at)}", "dim"))


def answer(
    wait: Annotated[str, Argument(metavar="WAIT", help=f"From `perdure inbox`. {ID_HELP}")],
    value: Annotated[
        str | None, Argument(metavar="JSON|@FILE|-", help="The answer, as JSON.")
    ] = None,
    at: At = None,
    text: Annotated[
        str | None, Option(metavar="TEXT", help="The answer as plain text instead of JSON.")
    ] = None,
    by: By = None,
) -> None:
    """Answer a run's question.

    An answer is checked against the question's schema, and accepted once.
    """
    from perdure.cli.run_lookup import find_id

    if (value is None) == (text is None):
        raise BadArgument("An answer is JSON, @FILE, - for stdin, or --text TEXT; give one.")
    parsed = parse_json("The answer", value, TEXT_HINT) if value is not None else text
    with client_at(at) as client:
        wait = find_id(client, "wait", wait)
        client.blocking.answer(wait, parsed, by=actor(by))
    print(f"{wait} is answered.")


def withdraw(
    wait: Annotated[str, Argument(metavar="WAIT", help=f"From `perdure show`. {ID_HELP}")],
    at: At = None,
    by: By = None,
    reason: Annotated[str | None, Option(metavar="TEXT", help="Why, for the record.")] = None,
) -> None:
    """Take back an answer that made its run fail.

    The question is open again, and the run asks it again. The command is refused while the run is
    being driven, and once the run has used the answer; then the error names the checkpoint to fork
    the run from.
    """
    from perdure.cli.run_lookup import find_id

    with client_at(at) as client:
        wait = find_id(client, "wait", wait)
        client.blocking.withdraw(wait, by=actor(by), reason=reason)
    print(f"The answer to {wait} is withdrawn; the question is open again.")


def link(
    wait: Annotated[str, Argument(metavar="WAIT", help=f"From `perdure inbox`. {ID_HELP}")],
    to: Annotated[
        str,
        Option(
            metavar="NAME", help="The person it is for. The answer is recorded under this name."
        ),
    ],
    at: At = None,
    expires: Annotated[
        str,
        Option(metavar="7d", help="How long the link works; at most until the question expires."),
    ] = "7d",
) -> None:
    """Print a link that lets a person answer a question.

    It works once and without signing in. Opening it decides nothing. It needs `PERDURE_PUBLIC_URL`,
    or the `public_url` of the Runtime in --at.
    """
    from perdure.cli.parsing import parse_duration
    from perdure.cli.run_lookup import find_id

    lasts = parse_duration("--expires", expires)
    with client_at(at) as client:
        wait = find_id(client, "wait", wait)
        print(client.blocking.link(wait, to=to, expires=lasts))


def signal(
    thread: Annotated[str, Argument(metavar="THREAD", help="The thread that receives it.")],
    name: Annotated[str, Argument(metavar="NAME", help="Name of the signal.")],
    value: Annotated[
        str | None, Argument(metavar="JSON|@FILE|-", help="Its value.", show_default="null")
    ] = None,
    at: At = None,
    key: Annotated[
        str | None,
        Option(metavar="KEY", help="Idempotency key: a second signal with it is ignored."),
    ] = None,
) -> None:
    """Send a signal to a thread.

    It is stored until a run of the thread waits for a signal of this name.
    """
    parsed = None if value is None else parse_json("The value", value)
    with client_at(at) as client:
        stored = client.blocking.signal(thread, name, parsed, key=key)
    print("Sent." if stored else f"A signal with the key {key} was sent before; nothing changed.")
