"""`perdure inbox`: what needs a person; `answer` and `signal`: say it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.place import At, opened, settling, typed
from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.types import EffectRecord, Run, Wait

AS_TEXT = " For an answer that is only a text: --text TEXT."
LINES = 12
"""Of what a person is shown; all of it is in --json."""


def inbox(
    at: At = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Of this thread.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many of each kind.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List what needs a person: open questions, unknown effects, held runs."""
    from perdure.cli import tell
    from perdure.service.validation import check_limit

    check_limit(limit)
    with opened(at) as client:
        ask = client.blocking
        waits = ask.waits(kind="human", thread_id=thread, limit=limit + 1)
        effects = ask.effects(state="unknown", thread_id=thread, limit=limit + 1)
        held = ask.runs(state="held", thread_id=thread, limit=limit + 1, output=False)
    unsettled = {one.run_id for one in effects}
    held = [run for run in held if run.id not in unsettled]  # settling is what lets it go on
    if json:
        for needs, found in (("answer", waits), ("settle", effects), ("retry", held)):
            for one in found[:limit]:
                tell.print_json({"needs": needs} | tell.plain(one))
        return
    if not waits and not effects and not held:
        print("Nothing needs a person.")
        return
    place = typed(at)
    _section("a question", "questions", waits, limit, lambda one: _wait(one, place))
    _section(
        "an effect of which nobody knows what became",
        "effects of which nobody knows what became",
        effects,
        limit,
        lambda one: _effect(one, place),
    )
    _section("a run that is held", "runs that are held", held, limit, lambda one: _held(one, place))


def _section(one: str, several: str, found: list[Any], limit: int, show: Any) -> None:
    from perdure.cli import tell

    if not found:
        return
    many = f"more than {limit}" if len(found) > limit else str(len(found))
    print(tell.paint(f"{many} {several}" if len(found) > 1 else one, "bold"))
    for each in found[:limit]:
        print()
        show(each)
    print()


def _wait(wait: Wait, place: str) -> None:
    import shlex

    from perdure.cli import tell
    from perdure.cli.schema import example, tell_schema

    ends = "" if wait.expires_at is None else f", expires {tell.age(wait.expires_at)}"
    print(
        f"  {tell.paint(tell.printable(wait.thread_id), 'cyan')}  "
        f"asked {tell.age(wait.created_at)} ago{ends}"
    )
    for line in tell.lines_of(wait.value, LINES):
        print(f"    {line}")
    if wait.response_schema is not None:
        said = tell_schema(wait.response_schema) or wait.response_schema
        print(f"    answers: {tell.shown(said, tell.room(13))}")
    answer = example(wait.response_schema)
    print(tell.paint(f"  perdure answer {shlex.quote(wait.id)} {answer}{place}", "dim"))


def _effect(effect: EffectRecord, place: str) -> None:
    from perdure.cli import tell

    print(f"  {effect.name}")
    for name, value in effect.arguments.items():
        print(f"    {tell.shown(f'{name}: {tell.shown(value, 2000)}', tell.room(4))}")
    print(f"    thread {tell.printable(effect.thread_id)}, since {tell.stamp(effect.updated_at)}")
    if effect.error is not None:
        print(f"    {tell.shown(str(effect.error))}")
    print(tell.paint(f"  {settling(effect.key, place)}", "dim"))


def _held(run: Run, place: str) -> None:
    from perdure.cli import tell

    print(
        f"  {tell.printable(run.graph)}  {tell.paint(tell.printable(run.thread_id), 'cyan')}  "
        f"held {tell.age(run.updated_at)} ago"
    )
    print(f"    {tell.shown(run.reason or '')}")
    print(tell.paint(f"  perdure show {run.id}{place}", "dim"))
    print(tell.paint(f"  perdure retry {run.id}{place}", "dim"))


def answer(
    wait: Annotated[str, typer.Argument(metavar="WAIT", help="As `perdure inbox` shows it.")],
    value: Annotated[
        str | None, typer.Argument(metavar="[JSON|@FILE|-]", help="The answer.")
    ] = None,
    at: At = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The answer as it is, not JSON.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who answers. Default: USER.")
    ] = None,
) -> None:
    """Answer what a run asks a person. Accepted once."""
    from perdure.cli.given import read_json

    if (value is None) == (text is None):
        raise BadArgument("An answer is JSON, @FILE, - for stdin, or --text TEXT; give one.")
    given = read_json("The answer", value, AS_TEXT) if value is not None else text
    with opened(at) as client:
        client.blocking.answer(wait, given, by=by or os.environ.get("USER"))
    print(f"{wait} is answered.")


def signal(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="Who gets it.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the signal.")],
    value: Annotated[
        str | None, typer.Argument(metavar="[JSON|@FILE|-]", help="What it says; default null.")
    ] = None,
    at: At = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key again changes nothing.")
    ] = None,
) -> None:
    """Send a named message to a thread. Kept if nobody waits for it yet."""
    from perdure.cli.given import read_json

    given = None if value is None else read_json("The value", value)
    with opened(at) as client:
        kept = client.blocking.signal(thread, name, given, key=key)
    print("It is kept." if kept else f"One with the key {key} was sent before; nothing changed.")
