"""What workers log to stderr: sentences for people, or JSON Lines without content.

Each record begins in the first column, and all further lines of it do not: a text in it, such as
the message of an exception, can neither forge a record nor control a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from perdure.errors import Unavailable
from perdure.text import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from perdure.runtime import Runtime

EVENTS = "perdure.events"


def configure_logging(*, quiet: bool) -> None:
    """Log sentences: a line per segment, or warnings only."""
    level = logging.WARNING if quiet else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeLines("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    _set_levels(level)


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


def _print_failure_of_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not isinstance(found.exc_value, SystemExit):
        text = "".join(traceback.format_exception(found.exc_value))
        name = printable("" if found.thread is None else found.thread.name)
        sys.stderr.write(printable_lines(f"Exception in thread {name}:\n{text}") + "\n")


def _print_unraisable(found: sys.UnraisableHookArgs) -> None:
    said = found.err_msg or "Exception ignored in"
    trace = traceback.format_exception(found.exc_type, found.exc_value, found.exc_traceback)
    sys.stderr.write(printable_lines(f"{said} {found.object!r}\n{''.join(trace)}") + "\n")


def log_json(rt: Runtime, *, quiet: bool = False) -> Runtime:
    """Log each event that this runtime stores as a line of JSON, and all other records too."""
    from perdure.observe.logs import Logs

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(lambda record: not hasattr(record, "run_id"))  # its events are logged instead
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, handlers=[handler], force=True)
    _set_levels(level)
    rt.engine.observers.add(Logs(json=True, logger=EVENTS))
    return rt


def _set_levels(level: int) -> None:
    logging.getLogger("perdure").setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request to D1


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
        return printable_json(json.dumps(line))


def _message(record: logging.LogRecord) -> str:
    given: Any = record.args
    if not given or not isinstance(given, tuple):
        return record.getMessage()
    shown = tuple(type(one).__name__ if _has_content(one) else one for one in given)
    return str(record.msg) % shown


def _has_content(argument: object) -> bool:
    return isinstance(argument, BaseException) and not isinstance(argument, Unavailable)
