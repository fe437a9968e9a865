"""A value in full, for the person who decides: nothing is folded, shortened or disguised.

Invisible characters that change how a text reads, such as those that reverse its direction, are
replaced by their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.text import any_json
from perdure.views.markup import Html, element, join
from perdure.views.value_text import is_message, value_text

DEEP = 6
"""Levels of nesting shown as lists; deeper values are JSON."""
BRIEF = 600
"""Maximum length of a value that can be read at a glance."""
BRIEF_LINES = 14
_DISGUISES = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)
_WORDS: Mapping[bool | None, str] = {None: "none", True: "yes", False: "no"}


def whole_value(shown: Any, depth: int = 0) -> Html:
    """Any value as people read it: text as text, an object as a list of names and values."""
    if isinstance(shown, str):
        return whole_text(shown) if shown else element("span", "empty text", class_="muted")
    if shown is None or isinstance(shown, bool):
        return element("span", _WORDS[shown], class_="plain")
    if isinstance(shown, (int, float)):
        return element("span", str(shown), class_="plain")
    if depth < DEEP and isinstance(shown, Mapping) and shown:
        pairs = [
            element(
                "div",
                element("dt", revealed(str(name))),
                element("dd", whole_value(one, depth + 1)),
            )
            for name, one in shown.items()
        ]
        return element("dl", *pairs, class_="value")
    if depth < DEEP and isinstance(shown, (list, tuple)) and shown:
        items = [element("li", whole_value(one, depth + 1)) for one in shown]
        return element("ol", *items, class_="value")
    if is_message(shown):
        return whole_text(value_text(shown))
    return element("div", revealed(any_json(shown, indent=2)), class_="code")


def whole_text(text: str) -> Html:
    """A text with its line breaks."""
    return element("div", revealed(text), class_="text")


def revealed(text: str) -> Html:
    """A text in which no character is hidden."""
    parts: list[object] = []
    last = 0
    for found in _DISGUISES.finditer(text):
        name = f"U+{ord(found[0]):04X}"
        title = "An invisible character that changes how the text reads"
        parts += [text[last : found.start()], element("mark", name, class_="disguise", title=title)]
        last = found.end()
    return join(*parts, text[last:])


def is_brief(shown: Any) -> bool:
    """Whether a value can be read at a glance."""
    text = value_text(shown)
    return len(text) <= BRIEF and text.count("\n") < BRIEF_LINES
