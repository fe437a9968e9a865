"""Any value becomes JSON, as clients of LangGraph's Agent Server expect it, and nothing raises."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langgraph.types import Command, Interrupt, Send
from pydantic import BaseModel, Field, SecretStr, field_serializer

from perdure.views.json_values import dump


def wire(value: Any) -> Any:
    return json.loads(dump(value))


class Point(NamedTuple):
    x: int
    y: Any


Pair = namedtuple("Pair", "a")


class Color(Enum):
    RED = "red"
    PAIR = (1, 2)


class Size(IntEnum):
    BIG = 3


@dataclass
class Card:
    title: str
    parts: list[Any] = field(default_factory=list)


class Item(BaseModel):
    name: str
    secret: SecretStr = SecretStr("hunter2")
    hidden: str = Field(default="x", exclude=True)
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)

    @field_serializer("name")
    def upper(self, name: str) -> str:
        return name.upper()


class Box(BaseModel):
    message: Any


# -- what clients read


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("hi", id="1", name="ada"),
        AIMessage(
            [{"type": "text", "text": "hi"}],
            id="2",
            tool_calls=[{"name": "send", "args": {"to": "ada"}, "id": "c1"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        AIMessageChunk(content="h", id="2", chunk_position="last"),
        ToolMessage("sent", tool_call_id="c1"),
    ],
    ids=lambda message: message.type,
)
def test_a_message_is_what_its_model_dump_says(message: Any) -> None:
    assert wire([message]) == [message.model_dump(mode="json")]
    assert wire(message)["type"] == message.type


def test_the_schema_of_an_answer_is_a_json_schema() -> None:
    found = wire(Interrupt(value=1, id="ab", response_schema=Item))
    assert found["response_schema"]["properties"]["name"] == {"title": "Name", "type": "string"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Point(1, (2, 3)), {"x": 1, "y": [2, 3]}),
        (Pair(a=1), {"a": 1}),
        (Card("t", [Point(1, 2)]), {"title": "t", "parts": [{"x": 1, "y": 2}]}),
        (Color.RED, "red"),
        (Color.PAIR, [1, 2]),
        (Size.BIG, 3),
        ({Color.RED: 1, Size.BIG: 2, None: 3, 7: 4}, {"red": 1, "3": 2, "null": 3, "7": 4}),
        ({(1, 2): "pair", "a": 2**70}, {"(1, 2)": "pair", "a": 2**70}),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (datetime(2030, 1, 1, 12, tzinfo=UTC), "2030-01-01T12:00:00+00:00"),
        (date(2030, 1, 1), "2030-01-01"),
        (timedelta(seconds=90), 90.0),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({3}), [3]),
        (deque([1, 2]), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (UserDict({"a": 1}), {"a": 1}),
        ({"a": 1}.keys(), ["a"]),
        (b"\x00\xff", "AP8="),
        (bytearray(b"ab"), "YWI="),
        (ValueError("no good"), "ValueError('no good')"),
        (float("nan"), None),
        ([float("inf"), -float("inf")], [None, None]),
        (2**64, 2**64),
        (-(2**80), -(2**80)),
        (Decimal("1.10"), "1.10"),
        (Path("a/b"), "a/b"),
        ("half \ud800", "half ?"),
        ({"\ud800": 1}, {"?": 1}),
        (Send("node", {"a": 1}), {"node": "node", "arg": {"a": 1}}),
        (Command(resume=1), {"graph": None, "update": None, "resume": 1, "goto": []}),
        (
            Document("text", id="d"),
            {"id": "d", "metadata": {}, "page_content": "text", "type": "Document"},
        ),
        (int, "builtins.int"),
        (Item, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_a_json_form_are_converted(value: Any, expected: Any) -> None:
    if expected is None and value is Item:
        assert wire(value)["title"] == "Item"
    else:
        assert wire(value) == expected


def test_a_model_is_dumped_by_its_own_serialisers_and_keeps_its_exclusions() -> None:
    assert wire(Item(name="ada")) == {
        "name": "ADA",
        "secret": "**********",
        "at": "2030-01-01T00:00:00+00:00",
    }


# -- nothing raises


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class RudeModel(BaseModel):
    a: int = 1

    def model_dump(self, **options: Any) -> Any:
        raise RuntimeError("no dump")


def test_a_value_that_cannot_be_converted_becomes_a_string() -> None:
    assert wire([Rude()]) == ["<Rude>"]
    assert wire(RudeModel()) == "a=1"
    assert wire({"f": open}) == {"f": "<built-in function open>"}
    assert len(wire("x" * 5000)) == 5000
    assert len(wire([type("Long", (), {"__str__": lambda self: "x" * 5000})()])[0]) == 1000


@pytest.mark.parametrize("kind", ["list", "dict", "model", "dataclass"])
def test_a_cyclic_or_too_deep_value_is_cut_off(kind: str) -> None:
    deep: Any = "end"
    for _ in range(3000):
        deep = {
            "list": [deep],
            "dict": {"a": deep},
            "model": Box.model_construct(message=deep),
            "dataclass": Card("t", [deep]),
        }[kind]
    assert len(dump(deep)) > 100
    circle: Any = []
    circle.append(circle)
    json.loads(dump(circle))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(st.characters(codec=None))
        | st.binary()
        | st.datetimes()
        | st.uuids()
        | st.decimals(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner)
            | st.frozensets(st.integers() | st.text())
        ),
        max_leaves=20,
    )
)
def test_every_value_becomes_json(value: Any) -> None:
    json.loads(dump(value))
