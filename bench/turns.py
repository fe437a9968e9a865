"""Latency of a chat's turn 10 against its turn 1,000: the whole turn, and the saver's part."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from bench.agents import Graph, Saver, chat, old_messages, on, user_turns
from bench.contenders import Contender, memory, perdure, stock_postgres, stock_sqlite
from bench.report import Bar, Section, Series, Table, millis, times
from bench.rounds import Bench, say
from bench.savers import Spent, Stopwatch, ready, settle
from bench.texts import TEXTS


@dataclass(frozen=True, slots=True)
class Chat:
    """One contender in the middle of its chat."""

    who: Contender
    graph: Graph
    saver: Saver
    watch: Stopwatch = field(default_factory=Stopwatch)

    def talk(self, first: int, last: int) -> Iterator[tuple[float, Spent]]:
        """Seconds of each turn, and the saver's share."""
        for turn in user_turns(first, last):
            self.watch.read()
            start = perf_counter()
            self.graph.invoke(turn, on("chat"), **self.who.told)
            took = perf_counter() - start
            settle(
                self.saver
            )  # what the turn left to do in the background is its own, not the next's
            yield took, self.watch.read()

    def skip_to(self, done: int, turns: int) -> None:
        """From `done` turns to `turns`: really for perdure, by one update for the others."""
        if self.who.maker == "perdure":
            for _ in self.talk(done + 1, turns):
                pass
        else:
            values = {"messages": old_messages(turns - done)}
            self.graph.update_state(on("chat"), values, as_node="bot")


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds per turn around one point of the chats."""

    saver: Series = field(default_factory=Series)
    cpu: Series = field(default_factory=Series)
    whole: Series = field(default_factory=Series)

    @property
    def all(self) -> tuple[Series, Series, Series]:
        return self.saver, self.cpu, self.whole


def turns(bench: Bench) -> Section:
    around, late = bench.pick(15, 3), bench.pick(1000, 60)
    with _chats(bench) as chats:
        early_figures = _figures(chats, 0, 10, around)
        late_figures = _figures(chats, 10 + around // 2, late, around)
    names = [one.who.name for one in chats]
    return TEXTS["turns"].section(
        [
            _ratios(names, early_figures, late_figures, late),
            _times(names, early_figures, late_figures, late),
        ],
        [*_bars(names, early_figures, late_figures, late)],
        around=around,
        late=late,
        messages=late * 2,
    )


@contextmanager
def _chats(bench: Bench) -> Iterator[list[Chat]]:
    contenders = bench.field(
        memory("sync"),
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
            chats[-1].watch.watch(saver)
        yield chats


def _bring_to(chats: list[Chat], done: int, turns: int) -> None:
    for one in chats:
        start = perf_counter()
        one.skip_to(done, turns)
        say(f"turns  {one.who.name:<28} at turn {turns} after {perf_counter() - start:.1f} s")


def _figures(chats: list[Chat], done: int, middle: int, around: int) -> Figures:
    """Bring every chat from `done` turns to just before `middle`, then measure turn by turn."""
    first = middle - around // 2
    _bring_to(chats, done, first - 1)
    found = Figures()
    for turn in range(first, first + around):
        for one in chats:
            for took, spent in one.talk(turn, turn):
                found.whole.add(one.who.name, took)
                found.saver.add(one.who.name, spent.wall)
                found.cpu.add(one.who.name, spent.cpu)
    for name in found.whole.names:
        shown = f"{millis(found.whole.median(name))}, saver {millis(found.saver.median(name))}"
        say(f"turns {middle}  {name:<28} {shown}")
    return found


def _stock_of(name: str) -> str:
    return "stock PostgreSQL sync" if "PostgreSQL" in name else "stock SQLite sync"


def _ratios(names: list[str], early: Figures, late: Figures, turn: int) -> Table:
    head = ["", "saver", "saver's CPU", "whole turn", f"turn {turn:,} × stock"]
    rows = [
        [
            name,
            times(late.saver.median(name) / early.saver.median(name)),
            times(late.cpu.median(name) / early.cpu.median(name)),
            times(late.whole.median(name) / early.whole.median(name)),
            times(late.whole.ratio(name, _stock_of(name))),
        ]
        for name in names
    ]
    return Table(head, rows, f"Turn {turn:,} ÷ turn 10")


def _times(names: list[str], early: Figures, late: Figures, turn: int) -> Table:
    kinds = ("saver", "saver's CPU", "whole")
    head = ["", *(f"{kind}, turn {n:,}" for kind in kinds for n in (10, turn))]
    rows = [
        [
            name,
            *(
                millis(series.median(name))
                for pair in zip(early.all, late.all, strict=True)
                for series in pair
            ),
        ]
        for name in names
    ]
    return Table(head, rows, "In milliseconds")


def _bars(names: list[str], early: Figures, late: Figures, turn: int) -> Iterator[Bar]:
    for name in names:
        if name.startswith("perdure"):
            grown = late.saver.median(name) / early.saver.median(name)
            yield Bar(f"saver's own time, turn {turn:,} against turn 10, {name}", 1.3, grown)
            beside = late.whole.ratio(name, _stock_of(name))
            yield Bar(f"whole turn {turn:,} against stock `sync`, {name}", 0.5, beside)
