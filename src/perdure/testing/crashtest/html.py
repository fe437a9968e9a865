"""The results of a crash test as one HTML page, without scripts or links to other files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape

from perdure.testing.crashtest.model import SEVERITY, Outcome, Trial
from perdure.testing.crashtest.results import FindingGroup, Results, source_line

_CLASSES = {
    Outcome.OK: "ok",
    Outcome.UNREACHED: "unreached",
    Outcome.AGAIN: "again",
    Outcome.HELD: "held",
    Outcome.MODEL: "model",
    Outcome.DUPLICATED: "duplicated",
    Outcome.LOST: "lost",
    Outcome.DIFFERENT: "different",
    Outcome.UNRECOVERABLE: "unrecoverable",
}
_MEANING = {
    Outcome.OK: "the same result, and nothing happened twice",
    Outcome.UNREACHED: "no process reached this point this time",
    Outcome.AGAIN: "an effect was called again, with the key of its first call",
    Outcome.HELD: "the run waits for a person to settle an effect",
    Outcome.MODEL: "a model was called again",
    Outcome.DUPLICATED: "something happened twice, without a key for the far side",
    Outcome.LOST: "something did not happen",
    Outcome.DIFFERENT: "the result is different",
    Outcome.UNRECOVERABLE: "the run did not end as it does without a kill",
}


def page(report: Results) -> str:
    """The whole page."""
    title = f"Crash test of {report.place}"
    parts = [
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<main><header><p class=kicker>perdure crashtest</p><h1>{escape(report.place)}</h1>",
        f"<p class=sub>driven by {escape(report.driver)} on {escape(report.database)} · ",
        f"{report.seconds:.0f} s · {_undisturbed(report)}</p></header>",
        f"<p class='verdict {'good' if report.ok else 'bad'}'>{escape(report.verdict())}</p>",
        *_tiles(report),
        *_strip(report),
        *_findings(report),
        *_places(report),
        "</main>",
    ]
    head = '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width='
    return f'{head}device-width,initial-scale=1">{"".join(parts)}</html>\n'


def _undisturbed(report: Results) -> str:
    effects = sum(calls.total() for calls in report.tally.effects.values())
    models = report.tally.models.total()
    parts = [f"left alone it ends {escape(report.state)}"] if report.state else ["it did not run"]
    parts += [f"{effects} effect call{'s' * (effects != 1)}"] if effects else []
    parts += [f"{models} model call{'s' * (models != 1)}"] if models else []
    return ", ".join(parts)


def _tiles(report: Results) -> Iterator[str]:
    tally = Counter(trial.outcome for trial in report.trials)
    yield "<section class=tiles>"
    yield _tile("points", len(report.points), "")
    yield _tile("trials", len(report.trials), "")
    for outcome in Outcome:
        if tally[outcome] or outcome in (Outcome.DUPLICATED, Outcome.LOST, Outcome.DIFFERENT):
            yield _tile(outcome.value, tally[outcome], _CLASSES[outcome])
    yield "</section>"


def _tile(name: str, number: int, kind: str) -> str:
    empty = " zero" * (number == 0)
    return f"<div class='tile {kind}{empty}'><b>{number}</b><span>{escape(name)}</span></div>"


def _strip(report: Results) -> Iterator[str]:
    """A cell for each point, in the order the run comes to them; below it the second kills."""
    if not report.trials:
        return
    second: dict[str, list[Trial]] = {}
    for trial in report.second:
        second.setdefault(str(trial.kills[0]), []).append(trial)
    yield "<section><h2>Every point, in the order the run reaches them</h2>"
    yield "<p class=note>Above: killed there. Below: killed there, and once more while it "
    yield "recovered. Point at a cell to read what it is.</p><div class=strip>"
    for trial in report.first:
        point = str(trial.kills[0])
        kind = "col effect" if point.startswith("effect ") else "col"
        yield f"<div class='{kind}'>{_cell([trial])}{_cell(second.get(point, []))}</div>"
    yield "</div><p class=legend>"
    seen = {trial.outcome for trial in report.trials}
    for outcome in Outcome:
        if outcome in seen:
            kind, name, meaning = _CLASSES[outcome], outcome.value, _MEANING[outcome]
            yield f"<span><i class='cell {kind}'></i><b>{name}</b> {escape(meaning)}</span>"
    if report.tally.effects:
        yield "<span><i class='cell line'></i><b>underlined</b> around the call of an effect</span>"
    yield "</p></section>"


def _cell(trials: Iterable[Trial]) -> str:
    trials = list(trials)
    if not trials:
        return "<i class='cell none'></i>"
    worst = max(trials, key=lambda trial: SEVERITY[trial.outcome])
    kills = ", then ".join(f"{point.words} ({point})" for point in worst.kills)
    notes = [f"{one.what} {one.where}".strip() for one in worst.findings]
    summary = "\n".join([f"{kills}: {worst.outcome}", *notes])
    return f"<i class='cell {_CLASSES[worst.outcome]}' title='{escape(summary, quote=True)}'></i>"


def _findings(report: Results) -> Iterator[str]:
    groups = report.groups()
    if not groups:
        return
    yield f"<section><h2>{len(groups)} finding{'s' * (len(groups) != 1)}</h2>"
    for group in groups:
        yield from _finding(group, report)
    yield "</section>"


def _finding(group: FindingGroup, report: Results) -> Iterator[str]:
    one = group.finding
    kind = one.problem.name.lower()
    yield f"<article class={kind}><h3><span class=badge>{escape(one.problem.value)}</span> "
    yield f"{escape(one.what)}</h3>"
    if one.where:
        yield f"<p class=where>{escape(one.where)}</p>"
    if line := source_line(one.where):
        yield f"<pre class=code>{escape(line)}</pre>"
    if one.detail:
        yield f"<p>{escape(one.detail)}</p>"
    if group.trials:
        number = len(group.trials)
        yield f"<details><summary>in {number} trial{'s' * (number != 1)}</summary><ul>"
        for trial in group.trials:
            words = ", then ".join(point.words for point in trial.kills)
            names = ", ".join(str(point) for point in trial.kills)
            yield f"<li>killed {escape(words)} <code>{escape(names)}</code></li>"
        yield "</ul></details>"
    printed = group.trials[0].printed if group.trials else report.printed
    if printed:
        yield "<details><summary>what the agent printed</summary>"
        yield f"<pre>{escape(printed)}</pre></details>"
    yield "</article>"


def _places(report: Results) -> Iterator[str]:
    rows: dict[str, list[Trial]] = {}
    for trial in report.trials:
        rows.setdefault(trial.kills[0].words, []).append(trial)
    if not rows:
        return
    yield "<section><h2>By phase</h2><table><tr><th>killed<th class=n>points"
    yield "<th class=n>kills<th>outcome</tr>"
    for place, trials in rows.items():
        tally = Counter(trial.outcome for trial in trials)
        points = len({trial.kills[0] for trial in trials})
        yield f"<tr><td>{escape(place)}<td class=n>{points}<td class=n>{len(trials)}"
        yield "<td><div class=bar>"
        for outcome in Outcome:
            if tally[outcome]:
                kind, n = _CLASSES[outcome], tally[outcome]
                yield f"<i class='{kind}' style='flex:{n}' title='{n} {outcome}'></i>"
        worst = max(tally, key=lambda outcome: SEVERITY[outcome])
        summary = f"{tally[worst]} {worst}" if worst is not Outcome.OK else "all ok"
        yield f"</div><span class=summary>{escape(summary)}</span></tr>"
    yield "</table></section>"


_STYLE = """
:root{--bg:#fbfbfa;--fg:#1c1d21;--dim:#6b6f78;--line:#e3e4e8;--card:#fff;
--ok:#3fa66a;--unreached:#c9ccd3;--again:#3c9dc4;--held:#e0a526;--model:#9a6bd0;
--duplicated:#d9483b;--lost:#b8336a;--different:#e0722e;--unrecoverable:#7d1f1f;--varies:#8a7a3a}
@media(prefers-color-scheme:dark){:root{--bg:#15161a;--fg:#e9eaee;--dim:#9a9eaa;--line:#2c2e36;
--card:#1c1e24;--ok:#3c9a64;--unreached:#4a4d57;--unrecoverable:#b34a4a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 80px}
.kicker{margin:0;color:var(--dim);letter-spacing:.06em;font-size:13px}
h1{margin:2px 0;font-size:30px;letter-spacing:-.01em}
h2{font-size:18px;margin:40px 0 8px}
h3{font-size:15px;margin:0 0 6px;font-weight:600}
.sub,.note{color:var(--dim);margin:0 0 12px}
.verdict{margin:20px 0;padding:14px 18px;border-radius:10px;font-size:17px;font-weight:600;
color:#fff;background:var(--duplicated)}
.verdict.good{background:var(--ok)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(104px,1fr));gap:10px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:10px 14px;border-top:4px solid var(--line)}
.tile b{display:block;font-size:24px;line-height:1.2;font-variant-numeric:tabular-nums}
.tile span{color:var(--dim);font-size:13px}
.tile.zero{border-top-color:var(--line)!important}.tile.zero b{color:var(--dim)}
.strip{display:flex;flex-wrap:wrap;gap:6px 2px;background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:14px}
.col{display:flex;flex-direction:column;gap:2px}
.cell{display:inline-block;width:11px;height:16px;border-radius:3px;background:var(--c)}
.col .cell+.cell{height:10px;opacity:.75}
.cell.none{background:transparent}
.col.effect{border-bottom:2px solid var(--fg);padding-bottom:1px;margin-bottom:-3px}
.cell.line{background:linear-gradient(var(--fg),var(--fg)) 0 100%/100% 2px no-repeat}
.cell:hover{outline:2px solid var(--fg)}
.legend{display:flex;flex-wrap:wrap;gap:4px 22px;color:var(--dim);font-size:13px}
.legend b{color:var(--fg);font-weight:600}
.legend .cell{vertical-align:-3px;margin-right:6px}
article{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--c);
border-radius:10px;padding:14px 18px;margin:10px 0}
article p{margin:4px 0}
.badge{background:var(--c);color:#fff;border-radius:6px;padding:2px 8px;font-size:12px;
font-weight:600;margin-right:6px}
.where{font:600 13px ui-monospace,Menlo,Consolas,monospace}
pre,code{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}
pre{background:var(--bg);border:1px solid var(--line);border-radius:8px;padding:8px 12px;
overflow-x:auto;margin:6px 0;white-space:pre-wrap}
details{margin:6px 0;color:var(--dim)}summary{cursor:pointer}
table{width:100%;border-collapse:collapse;font-size:14px}
th{text-align:left;color:var(--dim);font-weight:500}
td,th{padding:5px 10px 5px 0;border-bottom:1px solid var(--line)}
.n{text-align:right;font-variant-numeric:tabular-nums;width:64px}
.bar{display:inline-flex;width:180px;height:10px;border-radius:5px;overflow:hidden;gap:1px;
vertical-align:middle;margin-right:10px}
.bar i{background:var(--c)}
.summary{color:var(--dim);font-size:13px}
""" + "".join(
    f".{name}{{--c:var(--{name})}}.tile.{name}{{border-top-color:var(--{name})}}\n"
    for name in (*_CLASSES.values(), "varies")
)
