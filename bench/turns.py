"""Latency of a chat's turn 10 against its turn 1,000: the whole turn, and the saver's part."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from bench.agents import Graph, Saver, chat, old_messages, on, user_turns
from bench.contenders import Contender, memory, perdure, stock_postgres, stock_sqlite
from bench.report import Bar, Section, Series, Table, millis, times
from bench.rounds import Bench, say
from bench.savers import Stopwatch, ready, settle

TEXT = """\
The same chat, medians of {around} turns around turn 10 and around turn {late:,} ({messages:,}
messages in the state), contenders turn by turn. "Saver" is the wall time inside the saver's
methods, summed over threads, so it includes waiting for the interpreter and for other calls.
perdure really ran the {late:,} turns, in one process. The other savers' state was brought to that
length by one `update_state`, because {late:,} real turns would fill gigabytes; their histories
are therefore shorter than perdure's."""


@dataclass(frozen=True, slots=True)
class Chat:
    """One contender in the middle of its chat."""

    who: Contender
    graph: Graph
    saver: Saver
    watch: Stopwatch = field(default_factory=Stopwatch)

    def talk(self, first: int, last: int) -> Iterator[tuple[float, float]]:
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


def turns(bench: Bench) -> Section:
    around, late = bench.pick(15, 3), bench.pick(1000, 60)
    whole: dict[int, Series] = {10: Series(), late: Series()}
    own: dict[int, Series] = {10: Series(), late: Series()}
    with _chats(bench) as chats:
        done = 0
        for middle in (10, late):
            first = middle - around // 2
            _bring_to(chats, done, first - 1)
            done = first - 1 + around
            _measure(chats, first, done, whole[middle], own[middle])
    rows = [_row(chat.who.name, whole, own, late) for chat in chats]
    return Section(
        f"Turn 10 against turn {late:,}",
        TEXT.format(around=around, late=late, messages=late * 2),
        [Table(_head(late), rows)],
        [*_bars(whole, own, late)],
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


def _measure(chats: list[Chat], first: int, last: int, whole: Series, own: Series) -> None:
    for turn in range(first, last + 1):
        for one in chats:
            for took, spent in one.talk(turn, turn):
                whole.add(one.who.name, took)
                own.add(one.who.name, spent)
    for name in whole.names:
        say(
            f"turns {first}-{last}  {name:<28} {whole.median(name) * 1000:9.2f} ms, "
            f"saver {own.median(name) * 1000:9.2f} ms"
        )


def _head(late: int) -> list[str]:
    return [
        "",
        f"saver, turn {late:,} ÷ turn 10",
        f"turn {late:,} ÷ turn 10",
        f"turn {late:,} × stock",
        "saver, turn 10",
        f"saver, turn {late:,}",
        "turn 10",
        f"turn {late:,}",
    ]


def _stock_of(name: str) -> str:
    return "stock PostgreSQL sync" if "PostgreSQL" in name else "stock SQLite sync"


def _row(name: str, whole: dict[int, Series], own: dict[int, Series], late: int) -> list[str]:
    return [
        name,
        times(own[late].median(name) / own[10].median(name)),
        times(whole[late].median(name) / whole[10].median(name)),
        times(whole[late].ratio(name, _stock_of(name))),
        millis(own[10].median(name)),
        millis(own[late].median(name)),
        millis(whole[10].median(name)),
        millis(whole[late].median(name)),
    ]


def _bars(whole: dict[int, Series], own: dict[int, Series], late: int) -> Iterator[Bar]:
    ours = [name for name in whole[late].names if name.startswith("perdure")]
    for name in ours:
        grown = own[late].median(name) / own[10].median(name)
        yield Bar(f"saver's own time, turn {late:,} against turn 10, {name}", 1.3, grown)
        beside = whole[late].ratio(name, _stock_of(name))
        yield Bar(f"whole turn {late:,} against stock `sync`, {name}", 0.5, beside)
