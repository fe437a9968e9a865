"""Time to load the latest state with a fresh saver, by the length of the history behind it."""

from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from bench.agents import Graph, Saver, fixed_loop, growing_loop, on, texts
from bench.contenders import Contender, perdure, ready, stock_postgres, stock_sqlite
from bench.report import Series, Table, millis, times
from bench.rounds import Bench, say


def load(bench: Bench) -> list[Table]:
    lengths = [10, bench.pick(1000, 200), bench.pick(10_000, 500)]
    stop = lengths[1]
    kilobytes, hundreds = texts(64), texts(64, 100)
    fixed = _histories(
        bench, "fixed", lengths, lambda saver: fixed_loop(saver, kilobytes), {"n": 0}
    )
    growing = _histories(
        bench,
        "growing",
        lengths,
        lambda saver: growing_loop(saver, hundreds),
        {"n": 0, "log": []},
        stock_stop=stop,
    )
    return [_table("Fixed-size state", fixed), _table("Growing list", growing)]


def _histories(
    bench: Bench,
    what: str,
    lengths: list[int],
    build: Callable[[Saver], Graph],
    begin: dict[str, Any],
    *,
    stock_stop: int | None = None,
) -> dict[int, Series]:
    """Load times at each length; the same threads grow from one length to the next."""
    field = bench.field(
        stock_sqlite("async"),
        perdure("sqlite", "auto"),
        stock_postgres("async"),
        perdure("postgres", "auto"),
    )
    found: dict[int, Series] = {}
    with ExitStack() as stack:
        urls = {c.name: stack.enter_context(bench.databases.fresh(c.database)) for c in field}
        for length in lengths:
            if stock_stop is not None and length > stock_stop:
                field = [who for who in field if who.maker == "perdure"]
            for who in field:
                _extend(who, urls[who.name], build, begin | {"until": length})
                say(f"load {what}  {who.name:<28} {length} checkpoints")
            begin = {}
            found[length] = _loads(bench.pick(15, 3), field, urls, length)
    return found


def _extend(
    who: Contender, url: str, build: Callable[[Saver], Graph], given: dict[str, Any]
) -> None:
    with who.open(url) as saver:
        assert saver is not None
        build(saver).invoke(given, on("thread", steps=given["until"]), **who.told)


def _loads(rounds: int, field: list[Contender], urls: dict[str, str], length: int) -> Series:
    series = Series()
    for _ in range(rounds):
        for who in field:
            series.add(who.name, _load(who, urls[who.name], length))
    return series


def _load(who: Contender, url: str, length: int) -> float:
    with who.open(url) as saver:
        assert saver is not None
        ready(saver)
        start = perf_counter()
        found = saver.get_tuple(on("thread"))
        took = perf_counter() - start
    assert found is not None, f"{who.name} lost its thread"
    assert found.checkpoint["channel_values"]["n"] == length, f"{who.name} lost steps"
    return took


def _table(title: str, found: dict[int, Series]) -> Table:
    first, last = min(found), max(found)
    names = list(dict.fromkeys(name for series in found.values() for name in series.names))
    rows = [
        [
            name,
            _grown(found, name, first, last),
            *(millis(s.median(name)) if name in s.names else "–" for s in found.values()),
        ]
        for name in names
    ]
    return Table(["", f"{last:,} ÷ {first:,}", *(f"{n:,} checkpoints" for n in found)], rows, title)


def _grown(found: dict[int, Series], name: str, first: int, last: int) -> str:
    if name not in found[last].names:
        return "–"
    return times(found[last].median(name) / found[first].median(name))
