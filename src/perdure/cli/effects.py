"""`perdure effects`: what left the process; `perdure settle`: say what became of one of them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli.place import At, opened, settling, typed
from perdure.errors import BadArgument, Error

if TYPE_CHECKING:
    from perdure.operations.effects import EffectRow
    from perdure.serde.serializer import Serializer
    from perdure.types import EffectRecord


def effects(
    at: At = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Of one run.")] = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Of one thread.")] = None,
    state: Annotated[
        Literal["open", "done", "failed", "unknown", "again", "all"] | None,
        typer.Option(help="Default: unknown, or all of a run or thread."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many.")] = 100,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List effects, the calls that left the process: those that wait for a person."""
    from perdure.cli.lookup import whole_id
    from perdure.cli.tell import print_json
    from perdure.operations import effects
    from perdure.service.validation import check_limit

    one = run or thread
    state = state or ("all" if one else "unknown")
    with opened(at) as client:
        if run:
            found = client.journal.do(effects.of_run(whole_id(client, run)))
            rows = [row for row in found if state in ("all", row.state)][: check_limit(limit)]
        else:
            wanted = None if state == "all" else state
            page = effects.page(
                thread_id=thread, state=wanted, after=None, count=check_limit(limit)
            )
            rows = client.journal.do(page)
        still = effects.page(thread_id=None, state="open", after=None, count=1)
        some_open = state == "unknown" and not one and bool(client.journal.do(still))
        records = [_record(client.services.serializer, row) for row in rows]
    for record in records:
        if json:
            print_json(record)
        else:
            _show(record, typed(at))
    if json:
        return
    if not rows:
        print("No effect waits for a person." if state == "unknown" else "There are none.")
    if some_open:
        print("Some are open: being called, or left by who called them. See --state open.")


def _record(serializer: Serializer, row: EffectRow) -> EffectRecord:
    from perdure.operations import effects
    from perdure.types import RunError

    try:
        return effects.to_record(serializer, row)
    except Error as unreadable:  # the others of a list can still be seen
        why = RunError(type(unreadable).__name__, f"(cannot be read here: {unreadable})", "")
        return replace(effects.to_bare_record(row), error=why)


def _show(one: EffectRecord, place: str) -> None:
    from perdure.cli import tell

    arguments = told(one.arguments)
    call = f"{one.key}  {one.name}"
    beside = tell.room(9) >= tell.columns_of(f"{call}({arguments})")
    print(f"{tell.paint_state(one.state, 8)} {call}{f'({arguments})' if beside else ''}")
    if not beside:
        print(f"         {tell.fit(arguments, tell.room(9))}")
    calls = f"{tell.count(one.attempts, 'call')} since {tell.stamp(one.created_at)}"
    thread = tell.printable(one.thread_id)
    print(f"         thread {thread}, run {one.run_id or 'none'}, {calls}")
    if one.error:
        print(f"         {tell.shown(str(one.error), 1000)}")
    if one.state == "unknown":
        print(f"         {settling(one.key, place)}")


def told(arguments: Any) -> str:
    """The arguments of a call, as they are written."""
    from perdure.cli.tell import fit, printable

    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return fit(printable(text), 200)


def settle(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Of the effect, as `perdure effects` shows it.")
    ],
    how: Annotated[
        Literal["done", "retry", "fail"], typer.Argument(help="It happened; call it; give it up.")
    ],
    at: At = None,
    result: Annotated[
        str | None,
        typer.Option(metavar="JSON|@FILE|-", help="Of done: what it returned; of fail: why."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who says so. Default: USER.")
    ] = None,
) -> None:
    """Say what became of an effect nobody knows about. Its run goes on."""
    given = _result(how, result)
    with opened(at) as client:
        client.blocking.settle(key, how, given, by=by or os.environ.get("USER"))
    print(f"{key} is settled: {how}.")


def _result(how: str, result: str | None) -> Any:
    import json
    import shlex

    from perdure.cli.given import read_json

    if result is None:
        if how == "done":
            raise BadArgument(
                "done needs --result: what the call returned, as JSON; null if nothing."
            )
        return None
    try:
        return read_json("--result", result)
    except BadArgument as error:
        if how == "fail" and isinstance(error.__cause__, ValueError):
            return result  # why it is given up, in words
        if isinstance(error.__cause__, OSError):
            raise
        quoted = shlex.quote(json.dumps(result))
        raise BadArgument(f"--result {result!r} is no JSON; a text is {quoted}.") from None
