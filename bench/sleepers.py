"""Memory of a worker process while runs sleep: it should not know how many there are."""

import asyncio
from typing import Any

from bench.databases import Kind
from bench.engines import LABEL, accept
from bench.fleet import Fleet, fleet
from bench.report import Bar, Section, Table, megabytes
from bench.rounds import Bench, say
from bench.texts import TEXTS


def sleepers(bench: Bench) -> Section:
    warm, most = bench.pick(2_000, 1_200), bench.pick(10_000, 2_000)
    kinds: list[Kind] = [k for k in LABEL if not any(w in LABEL[k].lower() for w in bench.without)]
    rows, bars = [], []
    for kind in kinds:
        with bench.databases.fresh(kind) as url:
            none, some, asleep, new = _asleep(url, warm, most)
        with bench.databases.fresh(kind) as url:
            done = _done(url, most)
        each = (asleep["objects"] - some["objects"]) / (most - warm)
        say(f"sleeping  {LABEL[kind]:<12} {new['rss'] / 1e6:.1f} MB, {each:.2f} objects each")
        sizes = [megabytes(found["rss"]) for found in (none, new, asleep, done)]
        rows.append([f"perdure {LABEL[kind]}", *sizes, f"{each:.2f}"])
        bars += [
            Bar(
                f"memory of a worker with {most:,} sleeping runs against none, {LABEL[kind]}",
                1.05,
                new["rss"] / none["rss"],
            ),
            Bar(f"objects kept per sleeping run, {LABEL[kind]}", 0.1, max(0.0, each), unit="each"),
        ]
    head = ["", "none", "new worker", "put to sleep", "done", "objects"]
    counts = {"warm": f"{warm:,}", "most": f"{most:,}"}
    return TEXTS["sleeping"].section([Table(head, rows)], bars, **counts)


def _asleep(url: str, warm: int, most: int) -> list[dict[str, Any]]:
    with fleet("perdure", url) as hands:
        sizes = hands.ask("size")
        for count in (warm, most - warm):
            sizes += _drive(hands, url, "sleeper", count)
    with fleet("perdure", url) as hands:
        return sizes + hands.ask("size")


def _done(url: str, most: int) -> dict[str, Any]:
    with fleet("perdure", url) as hands:
        [size] = _drive(hands, url, "noop", most)
        return size


def _drive(hands: Fleet, url: str, graph: str, count: int) -> list[dict[str, Any]]:
    asyncio.run(accept(url, graph, count, 1))
    [worked] = hands.ask("work")
    assert worked["claimed"] == count, f"{worked['claimed']} runs were driven, not {count}"
    return hands.ask("size")
