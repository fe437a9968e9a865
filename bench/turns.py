"""Time of a chat's turn 10 against its turn 1,000, LangGraph included."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter

from bench.agents import Graph, Saver, chat, old_messages, on, user_turns
from bench.contenders import Contender, perdure, ready, settle, stock_postgres, stock_sqlite
from bench.report import Series, Table, millis, times
from bench.rounds import Bench, say


@dataclass(frozen=True, slots=True)
class Chat:
    """One contender in the middle of its chat."""

    who: Contender
    graph: Graph
    saver: Saver

    def talk(self, first: int, last: int) -> Iterator[float]:
        """Seconds of each turn. What it leaves to do in the background is not the next one's."""
        for turn in user_turns(first, last):
            start = perf_counter()
            self.graph.invoke(turn, on("chat"), **self.who.told)
            took = perf_counter() - start
            settle(self.saver)
            yield took

    def skip_to(self, done: int, turns: int) -> None:
        """From `done` turns to `turns`: really for perdure, by one update for the others."""
        if self.who.maker == "perdure":
            for _ in self.talk(done + 1, turns):
                pass
        else:
            values = {"messages": old_messages(turns - done)}
            self.graph.update_state(on("chat"), values, as_node="bot")


def turns(bench: Bench) -> list[Table]:
    around, late = bench.pick(15, 3), bench.pick(1000, 60)
    with _chats(bench) as chats:
        few = _seconds(chats, 0, 10, around)
        many = _seconds(chats, 10 + around // 2, late, around)
    head = ["", "turn 10", f"turn {late:,}", "÷", f"turn {late:,} × stock"]
    rows = []
    for name in few.names:
        grown = many.median(name) / few.median(name)
        beside = many.ratio(name, _stock_of(name))
        seconds = [millis(few.median(name)), millis(many.median(name))]
        rows.append([name, *seconds, times(grown), times(beside)])
    return [Table(head, rows)]


@contextmanager
def _chats(bench: Bench) -> Iterator[list[Chat]]:
    contenders = bench.field(
        stock_sqlite("async"),
        stock_sqlite("sync"),
        perdure("sqlite", "auto"),
        perdure("sqlite", "sync"),
        stock_postgres("sync"),
        perdure("postgres", "auto"),
        perdure("postgres", "sync"),
    )
    with ExitStack() as stack:
        chats = []
        for who in contenders:
            url = stack.enter_context(bench.databases.fresh(who.database))
            saver = stack.enter_context(who.open(url))
            assert saver is not None
            ready(saver)
            chats.append(Chat(who, chat(saver), saver))
        yield chats


def _seconds(chats: list[Chat], done: int, middle: int, around: int) -> Series:
    """Bring every chat from `done` turns to just before `middle`, then measure turn by turn."""
    first = middle - around // 2
    for one in chats:
        one.skip_to(done, first - 1)
    found = Series()
    for turn in range(first, first + around):
        for one in chats:
            for took in one.talk(turn, turn):
                found.add(one.who.name, took)
    say(f"turns  {middle}")
    return found


def _stock_of(name: str) -> str:
    return "stock PostgreSQL sync" if "PostgreSQL" in name else "stock SQLite sync"
