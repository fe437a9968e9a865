"""The page of one run: its facts, where its time went, its timeline, and what it waits for."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from perdure.cli.output import (
    command_for,
    is_terminal,
    line_width,
    one_line,
    paint,
    paint_state,
    print_json,
    terminal_width,
    value_lines,
)
from perdure.text import printable
from perdure.times import utc_time
from perdure.types import Event, EventKind, Kind, Run, Score, State
from perdure.views import run_life
from perdure.views.event_wording import view_event
from perdure.views.formatting import age, call_arguments, count, duration, graph_title
from perdure.views.run_life import Timeline
from perdure.views.timeline import Period, PeriodKind
from perdure.views.waiting_for import Blocker, blockers, line_note

if TYPE_CHECKING:
    from perdure.commands.run_reads import RunReport

LONGEST_BAR = 40
ENDS = (800, 1200)
"""How much of the beginning and of the end of a long event is shown, in characters."""
BRIEF = timedelta(seconds=1)
"""A shorter time in the queue is not shown."""
PERIOD_STYLES = {
    **dict.fromkeys((PeriodKind.PERSON, PeriodKind.SIGNAL, PeriodKind.RUN), "yellow"),
    **dict.fromkeys((PeriodKind.ASLEEP, PeriodKind.SIGNAL_OR_TIME), "dim"),
    **dict.fromkeys((PeriodKind.RETRYING, PeriodKind.PAUSED), "magenta"),
    **dict.fromkeys((PeriodKind.HELD, PeriodKind.LOST, PeriodKind.FAILED), "red"),
    PeriodKind.DRIVEN: "green",
    PeriodKind.QUEUED: "blue",
}


def print_event(event: Event, *, json: bool) -> None:
    if json:
        print_json(event)
        return
    at = event.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    shown = one_line(event.damaged or dict(event.data), sys.maxsize)
    if len(shown) > sum(ENDS):  # a traceback ends with the cause
        shown = f"{shown[: ENDS[0]]} … {shown[-ENDS[1] :]}"
    print(f"{event.n:4}  {at}Z  {event.kind:10}  {shown}".rstrip())


def print_report(report: RunReport, at: str | None) -> None:
    run, today = report.run, datetime.now(UTC)
    life = Timeline.of(run, report.events, today)
    now = life.now
    _print_header(run, today, run_life.crashes(report.events))
    _print_totals(life)
    print()
    details = _details(report)
    for period in life.periods:
        if period.kind is PeriodKind.DRIVEN:
            _print_segment(run, period, details, now)
        else:
            _print_rest(run, period, now)
    _print_children(report, today)
    _print_scores(report.scores)
    unknown, answers = report.unknown_graphs, report.answers
    found = blockers(run, report.waits, report.effects, today, unknown, answers)
    _print_blockers(found, report.unreadable, at)


def _print_header(run: Run, now: datetime, crashes: str) -> None:
    graph = printable(graph_title(run.graph, run.version))
    print(f"{paint(run.id, 'bold')}  {paint_state(run.state)}  {graph}")
    facts = {
        "thread": printable(run.thread_id),
        "parent": run.parent_id or "",
        "key": printable(run.key or ""),
        "metadata": "  ".join(
            f"{printable(str(key))}={one_line(value, 60)}" for key, value in run.metadata.items()
        ),
        "tags": printable("  ".join(run.tags)),
        "created": f"{utc_time(run.created_at)}, {age(run.created_at, now)} ago",
        "lease" if run.state is State.RUNNING else "due": run_life.due(run, now),
        "saved": run_life.saved(run),
        "crashes": crashes,
    }
    for name, fact in facts.items():
        if fact:
            print(f"  {paint(f'{name:9}', 'dim')} {fact}")


def _print_totals(life: Timeline) -> None:
    """Where the time went, with a bar for each kind of period."""
    sums = life.totals
    whole = sum(sums.values(), timedelta(0))
    if not whole:
        return
    print(f"\nWhere its {duration(whole)} went")
    longest = max(10, min(LONGEST_BAR, terminal_width() - 51)) if is_terminal() else LONGEST_BAR
    for kind, lasted in sums.items():
        share = lasted / whole
        bar = paint("█" * round(share * longest) or "▏", PERIOD_STYLES.get(kind))
        percent = f"{share:4.0%}" if share >= 0.01 else " <1%"
        print(f"  {kind:30}  {duration(lasted):>8}  {percent}  {bar}")


def _print_segment(run: Run, period: Period, details: dict[str, str], now: datetime) -> None:
    lasted = f"{duration(period.lasted(now))}{'' if period.until else ' so far'}"
    recovered = paint("  recovered", "yellow") if period.recovered else ""
    died = paint("  its worker was lost", "red") if period.died else ""
    number = paint(f"#{period.segment}".ljust(3), "bold")
    driver = f"{period.driver} ({printable(period.worker)})"
    print(f"{number} {utc_time(period.since)}  {driver}  {lasted}{recovered}{died}")
    for event in period.events:
        view = view_event(event, run.id, run.thread_id)
        if view.routine:
            continue
        after = paint(f"+{duration(event.at - period.since):<7}", "dim")
        print(f"      {after} {_fit(view.text, view.tone, 15)}")
        named = event.data.get("key") or event.data.get("wait", "")
        refers = event.kind in (EventKind.EFFECT, EventKind.WAIT) and details.get(named)
        for line in (*view.lines, *([details[named]] if refers else ())):
            print(f"               {_fit(line, 'dim', 15)}")


def _details(report: RunReport) -> dict[str, str]:
    """The arguments of each effect by its key, and each question to a person by its wait's id."""
    effects = {one.key: one_line(call_arguments(one.name, one.arguments)) for one in report.effects}
    human = (one for one in report.waits if one.kind is Kind.HUMAN)
    return effects | {one.id: one_line(one.value) for one in human}


def _fit(text: str, style: str, indent: int) -> str:
    return paint(one_line(text, line_width(indent) if is_terminal() else 300), style)


def _print_rest(run: Run, period: Period, now: datetime) -> None:
    shown = [event for event in period.events if event.kind != EventKind.STARTED]
    lasted = period.lasted(now)
    if period.kind is PeriodKind.QUEUED and not shown and period.until and lasted < BRIEF:
        return
    until = f", until {utc_time(period.due)}" if period.due and not period.until else ""
    kind = str(period.kind)
    if period.kind is PeriodKind.LOST:
        kind = f"with {printable(period.worker)}, which was lost"
    lasts = period.until is None and period.kind is not PeriodKind.LOST
    text = f"    {duration(lasted)} {kind}{' so far' if lasts else ''}{until}"
    print(paint(text, PERIOD_STYLES.get(period.kind)))
    for event in shown:
        view = view_event(event, run.id, run.thread_id)
        print(f"      {_fit(view.text, view.tone, 6)}")


def _print_children(report: RunReport, now: datetime) -> None:
    """The tree of its children. The state stands before the branches, so that it is in a column."""
    from perdure.commands.run_reads import MOST_BELOW, MOST_LEVELS, tree_lines
    from perdure.commands.run_search import RunLine

    if report.children.listed:
        print("\nChildren")
    for line in tree_lines(report.run.id, report.children):
        state, text = "", f"… {line.left_out:,} more: perdure runs --children-of {line.parent_id}"
        if line.node is not None:
            run = line.node.run
            note = "  ".join(filter(None, (line.node.relation, line_note(RunLine(run), now))))
            state = run.state
            text = f"{run.id}  {graph_title(run.graph, run.version)}  {note}".rstrip()
        *above, is_last = line.is_last
        branches = "".join("   " if one else "│  " for one in above) + ("└─ " if is_last else "├─ ")
        print(f"  {paint_state(state, 9)}  {one_line(branches + text, line_width(13))}")
    if report.tree_is_cut:
        limits = f"{count(MOST_BELOW, 'run')} or {count(MOST_LEVELS, 'level')}"
        print(f"  Cut at {limits}: perdure show RUN shows what is below one of them")


def _print_scores(scores: list[Score]) -> None:
    if scores:
        print("\nScores")
    for one in scores:
        about = f"  of {printable(one.about)}" if one.about else ""
        value = one.label if one.value is None else f"{one.value:g}"
        comment = f"  {one_line(one.damaged or one.comment)}" if one.damaged or one.comment else ""
        at = paint(utc_time(one.at), "dim")
        shown = " ".join(filter(None, (printable(one.name), printable(value or ""))))
        print(f"  {shown}{about}{comment}  {at}")


def _print_blockers(found: list[Blocker], unreadable: str, at: str | None) -> None:
    """What the run is waiting for, and the commands that let it go on."""
    if found or unreadable:
        print("\nNow")
    for one in found:
        colon = ":" if one.action else ""
        print(f"  {paint(one_line(one.text, 2000), one.tone)}{colon}")
        for line in value_lines(one.shown, 20) if one.shown is not None else ():
            print(f"    {line}")
        if one.action is not None:
            print(f"  {command_for(one.action, at)}")
    if unreadable:
        print(f"  {paint(one_line(unreadable, 1000), 'red')}")
