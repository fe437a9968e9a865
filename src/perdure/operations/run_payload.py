"""What a run is given, gives back and fails with, as it is kept in its row."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import Any

from perdure.errors import Damaged, TypeNotAllowed, WrongKey
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer, where_run

UNREADABLE = (Damaged, WrongKey, TypeNotAllowed)
"""What a person has to look at: trying again would give the same."""


def describe(error: BaseException) -> dict[str, str]:
    """An exception in words."""
    text = "".join(traceback.format_exception(error))
    try:
        message = str(error)
    except Exception:
        message = "(the exception cannot be printed)"
    return {
        "kind": f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        "message": _printable(message)[:4096],
        "traceback": _printable(text)[-16384:],
    }


def in_a_line(error: BaseException, folder: str) -> str:
    """An exception that a user's module raised, and the line of the user's own code where it did;
    a file below `folder` is told as it is from there."""
    if isinstance(error, SyntaxError):
        message, place = error.msg, (error.filename, error.lineno)
    else:
        message = str(error)
        frames = traceback.extract_tb(error.__traceback__)
        own = [(one.filename, one.lineno) for one in frames if is_own(one.filename)]
        place = own[-1] if own else (None, None)
    first = next(iter(message.splitlines()), "")
    told = f"{type(error).__name__}: {first}" if first else type(error).__name__
    file, line = place
    if file is None:
        return told
    near = file.startswith(os.path.join(folder, ""))
    return f"{told} ({os.path.relpath(file, folder) if near else file}, line {line})"


def is_own(file: str) -> bool:
    """Whether a frame is in a user's code: not in an installed package, perdure or Python."""
    homes = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(os.__file__))
    others = (os.path.join(home, "") for home in homes)
    installed = "site-packages" in file or "dist-packages" in file
    return not installed and not file.startswith(("<", *others))


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def open_setup(serializer: Serializer, row: RunRow) -> dict[str, Any]:
    setup: dict[str, Any] = serializer.loads(row.setup, where_run("setup", row.id))
    return setup


def open_labels(serializer: Serializer, row: RunRow) -> dict[str, Any]:
    """What the agent said of its run so far."""
    if row.labels is None:
        return {}
    labels: dict[str, Any] = serializer.loads(row.labels, where_run("labels", row.id))
    return labels


def tags_of(row: RunRow, setup: Mapping[str, Any]) -> list[str]:
    """The tags a run was given, and one for what drove it last."""
    return [*(setup.get("tags") or ()), *([f"runtime:{row.driven}"] if row.driven else ())]


def close_output(serializer: Serializer, row: RunRow, output: list[Any]) -> bytes:
    """A run's output: [value], or [checkpoint, channels, the rest] where it can be read."""
    return serializer.dumps(output, where_run("output", row.id), "the output")


def close_error(serializer: Serializer, row: RunRow, told: Mapping[str, Any]) -> bytes:
    return serializer.dumps(dict(told), where_run("error", row.id))
