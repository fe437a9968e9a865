"""Bytes on disk after a chat of 200 turns of 1 KB messages."""

from dataclasses import replace
from typing import Any

from bench.agents import chat, on, user_turns
from bench.contenders import Contender, perdure, stock_postgres, stock_sqlite
from bench.databases import size
from bench.report import Table, megabytes, times
from bench.rounds import Bench, say

_DELTA = " + DeltaChannel"


def stored(bench: Bench) -> list[Table]:
    turns = bench.pick(200, 30)
    payload = turns * 2 * 1024
    field = bench.field(
        stock_sqlite("sync"),
        _with_delta(stock_sqlite("sync")),
        perdure("sqlite", "auto"),
        perdure("sqlite", "sync"),
        stock_postgres("sync"),
        _with_delta(stock_postgres("sync")),
        perdure("postgres", "auto"),
        perdure("postgres", "sync"),
    )
    empty = {who.name: _empty(bench, who) for who in field}
    found = {who.name: _bytes(bench, who, turns) - empty[who.name] for who in field}
    rows = [
        [name, times(found[name] / payload), megabytes(found[name]), megabytes(empty[name])]
        for name in found
    ]
    return [Table(["", "× payload", "bytes", "empty tables"], rows)]


def _with_delta(who: Contender) -> Contender:
    return replace(who, name=who.name + _DELTA)


def _empty(bench: Bench, who: Contender) -> int:
    with bench.databases.fresh(who.database) as url:
        with who.open(url) as saver:
            setup: Any = saver
            setup.setup()
        return size(url)


def _bytes(bench: Bench, who: Contender, turns: int) -> int:
    delta = who.name.endswith(_DELTA)
    with bench.databases.fresh(who.database) as url:
        with who.open(url) as saver:
            graph = chat(saver, delta=delta)
            for turn in user_turns(1, turns):
                graph.invoke(turn, on("chat"), **who.told)
        found = size(url)
        with who.open(url) as saver:
            state = chat(saver, delta=delta).get_state(on("chat"))
            assert len(state.values["messages"]) == turns * 2, f"{who.name} lost messages"
    say(f"bytes  {who.name:<34} {found / 1e6:10.2f} MB")
    return found
