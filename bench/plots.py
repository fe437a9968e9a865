"""`python -m bench.plots`: the overview of the benchmarks, from the tables of the other pages.

Writes docs/images/plots/*.svg, and docs/benchmarks/index.md from `overview.md`, in which
`{{page > section > table > row > column}}` is a figure, and `{{bars}}` the internal bars.
"""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.pages import PLACE, Cell, Figures

PLOTS = PLACE.parent / "images" / "plots"
OVERVIEW = Path(__file__).parent / "overview.md"

WIDTH, EDGE, ROW, BAR = 560, 24, 30, 18
STYLE = """\
    text { font: 15px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1b1f24 }
    .title { font-size: 18px; font-weight: 600 }
    .quiet { font-size: 14px; fill: #55606b }
    .b { font-weight: 600 }
    .end { text-anchor: end }
    .mid { text-anchor: middle }
    .card { fill: #fff; stroke: #d9dee4 }
    .grid { fill: none; stroke: #d9dee4 }
    .line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
    .ours { fill: #1f5fbf; stroke: #1f5fbf }
    .theirs { fill: #9aa4af; stroke: #9aa4af }
    .floor { fill: none; stroke: #9aa4af; stroke-dasharray: 4 3 }
    .line.ours, .line.theirs { fill: none }
    .on-ours { fill: #1f5fbf }
    .on-theirs { fill: #55606b }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6e9ed }
      .quiet { fill: #a3adb8 }
      .card { fill: #14171b; stroke: #333a43 }
      .grid { stroke: #333a43 }
      .ours { fill: #7fb0ff; stroke: #7fb0ff }
      .theirs { fill: #6b7580; stroke: #6b7580 }
      .floor { fill: none; stroke: #8b96a2 }
      .line.ours, .line.theirs { fill: none }
      .on-ours { fill: #7fb0ff }
      .on-theirs { fill: #a3adb8 }
    }"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `ours`, `theirs`, or `floor`: what no contender can beat."""

    label: str
    cell: Cell
    kind: str = "theirs"
    beside: Cell | None = None
    """A figure that is written next to the value."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars in groups, all on one scale that starts at zero."""

    title: str
    unit: str
    groups: Sequence[tuple[str, Sequence[Bar]]]

    def svg(self, figures: Figures) -> str:
        every = [bar for _, bars in self.groups for bar in bars]
        left = EDGE + 12 + max(_width(bar.label) for bar in every)
        room = WIDTH - EDGE - 8 - left - 1.1 * max(_width(_shown(bar, figures)) for bar in every)
        most = max(figures.number(bar.cell) for bar in every)
        drawn: list[str] = []
        y = 76
        for name, bars in self.groups:
            if name:
                drawn.append(_text(EDGE, y + 12, name, "b"))
                y += 26
            for bar in bars:
                length = max(1.5, room * figures.number(bar.cell) / most)
                strong = "b" if bar.kind == "ours" else ""
                drawn += [
                    _text(EDGE, y + 14, bar.label),
                    (
                        f'  <rect class="{bar.kind}" x="{left:g}" y="{y}" width="{length:.1f}" '
                        f'height="{BAR}" rx="2"/>'
                    ),
                    _text(left + length + 8, y + 14, _shown(bar, figures), strong),
                ]
                y += ROW
            y += 12
        told = [
            f"{name + ': ' if name else ''}"
            + ", ".join(f"{bar.label} {_shown(bar, figures)}" for bar in bars)
            for name, bars in self.groups
        ]
        return _card(self.title, self.unit, ". ".join(told) + ".", y + 2, drawn)


@dataclass(frozen=True, slots=True)
class Line:
    """Figures of one contender, by the number at the x axis."""

    label: str
    points: dict[int, Cell]
    kind: str = "theirs"
    above: bool = True


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines on two logarithmic axes. Times, in seconds, by a count."""

    title: str
    unit: str
    lines: Sequence[Line]
    xs: Sequence[int]
    ys: dict[float, str]
    xlabel: str

    def svg(self, figures: Figures) -> str:
        left, right, top, bottom = EDGE + 62, WIDTH - EDGE - 34, 92, 330
        low, high = math.log10(min(self.ys)), math.log10(max(self.ys))
        first, last = math.log10(min(self.xs)), math.log10(max(self.xs))

        def at_x(count: float) -> float:
            return left + (right - left) * (math.log10(count) - first) / (last - first)

        def at_y(seconds: float) -> float:
            return bottom - (bottom - top) * (math.log10(seconds) - low) / (high - low)

        drawn = []
        for seconds, name in self.ys.items():
            y = at_y(seconds)
            drawn += [
                f'  <path class="grid" d="M{left} {y:.1f} H{right}"/>',
                _text(left - 10, y + 5, name, "quiet end"),
            ]
        drawn += [_text(at_x(x), bottom + 24, f"{x:,}", "quiet mid") for x in self.xs]
        drawn.append(_text((left + right) / 2, bottom + 48, self.xlabel, "quiet mid"))
        told = []
        for line in self.lines:
            points = [
                (at_x(x), at_y(figures.number(cell))) for x, cell in sorted(line.points.items())
            ]
            path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            drawn.append(f'  <path class="line {line.kind}" d="M{path}"/>')
            drawn += [
                f'  <circle class="{line.kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
                for x, y in points
            ]
            values = [figures.text(cell) for _, cell in sorted(line.points.items())]
            start, y = points[0][1], points[-1][1]
            label = f"{line.label}: {values[0]} → {values[-1]}"
            at = min(start, y) - 14 if line.above else max(start, y) + 24
            drawn.append(_text(left + 8, at, label, f"b on-{line.kind}"))
            told.append(label)
        return _card(self.title, self.unit, ". ".join(told) + ".", bottom + 66, drawn)


def _shown(bar: Bar, figures: Figures) -> str:
    beside = f" ({figures.text(bar.beside)})" if bar.beside else ""
    return figures.text(bar.cell) + beside


def _width(text: str) -> float:
    """Of 15 px type, a little too wide for every font of the list."""
    narrow = sum(letter in " .,:;'()iljtfrI1" for letter in text)
    return 9.4 * (len(text) - narrow) + 5.4 * narrow


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'  <text{named} x="{x:g}" y="{y:g}">{escape(text)}</text>'.replace(".0000", "")


def _card(title: str, unit: str, told: str, height: float, drawn: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title desc">'
    )
    return "\n".join(
        [
            head,
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(unit)}. {escape(told)}</desc>',
            f"  <style>\n{STYLE}\n  </style>",
            (
                f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" '
                'rx="12"/>'
            ),
            _text(EDGE, 36, title, "title"),
            _text(EDGE, 58, unit, "quiet"),
            *drawn,
            "</svg>\n",
        ]
    )


Groups = list[tuple[str, list[Bar]]]
DATABASES = ("SQLite", "PostgreSQL")


def _kind(who: str) -> str:
    return "ours" if who.startswith("perdure") else "theirs"


def _savers(section: str, table: str, column: str, modes: dict[str, str]) -> Groups:
    """LangGraph's savers and ours, by database; `modes` are their rows by label."""
    return [
        (
            database,
            [
                Bar(
                    label,
                    Cell("core", section, table, row.format(database), column),
                    _kind(label),
                )
                for label, row in modes.items()
            ],
        )
        for database in DATABASES
    ]


def _engines(table: str) -> Groups:
    """DBOS and perdure, and LangGraph alone, which stores nothing."""
    groups = []
    for processes in ("1 process", "4 processes"):
        rows = {f"{who} {database}": "" for database in DATABASES for who in ("DBOS", "perdure")}
        rows["LangGraph alone"] = ", ainvoke"
        bars = [
            Bar(
                label,
                Cell(
                    *("core", "Runs and steps per second", table),
                    f"{label}{mode}, {processes}",
                    "per second",
                ),
                "floor" if mode else _kind(label),
            )
            for label, mode in rows.items()
        ]
        groups.append((f"{processes.replace('process', 'worker process')}", bars))
    return groups


def _effects() -> Groups:
    return [
        (
            size,
            [
                Bar(
                    f"{who} {database}",
                    Cell(
                        *("effects", "Effects per second", size),
                        f"{who} {database}, plain" + (", keyed" if who == "perdure" else ""),
                        "per second",
                    ),
                    _kind(who),
                )
                for database in DATABASES
                for who in ("DBOS", "perdure")
            ],
        )
        for size in ("1 run", "50 runs at once")
    ]


SERVER = "The server next to `langgraph dev`"
SERVERS = ("langgraph dev", "perdure SQLite", "perdure PostgreSQL")


def _server(table: str, columns: dict[str, str]) -> Groups:
    return [
        (
            label,
            [Bar(who, Cell("server", SERVER, table, who, column), _kind(who)) for who in SERVERS],
        )
        for label, column in columns.items()
    ]


REQUESTS = "Requests per second (× langgraph dev)"
PAGES = (
    *("inbox", "one question", "runs", "runs with a label", "runs by text", "one run"),
    *("threads", "effects", "decisions", "workers", "health"),
)
DUE = ("core", "Looking for due runs", "25 due")
SLEEPING = (1_000, 100_000, 1_000_000)

CHARTS: dict[str, Bars | Lines] = {
    "step": Bars(
        "Time per step",
        "each step appends 1 KB; lower is better",
        [
            *_savers(
                *("Time per super-step", "sync API", "per step"),
                {
                    "LangGraph, sync": "stock {} sync",
                    "LangGraph, async": "stock {} async",
                    "perdure, sync": "perdure {} sync",
                    "perdure, auto": "perdure {} auto",
                },
            ),
            (
                "Stores nothing",
                [
                    Bar(
                        "no checkpointer",
                        Cell(
                            *("core", "Time per super-step", "sync API"),
                            *("no checkpointer", "per step"),
                        ),
                        "floor",
                    )
                ],
            ),
        ],
    ),
    "turn": Bars(
        "One turn of a chat that has 2,000 messages",
        "whole turn, LangGraph included; lower is better",
        _savers(
            *("Turn 10 against turn 1,000", "In milliseconds", "whole, turn 1,000"),
            {
                "LangGraph, sync": "stock {} sync",
                "perdure, sync": "perdure {} sync",
                "perdure, auto": "perdure {} auto",
            },
        ),
    ),
    "bytes": Bars(
        "Bytes on disk after 200 turns of a chat",
        "0.41 MB of messages; lower is better",
        _savers(
            *("Bytes on disk", "", "bytes"),
            {
                "LangGraph": "stock {} sync",
                "LangGraph, DeltaChannel": "stock {} sync + DeltaChannel",
                "perdure": "perdure {} auto",
            },
        ),
    ),
    "load": Bars(
        "Loading the latest state in a new process",
        "after 1,000 checkpoints; lower is better",
        [
            (
                f"{table}, {database}",
                [
                    Bar(
                        who,
                        Cell(
                            *("core", "Loading the latest state", table),
                            *(row.format(database), "1,000 checkpoints"),
                        ),
                        _kind(who),
                    )
                    for who, row in (
                        ("LangGraph", "stock {} async"),
                        ("perdure", "perdure {} auto"),
                    )
                ],
            )
            for table in ("Fixed-size state", "Growing list")
            for database in DATABASES
        ],
    ),
    "runs": Bars(
        "No-op runs per second",
        "one node that does nothing; higher is better",
        _engines("No-op runs per second"),
    ),
    "steps": Bars(
        "Steps per second",
        "runs of 20 steps that do nothing; higher is better",
        _engines("Steps per second"),
    ),
    "effects": Bars(
        "Effects per second, next to DBOS steps",
        "one worker process, calls that do nothing; higher is better",
        _effects(),
    ),
    "recovery": Bars(
        "Recovery of 1,000 runs after SIGKILL",
        "from the kill until one new worker has finished all of them",
        [
            (
                "",
                [
                    Bar(
                        f"perdure {database}",
                        Cell(
                            *("core", "Recovery after SIGKILL", ""),
                            *(f"perdure {database}", "until all are done"),
                        ),
                        "ours",
                    )
                    for database in DATABASES
                ],
            )
        ],
    ),
    "sleeping": Lines(
        "Finding due runs among sleeping ones",
        "both axes are logarithmic; lower is better",
        [
            Line(
                "LangGraph's SQLite saver, list()",
                {
                    count: Cell(
                        *("campaign", "A tick over sleeping campaign threads"),
                        "Stock LangGraph on SQLite: finding what is due",
                        *("`list()`", f"{count:,} asleep"),
                    )
                    for count in (1_000, 10_000, 100_000)
                },
            ),
            *(
                Line(
                    f"perdure {database}, 25 claimed",
                    {n: Cell(*DUE, f"perdure {database}", f"{n:,} asleep") for n in SLEEPING},
                    "ours",
                    above=database == "PostgreSQL",
                )
                for database in DATABASES
            ),
        ],
        (1_000, 10_000, 100_000, 1_000_000),
        {0.0001: "0.1 ms", 0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1: "1 s", 10: "10 s"}
        | {100: "100 s"},
        "sleeping runs",
    ),
    "agent": Bars(
        "An agent whose model takes 200 ms, 20 turns",
        "whole run, and the overhead in parentheses; lower is better",
        [
            (
                "",
                [
                    Bar(
                        who,
                        Cell("effects", "An agent with a model", "", row, "whole run"),
                        _kind(who),
                        Cell("effects", "An agent with a model", "", row, "overhead")
                        if row != "no durability"
                        else None,
                    )
                    for who, row in (
                        ("no durability", "no durability"),
                        ("idle middleware", "no durability, idle middleware"),
                        ("perdure SQLite", "perdure SQLite"),
                        ("perdure PostgreSQL", "perdure PostgreSQL"),
                    )
                ],
            )
        ],
    ),
    "requests": Bars(
        "Requests per second of the server",
        "langgraph dev keeps everything in memory; higher is better",
        _server(
            REQUESTS,
            {
                "Create a run, 50 clients": "create, 50 clients",
                "Create a run, 1 client": "create, 1 client",
                "Create and drive a run, 50 clients": "create and drive, 50 clients",
                "Create and drive a run, 1 client": "create and drive, 1 client",
                "Read a state, 50 clients": "read state, 50 clients",
                "Read a state, 1 client": "read state, 1 client",
            },
        ),
    ),
    "latency": Bars(
        "Latency of the server",
        "medians; lower is better",
        [
            *_server("Streaming chat", {"First token of a streamed chat": "first token"}),
            *_server(
                "Latency (medians)",
                {
                    "Run a graph of one node and wait for it": "one-node `runs/wait`",
                    "From an answer to the node that continues": "answer to running node",
                },
            ),
        ],
    ),
    "pages": Bars(
        "Pages of a journal with 100,000 runs",
        "SQLite, 10,000 open questions; lower is better",
        [
            (
                "",
                [
                    Bar(
                        name,
                        Cell(
                            *("pages", "Time per page", "Time per page, perdure SQLite"),
                            *(name, "100,000 runs"),
                        ),
                        "ours",
                    )
                    for name in PAGES
                ],
            )
        ],
    ),
    "d1": Bars(
        "Requests to Cloudflare D1 per step",
        "each step appends 1 KB, sync API; lower is better",
        [
            (
                "",
                [
                    Bar(
                        label,
                        Cell(
                            *("d1", "Requests, rows and bytes"),
                            "Per super-step, next to the public saver",
                            *(row, "requests"),
                        ),
                        _kind(label),
                    )
                    for label, row in (
                        ("public saver", "public saver, sync API"),
                        ("perdure, sync", "perdure `sync`, sync API"),
                        ("perdure, auto", "perdure `auto`, sync API"),
                    )
                ],
            )
        ],
    ),
}


def overview(figures: Figures, template: str) -> str:
    """The page that opens the benchmarks."""

    def filled(found: re.Match[str]) -> str:
        if found[1] == "bars":
            return "\n".join(_bars(figures))
        place = Cell(*(part.strip() for part in found[1].split(" > ")))
        return figures.text(place).removeprefix("+")  # the sentence says that it is added

    blocks = re.sub(r"\{\{(.+?)\}\}", filled, template).strip().split("\n\n")
    return "\n\n".join(block if block[0] in "#|!" else _wrapped(block) for block in blocks) + "\n"


def _wrapped(paragraph: str) -> str:
    words = " ".join(paragraph.split())
    return textwrap.fill(words, 100, break_long_words=False, break_on_hyphens=False)


def _bars(figures: Figures) -> Iterator[str]:
    every = {page: figures.bars(page) for page in figures.pages()}
    missed = {page: [row for row in bars if "missed" in row[-1]] for page, bars in every.items()}
    all_bars, all_missed = (sum(map(len, some.values())) for some in (every, missed))
    yield f"{all_bars - all_missed} of {all_bars} are met, {all_missed} are missed."
    for page, rows in sorted(missed.items(), key=lambda found: -len(found[1])):
        count = f"{len(rows) or 'none'} of {len(every[page])} missed"
        yield f"\n**[{figures.title(page)}]({page}.md#internal-bars)**: {count}"
        if rows:
            yield "\n| missed | limit | measured |\n|---|---:|---:|"
        for what, limit, measured, _ in rows:
            yield f"| {what} | {limit} | {measured} |"


def written(figures: Figures) -> dict[Path, str]:
    """Every file that is drawn from the pages, and its text."""
    plots = {PLOTS / f"{name}.svg": chart.svg(figures) for name, chart in CHARTS.items()}
    return plots | {PLACE / "index.md": overview(figures, OVERVIEW.read_text(encoding="utf-8"))}


def main() -> None:
    PLOTS.mkdir(exist_ok=True)
    for path, text in written(Figures()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
