"""Runs from accepted to done, and steps, per second: beside DBOS, and beside LangGraph alone."""

from bench.engines import Dbos, Engine, LangGraph, Perdure
from bench.report import Series, Table, millis, times
from bench.rounds import Bench

FULL = 4


def drive(bench: Bench) -> list[Table]:
    noops, loops, steps = bench.pick(1000, 200), bench.pick(100, 20), bench.pick(20, 10)
    field: list[Engine] = bench.field(
        *(
            engine
            for processes in (1, FULL)
            for engine in (
                Perdure("sqlite", processes),
                Dbos("sqlite", processes),
                Perdure("postgres", processes),
                Dbos("postgres", processes),
                LangGraph(processes),
            )
        )
    )
    stepped, noop_cpu, step_cpu = Series(), Series(), Series()

    def trial(who: Engine, url: str, thread: str) -> float:
        who.prepare(url)
        with who.fleet(url) as hands:
            one = who.drive(hands, url, "noop", noops, 1)
            many = who.drive(hands, url, "steps", loops, steps)
        noop_cpu.add(who.name, one.cpu / noops)
        step_cpu.add(who.name, many.cpu / (loops * steps))
        stepped.add(who.name, loops * steps / many.seconds)
        return noops / one.seconds

    noop = bench.interleave("drive", field, bench.pick(5, 1), trial, unit="runs/s")
    return [
        _table("No-op runs per second", field, noop, noop_cpu, "run"),
        _table("Steps per second", field, stepped, step_cpu, "step"),
    ]


def _table(title: str, field: list[Engine], found: Series, cpu: Series, what: str) -> Table:
    head = ["", "× DBOS", "× LangGraph alone", "per second", "spread", f"CPU per {what}"]
    rows = [
        [
            who.name,
            times(found.ratio(who.name, Dbos(who.database, who.processes).name))
            if who.database
            else "–",
            times(found.ratio(who.name, LangGraph(who.processes).name)),
            f"{found.median(who.name):,.0f}",
            found.spread(who.name),
            millis(cpu.median(who.name)),
        ]
        for who in field
    ]
    return Table(head, rows, title)
