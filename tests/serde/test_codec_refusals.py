"""What cannot come back the same is refused when it enters, with the path to the part at fault."""

from __future__ import annotations

import decimal
import math
import threading
import time
import zoneinfo
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, PrivateAttr

from perdure.errors import Error, TypeNotAllowed, Unserializable
from perdure.serde.codec import DEEPEST, Codec
from tests.support import samples as s

LONE = "a\ud800b"
Misnamed = namedtuple("NotMisnamed", "a")  # type: ignore[name-match] # on purpose


class Derived(OrderedDict[str, int]):
    pass


class MyPath(PosixPath):
    pass


class MyPurePath(PurePosixPath):
    pass


class Locked(BaseModel):
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


class Raises(s.Model):
    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise RuntimeError("not now")
        return super().__getattribute__(name)


def local() -> Any:
    @dataclass
    class Local:
        n: int = 1

    return Local()


def keyless_zone() -> zoneinfo.ZoneInfo:
    with resources.files("tzdata.zoneinfo").joinpath("UTC").open("rb") as file:
        return zoneinfo.ZoneInfo.from_file(file)


def lacking() -> s.Model:
    model = s.Model(n=1)
    del model.__dict__["n"]
    return model


REFUSED: list[tuple[Any, str, str]] = [
    (time.sleep, "x", "builtin_function_or_method is neither"),
    (lambda: 1, "x", "function is neither"),
    (threading.Lock(), "x", "lock is neither"),
    ((n for n in "ab"), "x", "generator is neither"),
    ([1, {"a": (2, threading.Lock())}], "x[1]['a'][1]", "lock is neither"),
    (int, "x", "is a class, not a value"),
    (s.Model, "x", "is a class, not a value"),
    (object(), "x", "object is neither"),
    (ValueError("no"), "x", "ValueError is neither"),
    (UserDict(), "x", "UserDict is neither"),
    (local(), "x", "is defined inside a function"),
    (Misnamed(1), "x", "cannot be found again"),
    (type("Dynamic", (s.Model,), {})(n=1), "x", "cannot be found again"),
    (Derived(a=1), "x", "Derived is neither"),
    (MyPath("a"), "x", "MyPath is neither"),
    (MyPurePath("a"), "x", "MyPurePath is neither"),
    (defaultdict(lambda: 1), "x", "a defaultdict can be stored with list"),
    (keyless_zone(), "x", "without a key"),
    (LONE, "x", "lone surrogate"),
    ([{"a": LONE}], "x[0]['a']", "lone surrogate"),
    ({LONE: 1}, "x (key 'a\\ud800b')", "lone surrogate"),
    ({1: {LONE: 1}}, "x[1] (key 'a\\ud800b')", "lone surrogate"),
    (PurePosixPath(LONE), "x", "lone surrogate"),
    (HumanMessage(LONE), "x.content", "lone surrogate"),
    (AIMessage("", additional_kwargs={"a": [LONE]}), "x.additional_kwargs['a'][0]", "lone"),
    (ToolMessage("", tool_call_id="1", artifact={LONE}), "x.artifact[0]", "lone surrogate"),
    ([HumanMessage("", more=LONE)], "x[0].more", "lone surrogate"),
    (s.Text(LONE), "x[0]", "lone surrogate"),
    ({math.nan: 1}, "x", "a key is NaN"),
    ({(1, math.nan): 1}, "x", "a key is NaN"),
    ({decimal.Decimal("NaN"): 1}, "x", "a key is NaN"),
    ({complex(math.nan): 1}, "x", "a key is NaN"),
    ({"a": {frozenset({math.nan}): 1}}, "x['a']", "a key is NaN"),
    (2**64, "x", "over 64 bits"),
    ([-(2**63) - 1], "x[0]", "over 64 bits"),
    ({2**64: 1}, "x (key 18446744073709551616)", "over 64 bits"),
    ({"a": ({2**70},)}, "x['a'][0][0]", "over 64 bits"),
    (s.Model(n=2**64), "x.n", "over 64 bits"),
    (s.Plain("a", [s.Frozen(2**64)]), "x.tags[0].x", "over 64 bits"),
    (s.Point(1, s.Holder(LONE)), "x.y.item", "lone surrogate"),
    (Locked(), "x._lock", "lock is neither"),
    (s.Open.model_validate({"more": [len]}), "x.more[0]", "is neither"),
    (lacking(), "x", "it lacks its own field 'n'"),
    (Raises(n=1), "x", "RuntimeError: not now"),
    (np.array([None]), "x", "a numpy array of Python objects"),
    (np.array([(1, None)], [("a", "i4"), ("b", "O")]), "x", "a numpy array of Python objects"),
    ({"m": np.ma.masked_array([1])}, "x['m']", "MaskedArray is neither"),
    (np.array([(1,)], [("a", "i4")]).view(np.recarray), "x", "recarray is neither"),
]


@pytest.fixture
def codec() -> Codec:
    mine = [Misnamed, Derived, MyPath, MyPurePath, Locked, Raises]
    return Codec([*s.ALL, *mine, ("tests.serde.test_codec_refusals", "Local")])


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED, ids=[r[1] + r[2] for r in REFUSED])
def test_a_value_that_cannot_be_stored_is_named_with_its_path(
    codec: Codec, value: Any, path: str, reason: str
) -> None:
    with pytest.raises(Unserializable) as told:
        codec.encode(value, "x")
    assert told.value.path == path
    assert reason in told.value.reason
    with pytest.raises(Unserializable) as told:
        codec.encode({"in": [value], 1: 2}, "channel")
    assert told.value.path.startswith("channel['in'][0]")


def test_a_structure_that_contains_itself_is_refused(codec: Codec) -> None:
    knot: list[Any] = [1]
    knot.append({"a": knot})
    with pytest.raises(Unserializable, match=r"^x\[1\]\['a'\] .*contains itself"):
        codec.encode(knot, "x")
    model = s.Model(n=1)
    model.deep = [model]
    with pytest.raises(Unserializable, match=r"^x\.deep\[0\] .*contains itself"):
        codec.encode(model, "x")
    odd: dict[int, Any] = {}
    odd[1] = s.Holder((odd,))
    with pytest.raises(Unserializable, match=r"^x\[1\]\.item\[0\] .*contains itself"):
        codec.encode(odd, "x")


@pytest.mark.parametrize(
    "wrap",
    [lambda v: [v], lambda v: {"a": v}, lambda v: {1: v}, lambda v: (v,), s.Holder, s.Frozen],
    ids=["list", "dict", "odd dict", "tuple", "dataclass", "frozen"],
)
def test_nesting_is_refused_when_it_is_too_deep_and_what_is_not_refused_can_be_loaded(
    codec: Codec, wrap: Any
) -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = wrap(value)
        return value

    assert codec.decode(codec.encode(nested(DEEPEST - 1), "x"), "x") is not None
    for depth in (DEEPEST + 100, 1_000, 20_000):
        with pytest.raises(Unserializable, match="nested"):
            codec.encode(nested(depth), "x")


def test_what_was_stored_near_the_limit_is_loaded_from_deep_in_the_stack(codec: Codec) -> None:
    value: Any = 1
    for _ in range(DEEPEST - 1):
        value = s.Holder(value)
    data = codec.encode(value, "x")

    def deeper(n: int) -> Any:
        return deeper(n - 1) if n else codec.decode(data, "x")

    assert deeper(300) is not None


def test_an_unknown_type_is_refused_by_name_and_says_how_to_allow_it() -> None:
    with pytest.raises(TypeNotAllowed) as told:
        Codec().encode({"a": [s.Outer.Inner(1)]}, "x")
    error = told.value
    assert (error.module, error.name) == ("tests.support.samples", "Outer.Inner")
    assert error.where == "x['a'][0]"
    assert "allow=[Outer.Inner]" in str(error)


def test_an_unknown_type_inside_an_allowed_one_is_refused(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERDURE_TEST_MARK", str(tmp_path / "mark"))
    marked = s.Unknown()
    with pytest.raises(TypeNotAllowed, match=r"x\.deep\[1\].*tests\.support\.samples\.Unknown"):
        codec.encode(s.Model(n=1, deep=[1, marked]), "x")


@pytest.mark.parametrize("value", [s.Text("a"), s.Number(1), s.Names(), s.Table(), s.Color.RED])
def test_a_subclass_of_a_builtin_is_never_silently_its_base(value: Any) -> None:
    with pytest.raises(TypeNotAllowed):
        Codec().encode([value], "x")
    with pytest.raises(TypeNotAllowed):
        Codec().encode({value if value.__hash__ else 1: value}, "x")


def test_allowing_a_type_later_is_enough() -> None:
    codec = Codec()
    with pytest.raises(TypeNotAllowed):
        codec.encode(s.Frozen(1), "x")
    codec.allowlist.add([s.Frozen])
    assert codec.decode(codec.encode(s.Frozen(1), "x"), "x") == s.Frozen(1)


def test_a_nested_class_is_allowed_by_its_last_name_as_langgraph_gives_it() -> None:
    codec = Codec([("tests.support.samples", "Inner")])
    assert codec.decode(codec.encode(s.Outer.Inner(1), "x"), "x") == s.Outer.Inner(1)


def test_two_parametrizations_that_are_called_the_same_are_refused_not_confused(
    codec: Codec,
) -> None:
    class Twin(BaseModel):
        pass

    def other() -> type[BaseModel]:
        class Twin(BaseModel):
            pass

        return Twin

    first: Any = s.Box[Twin]
    second: Any = s.Box[other()]  # type: ignore[misc]
    assert first is not second
    with pytest.raises(Unserializable, match="cannot be found again"):
        codec.encode(first.model_construct(item=1), "x")


@pytest.mark.parametrize(
    ("pair", "path"),
    [
        (["k", [1, LONE]], "x['k'][1]"),
        ([LONE, 1], "x (key 'a\\ud800b')"),
        ([2**64, 1], "x (key 18446744073709551616)"),
        ([math.nan, 1], "x"),
        ([(1, math.nan), 1], "x"),
        ([s.Level.LOW, {"a": {1: len}}], "x[<Level.LOW: 1>]['a'][1]"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_one_pair_of_a_dict_is_refused_as_the_dict_would_be(
    codec: Codec, pair: list[Any], path: str
) -> None:
    with pytest.raises(Unserializable) as told:
        codec.encode_pair(pair, "x")
    assert told.value.path == path
    with pytest.raises(Unserializable) as told:
        codec.encode({pair[0]: pair[1]}, "x")
    assert told.value.path == path


def test_one_pair_of_a_dict_comes_back(codec: Codec) -> None:
    for pair in (["k", 1], [(1, 2), {"a": 1}], [None, {1: s.Frozen(2)}]):
        assert codec.decode(codec.encode_pair(pair, "x"), "x") == pair


def test_allow_takes_classes_or_pairs_and_nothing_else() -> None:
    for wrong in ("tests.support.samples.Model", ("a", "b", "c"), s.Model(n=1), list[int]):
        with pytest.raises(Error, match="classes or"):
            Codec([wrong])  # type: ignore[list-item]
