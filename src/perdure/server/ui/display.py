"""Formatting for templates: times in the viewer's zone, durations, values, states.

Everything here returns `Html` whose texts are escaped, or plain text, which Jinja escapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from perdure.text import any_json
from perdure.views import formatting
from perdure.views.formatting import is_message, value_text
from perdure.views.markup import Html, element, join

JUST_NOW = timedelta(seconds=5)
"""Times within this span are just now."""
LONG_TEXT = 600
"""Characters above which a text is folded."""
DEEP = 4
"""Levels of nesting shown as lists; deeper values are JSON."""
MANY = 50
"""Entries of a list or dict that are shown one by one."""

_WORDS: Mapping[bool | None, str] = {None: "none", True: "yes", False: "no"}


def when(at: datetime | None, now: datetime, zone: ZoneInfo) -> Html:
    """A time in the viewer's zone, with how long ago or ahead it is."""
    if at is None:
        return Html("")
    ago = formatting.age(at, now)
    is_now = timedelta(0) <= now - at < JUST_NOW
    said = "just now" if is_now else ago if ago.startswith("in ") else f"{ago} ago"
    return element(
        "time",
        said,
        datetime=at.astimezone(UTC).isoformat(timespec="seconds"),
        title=clock(at, zone),
    )


def clock(at: datetime, zone: ZoneInfo) -> str:
    """A time to the second, with the name of its zone."""
    local = at.astimezone(zone)
    return f"{local:%a %-d %b %Y, %H:%M:%S} {local.tzname() or zone.key}"


def state_badge(state: str) -> Html:
    """A run's state as a badge."""
    return element("span", state, class_=f"badge state-{state}" if state.isalpha() else "badge")


def value(shown: Any, depth: int = 0) -> Html:
    """Any value as people read it: text as text, a dict as a list of names and values."""
    if isinstance(shown, str):
        return _text(shown)
    if shown is None or isinstance(shown, bool):
        return element("span", _WORDS[shown], class_="plain")
    if isinstance(shown, int | float):
        return element("span", str(shown), class_="plain")
    if depth < DEEP and isinstance(shown, Mapping) and shown:
        return _entries(shown, depth)
    if depth < DEEP and isinstance(shown, list | tuple) and shown:
        return _items(shown, depth)
    if is_message(shown):
        return _text(value_text(shown))
    return _folded(any_json(shown, indent=2), "code")


def _entries(shown: Mapping[Any, Any], depth: int) -> Html:
    pairs = list(shown.items())
    parts = [
        element("div", element("dt", str(name)), element("dd", value(one, depth + 1)))
        for name, one in pairs[:MANY]
    ]
    return join(element("dl", *parts, class_="value"), _more(len(pairs)))


def _items(shown: Sequence[Any], depth: int) -> Html:
    parts = [element("li", value(one, depth + 1)) for one in shown[:MANY]]
    return join(element("ol", *parts, class_="value"), _more(len(shown)))


def _more(count: int) -> Html | None:
    return None if count <= MANY else element("p", f"… {count - MANY:,} more", class_="muted")


def _text(text: str) -> Html:
    return _folded(text, "text") if text else element("span", "empty text", class_="muted")


def _folded(text: str, kind: str) -> Html:
    """A text with its line breaks; a long one opens on demand."""
    if len(text) <= LONG_TEXT:
        return element("div", text, class_=kind)
    summary = element("summary", f"{text[:LONG_TEXT].rstrip()}…")
    return element("details", summary, element("div", text, class_=kind), class_="folded")
