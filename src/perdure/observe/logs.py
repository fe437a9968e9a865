"""`Logs`: one structured line for each event, without content.

What a line may say of an event is decided in `views/event_wording.py`. The segment, graph
and worker of an event are remembered from its claim, which this process stored: nothing is read. A
process that only answers or signals has not claimed the run, and its lines lack those three.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from perdure.commands.events import SEGMENT_ENDS
from perdure.text import json_text
from perdure.types import EventKind
from perdure.views.event_wording import safe_fields

LOGGER = "perdure.events"
MOST_RUNS = 10_000  # runs whose graph and segment are remembered
CLAIMS = (EventKind.CLAIMED, EventKind.RECOVERED)
# Events that are logged as warnings.
WARNINGS = frozenset({EventKind.RECOVERED, EventKind.FAILED, EventKind.HELD, EventKind.EXPIRED})
PLAIN = re.compile(r"[^\s\"'=]+")


@dataclass
class _Driven:
    """What is remembered of a run."""

    graph: str | None = None
    segment: int | None = None
    worker: str | None = None
    claimed_at: datetime | None = None
    stepped_at: datetime | None = None


class Logs:
    """Observer that logs each event in one line, without content.

    A line has the time, the kind, run, thread, graph, segment and worker, and the fields of the
    event that are not content: no input, output, argument, answer, label, reason or error message.
    Of an error, only the kind is logged. The level is warning for `recovered`, `failed`, `held` and
    `expired`, info for all others.

        runtime = Runtime(observe=Logs(json=True))

    Args:
        json: Log JSON objects instead of `name=value` text.
        logger: A logger, or its name.
    """

    def __init__(self, *, json: bool = False, logger: logging.Logger | str = LOGGER) -> None:
        self._json = json
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._runs: OrderedDict[str, _Driven] = OrderedDict()

    def on_event(
        self, kind: str, run_id: str, thread_id: str, data: Mapping[str, Any], at: datetime
    ) -> None:
        """Log one event. The parameters are those of `Observer.on_event`."""
        fields = safe_fields(kind, data)
        driven = self._remember(kind, run_id, fields, at)
        line = {
            "time": at,
            "event": kind,
            "run": run_id,
            "thread": thread_id,
            "graph": driven.graph,
            "segment": driven.segment,
            "worker": driven.worker,
            **fields,
            "ms": _milliseconds(kind, driven, fields, at),
        }
        if kind in SEGMENT_ENDS:
            driven.segment = driven.worker = driven.claimed_at = driven.stepped_at = None
        elif kind == EventKind.STEP and not fields.get("ns"):
            driven.stepped_at = at
        level = logging.WARNING if kind in WARNINGS else logging.INFO
        if self._logger.isEnabledFor(level):
            values = {name: _value(value) for name, value in line.items() if value is not None}
            self._logger.log(level, "%s", json_text(values) if self._json else _as_text(values))

    def _remember(self, kind: str, run_id: str, fields: Mapping[str, Any], at: datetime) -> _Driven:
        """What is known of the run, with what this event says of it."""
        driven = self._runs.setdefault(run_id, _Driven())
        self._runs.move_to_end(run_id)
        if len(self._runs) > MOST_RUNS:
            self._runs.popitem(last=False)
        driven.graph = fields.get("graph", driven.graph)
        if kind in CLAIMS:
            driven.segment, driven.worker = fields.get("segment"), fields.get("worker")
            driven.claimed_at = driven.stepped_at = at
        return driven


def _milliseconds(
    kind: str, driven: _Driven, fields: Mapping[str, Any], at: datetime
) -> int | None:
    """How long it took: an effect since its first intent, a step since the one before or the
    claim, a segment since its claim."""
    since = None
    if kind == EventKind.EFFECT:
        since = fields.get("begun_at")
    elif kind == EventKind.STEP and not fields.get("ns"):
        since = driven.stepped_at
    elif kind in SEGMENT_ENDS:
        since = driven.claimed_at
    return None if since is None else round((at - since).total_seconds() * 1000)


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _as_text(line: Mapping[str, Any]) -> str:
    """`time event name=value …`; a value that is not a plain word is quoted as in JSON."""
    time, event, *rest = line.items()
    return " ".join([time[1], event[1], *(f"{name}={_word(value)}" for name, value in rest)])


def _word(value: Any) -> str:
    if isinstance(value, list):
        value = ",".join(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if PLAIN.fullmatch(text) and text.isprintable() else json_text(text)
