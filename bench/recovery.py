"""Recovery: runs in the middle of a node when their workers are killed, until all are done."""

import asyncio
from time import perf_counter

from bench.engines import LABEL, Perdure, accept, finished
from bench.fleet import fleet
from bench.report import Table, millis
from bench.rounds import Bench

WORKERS = 4


def recovery(bench: Bench) -> list[Table]:
    runs = bench.pick(1000, 100)
    field = bench.field(Perdure("sqlite"), Perdure("postgres"))

    def trial(who: Perdure, url: str, thread: str) -> float:
        with fleet("perdure", url) as fresh, fleet("stuck", url, WORKERS) as doomed:
            asyncio.run(accept(url, "noop", runs, 1))
            doomed.ask(f"work {runs // WORKERS}")
            start = perf_counter()
            doomed.kill()
            fresh.tell("work-on")
            finished(url, "SELECT count(*) FROM perdure_runs WHERE state <> 'done'")
            took = perf_counter() - start
            fresh.drain()
            return took

    found = bench.interleave("recovery", field, bench.pick(3, 1), trial)
    names = {who.name: LABEL[who.database] for who in field}
    rows = [
        [
            f"perdure {label}",
            millis(found.median(name)),
            millis(found.median(name) / runs),
            found.spread(name),
        ]
        for name, label in names.items()
    ]
    head = ["", "until all are done", "per run", "spread"]
    return [Table(head, rows)]
