"""Judges the HTML of a page without a browser: what a strict content-security policy would refuse,
and what text of others must not become.

    assert faults(html) == []

No script or style inside the page, no handler, no frame; every address leads to this server, except
links that a text has, which open without telling where they were; every form that posts has the
hidden field against cross-site requests.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

FORBIDDEN = frozenset(
    {
        *("style", "iframe", "frame", "object", "embed", "base", "applet", "marquee", "noembed"),
        *("foreignobject", "animate", "set", "portal", "x", "math", "xmp", "plaintext", "body2"),
    }
)
ADDRESSES = frozenset(
    {
        *("href", "src", "action", "formaction", "xlink:href", "poster", "data", "srcset", "cite"),
        *("hx-get", "hx-post", "hx-put", "hx-delete", "hx-patch", "sse-connect", "background"),
        *("manifest", "ping", "longdesc", "usemap"),
    }
)
OWN = re.compile(r"(/(?![/\\])|#|\?|$)")
"""An address on this server: a path, a fragment, a query."""
VOID = frozenset(("area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"))
OPTIONAL = frozenset(
    ("html", "body", "p", "li", "dt", "dd", "option", "thead", "tbody", "tfoot", "tr", "td", "th")
)
"""Elements whose end tag may be left out."""
PRIVATE = {"noopener", "noreferrer"}
"""The required `rel` of an external link."""


def faults(html: str, token_field: str = "csrf") -> list[str]:
    """What is wrong with a page or a fragment."""
    judge = _Judge(token_field)
    judge.feed(html)
    judge.close()
    return judge.end()


class _Judge(HTMLParser):
    def __init__(self, token_field: str) -> None:
        super().__init__(convert_charrefs=True)
        self._field = token_field
        self.found: list[str] = []
        self._form: str | None = None
        """The current POST form, until a hidden field is found."""
        self._script = False
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        shown = self.get_starttag_text() or tag
        if tag in FORBIDDEN or ":" in tag:
            self.found.append(f"element {shown[:200]}")
        if len(given) != len(attrs):
            self.found.append(f"attribute given twice: {shown[:200]}")
        for name, value in given.items():
            self._check_attribute(tag, name, value, given, shown[:200])
        if tag == "script" and not given.get("src"):
            self.found.append(f"script in the page: {shown[:200]}")
        if tag == "meta" and given.get("http-equiv", "").lower() == "refresh":
            self.found.append(f"refresh: {shown[:200]}")
        self._check_form(tag, given, shown)
        self._script = tag == "script"
        if tag not in VOID:
            self._open.append(tag)

    def _check_attribute(
        self, tag: str, name: str, value: str, given: dict[str, str], shown: str
    ) -> None:
        if name.startswith(("on", "hx-on", "data-hx-on")) or name in ("style", "srcdoc", "is"):
            self.found.append(f"attribute {name} in {shown}")
        if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_.:-]*", name):
            self.found.append(f"attribute {name!r} in {shown}")
        if name in ADDRESSES and not OWN.match(value) and not _is_allowed(tag, name, value, given):
            self.found.append(f"address {value[:80]!r} in {shown}")

    def _check_form(self, tag: str, given: dict[str, str], shown: str) -> None:
        if tag == "form":
            if self._form is not None:
                self.found.append(f"form in a form: {shown[:200]}")
            self._form = shown if given.get("method", "get").lower() == "post" else ""
        elif tag == "input" and given.get("name") == self._field and self._form is not None:
            self._form = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            if self._form:
                self.found.append(f"form without {self._field}: {self._form[:200]}")
            self._form = None
        if tag in VOID:
            return
        while self._open and self._open[-1] != tag and self._open[-1] in OPTIONAL:
            self._open.pop()
        if not self._open or self._open[-1] != tag:
            self.found.append(f"</{tag}> closes {self._open[-3:]}")
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.found.append(f"script in the page: {data[:80]!r}")
        self._script = self._script and not data

    def end(self) -> list[str]:
        if left := [tag for tag in self._open if tag not in OPTIONAL]:
            self.found.append(f"not closed: {left}")
        return self.found


def _is_allowed(tag: str, name: str, value: str, given: dict[str, str]) -> bool:
    if tag == "a" and name == "href" and re.match(r"(https?://|mailto:)[^\s\\]", value):
        return set(given.get("rel", "").split()) >= PRIVATE
    return (
        tag in ("img", "link")
        and re.match(r"data:(image/(png|svg\+xml)[;,]|,$)", value) is not None
    )
