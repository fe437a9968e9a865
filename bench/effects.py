"""Effects per second, beside DBOS steps: one run alone, and fifty at once."""

from bench.databases import Kind
from bench.engines import LABEL, Dbos, Engine, Perdure
from bench.hands import CONCURRENCY
from bench.report import Series, Table, millis, times
from bench.rounds import Bench

WAYS = {"keyed": "effects", "no key": "effects-unkeyed"}
"""What is called here → the graph. DBOS has one workflow of steps beside both."""
ALONE, CROWD = "1 run", f"{CONCURRENCY} runs at once"


def effects(bench: Bench) -> list[Table]:
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
            for way in WAYS.values() if isinstance(who, Perdure) else ["steps"]:
                for size, (runs, steps) in sizes.items():
                    drove = who.drive(hands, url, way, runs, steps)
                    rates[size].add(_title(who, way), runs * steps / drove.seconds)
                    cpu[size].add(_title(who, way), drove.cpu / (runs * steps))
        return rates[ALONE].last(rates[ALONE].names[-1])

    bench.interleave("effects", field, bench.pick(5, 1), trial, unit="effects/s alone")
    kinds = [kind for kind in LABEL if any(who.database == kind for who in field)]
    return [_table(size, rates[size], cpu[size], kinds) for size in sizes]


def _title(who: Engine, way: str) -> str:
    return f"{who.name} {way}"


def _table(size: str, rates: Series, cpu: Series, kinds: list[Kind]) -> Table:
    rows = []
    for kind in kinds:
        theirs = _title(Dbos(kind), "steps")
        titles = {f"perdure {LABEL[kind]}, {n}": _title(Perdure(kind), g) for n, g in WAYS.items()}
        for name, title in {**titles, f"DBOS {LABEL[kind]}": theirs}.items():
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
