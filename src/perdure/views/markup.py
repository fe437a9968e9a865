"""HTML and SVG made of elements, with every text escaped that is not already `Html`; the colours of
every page, and the style sheet of the pictures of runs.

A page has `--paper --panel --text --quiet --line --accent --good --bad --warn`, light or dark. No
element has a style of its own, so a strict content security policy lets all of it through.
"""

from __future__ import annotations

from html import escape

VOID = frozenset(
    {"meta", "br", "col", "input", "line", "rect", "circle", "path", "polygon", "polyline"}
)
"""Elements without content."""


class Html(str):
    """Text that is HTML already. Only this module's functions make it of a user's text.

    Adding two of them gives a plain str, which would be escaped: use `join`.
    """

    __slots__ = ()

    def __html__(self) -> str:
        """Tells Jinja that it is HTML already."""
        return self


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. `class_` is `class`, `aria_label` is `aria-label`; None and False are omitted."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*parts: object) -> Html:
    """Several parts as one: Html as it is, anything else as escaped text, None as nothing."""
    return Html("".join(_html(part) for part in parts if part is not None))


def _html(part: object) -> str:
    if isinstance(part, Html):
        return part
    return escape(visible(str(part)), quote=False)


def _attribute(value: object) -> str:
    if value is True:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else visible(str(value))


def visible(text: str) -> str:
    """The text without the control characters that HTML and XML do not allow."""
    if text.isprintable():
        return text
    return "".join(
        one if one in "\t\n" or not _is_forbidden(ord(one)) else "\ufffd" for one in text
    )


def _is_forbidden(code: int) -> bool:
    return code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF)


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
TIMELINE = """
.timeline{margin:0;min-width:0}
.timeline .scroll{overflow-x:auto;margin:0}
.timeline .scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.timeline .scroll svg{display:block;min-width:100%;height:auto;font:11px system-ui,sans-serif}
.timeline text{fill:var(--text)}.timeline .quiet{fill:var(--quiet)}
.timeline .bold{font-weight:600}.timeline .alarm{fill:var(--bad)}
.timeline .lane{fill:var(--panel)}.timeline .axis{stroke:var(--line)}
.timeline .path{stroke:var(--quiet);stroke-opacity:.45;fill:none}
.timeline .path.lost{stroke:var(--bad);stroke-opacity:1;stroke-dasharray:3 2}
.timeline .segment{fill:var(--paper);stroke:var(--accent);stroke-width:1.2}
.timeline .step{fill:var(--accent);fill-opacity:.16}
.timeline .step.many{fill-opacity:.34}.timeline .step.bad{fill:var(--bad)}
.timeline .going{fill:var(--accent);fill-opacity:.07}
.timeline .edge,.timeline .inner{stroke:var(--accent);stroke-opacity:.5}
.timeline .inner{stroke-opacity:.8}
.timeline .rest{fill:var(--panel);stroke:var(--line)}
.timeline .rest.person,.timeline .rest.signal,.timeline .rest.run{stroke:var(--warn)}
.timeline .rest.person{fill:var(--warn);fill-opacity:.18}
.timeline .rest.held,.timeline .rest.failed,.timeline .rest.lost{stroke:var(--bad);fill:var(--bad);
fill-opacity:.12}
.timeline .rest.lost,.timeline .rest.retrying,.timeline .rest.paused{stroke-dasharray:3 2}
.timeline .rest.retrying,.timeline .rest.paused{stroke:var(--quiet)}
.timeline .break{stroke:var(--bad);stroke-width:2;fill:none}
.timeline .gap{stroke:var(--quiet);fill:none}.timeline .under{fill:var(--paper)}
.timeline .mark.good{fill:var(--good)}.timeline .mark.bad{fill:var(--bad)}
.timeline .mark.unknown{fill:var(--warn)}.timeline .mark.plain{fill:var(--quiet)}
.timeline .mark.notable{fill:var(--accent)}
.timeline .mark.open,.timeline .mark.cut{fill:var(--paper);stroke:var(--accent);
stroke-dasharray:2 1.5}
.timeline .mark.cut{stroke:var(--bad)}
.timeline .mark.saved{stroke:var(--good)}.timeline .hatch{stroke:var(--good);stroke-width:2}
.timeline .sign{fill:none;stroke-width:1.6;stroke:var(--quiet)}
.timeline .sign.good{stroke:var(--good)}.timeline .sign.bad,.timeline .sign.cut{stroke:var(--bad)}
.timeline .sign.unknown{stroke:var(--warn)}.timeline .sign.open{stroke:var(--accent)}
.timeline .now{stroke:var(--accent);stroke-dasharray:2 3}
.timeline a{cursor:pointer}.timeline svg a:hover text{text-decoration:underline}
.timeline a:hover .mark,.timeline a:hover .step,.timeline a:hover .rest{filter:brightness(.85)}
.timeline .selected .mark,.timeline .selected .step,.timeline .selected .rest,
.timeline .selected .segment{stroke:var(--text);stroke-width:2;stroke-dasharray:none}
.timeline .legend{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;margin:10px 0 0;
padding:0;font-size:.82rem;color:var(--quiet)}
.timeline .legend li{display:flex;align-items:center;gap:6px}
.timeline .legend svg{width:24px;height:14px;flex:none}
.timeline .as-text{font-size:.88rem;margin-top:10px}
.timeline .as-text ol{max-height:22rem;overflow:auto;margin:8px 0;padding-left:2em}
.timeline .as-text ol ul{padding-left:1.2em;color:var(--quiet)}
.timeline .as-text li{overflow-wrap:anywhere}
.timeline .as-text a{display:inline-block;padding:3px 0}
@media(prefers-reduced-motion:no-preference){.timeline .pulse{animation:perdure-pulse 1.6s infinite}
@keyframes perdure-pulse{50%{opacity:.25}}}
"""

GRAPH = """
.graph{margin:0;min-width:0}.graph .scroll{overflow-x:auto;margin:0}
.graph .scroll svg{display:block;max-width:none;margin:0 auto;font:12.5px system-ui,sans-serif}
.graph text{fill:var(--text)}.graph .times{fill:var(--quiet);font-size:11px}
.graph .node{fill:var(--paper);stroke:var(--line);stroke-width:1.3}
.graph .other text{fill:var(--quiet)}
.graph .ran .node{stroke:var(--good);fill:var(--good);fill-opacity:.12}
.graph .now .node{stroke:var(--accent);stroke-width:2.4;fill:var(--accent);fill-opacity:.18}
.graph .now text{font-weight:600}.graph .here{fill:var(--accent)}
.graph .next .node{stroke:var(--accent);stroke-dasharray:4 3}
.graph .edge{fill:none;stroke:var(--quiet);stroke-opacity:.6;stroke-width:1.3}
.graph .edge.maybe{stroke-dasharray:5 4}.graph .edge.went{stroke:var(--good);stroke-opacity:.9}
.graph .arrow{fill:var(--quiet)}.graph a:hover text{text-decoration:underline}
.graph a:focus-visible{outline:2px solid var(--accent)}
.graph .legend{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;margin:8px 0 0;padding:0;
font-size:.82rem;color:var(--quiet)}
.graph .legend li{display:flex;align-items:center;gap:6px}
@media(prefers-reduced-motion:no-preference){.graph .pulse{animation:perdure-pulse 1.6s infinite}
@keyframes perdure-pulse{50%{opacity:.25}}}
"""

SPENT = """
.time-spent{margin:12px 0}.time-spent figcaption{font-weight:600;font-size:.9rem;margin:0 0 6px}
.time-spent svg{display:block;width:100%;height:10px;border-radius:5px;overflow:hidden}
.spent{fill:var(--line)}.spent.driven{fill:var(--accent)}.spent.queued{fill:var(--quiet)}
.spent.person{fill:var(--warn)}.spent.signal,.spent.run{fill:var(--warn);fill-opacity:.55}
.spent.lost,.spent.held,.spent.failed{fill:var(--bad)}
.spent.retrying,.spent.paused{fill:var(--quiet);fill-opacity:.5}
.time-spent ul{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;margin:6px 0 0;padding:0;
font-size:.82rem;color:var(--quiet)}
"""
