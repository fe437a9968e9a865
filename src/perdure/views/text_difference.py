"""What changed between two texts, word by word, as HTML. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from perdure.views.markup import Html, element

WORDS_COMPARED = 4000
"""Words of each text up to which two texts are compared word by word; line by line beyond."""
PAIRS_COMPARED = 100_000_000
"""Product of the lengths of two sequences up to which they are compared: about a second."""


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
