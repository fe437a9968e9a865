"""Values as the texts that are in the fields of a form at first. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import Any

from perdure.commands.answer_schema import as_json
from perdure.text import json_default
from perdure.views.form_fields import LEFT_OUT, Field, Widget, is_empty
from perdure.views.markup import visible


def with_text(field: Field, text: str) -> Field:
    """A field with a text in it at first."""
    return replace(field, initial=(visible(text),), texts=(visible(text),))


def as_json_text(field: Field) -> Field:
    """A field whose value is written as JSON."""
    text = "" if field.start is LEFT_OUT else json_of(field.start)
    return with_text(replace(field, widget=Widget.JSON), text)


def json_of(value: Any) -> str:
    """A value as JSON that people read and change."""
    plain = as_json(value)
    return json.dumps(plain, indent=2, ensure_ascii=False, default=json_default, skipkeys=True)


def number_text(value: Any) -> str:
    """A number as people write it; empty if there is none."""
    return "" if is_empty(value) else repr(value)


def is_line(text: str) -> bool:
    """Whether a text is one line of a list."""
    return bool(text.strip()) and text.splitlines() == [text]


def is_date(text: str) -> bool:
    """Whether an input for dates would show this."""
    return not text or re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) is not None


def local_time(text: str, zone: tzinfo) -> str | None:
    """A time as a form has it, in the viewer's zone. None for one that a form would change."""
    if not text:
        return ""
    try:
        at = datetime.fromisoformat(text)
        known = at.tzinfo is not None and not at.microsecond
        local = at.astimezone(zone).replace(tzinfo=None)
        return local.isoformat(timespec="auto" if at.second else "minutes") if known else None
    except (ValueError, OverflowError):
        return None
