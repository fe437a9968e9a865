"""The server over HTTP beside `langgraph dev`."""

import asyncio

from bench.databases import Kind
from bench.engines import LABEL
from bench.report import Table, millis, times
from bench.rounds import Bench
from bench.server_requests import CLIENTS, Found, measure
from bench.servers import Dev, Ours, Server, install


def server(bench: Bench) -> list[Table]:
    kinds: list[Kind] = [k for k in LABEL if not any(w in LABEL[k].lower() for w in bench.without)]
    field: list[Server] = bench.field(*(Ours(kind) for kind in kinds), Dev())
    if any(isinstance(who, Dev) for who in field):
        install()
    found = Found()
    tokens = bench.pick(1000, 200)

    def trial(who: Server, url: str, thread: str) -> float:
        # A database of its own: the runs that the last round left would be driven beside this one.
        with bench.databases.fresh(who.database) as fresh, who.serve(fresh) as port:
            return asyncio.run(measure(bench, who, port, tokens, found))

    bench.interleave("server", field, bench.pick(3, 1), trial, unit="s")
    return [_chat(found), _requests(field, found), _latencies(field, found)]


def _chat(found: Found) -> Table:
    dev = Dev().name
    head = ["", "first token", "× langgraph dev", "tokens/s", "× langgraph dev"]
    rows = [
        [
            name,
            millis(found.first.median(name)),
            times(found.first.ratio(name, dev)),
            f"{found.rate.median(name):,.0f}",
            times(found.rate.ratio(name, dev)),
        ]
        for name in found.first.names
    ]
    return Table(head, rows, "Streaming chat")


def _requests(field: list[Server], found: Found) -> Table:
    columns = [
        (f"{what}, {clients} client{'s' if clients > 1 else ''}", series[clients])
        for what, series in (
            *(("create", found.create), ("create and drive", found.drive)),
            ("read state", found.read),
        )
        for clients in CLIENTS
    ]
    rows = [
        [
            who.name,
            *(
                f"{series.median(who.name):,.0f} ({times(series.ratio(who.name, Dev().name))})"
                for _, series in columns
            ),
        ]
        for who in field
    ]
    return Table(
        ["", *(name for name, _ in columns)], rows, "Requests per second (× langgraph dev)"
    )


def _latencies(field: list[Server], found: Found) -> Table:
    rows = [
        [who.name, millis(found.wait.median(who.name)), millis(found.answer.median(who.name))]
        for who in field
    ]
    return Table(["", "one-node `runs/wait`", "answer to running node"], rows, "Latency (medians)")
