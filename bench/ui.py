"""The pages in the browser: the same at 1,000 runs and at 100,000; many open tabs on one process.

As a program, `python -m bench.ui URL PORT`, it is the server whose pages are measured.
"""

import asyncio
import contextlib
import html
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import httpx
import uvicorn

import perdure
from bench.databases import Kind
from bench.engines import LABEL
from bench.report import Bar, Section, Table, millis, times
from bench.rounds import Bench, say
from bench.servers import ROOT, serving_process
from bench.texts import TEXTS
from bench.ui_journal import fill, runtime
from perdure.server.ui.site import sign_in_path
from perdure.testing.ports import free_port

BAR_MS, FLAT = 100.0, 1.5


def ui(bench: Bench) -> Section:
    small, large = bench.pick(1_000, 500), bench.pick(100_000, 5_000)
    rounds, tabs = bench.pick(21, 5), bench.pick(200, 20)
    kinds: list[Kind] = [k for k in LABEL if not any(w in LABEL[k].lower() for w in bench.without)]
    tables: list[Table] = []
    bars: list[Bar] = []
    for kind in kinds:
        with bench.databases.fresh(kind) as few, bench.databases.fresh(kind) as many:
            for url, runs in ((few, small), (many, large)):
                asyncio.run(fill(url, runs))
                say(f"pages  {LABEL[kind]:<12} a journal of {runs:,} runs")
            with _served(few) as one, _served(many) as other:
                clients = one.client, other.client
                table, found = _measure(LABEL[kind], *clients, rounds, small, large)
                seen, cpu = asyncio.run(_open_tabs(other, many, tabs))
        tables.append(table)
        bars += found
        bars.append(
            Bar(f"{tabs} tabs notified of a run, perdure {LABEL[kind]}", 3.0, seen, unit="s")
        )
        rows = [[f"{tabs}", f"{seen:.2f} s", f"{cpu:.0%} of a core"]]
        head = ["open tabs", "seen by the last", "CPU at rest"]
        tables.append(Table(head, rows, f"Open tabs, perdure {LABEL[kind]}"))
    return TEXTS["pages"].section(
        tables,
        bars,
        small=f"{small:,}",
        large=f"{large:,}",
        asked=f"{large // 10:,}",
        rounds=rounds,
        tabs=tabs,
    )


class Served(NamedTuple):
    """A server in a process of its own, and a client that is signed in."""

    client: httpx.Client
    pid: int


@contextmanager
def _served(url: str) -> Iterator[Served]:
    port = free_port()
    with serving_process([sys.executable, "-m", "bench.ui", url, str(port)], ROOT, port) as pid:
        address = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=address, follow_redirects=True, timeout=60) as client:
            with perdure.Runtime(url) as rt:
                client.get(rt.blocking.run(sign_in_path(rt))).raise_for_status()
            yield Served(client, pid)


def _measure(
    label: str, one: httpx.Client, other: httpx.Client, rounds: int, small: int, large: int
) -> tuple[Table, list[Bar]]:
    rows, bars = [], []
    for name in _pages(one):
        took: list[list[float]] = [[], []]
        addresses = [_pages(client)[name] for client in (one, other)]
        for n in range(rounds + 1):
            for place, client in enumerate((one, other)):
                seconds = _time(client, addresses[place])
                if n:  # the first warms up
                    took[place].append(seconds)
        few, many = (median(one) for one in took)
        say(f"pages  {label:<12} {name:<28} {few * 1000:7.1f} {many * 1000:7.1f} ms")
        rows.append([name, millis(few), millis(many), times(many / few)])
        bars.append(Bar(f"{name}, {large:,} runs, {label}", BAR_MS, many * 1000, unit="ms"))
        bars.append(Bar(f"{name}, {large:,} against {small:,} runs, {label}", FLAT, many / few))
    head = ["", f"{small:,} runs", f"{large:,} runs", "ratio"]
    return Table(head, rows, f"Time per page, perdure {label}"), bars


def _pages(client: httpx.Client) -> dict[str, str]:
    """The addresses of the pages by name. Ids are those that the lists show."""
    inbox, runs = client.get("/ui/inbox").text, client.get("/ui/runs").text
    asked = client.get("/ui/runs?state=waiting&graph=ask").text
    question, run = _first(inbox, "/ui/questions/"), _first(asked or runs, "/ui/runs/")
    return {
        "inbox": "/ui/inbox",
        "inbox of a graph": "/ui/inbox?graph=ask",
        "inbox, unassigned": "/ui/inbox?assignee=unassigned",
        "one question": question,
        "runs": "/ui/runs",
        "runs that are held": "/ui/runs?state=held",
        "runs of a graph": "/ui/runs?graph=fail",
        "runs with a label": "/ui/runs?label=customer=customer-7",
        "runs by text": "/ui/runs?text=far+side",
        "one run": run,
        "threads": "/ui/threads",
        "effects": "/ui/effects",
        "decisions": "/ui/decisions",
        "workers": "/ui/workers",
        "health": "/ui/health",
    }


def _first(page: str, prefix: str) -> str:
    found = re.search(rf'href="({re.escape(prefix)}[0-9a-f-]{{32,36}})"', page)
    assert found, f"no link to {prefix}"
    return found[1]


def _time(client: httpx.Client, address: str) -> float:
    began = time.perf_counter()
    client.get(address).raise_for_status()
    return time.perf_counter() - began


async def _open_tabs(server: Served, url: str, tabs: int) -> tuple[float, float]:
    """Seconds until the last of so many tabs was told of a run, and the server's CPU at rest."""
    client, pause = server.client, 5.0
    page = client.get("/ui/runs").text
    found = re.search(r'sse-connect="([^"]+)"', page)
    assert found, "the list of runs is not live"
    live = html.unescape(found[1])
    limits = httpx.Limits(max_connections=tabs + 10)
    told: set[int] = set()
    started = asyncio.Event()

    async with httpx.AsyncClient(
        base_url=client.base_url, cookies=client.cookies, limits=limits, timeout=None
    ) as many:

        async def follow(n: int) -> None:
            async with many.stream("GET", live) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if started.is_set() and line.startswith("event:") and "new" in line:
                        told.add(n)
                        return

        following = [asyncio.create_task(follow(n)) for n in range(tabs)]
        await asyncio.sleep(8)  # all are open, and what they showed first is sent
        before = _cpu(server.pid)
        await asyncio.sleep(pause)
        cpu = (_cpu(server.pid) - before) / pause
        started.set()
        began = time.perf_counter()
        async with perdure.Client(url) as caller:
            await caller.start("done", {"n": 1})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.gather(*following)
        seconds = time.perf_counter() - began
        for one in following:
            one.cancel()
        assert len(told) == tabs, f"{tabs - len(told)} tabs were not told within 30 s"
        return seconds, cpu


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(url: str, port: str) -> None:
    app = runtime(url).asgi(ui=True, worker=False)
    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
