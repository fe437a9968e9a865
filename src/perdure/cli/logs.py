"""What workers log to stderr: sentences for people, or JSON Lines without content.

Each record begins in the first column, and all further lines of it do not: a text in it, such as
the message of an exception, can neither forge a record nor control a terminal.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from datetime import UTC, datetime
from typing import Any

from perdure.errors import Unavailable
from perdure.text import json_text, printable, printable_lines

EVENTS = "perdure.events"


def configure_logging(*, quiet: bool, as_json: bool = False) -> None:
    """Log a line per segment, or warnings only: as sentences, or as JSON. As JSON the events of a
    run are logged instead of the sentences about it: see `observed`."""
    level = logging.WARNING if quiet else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeLines("%(asctime)s %(name)s %(message)s"))
    if as_json:
        handler.setFormatter(JsonLines())
        handler.addFilter(lambda record: not hasattr(record, "run_id"))
    logging.basicConfig(level=level, handlers=[handler], force=as_json)
    logging.getLogger("perdure").setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request to D1


def guard_stderr() -> None:
    """Make safe what is printed without a configured log: warnings, and tracebacks of what no code
    catches."""
    logging.captureWarnings(True)  # Python's: many quote the values of a state
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(SafeLines())
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_failure
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _print_failure_of_thread
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _print_unraisable


def _print_failure(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(f"{printable_lines(text)}\n")  # at once: other threads log meanwhile


def _print_failure_of_thread(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None and not isinstance(failure.exc_value, SystemExit):
        text = "".join(traceback.format_exception(failure.exc_value))
        name = printable("" if failure.thread is None else failure.thread.name)
        sys.stderr.write(printable_lines(f"Exception in thread {name}:\n{text}") + "\n")


def _print_unraisable(failure: sys.UnraisableHookArgs) -> None:
    what = failure.err_msg or "Exception ignored in"
    trace = traceback.format_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    sys.stderr.write(printable_lines(f"{what} {failure.object!r}\n{''.join(trace)}") + "\n")


class SafeLines(logging.Formatter):
    """A record whose further lines, if it has any, cannot be mistaken for records."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


class JsonLines(logging.Formatter):
    """A record as one JSON object. Of an exception it has only the kind, because the message and
    the traceback may hold content. A record may have its own text `without_content`."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == EVENTS:
            return record.getMessage()  # JSON already
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": getattr(record, "without_content", None) or _message(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error_kind"] = record.exc_info[0].__name__
        return json_text(line)


def _message(record: logging.LogRecord) -> str:
    """The message, with the types of exceptions in place of their texts."""
    arguments: Any = record.args
    if not arguments or not isinstance(arguments, tuple):
        return record.getMessage()
    return str(record.msg) % tuple(
        type(one).__name__
        if isinstance(one, BaseException) and not isinstance(one, Unavailable)
        else one
        for one in arguments
    )
