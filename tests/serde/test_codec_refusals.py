"""What cannot come back the same is refused when it enters, with the path to the part at fault."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, namedtuple
from pathlib import PosixPath, PurePosixPath
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

from perdure.errors import Error, TypeNotAllowed, Unserializable
from perdure.serde.serializer import DEEPEST, Serializer
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


@pytest.fixture
def codec() -> Serializer:
    mine = [Misnamed, Derived, MyPath, MyPurePath, Locked, Raises]
    return Serializer([*s.ALL, *mine, ("tests.serde.test_codec_refusals", "Local")])


def test_a_structure_that_contains_itself_is_refused(codec: Serializer) -> None:
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
    codec: Serializer, wrap: Any
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


def test_what_was_stored_near_the_limit_is_loaded_from_deep_in_the_stack(codec: Serializer) -> None:
    value: Any = 1
    for _ in range(DEEPEST - 1):
        value = s.Holder(value)
    data = codec.encode(value, "x")

    def deeper(n: int) -> Any:
        return deeper(n - 1) if n else codec.decode(data, "x")

    assert deeper(300) is not None


@pytest.mark.parametrize("value", [s.Text("a"), s.Number(1), s.Names(), s.Table(), s.Color.RED])
def test_a_subclass_of_a_builtin_is_never_silently_its_base(value: Any) -> None:
    with pytest.raises(TypeNotAllowed):
        Serializer().encode([value], "x")
    with pytest.raises(TypeNotAllowed):
        Serializer().encode({value if value.__hash__ else 1: value}, "x")


def test_allowing_a_type_later_is_enough() -> None:
    codec = Serializer()
    with pytest.raises(TypeNotAllowed):
        codec.encode(s.Frozen(1), "x")
    codec.allowlist.add([s.Frozen])
    assert codec.decode(codec.encode(s.Frozen(1), "x"), "x") == s.Frozen(1)


def test_a_nested_class_is_allowed_by_its_last_name_as_langgraph_gives_it() -> None:
    codec = Serializer([("tests.support.samples", "Inner")])
    assert codec.decode(codec.encode(s.Outer.Inner(1), "x"), "x") == s.Outer.Inner(1)


def test_two_parametrizations_that_are_called_the_same_are_refused_not_confused(
    codec: Serializer,
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
    codec: Serializer, pair: list[Any], path: str
) -> None:
    with pytest.raises(Unserializable) as told:
        codec.encode_pair(pair, "x")
    assert told.value.path == path
    with pytest.raises(Unserializable) as told:
        codec.encode({pair[0]: pair[1]}, "x")
    assert told.value.path == path


def test_allow_takes_classes_or_pairs_and_nothing_else() -> None:
    for wrong in ("tests.support.samples.Model", ("a", "b", "c"), s.Model(n=1), list[int]):
        with pytest.raises(Error, match="classes or"):
            Serializer([wrong])  # type: ignore[list-item]
