"""Exceptions as text: for the journal, and in one line for a person."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

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
