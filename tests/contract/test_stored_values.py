"""Values come back the same, or are refused by name; what was damaged or forged is an error."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import threading
import time
import warnings
import zoneinfo
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import PosixPath, PurePosixPath
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, PrivateAttr

from perdure import Saver
from perdure.errors import TypeNotAllowed, Unserializable
from tests.support import samples as s
from tests.support.raw import config, put, values_of


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


def test_no_constructor_validator_or_post_init_runs(sqlite_url: str) -> None:
    values = [s.Plain("a"), s.Model(n=1), s.Table(a=1), s.Checked(1), s.Beside(1)]
    with Saver(sqlite_url, allow=s.ALL) as saver:
        put(saver, {"x": values})
    s.RAN.clear()
    with Saver(sqlite_url, allow=s.ALL) as saver:
        loaded = values_of(saver)["x"]
    assert s.RAN == []
    assert same(loaded, values)


ATOMS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
    | st.binary(max_size=9) | st.text(max_size=9) | st.decimals()
    | st.uuids() | st.dates() | st.timedeltas()
    | st.datetimes(timezones=st.none() | st.just(dt.UTC)) | st.sampled_from([*s.Color, *s.Level])
)  # fmt: skip


KEYS = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5)
    | st.booleans() | st.floats(allow_nan=False) | st.sampled_from([*s.Mode, *s.Level]),
    lambda inner: st.tuples(inner, inner) | st.builds(s.Frozen, st.integers(0, 9), inner),
    max_leaves=3,
)  # fmt: skip


VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(s.Point, st.integers(0, 9), inner)
        | st.builds(s.Frozen, st.integers(0, 9), inner)
        | st.builds(s.Model, n=st.integers(0, 9), deep=inner)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def savers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Saver, Saver]]:
    """One that stores, and one that has nothing in its memory."""
    url = f"sqlite:///{tmp_path_factory.mktemp('values')}/journal.db?synchronous=normal"
    with Saver(url, allow=s.ALL) as one, Saver(url, allow=s.ALL) as other:
        yield one, other


@given(VALUES)
def test_any_nested_value_comes_back_the_same(savers: tuple[Saver, Saver], value: Any) -> None:
    one, other = savers
    thread = str(uuid4())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Decimal's sNaN
        put(one, {"x": value}, thread)
        loaded = values_of(other, config(thread))["x"]
    assert repr(loaded) == repr(value)


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


HERE = "tests.contract.test_stored_values"
ALLOWED: list[Any] = [
    *s.ALL,
    *(Misnamed, Derived, MyPath, MyPurePath, Locked, Raises),
    (HERE, "Local"),
]


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED, ids=[r[1] + r[2] for r in REFUSED])
def test_a_value_that_cannot_be_stored_is_named_with_its_path(
    sqlite_url: str, value: Any, path: str, reason: str
) -> None:
    with Saver(sqlite_url, allow=ALLOWED) as saver:
        with pytest.raises(Unserializable) as refused:
            put(saver, {"x": value})
        assert refused.value.path == path
        assert reason in refused.value.reason
        with pytest.raises(Unserializable) as refused:
            put(saver, {"channel": {"in": [value], 1: 2}})
        assert refused.value.path.startswith("channel['in'][0]")
        assert saver.get_tuple(config()) is None


def test_an_unknown_type_is_refused_by_name_and_says_how_to_allow_it(sqlite_url: str) -> None:
    with Saver(sqlite_url) as saver:
        with pytest.raises(TypeNotAllowed) as refused:
            put(saver, {"x": {"a": [s.Outer.Inner(1)]}})
        error = refused.value
        assert (error.module, error.name) == ("tests.support.samples", "Outer.Inner")
        assert error.where == "x['a'][0]"
        assert "allow=[Outer.Inner]" in str(error)
        assert saver.get_tuple(config()) is None
