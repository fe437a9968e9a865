"""What a person may answer, in a line and as an example."""

from __future__ import annotations

import enum
import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from perdure.views.schema_words import example_answer, summarise_schema


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Decision(BaseModel):
    comment: str | None = None
    action: Literal["approve", "edit"]
    body: str | None = None
    urgent: bool = False
    times: int = 1


class Picked(BaseModel):
    colour: Colour
    sure: bool


class Written(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("schema", "line", "answer"),
    [
        (
            Decision.model_json_schema(),
            "action: approve | edit; comment, body; urgent: true | false; times: integer",
            {"action": "approve"},
        ),
        (
            Picked.model_json_schema(),
            "colour: red | blue; sure: true | false",
            {"colour": "red", "sure": True},
        ),
        (Written.model_json_schema(), "text", None),
        ({"enum": ["it's", 2]}, "it's | 2", "it's"),
        ({"type": "boolean"}, "true | false", True),
        ({"type": "integer"}, "integer", None),
        ({"properties": {"note": {"type": "string"}}}, "note", None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "", None),
        ({"not": {}}, "", None),
        (True, "", None),
    ],
    ids=["decision", "enum", "text", "choice", "yes", "number", "optional", "loop", "odd", "any"],
)
def test_a_schema_is_told_in_a_line_with_an_answer_that_fits(
    schema: Any, line: str, answer: Any
) -> None:
    assert summarise_schema(schema) == line
    example = example_answer(schema)
    assert (None if example is None else json.loads(example)) == answer
