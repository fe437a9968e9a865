"""`python -m bench.plots`: the plots and figures of docs/benchmarks/index.md, from the other pages.

Draws docs/images/plots/*.svg, and brings up to date each figure of the overview that says in a
comment where it is from: `0.405 ms<!-- page > section > table > row > column -->`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

PLACE = Path(__file__).parent.parent / "docs" / "benchmarks"
PLOTS = PLACE.parent / "images" / "plots"
OVERVIEW = PLACE / "index.md"


class Figures:
    """Every table of every page. A place is `page > section > table > row > column`."""

    def __init__(self, folder: Path = PLACE) -> None:
        self._tables: dict[tuple[str, str, str], list[list[str]]] = {}
        self.bars: dict[str, tuple[int, int]] = {}
        """Page → how many of its internal bars are met, of how many."""
        for path in sorted(folder.glob("*.md")):
            if path.name != "index.md":
                self._read(path.stem, path.read_text(encoding="utf-8"))

    def text(self, place: str) -> str:
        """The cell without what it has in parentheses; a column named `… ()` is only that."""
        page, section, table, row, column = (part.strip() for part in place.split(">"))
        head, *rows = self._tables.get((page, section, table), [[]])
        inner, column = column.endswith(" ()"), column.removesuffix(" ()")
        values = next((one for one in rows if one[0] == row), [])
        if column not in head or not values:
            raise KeyError(f"no such figure: {place}")
        before, _, after = values[head.index(column)].partition(" (")
        return after.removesuffix(")") if inner else before

    def _read(self, page: str, text: str) -> None:
        section = title = ""
        rows: list[list[str]] = []
        for line in text.splitlines():
            if line.startswith("|"):
                if not rows:
                    rows = self._tables.setdefault((page, section, title), [])
                if not re.fullmatch(r"[|:-]+", line):
                    rows.append([part.strip() for part in line[1:-1].split("|")])
                continue
            if rows:
                rows, title = [], ""
            if line.startswith("## "):
                section, title = line[3:], ""
            elif found := re.fullmatch(r"\*\*(.+)\*\*", line):
                title = found[1]
            elif found := re.fullmatch(r"(\d+) of (\d+) are met\.", line):
                self.bars[page] = int(found[1]), int(found[2])


def number(text: str) -> float:
    """0.405 ms is 0.000405, 1,862 is 1862.0, 2.64× is 2.64."""
    found = re.match(r"([+-]?[\d,]+(?:\.\d+)?)\s*(\w*)", text)
    if found is None:
        raise ValueError(f"not a figure: {text}")
    return float(found[1].replace(",", "")) * (0.001 if found[2] == "ms" else 1.0)


_FIGURE = re.compile(r"[+-]?\d[\d.,]*(?: (?:ms|s|MB|M|%)|[×%])?<!-- ([^>]+(?: > [^>]*){4}) -->")


def overview(figures: Figures, text: str) -> str:
    """The page with every figure as it is in the tables now, and the bars counted."""

    def filled(found: re.Match[str]) -> str:
        figure = figures.text(found[1]).removeprefix("+")  # the sentence says that it is added
        return f"{figure}<!-- {found[1]} -->"

    text = _FIGURE.sub(filled, text)
    bars = _met(figures)
    return re.sub(r"(<!-- bars -->\n).*?(\n<!-- end -->)", rf"\g<1>{bars}\2", text, flags=re.S)


def _met(figures: Figures) -> str:
    met, every = (sum(counts) for counts in zip(*figures.bars.values(), strict=True))
    pages = (
        f"[{page}]({page}.md#internal-bars) {met} of {every}"
        for page, (met, every) in sorted(figures.bars.items())
    )
    return f"{met} of {every} are met: {', '.join(pages)}."


WIDTH, EDGE, ROW, BAR = 560, 24, 30, 18
STYLE = """\
    text { font: 15px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1b1f24 }
    .title { font-size: 18px; font-weight: 600 }
    .quiet { font-size: 14px; fill: #55606b }
    .b { font-weight: 600 }
    .card { fill: #fff; stroke: #d9dee4 }
    .ours { fill: #1f5fbf; stroke: #1f5fbf }
    .theirs { fill: #9aa4af; stroke: #9aa4af }
    .floor { fill: none; stroke: #9aa4af; stroke-dasharray: 4 3 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6e9ed }
      .quiet { fill: #a3adb8 }
      .card { fill: #14171b; stroke: #333a43 }
      .ours { fill: #7fb0ff; stroke: #7fb0ff }
      .theirs { fill: #6b7580; stroke: #6b7580 }
      .floor { fill: none; stroke: #8b96a2 }
    }"""

Bars = dict[str, str]
"""Label → the place of its figure. perdure's are ours; `… alone` and what stores nothing are what
no contender can beat; all others are theirs."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Horizontal bars in groups, all on one scale that starts at zero."""

    title: str
    unit: str
    groups: dict[str, Bars]

    def svg(self, figures: Figures) -> str:
        every = [item for bars in self.groups.values() for item in bars.items()]
        texts = {place: figures.text(place) for _, place in every}
        left = EDGE + 12 + max(_width(label) for label, _ in every)
        room = WIDTH - EDGE - 8 - left - 1.1 * max(map(_width, texts.values()))
        most = max(map(number, texts.values()))
        drawn: list[str] = []
        y = 76
        for name, bars in self.groups.items():
            if name:
                drawn.append(_text(EDGE, y + 12, name, "b"))
                y += 26
            for label, place in bars.items():
                length, kind = max(1.5, room * number(texts[place]) / most), _kind(label)
                drawn += [
                    _text(EDGE, y + 14, label),
                    (
                        f'  <rect class="{kind}" x="{left:g}" y="{y}" width="{length:.1f}" '
                        f'height="{BAR}" rx="2"/>'
                    ),
                    _text(left + length + 8, y + 14, texts[place], "b" if kind == "ours" else ""),
                ]
                y += ROW
            y += 12
        described = [
            f"{name + ': ' if name else ''}"
            + ", ".join(f"{label} {texts[place]}" for label, place in bars.items())
            for name, bars in self.groups.items()
        ]
        return _card(self.title, self.unit, ". ".join(described) + ".", y + 2, drawn)


def _kind(label: str) -> str:
    if label.startswith("perdure"):
        return "ours"
    return "floor" if label in ("no checkpointer", "LangGraph alone") else "theirs"


def _width(text: str) -> float:
    """Of 15 px type, a little too wide for every font of the list."""
    narrow = sum(letter in " .,:;'()iljtfrI1" for letter in text)
    return 9.4 * (len(text) - narrow) + 5.4 * narrow


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'  <text{named} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _card(title: str, unit: str, described: str, height: float, drawn: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title desc">'
    )
    card = f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" '
    return "\n".join(
        [
            head,
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(unit)}. {escape(described)}</desc>',
            f"  <style>\n{STYLE}\n  </style>",
            f'{card}rx="12"/>',
            _text(EDGE, 36, title, "title"),
            _text(EDGE, 58, unit, "quiet"),
            *drawn,
            "</svg>\n",
        ]
    )


DATABASES = ("SQLite", "PostgreSQL")


def _savers(place: str, rows: Bars) -> dict[str, Bars]:
    """LangGraph's savers and ours, by database; `{}` in a row is the database."""
    return {
        database: {label: place.format(row.format(database)) for label, row in rows.items()}
        for database in DATABASES
    }


def _engines(table: str) -> dict[str, Bars]:
    """DBOS and perdure, and LangGraph alone, which stores nothing."""
    place = f"core > Runs and steps per second > {table} > {{}}, {{}} > per second"
    labels = [f"{who} {database}" for database in DATABASES for who in ("DBOS", "perdure")]
    return {
        f"{count.replace('process', 'worker process')}": {
            label: place.format(label, count) for label in labels
        }
        | {"LangGraph alone": place.format("LangGraph alone, ainvoke", count)}
        for count in ("1 process", "4 processes")
    }


def _effects(size: str) -> Bars:
    keyed = {"DBOS": "plain", "perdure": "plain, keyed"}
    return {
        f"{who} {database}": f"effects > Effects per second > {size} > "
        f"{who} {database}, {what} > per second"
        for database in DATABASES
        for who, what in keyed.items()
    }


def _requests(clients: str) -> dict[str, Bars]:
    place = "server > The server next to `langgraph dev` > Requests per second (× langgraph dev)"
    return {
        f"{what}, {clients}": {
            who: f"{place} > {who} > {column}, {clients}"
            for who in ("langgraph dev", "perdure SQLite", "perdure PostgreSQL")
        }
        for what, column in (
            ("Create a run", "create"),
            ("Create and drive a run", "create and drive"),
            ("Read a state", "read state"),
        )
    }


STEP = "core > Time per super-step > sync API > {} > per step"
D1 = "d1 > Requests, rows and bytes > Per super-step, next to the public saver > {} > requests"
CHARTS = {
    "step": Chart(
        "Time per step",
        "each step appends 1 KB; lower is better",
        {
            **_savers(
                STEP,
                {
                    "LangGraph, sync": "stock {} sync",
                    "LangGraph, async": "stock {} async",
                    "perdure, sync": "perdure {} sync",
                    "perdure, auto": "perdure {} auto",
                },
            ),
            "Stores nothing": {"no checkpointer": STEP.format("no checkpointer")},
        },
    ),
    "turn": Chart(
        "One turn of a chat that has 2,000 messages",
        "whole turn, LangGraph included; lower is better",
        _savers(
            "core > Turn 10 against turn 1,000 >  > {} > turn 1,000",
            {
                "LangGraph, sync": "stock {} sync",
                "perdure, sync": "perdure {} sync",
                "perdure, auto": "perdure {} auto",
            },
        ),
    ),
    "bytes": Chart(
        "Bytes on disk after 200 turns of a chat",
        "0.41 MB of messages; lower is better",
        _savers(
            "core > Bytes on disk >  > {} > bytes",
            {
                "LangGraph": "stock {} sync",
                "LangGraph, DeltaChannel": "stock {} sync + DeltaChannel",
                "perdure": "perdure {} auto",
            },
        ),
    ),
    "load": Chart(
        "Loading a growing list in a new process",
        "after 1,000 checkpoints; lower is better",
        _savers(
            "core > Loading the latest state > Growing list > {} > 1,000 checkpoints",
            {"LangGraph": "stock {} async", "perdure": "perdure {} auto"},
        ),
    ),
    "runs": Chart(
        "No-op runs per second",
        "one node that does nothing; higher is better",
        _engines("No-op runs per second"),
    ),
    "steps": Chart(
        "Steps per second",
        "runs of 20 steps that do nothing; higher is better",
        _engines("Steps per second"),
    ),
    "effects": Chart(
        "Effects per second, next to DBOS steps",
        "one worker process, calls that do nothing; higher is better",
        {size: _effects(size) for size in ("1 run", "50 runs at once")},
    ),
    "requests": Chart(
        "Requests per second of the server",
        "langgraph dev keeps everything in memory; higher is better",
        _requests("50 clients") | _requests("1 client"),
    ),
    "d1": Chart(
        "Requests to Cloudflare D1 per step",
        "each step appends 1 KB, sync API; lower is better",
        {
            "": {
                "public saver": D1.format("public saver, sync API"),
                "perdure, sync": D1.format("perdure `sync`, sync API"),
                "perdure, auto": D1.format("perdure `auto`, sync API"),
            }
        },
    ),
}


def written(figures: Figures) -> dict[Path, str]:
    """Every file that is drawn from the pages, and its text."""
    plots = {PLOTS / f"{name}.svg": chart.svg(figures) for name, chart in CHARTS.items()}
    return plots | {OVERVIEW: overview(figures, OVERVIEW.read_text(encoding="utf-8"))}


def main() -> None:
    for path, text in written(Figures()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
