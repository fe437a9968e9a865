"""Effects per second, beside DBOS steps: one run alone, and fifty at once."""

from collections.abc import Iterator
from typing import NamedTuple

from bench.databases import Kind
from bench.engines import LABEL, Dbos, Engine, Perdure
from bench.hands import CONCURRENCY
from bench.report import Bar, Section, Series, Table, millis, times
from bench.rounds import Bench


class Kinds(NamedTuple):
    """What is called: the graph, the workflow beside it, and what they are called here."""

    name: str
    graph: str
    workflow: str
    bar: float | None = None


WAYS = (
    Kinds("plain, keyed", "effects", "steps", 3.0),
    Kinds("plain, no key", "effects-unkeyed", "steps"),
    Kinds("coroutines, keyed", "effects-async", "steps-async", 3.0),
    Kinds("coroutines, no key", "effects-async-unkeyed", "steps-async"),
)
ALONE, CROWD = "1 run", f"{CONCURRENCY} runs at once"


def effects(bench: Bench) -> Section:
    alone, together = bench.pick(1000, 300), bench.pick(40, 20)
    sizes = {ALONE: (1, alone), CROWD: (CONCURRENCY, together)}
    field: list[Engine] = bench.field(
        Perdure("sqlite"), Dbos("sqlite"), Perdure("postgres"), Dbos("postgres")
    )
    rates = {size: Series() for size in sizes}
    cpu = {size: Series() for size in sizes}

    def trial(who: Engine, url: str, thread: str) -> float:
        who.prepare(url)
        with who.fleet(url) as hands:
            for way in _ways(who):
                for size, (runs, steps) in sizes.items():
                    drove = who.drive(hands, url, way, runs, steps)
                    rates[size].add(_title(who, way), runs * steps / drove.seconds)
                    cpu[size].add(_title(who, way), drove.cpu / (runs * steps))
        return rates[ALONE].last(_title(who, _ways(who)[0]))

    bench.interleave("effects", field, bench.pick(5, 1), trial, unit="effects/s alone")
    kinds = [kind for kind in LABEL if any(who.database == kind for who in field)]
    tables = [_table(size, rates[size], cpu[size], kinds) for size in sizes]
    return Section(tables, [*_bars(rates, kinds)])


def _ways(who: Engine) -> list[str]:
    """The graphs, or the workflows, each once."""
    return list(
        dict.fromkeys(way.graph if isinstance(who, Perdure) else way.workflow for way in WAYS)
    )


def _title(who: Engine, way: str) -> str:
    return f"{who.name} {way}"


def _table(size: str, rates: Series, cpu: Series, kinds: list[Kind]) -> Table:
    rows = []
    for kind in kinds:
        for way in WAYS:
            ours = _title(Perdure(kind), way.graph)
            theirs = _title(Dbos(kind), way.workflow)
            for name, title in ((f"perdure {LABEL[kind]}, {way.name}", ours), *_once(kind, way)):
                if title in rates.names:
                    row = [
                        name,
                        times(rates.ratio(title, theirs)),
                        f"{rates.median(title):,.0f}",
                        rates.spread(title),
                        millis(cpu.median(title)),
                    ]
                    rows.append(row)
    return Table(["", "× DBOS", "per second", "spread", "CPU per effect"], rows, size)


def _once(kind: Kind, way: Kinds) -> Iterator[tuple[str, str]]:
    """The row of DBOS, after the last of ours that is compared with it."""
    if [one for one in WAYS if one.workflow == way.workflow][-1] is way:
        colour = way.name.partition(",")[0]
        yield f"DBOS {LABEL[kind]}, {colour}", _title(Dbos(kind), way.workflow)


def _bars(rates: dict[str, Series], kinds: list[Kind]) -> Iterator[Bar]:
    for kind in kinds:
        for way in WAYS:
            for size, found in rates.items():
                if way.bar is not None:
                    ours, theirs = _title(Perdure(kind), way.graph), Dbos(kind)
                    yield Bar(
                        f"effects per second against DBOS, {LABEL[kind]}, {way.name}, {size}",
                        way.bar,
                        found.ratio(ours, _title(theirs, way.workflow)),
                        at_most=False,
                    )
