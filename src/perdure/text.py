"""Values, exceptions and text of others as text: for the journal, for logs and for terminals.

A text can control a terminal (ESC and other control characters), change the order in which a line
is read (bidirectional overrides), or begin a line that looks like one of ours. So whatever is not
printable is escaped, and of a text that may have several lines all but the first begin with a bar.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]

LONGEST_MESSAGE, LONGEST_TRACEBACK = 4096, 16_384
"""Characters that are stored of an exception."""


def describe_error(
    error: BaseException, redact: Callable[[str], str] = lambda text: text
) -> dict[str, str]:
    """The type, message and traceback of an exception, shortened to what is worth storing."""
    text = "".join(traceback.format_exception(error))
    try:
        message = str(error)
    except Exception:
        message = "(the exception cannot be printed)"
    return {
        "kind": f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        # Redacted before it is cut: a part of a secret would not be recognised.
        "message": redact(_printable(message[: 4 * LONGEST_MESSAGE]))[:LONGEST_MESSAGE],
        "traceback": redact(_printable(text[-4 * LONGEST_TRACEBACK :]))[-LONGEST_TRACEBACK:],
    }


def one_line(error: BaseException, folder: str) -> str:
    """An exception of a user's module in one line, with the line of the user's code that raised it.

    A file below `folder` is named relative to it.
    """
    if isinstance(error, SyntaxError):
        message, place = error.msg, (error.filename, error.lineno)
    else:
        message = str(error)
        frames = traceback.extract_tb(error.__traceback__)
        own = [(one.filename, one.lineno) for one in frames if is_user_code(one.filename)]
        place = own[-1] if own else (None, None)
    first = next(iter(message.splitlines()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    file, line = place
    if file is None:
        return text
    near = file.startswith(os.path.join(folder, ""))
    return f"{text} ({os.path.relpath(file, folder) if near else file}, line {line})"


def is_user_code(file: str) -> bool:
    """Whether a file is neither an installed package nor part of perdure or Python."""
    others = (os.path.join(folder, "") for folder in (PACKAGE, os.path.dirname(os.__file__)))
    installed = "site-packages" in file or "dist-packages" in file
    return not installed and not file.startswith(("<", *others))


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def json_default(value: Any) -> Any:
    """A value that JSON has no form for, as one that it has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, datetime):
        return _utc(value).isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    dump = getattr(value, "model_dump", None)  # Pydantic, and so LangChain's messages
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else str(value)


def _utc(at: datetime) -> datetime:
    """A time in UTC; as it is if UTC has no such year."""
    try:
        return at.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        return at


def any_json(
    value: Any, default: Callable[[Any], Any] = json_default, indent: int | None = None
) -> str:
    """A value as JSON for people, with all that is in it: a key that JSON does not have, such as a
    tuple, is shown as its text."""
    given: Any = {"ensure_ascii": False, "default": default, "indent": indent}
    try:
        return json.dumps(value, **given)
    except TypeError:
        return json.dumps(_with_text_keys(value, default), **given)


def _with_text_keys(value: Any, default: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, KEYS) else str(key): _with_text_keys(one, default)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_text_keys(one, default) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return _with_text_keys(default(value), default)


KEYS = (str, int, float, bool, type(None))
"""Types of keys that `json` writes."""


def json_text(value: Any) -> str:
    """A value as one line of JSON; a dataclass as its fields."""
    return printable_json(json.dumps(value, default=json_default, skipkeys=True))


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
