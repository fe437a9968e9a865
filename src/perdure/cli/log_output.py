"""What workers log to stderr: sentences for people, or JSON Lines without content."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from perdure.errors import Unavailable

if TYPE_CHECKING:
    from perdure.runtime import Runtime

EVENTS = "perdure.events"


def configure_logging(*, quiet: bool) -> None:
    """Log sentences: a line per segment, or warnings only."""
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    _set_levels(level)


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


class JsonLines(logging.Formatter):
    """A record as one JSON object. Of an exception it has only the kind, because the message and
    the traceback may hold content. A record may have its own text `without_content`."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == EVENTS:
            return record.getMessage()
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": getattr(record, "without_content", None) or _message(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error_kind"] = record.exc_info[0].__name__
        return json.dumps(line)


def _message(record: logging.LogRecord) -> str:
    given: Any = record.args
    if not given or not isinstance(given, tuple):
        return record.getMessage()
    shown = tuple(type(one).__name__ if _has_content(one) else one for one in given)
    return str(record.msg) % shown


def _has_content(argument: object) -> bool:
    return isinstance(argument, BaseException) and not isinstance(argument, Unavailable)
