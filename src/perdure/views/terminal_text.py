"""Text of others in a line of ours, for what commands print and for what is logged.

A text can control a terminal (ESC and other control characters), change the order in which a line
is read (bidirectional overrides), or begin a line that looks like one of ours. So whatever is not
printable is escaped, and of a text that may have several lines all but the first begin with a bar.
"""

from __future__ import annotations

import json

CONTINUED = "    | "
"""Begins each further line of a record or an error. No line of ours begins like this."""


def printable(text: str) -> str:
    """A text in one line, with everything escaped that does not print."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def printable_lines(text: str) -> str:
    """A text that may have several lines, such as a traceback. All but the first are marked."""
    return f"\n{CONTINUED}".join(map(printable, text.rstrip("\n").split("\n")))


def printable_json(text: str) -> str:
    """JSON in one line, with the same value: whatever does not print is escaped as JSON does it."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    return "\\u007f" if one == "\x7f" else json.dumps(one)[1:-1]  # JSON allows DEL as it is
