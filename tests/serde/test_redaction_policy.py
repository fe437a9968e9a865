"""A policy's keys and patterns: what they find in values and texts, and which are refused."""

from __future__ import annotations

import ipaddress
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.types import Command, Interrupt, Send
from pydantic import BaseModel

from perdure import Redaction, Saver
from perdure.commands.effect_payload import complete
from perdure.errors import BadArgument, Unserializable
from perdure.serde.serializer import Serializer
from tests.support.raw import LONG, config, put, values_of

HUSH = r"hush\d{1,9}"


class Colour(Enum):
    RED = "hush1"


@dataclass
class Account:
    owner: str
    pin: int


class Person(BaseModel):
    name: str
    api_pin: str = ""


POLICY = Redaction(keys=["pin", "*_pin"], patterns=[HUSH])
TYPES = [(one.__module__, one.__qualname__) for one in (Colour, Account, Person)]
CODEC = Serializer(TYPES, POLICY)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a hush12 b", "a *** b"),
        (b"a hush12 b", b"a *** b"),
        (b"\xff hush12", b"\xff hush12"),  # not a text
        ({"pin": 1, "PIN": [2], "apiPin": {"a": 3}, "x-pin": None}, None),
        ({"opinion": "mine", "spin": 1}, {"opinion": "mine", "spin": 1}),
        ({"hush1": 1, 5: "hush2", ("pin", "x"): 2}, {"***": 1, 5: "***", ("pin", "***"): 2}),
        ([("pin", "x"), ["X-Pin", b"y"], ("pin", 3, 4)], None),
        ({"hush1", "b"}, {"***", "b"}),
        (OrderedDict(pin="x"), OrderedDict(pin="***")),
        (PurePosixPath("/a/hush1"), PurePosixPath("/a/***")),
        (ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("10.0.0.1")),
        (Decimal("1.5"), Decimal("1.5")),
        (Colour.RED, Colour.RED),  # code
        (Account("hush1", 4), Account("***", "***")),  # type: ignore[arg-type]
        (Person(name="hush1", api_pin="x"), Person(name="***", api_pin="***")),
        (AIMessage("hush1", id="hush2"), AIMessage("***", id="hush2")),
        (ToolMessage("hush1", tool_call_id="hush2"), ToolMessage("***", tool_call_id="hush2")),
        (Send("hush1", {"pin": 1}), Send("hush1", {"pin": "***"})),
        (Command(goto="hush1", update={"pin": 1}), Command(goto="hush1", update={"pin": "***"})),
        (Interrupt(value="hush1", id="hush2"), Interrupt(value="***", id="hush2")),
        ('{"pin": {"a": [1]}, "b": "hush1"}', '{"pin": "***", "b": "***"}'),
        ('he said {"pin": "x\\"y", "b": 1}', 'he said {"pin": "***", "b": 1}'),
        ("E: Account(pin='x\\'y', b=2) api-pin=77&c", "E: Account(pin='***', b=2) api-pin=***&c"),
        ('a \\"pin\\": \\"x y\\", b', 'a \\"pin\\": \\"***\\", b'),
        ("a pinned pin", "a pinned pin"),
        ('{"a": "\\u0068ush1 \\u00fc"}', '{"a": "*** ü"}'),
    ],
)
def test_what_a_policy_names_is_replaced_and_nothing_else(value: Any, stored: Any) -> None:
    if isinstance(value, dict) and stored is None:
        stored = {"pin": "***", "PIN": "***", "apiPin": "***", "x-pin": None}
    elif stored is None:
        stored = [("pin", "***"), ["X-Pin", "***"], ("pin", 3, 4)]
    found = CODEC.redacted(value)
    assert found == stored
    assert type(found) is type(value)
    assert CODEC.redacted([value, "pin hush1"]) == [stored, "pin ***"]  # all rules at once
    assert CODEC.decode(CODEC.encode(value, "v"), "v") == stored
    assert CODEC.redacted(found) is found  # once is enough
    if value == stored:
        assert found is value


def test_without_a_policy_values_are_not_searched() -> None:
    value = {"pin": object()}
    assert Serializer().redacted(value) is value


def test_an_address_that_a_pattern_finds_is_replaced_as_a_whole() -> None:
    codec = Serializer(redact=Redaction(patterns=[r"10\.\d{1,3}\."]))
    assert codec.redacted([ipaddress.ip_address("10.0.0.1")]) == ["***"]


def test_the_ready_made_patterns_find_what_they_are_named_after() -> None:
    codec = Serializer(
        redact=Redaction(patterns=[Redaction.EMAIL, Redaction.CARD, Redaction.TOKEN])
    )
    for text, stored in {
        "to ada.l+x@mail.example.com.": "to ***.",
        "card 4111 1111-1111 1111, ok": "card ***, ok",
        "at 1763540000000 and 9111 1111": "at 1763540000000 and 9111 1111",
        "4111 1111 1111 1111 12/27": "*** 12/27",
        "2026-11-16 4111-1111-1111-1111 7": "2026-11-16 *** 7",
        "12 4111111111111111 5500005555555559": "12 *** ***",
        "Authorization: Bearer abc.DEF-123==": "Authorization: ***",
        "key sk-proj-abcdefghijk12345 and AKIAABCDEFGHIJKLMNOP": "key *** and ***",
        "a@b, @x, 12345678901234567890123": "a@b, @x, 12345678901234567890123",
    }.items():
        assert codec.redacted(text) == stored


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"x{0,3}", "finds the empty text"),
        (r"\*", "takes the place"),
        ("(", "not a regular expression"),
        (b"a", "no regular expression for texts"),
    ],
)
def test_a_pattern_that_is_invalid_or_finds_too_much_is_refused(pattern: Any, why: str) -> None:
    with pytest.raises(BadArgument, match=why):
        Redaction(patterns=[pattern])


def test_a_compiled_pattern_keeps_its_flags() -> None:
    patterns = [re.compile("HUSH1", re.IGNORECASE), re.compile(r"k\w", re.ASCII)]
    assert Serializer(redact=Redaction(patterns=patterns)).redacted("hush1 ké ka") == "*** ké ***"


def test_a_text_in_which_a_search_takes_too_long_is_replaced_as_a_whole() -> None:
    codec = Serializer(redact=Redaction(patterns=[r"(?:a|aa)+$"]))
    began = time.process_time()
    assert codec.redacted(["a" * 60 + "!", "b"]) == ["***", "b"]
    assert time.process_time() - began < 10


def test_other_policies_that_make_no_sense_are_refused() -> None:
    for given in ({"keys": "pin"}, {"patterns": "abc"}, {"keys": ["*"]}, {"replace": ""}):
        with pytest.raises(BadArgument):
            Redaction(**given)


def test_a_hostile_text_takes_linear_time() -> None:
    patterns = [Redaction.EMAIL, Redaction.CARD, Redaction.TOKEN]
    redactor = Serializer(redact=Redaction(keys=["*pin*"], patterns=patterns)).redactor
    assert redactor is not None
    for part in ("a", "1 ", "a.", "eyJ", '"pin": "', "\\", 'pin=\\"', "Bearer ", "a@b.", "pin"):
        times = []
        for size in (20_000, 160_000):
            began = time.process_time()
            redactor.text(part * (size // len(part)))
            times.append(time.process_time() - began)
        assert times[1] < 40 * max(times[0], 0.002), part  # 64 times, were it the square


def test_a_value_nested_very_deeply_is_refused_not_stored() -> None:
    value: Any = "hush1"
    for _ in range(190):
        value = (({"a": value},),)
    with pytest.raises(Unserializable, match="deep"):
        CODEC.encode(value, "v")


def test_redacted_arguments_of_a_recorded_effect_are_taken_from_the_call() -> None:
    call = {"to": "ada", "pin": 1, "body": {"x_pin": 2, "text": "say hush1", "n": 1}, "t": "hush2"}
    recorded = CODEC.redacted(call)
    assert complete(CODEC, recorded, call) == call
    changed = {**call, "to": "bob", "body": {**call["body"], "n": 2}}  # type: ignore[dict-item]
    assert complete(CODEC, recorded, changed) == {**call, "body": {**call["body"], "n": 1}}  # type: ignore[dict-item]


def test_a_saver_alone_gives_the_next_call_what_it_stored(sqlite_url: str) -> None:
    values = {"log": [f"hush1 {LONG}", "hush2"], "pin": "x", "other": {"pin": 1}}
    stored = {"log": [f"*** {LONG}", "***"], "pin": "***", "other": {"pin": "***"}}
    with Saver(sqlite_url, redact=POLICY) as saver:
        given = {"source": "update", "step": 1, "parents": {}, "why": "hush3", "user_id": "hush4"}
        put(saver, values, metadata=given)
        assert values_of(saver) == stored
        found = saver.get_tuple(config())
        assert found is not None
        assert (found.metadata["why"], found.metadata["user_id"]) == ("***", "hush4")  # type: ignore[typeddict-item]
    with Saver(sqlite_url) as other:
        assert values_of(other) == stored
