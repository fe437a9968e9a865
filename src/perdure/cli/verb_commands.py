"""Verbs as commands, made from their declarations: arguments, options, help, and what they print.

The first parameter of a verb names what it changes, by its id or the beginning of it. Here is only
what a terminal needs besides: the sentence that a command prints, what it asks before it begins,
and which controls take several runs, or select them by options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click
from click.exceptions import Exit

from perdure.cli.journal import selected
from perdure.cli.options import (
    ABSENT,
    IDS,
    At,
    DryRun,
    Parameter,
    RunIds,
    Yes,
    actor,
    build,
    of_verb,
    parameter,
    selecting,
)
from perdure.cli.output import (
    command_for,
    confirm_or_abort,
    one_line,
    paint_state,
    print_error,
)
from perdure.cli.target import check_graph, client_at, find_id
from perdure.commands import (
    answering,
    deleting,
    effect_decisions,
    effects,
    messages,
    question_links,
    run_control,
    schedules,
    scores,
    signals,
    workers,
)
from perdure.errors import BadArgument, Error, NotFound
from perdure.text import printable
from perdure.times import utc_time
from perdure.types import Run, State
from perdure.verbs import Verb
from perdure.views import event_wording
from perdure.views.event_wording import NextStep
from perdure.views.formatting import count, graph_title
from perdure.views.waiting_for import line_note

if TYPE_CHECKING:
    from perdure.client import Client

UNFINISHED = ("pending", "running", "waiting", "paused", "held")
PREVIEWED = 5
"""Maximum number of runs in the preview of a bulk change."""


class Done(NamedTuple):
    """What a verb did."""

    client: Client
    at: str | None
    values: dict[str, Any]
    result: Any
    flags: dict[str, bool]


def command(
    verb: Verb[..., Any],
    says: str | Callable[[Done], str | None],
    *,
    flags: Mapping[str, str] = MappingProxyType({}),
    options: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    creates: bool = False,
    check: Callable[[str | None, dict[str, Any]], None] | None = None,
    asks: Callable[[Client, dict[str, Any]], str] | None = None,
) -> click.Command:
    """The command of a verb. It prints a sentence about its arguments, or what `says` returns.

    Args:
        flags: Options of the command alone, with their help.
        options: Positional parameters that are options here. One without a value is not passed.
        without: Parameters that the command does not have.
        creates: Whether it makes a missing journal.
        check: Raises if the arguments do not fit together.
        asks: The question to confirm before it begins, if any.
    """
    of, names = verb.parameters[0], [one.name for one in verb.parameters]
    params = of_verb(verb, {*names} - {*without}, options)
    params += [_shared("at", At, None)]
    params += [
        _shared(name, Annotated[bool, Parameter(help)], False) for name, help in flags.items()
    ]
    params += [_shared("yes", Yes, False)] if asks is not None else []

    def callback(at: str | None, yes: bool = True, **given: Any) -> None:
        chosen = {name: given.pop(name) for name in flags}
        values = {name: value for name, value in given.items() if value not in (ABSENT, ())}
        if check is not None:
            check(at, values)
        if "by" in values:
            values["by"] = actor(values["by"])
        with client_at(at, create=creates) as client:
            if of.name in IDS and of.kind is not of.KEYWORD_ONLY:
                values[of.name] = _find(client, IDS[of.name], values[of.name])
            question = "" if asks is None else asks(client, values)
            if question:
                confirm_or_abort(question, yes=yes)
            result = getattr(client.blocking, verb.name)(**values)
            done = Done(client, at, values, result, chosen)
            texts = {name: printable(str(value)) for name, value in values.items()}
            said = says.format(**texts) if isinstance(says, str) else says(done)
            if said is not None:
                print(said)

    return build(verb.name.replace("_", "-"), callback, params, verb.__doc__)


def _shared(name: str, kind: Any, default: Any) -> click.Parameter:
    one = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
    return parameter(one, kind)


def _find(client: Client, what: str, text: str) -> str:
    """The id of what a command names."""
    if what != "worker":
        return find_id(client, what, text)
    matching = [
        one.id
        for one in client.blocking.workers()
        if one.started_at is not None
        and (one.id.startswith(text) or text in (f"{one.host}:{one.pid}", str(one.pid)))
    ]
    if not matching:
        raise NotFound("worker", text)
    if len(matching) > 1:
        names = ", ".join(matching)
        raise BadArgument(f"{text} matches several workers: {names}. Pass the whole id.")
    return matching[0]


# -- what commands say and ask


def _check_settle(at: str | None, values: dict[str, Any]) -> None:
    how = values["how"]
    if how != "done" and "result" in values:
        raise BadArgument(f"{how} takes no --result. Say why with --reason.")
    if how == "done" and "result" not in values:
        raise BadArgument("done needs --result: what the call returned, as JSON; null for nothing.")


def _settled(done: Done) -> str:
    key, how = done.values["key"], done.values["how"]
    text = f"{key} is settled: {how}."
    row = None if how == "fail" else done.client.journal.do(effects.find(key))
    try:
        run = done.client.blocking.get(row.run_id, output=False) if row and row.run_id else None
    except NotFound:  # deleted meanwhile
        run = None
    if run is not None and run.state is State.FAILED:
        retry = command_for(NextStep(event_wording.Verb.RETRY, (run.id,)), done.at)
        text += f"\nIts run failed, and goes on when it is retried:\n{retry}"
    return text


def _assigned(done: Done) -> str:
    to = printable(done.values["to"] or "no one")
    return f"{done.values['wait_id']} is assigned to {to}."


def _sent(done: Done) -> str:
    key = done.values["key"]
    return "Sent." if done.result else f"A signal with the key {key} was sent before; it stays."


def _scheduled(done: Done) -> str:
    one = done.result
    if not one.enabled:
        return f"{printable(one.name)} is disabled."
    return f"{printable(one.name)} starts {printable(one.graph)} next at {utc_time(one.next_at)}."


def _ask_erase(client: Client, values: dict[str, Any]) -> str:
    return f"Erase thread {printable(values['thread_id'])!r} for good?"


def _erased(done: Done) -> str:
    lines = [f"{rows:>8}  {table}" for table, rows in done.result.items()]
    lines.append(f"{count(sum(done.result.values()), 'row')} deleted.")
    if not done.client.blocking.scrub():
        lines.append("The database frees the deleted rows itself; its backups keep them.")
    return "\n".join(lines)


def _ask_prune(client: Client, values: dict[str, Any]) -> str:
    found = 0 if values["dry_run"] else client.blocking.prune(**{**values, "dry_run": True})
    return f"Delete {count(found, 'run')}?" if found else ""


def _pruned(done: Done) -> str:
    would = "would be " if done.values["dry_run"] else ""
    return f"{count(done.result, 'run')} {would}deleted."


# -- controls of runs


def control(
    verb: Verb[..., Run],
    done: str,
    says: Callable[[Run], str] = lambda run: paint_state(run.state),
    *,
    states: tuple[str, ...] = (),
) -> click.Command:
    """The command of a verb on runs; one that refuses does not stop the others. With `states` it
    also takes options that select such runs, shows them, and asks. Each run is an operation of its
    own: what was done before an interruption stays, and the same command goes on with the rest."""
    _, *others = of_verb(verb)
    many: Any = parameter(verb.parameters[0], RunIds)
    if states:
        many.required, many.metavar = False, "[RUN...]"
    params = [many, *others, _shared("at", At, None)]
    if states:
        params += [*selecting(), _shared("dry_run", DryRun, False), _shared("yes", Yes, False)]

    def callback(
        run_id: tuple[str, ...],
        at: str | None,
        dry_run: bool = False,
        yes: bool = False,
        **given: Any,
    ) -> None:
        values = {one.name: given.pop(one.name) for one in verb.parameters[1:]}
        values["by"] = actor(values["by"])
        if states and bool(run_id) == any(given.values()):
            raise BadArgument(
                "Which runs? Give their ids, or select them with options such as --state and "
                f"--graph{'; not both' if run_id else ''}. `perdure runs` takes the same options."
            )
        refused = 0
        with client_at(at) as client:
            act: Callable[..., Run] = getattr(client.blocking, verb.name)
            ids = run_id or _preview(client, verb.name, done, states, given)
            if not run_id:
                if dry_run or not ids:
                    return
                confirm_or_abort(f"{verb.name.capitalize()} {count(len(ids), 'run')}?", yes=yes)
            for id in ids:
                try:
                    run = act(client.blocking.find(id).id if run_id else id, **values)
                except Error as error:
                    print_error(error)
                    refused += 1
                else:
                    still = "asked to stop" if run.state == "running" else says(run)
                    print(f"{run.id} is {still}.")
        if not run_id:
            print(f"{count(len(ids) - refused, 'run')} {done}.")
        if refused:
            raise Exit(2)

    return build(verb.name, callback, params, verb.__doc__)


def _preview(
    client: Client, verb: str, done: str, states: tuple[str, ...], filters: dict[str, Any]
) -> list[str]:
    """The runs that options select, newest first, after the first ones are shown."""
    if wrong := [state for state in filters["state"] or () if state not in states]:
        names = ", ".join(states)
        raise BadArgument(f"A {wrong[0]} run cannot be {done}: --state takes {names}.")
    from perdure.commands.run_search import RunLine

    found = [*selected(client, {**filters, "state": filters["state"] or [*states]})]
    print(f"{count(len(found), 'run')} to {verb}, newest first:" if found else "No run matches.")
    for run in found[:PREVIEWED]:
        title = printable(graph_title(run.graph, run.version))
        note = one_line(line_note(RunLine(run), datetime.now(UTC)), 100)
        facts = (run.id, paint_state(run.state, 9), title, printable(run.thread_id), note)
        print("  " + "  ".join(facts).rstrip())
    if len(found) > PREVIEWED:
        print(f"  … {len(found) - PREVIEWED:,} more")
    return [run.id for run in found]


# -- every verb that is a command


PAUSE = control(run_control.pause, "paused")
RESUME = control(run_control.resume, "resumed")
WAKE = control(run_control.wake, "woken", lambda run: "woken")
CANCEL = control(run_control.cancel, "cancelled", states=UNFINISHED)
RETRY = control(run_control.retry, "retried", states=("failed", "held"))
COMMENT = command(run_control.comment, "Commented on {run_id}.")
SCORE = command(scores.score, "Scored {run_id}: {name}.")
ANSWER = command(answering.answer, "{wait_id} is answered.")
ASSIGN = command(answering.assign, _assigned)
WITHDRAW = command(
    answering.withdraw, "The answer to {wait_id} is withdrawn; the question is open again."
)
LINK = command(question_links.link, lambda done: str(done.result))
SIGNAL = command(signals.signal, _sent)
REDELIVER = command(messages.redeliver, "{message_id} will be delivered again.")
SETTLE = command(effect_decisions.settle, _settled, options=("result",), check=_check_settle)
SCHEDULE = command(
    schedules.schedule,
    _scheduled,
    without=("catch_up",),
    creates=True,
    check=lambda at, values: check_graph(at, values["graph"]),
)
ENABLE_SCHEDULE = command(schedules.enable_schedule, _scheduled)
UNSCHEDULE = command(schedules.unschedule, "{name} is removed.")
DRAIN = command(workers.drain_worker, "{worker_id} was asked to drain.")
PRUNE = command(deleting.prune, _pruned, asks=_ask_prune)
ERASE = command(deleting.erase, _erased, asks=_ask_erase)
