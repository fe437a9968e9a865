"""Runs, events, effects, waits, scores and decisions as flat rows of fixed columns: pure.

`perdure export --what` and `frame()` both make their rows here. A column has the same type in every
row and in an empty table. Values that are nested are JSON texts. What a person, a model or a tool
wrote is content: those columns are there only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perdure.service.views.decided import is_standing, verdict_of
from perdure.service.views.event_fields import TYPES, FieldType, safe_fields
from perdure.service.views.json_text import json_text
from perdure.types import EffectRecord, Event, Run, Score, WaitRecord

Row = dict[str, Any]


class Table(StrEnum):
    """What a table has a row for."""

    RUNS = "runs"
    EVENTS = "events"
    EFFECTS = "effects"
    WAITS = "waits"
    SCORES = "scores"
    DECISIONS = "decisions"


class ColumnType(StrEnum):
    """What a column holds; each may be empty."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    TIME = "time"
    """An aware time, to the millisecond."""
    JSON = "json"
    """A value as JSON text."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: ColumnType
    content: bool = False
    """Whether it is there only with `content`."""


def columns(what: Table, *, content: bool) -> tuple[Column, ...]:
    """The columns of a table, in order."""
    return tuple(one for one in COLUMNS[what] if content or not one.content)


def _of(type: ColumnType, names: str, *, content: bool = False) -> list[Column]:
    return [Column(name, type, content) for name in names.split()]


_TEXT, _INTEGER, _TIME, _JSON = (
    ColumnType.TEXT,
    ColumnType.INTEGER,
    ColumnType.TIME,
    ColumnType.JSON,
)
_FIELD_TYPES = {
    FieldType.TEXT: _TEXT,
    FieldType.INTEGER: _INTEGER,
    FieldType.BOOLEAN: ColumnType.BOOLEAN,
    FieldType.TIME: _TIME,
    FieldType.NUMBER: ColumnType.NUMBER,
    FieldType.TEXTS: _JSON,
}
_TOLD_ONLY = ("graph", "segment")
"""Fields of events that every row of the table has."""

COLUMNS: Mapping[Table, tuple[Column, ...]] = {
    Table.RUNS: (
        *_of(_TEXT, "id thread_id graph version state key parent_id"),
        *_of(_TIME, "created_at updated_at due_at"),
        *_of(_INTEGER, "segments events attempts saved_effects saved_model_calls saved_tokens"),
        *_of(_TEXT, "error_kind"),
        *_of(_JSON, "tags metadata"),
        *_of(_TEXT, "damaged"),
        *_of(_JSON, "input output", content=True),
        *_of(_TEXT, "error_message reason", content=True),
    ),
    Table.EVENTS: (
        *_of(_TEXT, "run_id thread_id graph"),
        *_of(_INTEGER, "n"),
        *_of(_TIME, "at"),
        *_of(_TEXT, "kind"),
        *_of(_INTEGER, "segment"),
        *(Column(name, _FIELD_TYPES[of]) for name, of in TYPES.items() if name not in _TOLD_ONLY),
        *_of(_TEXT, "damaged"),
        *_of(_JSON, "data", content=True),
    ),
    Table.EFFECTS: (
        *_of(_TEXT, "run_id thread_id graph key name state"),
        *_of(_INTEGER, "attempts"),
        *_of(_TIME, "created_at updated_at due_at"),
        *_of(ColumnType.BOOLEAN, "undone"),
        *_of(_TEXT, "error_kind damaged"),
        *_of(_JSON, "arguments result", content=True),
        *_of(_TEXT, "error_message", content=True),
    ),
    Table.WAITS: (
        *_of(_TEXT, "run_id thread_id graph id kind name state"),
        *_of(_TIME, "created_at wake_at expires_at answered_at"),
        *_of(_TEXT, "answered_by damaged"),
        *_of(_JSON, "value answer", content=True),
    ),
    Table.SCORES: (
        *_of(_TEXT, "run_id thread_id graph name kind"),
        *_of(ColumnType.NUMBER, "value"),
        *_of(_TEXT, "label about step effect question action call"),
        *_of(_TIME, "at"),
        *_of(_JSON, "prompts"),
        *_of(_TEXT, "by damaged"),
        *_of(_TEXT, "comment", content=True),
    ),
    Table.DECISIONS: (
        *_of(_TEXT, "run_id thread_id graph"),
        *_of(_INTEGER, "n"),
        *_of(_TIME, "at"),
        *_of(_TEXT, "kind verdict by via from to wait key damaged"),
        *_of(_TEXT, "reason comment", content=True),
        *_of(_JSON, "answer", content=True),
    ),
}
"""The columns of each table. New ones are added; a name or a type does not change."""


@dataclass(frozen=True)
class RunPart:
    """What the rows of a run's events, effects, waits, scores and decisions share."""

    run_id: str
    thread_id: str
    graph: str


def run_row(run: Run, *, segments: int, events: int, input: Any) -> Row:
    saved = {f"saved_{name}": number for name, number in run.saved.items()}
    return {
        **vars(run),
        **saved,
        **_error(run.error),
        "segments": segments,
        "events": events,
        "state": str(run.state),
        "tags": list(run.tags),
        "input": input,
    }


def event_row(part: RunPart, event: Event, segment: int) -> Row:
    """`segment` is the number of the last claim up to this event."""
    fields = safe_fields(event.kind, event.data)
    return {**fields, **vars(event), **vars(part), "segment": segment}


def effect_row(part: RunPart, effect: EffectRecord) -> Row:
    return {**vars(effect), **_error(effect.error), **vars(part), "state": str(effect.state)}


def wait_row(part: RunPart, wait: WaitRecord) -> Row:
    return {**vars(wait), **vars(part), "kind": str(wait.kind), "state": str(wait.state)}


def score_row(part: RunPart, score: Score) -> Row:
    prompts = [f"{name}@{version}" for name, version in score.prompts]
    return {**vars(score), **vars(part), "kind": str(score.kind), "prompts": prompts}


def decision_row(part: RunPart, event: Event, wait: WaitRecord | None) -> Row:
    """`wait` is the question it is about, if it is about one."""
    answer = {"answer": wait.answer} if wait is not None and is_standing(event, wait) else {}
    verdict = verdict_of(event, wait)
    comment = event.data.get("text")
    return {
        **event.data,
        **answer,
        "comment": comment,
        **vars(event),
        **vars(part),
        "verdict": verdict,
    }


def fit(rows: Iterable[Row], shown: Iterable[Column]) -> list[Row]:
    """The rows with exactly these columns, nested values as JSON texts."""
    wanted = [(one.name, one.type is ColumnType.JSON) for one in shown]
    return [
        {
            name: json_text(value) if is_json and value is not None else value
            for name, is_json in wanted
            for value in (row.get(name),)
        }
        for row in rows
    ]


def _error(error: Any) -> Row:
    if error is None:
        return {}
    return {"error_kind": error.kind, "error_message": error.message}
