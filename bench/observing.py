"""What observing costs a step: metrics, traces by OTLP, and neither."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

from bench.databases import Kind, sqlite_path
from bench.hands import graphs
from bench.report import Series, Table, millis
from bench.rounds import Bench

OFF, METRICS, TRACES = "off", "metrics", "traces"

_UNTOLD = "SELECT 1 FROM perdure_traces WHERE due_at IS NOT NULL LIMIT 1"
_RECEIVER = """\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@dataclass(frozen=True, slots=True)
class Observing:
    name: str
    make: Callable[[str], Any]
    """The observers, given the address of a receiver."""
    database: Kind = "sqlite"


def observing(bench: Bench) -> list[Table]:
    runs, steps = 20, 20
    rounds = bench.pick(60, 5)
    field = bench.field(
        Observing(OFF, lambda receiver: None),
        Observing(METRICS, lambda receiver: _metrics()),
        Observing(TRACES, _traces),
    )
    cpu = Series()
    with ExitStack() as stack:
        receiver = stack.enter_context(_receiver())
        opened: dict[str, Any] = {}

        def trial(who: Observing, url: str, thread: str) -> float:
            is_first = url not in opened
            if is_first:
                observer = who.make(receiver)
                opened[url] = stack.enter_context(_runtime(url, observer)), observer
            runtime, observer = opened[url]
            if is_first:
                _drive(runtime, observer, url, runs, steps)  # unmeasured
            spent = process_time()
            took = _drive(runtime, observer, url, runs, steps)
            cpu.add(who.name, (process_time() - spent) / (runs * steps))
            return took / (runs * steps)

        found = bench.interleave("observing", field, rounds, trial)
    return [_table(found, cpu)]


def _metrics() -> Any:
    from perdure.observe import Metrics

    return Metrics()


def _traces(receiver: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    from perdure.observe import OpenTelemetry

    return OpenTelemetry(OTLPSpanExporter(endpoint=f"{receiver}/v1/traces"))


@contextmanager
def _runtime(url: str, observe: Any) -> Iterator[Any]:
    import perdure

    with perdure.Runtime(url, observe=observe) as runtime:
        runtime.register(graphs()["steps"], name="steps")
        yield runtime


def _drive(runtime: Any, observer: Any, url: str, runs: int, steps: int) -> float:
    """Seconds until these runs are done, and the observer has everything."""
    for _ in range(runs):
        runtime.blocking.start("steps", {"n": 0, "until": steps})
    begun = perf_counter()
    counts = asyncio.run(runtime.tick(limit=runs, concurrency=runs))
    runtime.journal.drain()
    if runtime.engine.sinks:
        observer.flush()  # at once: what is left would be gathered with the next segments
        with closing(sqlite3.connect(sqlite_path(url))) as database:
            while database.execute(_UNTOLD).fetchone() is not None:
                time.sleep(0.001)
    took = perf_counter() - begun
    assert counts.done == runs
    return took


@contextmanager
def _receiver() -> Iterator[str]:
    """A process that accepts every request."""
    command = [sys.executable, "-c", _RECEIVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def _table(found: Series, cpu: Series) -> Table:
    rows = []
    for name in found.names:
        ratio, interval = found.ratio(name, OFF), _interval(found.ratios(name, OFF))
        share = cpu.ratio(name, OFF)
        rows.append(
            [
                name,
                "–" if name == OFF or ratio is None else f"{ratio - 1:+.1%}",
                "–" if name == OFF else interval,
                "–" if name == OFF or share is None else f"{share - 1:+.1%}",
                millis(found.median(name)),
                millis(cpu.median(name)),
            ]
        )
    return Table(
        ["", "added to a step", "95 % interval", "added CPU", "per step", "CPU per step"], rows
    )


def _interval(ratios: list[float]) -> str:
    """The range of ratios that the median lies in, for any distribution."""
    ordered, count = sorted(ratios), len(ratios)
    skip = max(0, int(count / 2 - 0.98 * count**0.5))
    if not ordered:
        return "–"
    return f"{ordered[skip] - 1:+.1%} to {ordered[count - 1 - skip] - 1:+.1%}"
