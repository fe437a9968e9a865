"""The text of an HTML mail, as a person sees it.

Takes time in proportion to its length, whatever is in it.
"""

from __future__ import annotations

import html
import re

_UNSEEN = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(style|script|title)\b[^<>]*+(?<!/)>.*?(?:</\1\s*+>|\Z)"
    r"|<[!?][^<>]*+>",
    re.I | re.S,
)
_TAG = re.compile(r"<(/?)(\w++)([^<>]*+)>")
_HIDING = re.compile(r"display\s*+:\s*+none|visibility\s*+:\s*+hidden|mso-hide\s*+:\s*+all", re.I)
_EMPTY = ("area", "br", "col", "hr", "img", "input", "link", "meta", "wbr")
"""Elements without content, and so without an end tag."""
_LINES = (
    "br", "p", "div", "tr", "td", "th", "li", "ul", "ol", "dt", "dd", "table", "hr", "pre",
    "center", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "header", "footer",
    "blockquote",
)  # fmt: skip
"""Elements that begin and end a line."""


def without_tags(text: str) -> str:
    """The visible text, without `blockquote`s. Line breaks of the source count only in a `pre`."""
    text = _UNSEEN.sub("", text)
    kept: list[str] = []
    hidden_by, depth, end, is_as_it_is = "", 0, 0, False
    for tag in _TAG.finditer(text):
        name, closes = tag[2].lower(), bool(tag[1])
        if not depth:
            kept.append(_flowing(text[end : tag.start()], is_as_it_is) + "\n" * (name in _LINES))
        if depth and name == hidden_by:
            depth += -1 if closes else 1
        elif not depth and not closes and _hides(name, tag[3]):
            hidden_by, depth = name, 1
        if name == "pre":
            is_as_it_is = not closes
        end = tag.end()
    kept.append("" if depth else _flowing(text[end:], is_as_it_is))
    return "\n".join(line.strip() for line in html.unescape("".join(kept)).split("\n"))


def _flowing(text: str, is_as_it_is: bool) -> str:
    return text if is_as_it_is else re.sub(r"\s++", " ", text)


def _hides(name: str, attributes: str) -> bool:
    """Whether the content of an element is invisible or quoted."""
    if name in _EMPTY or attributes.endswith("/"):
        return False
    return name == "blockquote" or bool(_HIDING.search(attributes))
