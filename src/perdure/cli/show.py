"""`perdure show`: the timeline of one run, across its segments, waits, effects and scores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.place import At, opened, settling, typed

if TYPE_CHECKING:
    from perdure.cli.timeline import Stretch
    from perdure.types import Event, Run

BAR = 40
LATE = timedelta(seconds=5)
"""How long a run may be due before it is worth a word."""


def show(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Its id, or at least 6 characters of its beginning."),
    ] = None,
    at: At = None,
    thread: Annotated[
        str | None, typer.Option(metavar="ID", help="The newest run of this thread.")
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="Every event as it is.")] = False,
    json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
) -> None:
    """Show where a run spent its time, what it did, and what it waits for."""
    from perdure.cli import tell
    from perdure.cli.lookup import find, whole

    with opened(at) as client:
        found = find(client, run, thread)
        if json and not events:
            tell.print_json(whole(client, client.blocking.get(found.id)))
            return
        if events:
            for event in client.blocking.events(found.id):
                _event(event, json=json)
            return
        _page(whole(client, found), at)


def _event(event: Event, *, json: bool) -> None:
    from perdure.cli import tell

    if json:
        tell.print_json(event)
        return
    at = event.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    print(f"{event.n:4}  {at}Z  {event.kind:10}  {tell.shown(dict(event.data), 2000)}".rstrip())


def _page(told: dict[str, Any], at: str | None) -> None:
    from perdure.cli.timeline import stretches

    run: Run = told["run"]
    last = told["events"][-1].at if told["events"] else run.updated_at
    now = last if run.ended else max(last, datetime.now(UTC))
    history = stretches(told["events"], now)
    _header(run)
    _spent(history, now)
    _timeline(history, now, told)
    _scores(told["scores"])
    _next(told, at)


def _header(run: Run) -> None:
    from perdure.cli import tell

    graph = tell.printable(f"{run.graph}@{run.version}".removesuffix("@"))
    print(f"{tell.paint(run.id, 'bold')}  {tell.paint_state(run.state)}  {graph}")
    facts = {
        "thread": tell.printable(run.thread_id),
        "key": tell.printable(run.key or ""),
        "metadata": tell.pairs(run.metadata),
        "tags": tell.printable("  ".join(run.tags)),
        "created": f"{tell.stamp(run.created_at)}, {tell.age(run.created_at)} ago",
        "due": "" if run.due_at is None else f"{tell.stamp(run.due_at)}, {_due(run.due_at)}",
        "saved": "  ".join(f"{count} {name}" for name, count in run.saved.items() if count),
    }
    for name, fact in facts.items():
        if fact:
            print(f"  {tell.paint(f'{name:9}', 'dim')} {fact}")


def _due(at: datetime) -> str:
    from perdure.cli.tell import age

    told = age(at)
    return told if told.startswith("in ") else f"for {told}"


def _spent(history: list[Stretch], now: datetime) -> None:
    """Where its time went, with a bar each."""
    from perdure.cli import tell
    from perdure.cli.timeline import STYLES, totals

    sums = totals(history, now)
    whole = sum(sums.values(), timedelta(0))
    if not whole:
        return
    print(f"\nWhere its {tell.span(whole)} went")
    room = max(10, min(BAR, tell.width() - 50)) if tell.is_terminal() else BAR
    for kind, lasted in sums.items():
        share = lasted / whole
        bar = "█" * round(share * room) or "▏"
        percent = f"{share:4.0%}" if share >= 0.01 else " <1%"
        print(
            f"  {kind:27}  {tell.span(lasted):>8}  {percent}  {tell.paint(bar, STYLES.get(kind))}"
        )


def _timeline(history: list[Stretch], now: datetime, told: dict[str, Any]) -> None:
    from perdure.cli.timeline import DRIVEN

    effects = {one.key: one for one in told["effects"]}
    waits = {one["id"]: one for one in told["waits"]}
    print()
    for one in history:
        if one.kind == DRIVEN:
            _segment(one, now, effects, waits)
        else:
            _rest(one, now)


def _segment(one: Stretch, now: datetime, effects: dict[str, Any], waits: dict[str, Any]) -> None:
    from perdure.cli import tell
    from perdure.cli.effects import told
    from perdure.cli.timeline import is_news, tell_event, who

    driver = {"cron": "a tick", "call": "its caller"}.get(one.driver, "a worker")
    lasted = tell.span(one.lasted(now)) if one.until else f"{tell.span(one.lasted(now))} so far"
    took = tell.paint("  recovered", "yellow") if one.recovered else ""
    died = tell.paint("  the worker died", "red") if one.died else ""
    number = tell.paint(f"#{one.n}".ljust(3), "bold")
    print(f"{number} {tell.stamp(one.since)}  {driver} ({who(one.worker)})  {lasted}{took}{died}")
    for event in one.events[1:]:
        if event.kind == "waiting" or not is_news(event):
            continue  # the rest that follows says so
        text, style = tell_event(event)
        after = tell.span(event.at - one.since)
        print(f"      {tell.paint(f'+{after:<7}', 'dim')} {tell.paint(_fit(text, 15), style)}")
        more = ""
        if event.kind == "effect" and event.data.get("key") in effects:
            more = told(effects[event.data["key"]].arguments)
        elif event.kind == "wait" and event.data.get("kind") == "human":
            asked = waits.get(event.data["wait"])
            more = "" if asked is None else tell.shown(asked["value"])
        if more:
            print(f"               {tell.paint(_fit(more, 15), 'dim')}")


def _fit(text: str, indent: int) -> str:
    from perdure.cli import tell

    return tell.fit(text, tell.room(indent)) if tell.is_terminal() else text


def _rest(one: Stretch, now: datetime) -> None:
    from perdure.cli import tell
    from perdure.cli.timeline import QUEUED, STYLES, tell_event

    lasted = one.lasted(now)
    said = [tell_event(event) for event in one.events if event.kind != "started"]
    if one.kind == QUEUED and not said and one.until and lasted < timedelta(seconds=1):
        return
    until = f", until {tell.stamp(one.due)}" if one.due and not one.until else ""
    so_far = "" if one.until else " so far"
    kind, comma, more = one.kind.partition(",")
    said_first = f"    {tell.span(lasted)} {kind}{so_far}{until}{comma}{more}"
    print(tell.paint(said_first, STYLES.get(one.kind)))
    for text, style in said:
        print(f"      {tell.paint(text, style)}")


def _scores(scores: list[Any]) -> None:
    from perdure.cli import tell

    if scores:
        print("\nScores")
    for one in scores:
        about = f"  of {tell.printable(one.about)}" if one.about else ""
        comment = f"  {tell.shown(one.comment)}" if one.comment else ""
        name = tell.printable(one.name)
        print(f"  {name} {one.value:g}{about}{comment}  {tell.paint(tell.stamp(one.at), 'dim')}")


def _next(told: dict[str, Any], at: str | None) -> None:
    """What it waits for, and the command to go on."""
    from perdure.cli import tell
    from perdure.types import State

    run: Run = told["run"]
    place = typed(at)
    lines: list[str] = []
    for wait in told["waits"]:
        if wait["state"] == "open" and not run.ended:
            lines += _open(wait, run, place)
    for effect in told["effects"]:
        if effect.state == "unknown":
            lines += [f"nobody knows what became of {effect.name}:", settling(effect.key, place)]
    unsettled = any(effect.state == "unknown" for effect in told["effects"])
    if run.error is not None and run.state is not State.DONE:
        lines.append(tell.paint(tell.shown(str(run.error), 2000), "red"))
    if run.reason and run.reason != str(run.error) and not unsettled:
        lines.append(tell.shown(run.reason, 2000))
    if run.state in (State.HELD, State.FAILED) and not unsettled:
        lines.append(f"to try it again: perdure retry {run.id}{place}")
    if run.state is State.PAUSED:
        lines.append(f"to let it go on: perdure resume {run.id}{place}")
    lines += _due_now(run)
    if told.get("unreadable"):
        lines.append(tell.paint(tell.shown(told["unreadable"], 1000), "red"))
    if lines:
        print("\nNow")
    for line in lines:
        print(f"  {line}")


def _due_now(run: Run) -> list[str]:
    """Why nobody drives a run that could be driven."""
    from perdure.cli.tell import span
    from perdure.types import State

    if run.state not in (State.PENDING, State.WAITING):
        return []
    if run.due_at is None:
        after = "begins after the run before it on its thread"
        return [after] if run.state is State.PENDING else []
    late = datetime.now(UTC) - run.due_at
    if late < LATE:
        return []
    return [f"due for {span(late)}, and no worker took it: perdure worker RUNTIME drives it"]


def _open(wait: dict[str, Any], run: Run, place: str) -> list[str]:
    import shlex

    from perdure.cli import tell
    from perdure.cli.schema import example

    ends = f", until {tell.stamp(wait['expires_at'])}" if wait["expires_at"] else ""
    if wait["kind"] == "clock":
        return [f"asleep until {tell.stamp(wait['wake_at'])}"]
    if wait["kind"] == "signal":
        name = wait["name"]
        command = f"perdure signal {shlex.quote(run.thread_id)} {shlex.quote(name)} JSON{place}"
        said = f"the signal {tell.printable(name)}"
        waits = f"waits{ends[1:]}, or for {said}" if ends else f"waits for {said}"
        return [f"{waits}: {command}"]
    lines = [f"  {line}" for line in tell.lines_of(wait["value"], 20)]
    answer = example(wait["response_schema"])
    return [f"asks a person{ends}:", *lines, f"perdure answer {wait['id']} {answer}{place}"]
