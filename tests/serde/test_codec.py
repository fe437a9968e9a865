"""What is stored comes back equal in value and in every type, and no code of its class runs."""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.base import TextAccessor
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy

from perdure.serde.serializer import Serializer
from tests.support import samples as s

NOW = dt.datetime(2026, 11, 4, 5, 6, 7, 89, tzinfo=dt.UTC)
CALL = {"name": "search", "args": {"q": [1, None]}, "id": "c1", "type": "tool_call"}

BUILTIN: list[Any] = [
    None, True, False, 0, -(2**63), 2**64 - 1, 0.0, -0.0, 1.5, math.inf, "", "é\x00\n😀", b"",
    b"\xff", (), (1,), ((), [()]), [], {}, set(), {1, "a", (2, 3)}, frozenset({1}),
    {frozenset({1})}, deque([1, 2], maxlen=3), deque(), NOW, NOW.replace(tzinfo=None),
    dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.date.max,
    dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), NOW.timetz(),
    dt.time(1, 2, 3, 4), dt.time(1, tzinfo=ZoneInfo("Asia/Tokyo")), dt.timedelta(-1, 2, 3), dt.UTC,
    dt.timezone(dt.timedelta(hours=-3)), dt.timezone(dt.timedelta(hours=1), "CET"),
    ZoneInfo("America/New_York"), uuid.UUID(int=7), Decimal("-0.10"), Decimal("1E+99"), 1 - 2j,
    re.compile("(?i)a|b", re.S), re.compile(b"x"), ip_address("::1%eth0"), ip_address("10.0.0.1"),
    ip_interface("10.0.0.1/8"), ip_interface("::1/64"), ip_network("10.0.0.0/8"),
    ip_network("::/8"), Path("/a/b"), PurePosixPath("a"), PureWindowsPath("C:\\a"),
    OrderedDict(b=1, a=2), Counter("aab"), Counter({(1, 2): 3}), defaultdict(list, {1: [2]}),
    defaultdict(None, a=1),
]  # fmt: skip

ODD_KEYS: list[dict[Any, Any]] = [
    {1: "a"}, {None: 1}, {b"k": 1}, {(1, ("a",)): 1}, {1.5: 1}, {True: 1}, {s.Mode.FAST: 1},
    {s.Color.PAIR: 1}, {s.Frozen(1, (2,)): 1}, {frozenset({1}): {2: {3: 4}}},
    {"a": 1, 2: {"b": {3: 4}}}, {NOW: 1, uuid.UUID(int=1): 2}, {s.Point(1, 2): 1},
    {s.Level.HIGH: 1, "x": [{7: ({8: 9},)}]},
]  # fmt: skip

MESSAGES = [
    HumanMessage("hi"), HumanMessage([{"type": "text", "text": "hi"}], name="ana", id="1"),
    HumanMessage("x", extra_field={"deep": (1, 2)}),
    SystemMessage("be kind", additional_kwargs={"a": {"b": [1]}}),
    AIMessage("", tool_calls=[CALL], id="2", response_metadata={"model": "m", "at": NOW}),
    AIMessage("x", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    AIMessage("x", invalid_tool_calls=[{"name": "f", "args": "{", "id": "1", "error": "bad"}]),
    AIMessageChunk(content="p",
        tool_call_chunks=[{"name": "f", "args": "{", "id": "1", "index": 0}]),
    ToolMessage("42", tool_call_id="c1", artifact={"raw": [Decimal(1)], 2: 3}, status="error"),
    ToolMessage(["a", {"type": "text", "text": "b"}], tool_call_id="c2", name="t"),
    ChatMessage(content="x", role="pirate"), FunctionMessage(content="x", name="f"),
    RemoveMessage(id="3"),
]  # fmt: skip

LANGGRAPH = [
    Send("node", {"a": (1,)}), Send("node", HumanMessage("x"), timeout=3.0), Overwrite([1]),
    Interrupt(value={"draft": [1]}, id="i"),
    Command(goto=[Send("a", 1)], resume={"x": 1}, update={"y": (1,)}),
    Command(graph=Command.PARENT, goto="b"), TimeoutPolicy(run_timeout=1.0), _DeltaSnapshot([1]),
    Document("text", id="d", metadata={"page": 1}), TextAccessor("what msg.text gives"),
]  # fmt: skip

CLASSES = [
    *s.Color, *s.Level, *s.Mode, s.Access.READ | s.Access.WRITE, s.Access(0), s.Bits.A | s.Bits.B,
    s.Point(1), s.Point(1, s.Point(2, (3,))), s.Old([1], {2: 3}), s.Plain("a", [s.Frozen(1)]),
    s.Sealed(x=1), s.Holder(s.Holder((1,))), s.Outer.Inner(1), s.Outer.Kind.ONE, s.Model(n=1),
    s.Model(n=1, deep={1: s.Model(n=2)}), s.Forbids(n=1),
    s.Open.model_validate({"n": 1, "more": (1,)}), s.Private(n=1),
    s.Aliased.model_validate({"type": "a", "author": "b"}), s.IntBox(item=1), s.Root([1]),
    s.Text("a"), s.Number(7), s.Real(0.5), s.Table({1: s.Table(a=1)}),
]  # fmt: skip

ARRAYS = [
    np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3).T, np.arange(9)[::2], np.array([]),
    np.array(5), np.zeros((0, 3), "f4"), np.array(["a", "bc"]), np.array([True]),
    np.array([1], ">i4"), np.array([1 + 2j]), np.array(["2026-11-04"], "M8[D]"),
    np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]), np.zeros(2, "S3"),
]  # fmt: skip

SCALARS = [
    np.float64(1.5), np.float32(1.5), np.int8(3), np.bool_(True), np.str_("a"), np.bytes_(b"b"),
    np.datetime64("2026-11-04T01:02:03"), np.timedelta64(3, "D"), np.complex64(1j),
]  # fmt: skip


@pytest.fixture
def codec() -> Serializer:
    return Serializer(s.ALL)


def again(codec: Serializer, value: Any) -> Any:
    """The value, stored and loaded by another codec, and stored again to the same bytes."""
    data = codec.encode(value, "x")
    loaded = Serializer(s.ALL).decode(data, "x")
    assert codec.encode(loaded, "x") == data
    return loaded


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a.items(), b.items()))
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b and repr(a) == repr(b)) or (isinstance(a, (set, frozenset)) and a == b)


@pytest.mark.parametrize(
    "value", [*BUILTIN, *ODD_KEYS, *LANGGRAPH, *CLASSES], ids=lambda one: type(one).__name__
)
def test_a_value_comes_back_equal_and_of_the_same_type(codec: Serializer, value: Any) -> None:
    assert same(again(codec, value), value)
    nested = {"a": [value, (value, {"b": value})], 7: value}
    assert same(again(codec, nested), nested)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_comes_back_with_everything_it_had(
    codec: Serializer, message: AnyMessage
) -> None:
    loaded = again(codec, message)
    assert same(loaded, message)
    assert same(loaded.__dict__, message.__dict__)
    assert list(loaded.__dict__) == list(message.__dict__)
    assert loaded.model_fields_set == message.model_fields_set
    assert same(loaded.model_extra, message.model_extra)
    assert loaded.model_dump() == message.model_dump()


@pytest.mark.parametrize("array", ARRAYS, ids=lambda one: type(one).__name__)
def test_a_numpy_array_keeps_dtype_shape_order_and_can_be_written_to(
    codec: Serializer, array: Any
) -> None:
    loaded = again(codec, {"a": (array,)})["a"][0]
    assert type(loaded) is np.ndarray
    assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
    assert loaded.flags.f_contiguous == array.flags.f_contiguous or not array.flags.contiguous
    np.testing.assert_array_equal(loaded, array)
    loaded[...] = loaded


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda one: type(one).__name__)
def test_a_numpy_scalar_stays_one(codec: Serializer, scalar: Any) -> None:
    assert same(again(codec, [scalar])[0], scalar)


def test_nan_and_the_sign_of_zero_are_kept(codec: Serializer) -> None:
    nan, zero = again(codec, [math.nan, -0.0])
    assert math.isnan(nan)
    assert math.copysign(1, zero) == -1


def test_bytearray_and_memoryview_are_stored_as_bytes(codec: Serializer) -> None:
    loaded = Serializer().decode(codec.encode([bytearray(b"a"), memoryview(b"b")], "x"), "x")
    assert loaded == [b"a", b"b"]


def test_items_of_a_store_keep_all_their_slots(codec: Serializer) -> None:
    item = Item(value={"a": 1}, key="k", namespace=("n", "m"), created_at=NOW, updated_at=NOW)
    assert again(codec, item) == item
    found = SearchItem(("n",), "k", {"a": 1}, NOW, NOW, score=0.5)
    loaded = again(codec, found)
    assert type(loaded) is SearchItem
    assert (loaded.dict(), loaded.score) == (found.dict(), 0.5)


def test_which_fields_were_set_is_kept(codec: Serializer) -> None:
    model = s.Open.model_validate({"extra": 1})
    later = s.Open()
    later.more = 2  # type: ignore[attr-defined]
    for one in (model, later, s.Model(n=1), s.Model(n=1, name="none")):
        assert again(codec, one).model_fields_set == one.model_fields_set


def test_private_attributes_are_kept_and_unset_ones_stay_unset(codec: Serializer) -> None:
    model = s.Private(n=1)
    model._secret = "other"
    model._list.append(3)
    loaded = again(codec, model)
    assert (loaded._secret, loaded._list) == ("other", [3])
    with pytest.raises(AttributeError):
        _ = loaded._unset


def test_fields_that_init_does_not_take_are_kept_also_when_unset(codec: Serializer) -> None:
    plain = s.Plain("a", [1])
    plain.total = 99
    assert again(codec, plain).total == 99
    slotted = s.Slotted(1)
    loaded = again(codec, slotted)
    assert loaded.x == 1
    assert not hasattr(loaded, "later")
    slotted.later = "now"
    assert again(codec, slotted) == slotted


def test_what_an_object_set_beside_its_fields_is_kept_and_what_it_cached_is_not(
    codec: Serializer,
) -> None:
    beside = s.Beside(2)
    assert beside.dear == 3
    loaded = again(codec, beside)
    assert loaded.doubled == 4
    assert "dear" not in vars(loaded)
    names = s.Names(["a"])
    names.owner = "ana"
    assert (again(codec, names), again(codec, names).owner) == (names, "ana")


def test_defaults_are_not_shared_between_loaded_messages(codec: Serializer) -> None:
    data = codec.encode(AIMessage("x"), "x")
    first = codec.decode(data, "x")
    first.tool_calls.append(CALL)
    first.additional_kwargs["a"] = 1
    assert codec.decode(data, "x") == AIMessage("x")


def test_langgraph_reads_the_same_from_a_loaded_snapshot(codec: Serializer) -> None:
    snapshot = again(codec, _DeltaSnapshot([HumanMessage("x")]))
    assert type(snapshot) is _DeltaSnapshot
    assert snapshot == _DeltaSnapshot([HumanMessage("x")])
