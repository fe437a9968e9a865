"""A self-contained HTML page: one file that asks nothing of the network and runs no script.

It can be mailed, kept with a build or opened from disk. Light or dark is the reader's setting. The
content security policy allows this module's style sheet, by its hash, and nothing else, so text
that escaped escaping would still load and run nothing.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from perdure.views import charts
from perdure.views.markup import Html, element

Theme = Literal["auto", "light", "dark"]
Tone = Literal["plain", "good", "bad", "warn"]

LIGHT = (
    "color-scheme:light;--paper:#fff;--panel:#f6f7f9;--text:#1b1f24;--quiet:#5b6570;--line:#d9dee4;"
    "--accent:#1f5fbf;--good:#116b35;--bad:#b3261e;--warn:#7a5200;--add:#d8f3df;--gone:#fbdfdc;"
    "--s0:#123f80;--s1:#2f6fcf;--s2:#7fabea;--s3:#b9d2f5;--s4:#dfe9fa;"
    "--on-dark:#fff;--on-light:#1b1f24"
)
DARK = (
    "color-scheme:dark;--paper:#14171b;--panel:#1d2127;--text:#e6e9ed;--quiet:#9aa5b1;"
    "--line:#333a43;--accent:#7fb0ff;--good:#6fd08f;--bad:#ff9a90;--warn:#f0c36a;--add:#173f25;"
    "--gone:#4d1f1c;--s0:#1d4f9a;--s1:#2f6fcf;--s2:#7fabea;--s3:#b9d2f5;--s4:#dfe9fa;"
    "--on-dark:#fff;--on-light:#14171b"
)
THEME = (
    f":root{{{LIGHT}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    f":root[data-theme=light]{{{LIGHT}}}:root[data-theme=dark]{{{DARK}}}"
)
"""The colours of every page, as CSS variables."""
_STYLE = (
    THEME
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.6rem;line-height:1.25;margin:0}h2{font-size:1.2rem;margin:40px 0 12px}
h3{font-size:1rem;margin:20px 0 8px}p{margin:8px 0;max-width:72ch}
.subtitle,.note,caption{color:var(--quiet)}.note{font-size:.85rem;margin:2px 0}
.subtitle{margin:4px 0 24px}
h1,summary,pre{overflow-wrap:anywhere}td{overflow-wrap:break-word}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:16px 0}
.card{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px 14px}
.card dt{color:var(--quiet);font-size:.85rem}.card dd{margin:0;font-size:1.25rem;font-weight:600}
.card small{display:block;font-size:.8rem;font-weight:400;color:var(--quiet)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:28px}
figure{margin:0;min-width:0}figcaption{font-size:.92rem;margin:0 12px 4px}
figure .note{margin:4px 12px 0}
.scroll{overflow-x:auto;margin:16px 0}.charts+.scroll{margin-top:32px}
table{border-collapse:collapse;width:100%;font-size:.92rem}
caption{text-align:left;padding-bottom:6px}
th,td{text-align:left;vertical-align:top;padding:6px 12px 6px 0;border-bottom:1px solid var(--line)}
th{font-weight:600;white-space:nowrap}td.number,th.number{text-align:right;white-space:nowrap}
.number{font-variant-numeric:tabular-nums}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,260px),1fr));gap:12px}
.columns>div{min-width:0}
details{border:1px solid var(--line);border-radius:8px;margin:8px 0;background:var(--panel)}
summary{cursor:pointer;padding:8px 14px}details>div{padding:0 14px 12px}
summary:focus-visible{outline:2px solid var(--accent)}
pre{white-space:pre-wrap;background:var(--paper);border:1px solid var(--line);border-radius:6px;
padding:8px 10px;margin:4px 0 10px;font:13px/1.45 ui-monospace,monospace;
max-height:24rem;overflow:auto}
ins{background:var(--add);text-decoration:underline}del{background:var(--gone)}
.badge{display:inline-block;border:1px solid;border-radius:99px;padding:0 9px;font-size:.82rem;
white-space:nowrap;color:var(--quiet)}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
footer{margin-top:48px;color:var(--quiet);font-size:.85rem}
@media print{details>div{display:block}}
@media(max-width:520px){th{white-space:normal;overflow-wrap:anywhere}
table{font-size:.82rem}th,td{padding-right:8px}}
"""
    + charts.STYLE
)
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
"""The page's content security policy."""
WORDS_COMPARED = 4000
"""Words of each text up to which two texts are compared word by word; line by line beyond."""
PAIRS_COMPARED = 100_000_000
"""Product of the lengths of two sequences up to which they are compared: about a second."""


def page(title: str, *body: object, subtitle: str = "", theme: Theme = "auto") -> str:
    """A whole document. `theme` overrides the reader's own choice of light or dark."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    main = element(
        "main",
        element("h1", title),
        element("p", subtitle, class_="subtitle") if subtitle else None,
        *body,
        element("footer", "Made by perdure. This page is self-contained."),
    )
    chosen = None if theme == "auto" else theme
    document = element("html", head, element("body", main), lang="en", data_theme=chosen)
    return f"<!doctype html>\n{document}\n"


def section(title: str, *body: object, id: str | None = None) -> Html:
    """A part of the page under its heading."""
    return element("section", element("h2", title), *body, id=id)


def figure(chart: Html, caption: str = "", note: str = "") -> Html:
    """A chart below its caption; a note on how to read it below the chart."""
    title = element("strong", caption) if caption else None
    small = element("p", note, class_="note") if note else None
    return element("figure", element("figcaption", title), chart, small)


def figures(*charts: Html) -> Html:
    """Figures beside each other, as far as there is room."""
    return element("div", *charts, class_="charts")


def columns(*parts: Html) -> Html:
    """Parts beside each other, below each other on a phone."""
    return element("div", *(element("div", part) for part in parts), class_="columns")


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str = "",
    numbers: Collection[int] = (),
) -> Html:
    """A table; the columns in `numbers` are aligned right. It scrolls by itself on a phone."""

    def cell(name: str, at: int, content: object) -> Html:
        scope = "col" if name == "th" else None
        if type(content) is str:
            content = unbroken(content)
        return element(name, content, class_="number" if at in numbers else None, scope=scope)

    # A header without words is a plain cell: screen readers would announce nothing.
    titles = element(
        "tr", *(cell("th" if title else "td", at, title) for at, title in enumerate(head))
    )
    lines = [element("tr", *(cell("td", at, one) for at, one in enumerate(row))) for row in rows]
    whole = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", titles),
        element("tbody", *lines),
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def unbroken(text: str) -> str:
    """A text in which no line ends inside of `n = 20` or `42 %`."""
    text = re.sub(r"\bn = (?=\d)", "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}", text)
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)


def details(summary: object, *body: object, open: bool = False) -> Html:
    """A part that opens on demand, without a script."""
    return element("details", element("summary", summary), element("div", *body), open=open or None)


def badge(text: str, tone: Tone = "plain") -> Html:
    """A word in a frame."""
    return element("span", text, class_="badge" if tone == "plain" else f"badge {tone}")


def cards(*items: tuple[str, str] | tuple[str, str, str]) -> Html:
    """Key figures: each its label, the figure, and perhaps a note."""
    return element("dl", *(_card(*item) for item in items), class_="cards")


def _card(label: str, value: str, note: str = "") -> Html:
    small = element("small", unbroken(note)) if note else None
    return element("div", element("dt", label), element("dd", value, small), class_="card")


def pre(text: object) -> Html:
    """Text with its line breaks."""
    return element("pre", text)


def text_diff(before: str, after: str) -> Html:
    """The second text with what changed: removed words struck out, new ones underlined."""
    old, new = _words(before), _words(after)
    if len(old) > WORDS_COMPARED or len(new) > WORDS_COMPARED:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    changed = _changes(old[start : len(old) - end], new[start : len(new) - end])
    return element("pre", "".join(new[:start]), *changed, "".join(new[len(new) - end :]))


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """How many words both begin with."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[object]:
    gone = come = ""
    if len(old) * len(new) > PAIRS_COMPARED:
        yield from _changed("".join(old), "".join(new))
        return
    # Words that are everywhere in a long text are not looked up, or it would take minutes.
    changes = difflib.SequenceMatcher(a=old, b=new).get_opcodes()
    for at, (kind, i, j, k, m) in enumerate(changes, 1):
        same = "".join(new[k:m])
        # A space between two changed words is part of the change: phrases stay together.
        if kind != "equal" or (same == " " and gone + come and at < len(changes)):
            gone, come = gone + "".join(old[i:j]), come + same
            continue
        yield from _changed(gone, come)
        yield same
        gone = come = ""
    yield from _changed(gone, come)


def _changed(gone: str, come: str) -> Iterator[object]:
    yield element("del", gone) if gone else None
    yield element("ins", come) if come else None


def _words(text: str) -> list[str]:
    """Words, spaces and signs. A number, a date or an address is one word: its digits and parts
    are not compared one by one."""
    return re.findall(r"\s+|\w+(?:[.,:@/-]\w+)*|[^\w\s]", text)
