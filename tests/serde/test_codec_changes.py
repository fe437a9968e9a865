"""A class may change under what was stored: new fields get defaults, or an error says why not."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr

from perdure.errors import Damaged
from perdure.serde.serializer import Serializer
from tests.support import samples as s

CODEC = Serializer(s.ALL)
Become = Callable[[type, type], None]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Put a new version of a class in the place of the old."""

    def become(old: type, new: type) -> None:
        new.__module__, new.__qualname__ = old.__module__, old.__qualname__
        monkeypatch.setattr(sys.modules[old.__module__], old.__name__, new)

    return become


def loaded(data: bytes) -> Any:
    return Serializer(s.ALL).decode(data, "channel 'x' of thread 't'")


def test_a_dataclass_gets_the_defaults_of_new_fields_and_loses_removed_ones(
    become: Become,
) -> None:
    data = CODEC.encode(s.Plain("a", [1]), "x")

    @dataclass
    class Plain:
        name: str
        mood: str = "calm"
        total: int = field(init=False, default=0)

    become(s.Plain, Plain)
    again = loaded(data)
    assert type(again) is Plain
    assert (again.name, again.mood, again.total) == ("a", "calm", 1)
    assert not hasattr(again, "tags")


def test_a_dataclass_whose_field_was_renamed_says_so(become: Become) -> None:
    data = CODEC.encode(s.Frozen(1), "x")

    @dataclass(frozen=True)
    class Frozen:
        z: int
        y: Any = None

    become(s.Frozen, Frozen)
    with pytest.raises(Damaged, match=r"thread 't'.*samples\.Frozen has other fields.*'z'"):
        loaded(data)


def test_a_model_gets_the_defaults_of_new_fields_and_keeps_which_were_set(become: Become) -> None:
    model = s.Private(n=1)
    model._secret = "kept"
    data = CODEC.encode(model, "x")

    class Private(BaseModel):
        n: int
        more: list[int] = Field(default_factory=lambda: [7])
        _secret: str = PrivateAttr(default="s")
        _new: int = PrivateAttr(default=3)

    become(s.Private, Private)
    again = loaded(data)
    assert (again.n, again.more, again._secret, again._new) == (1, [7], "kept", 3)
    assert again.model_fields_set == {"n"}


def test_a_model_whose_field_was_renamed_is_read_through_an_alias(become: Become) -> None:
    data = CODEC.encode(s.Model(n=5), "x")

    class Model(BaseModel):
        number: int = Field(validation_alias=AliasChoices("number", "n"))

    become(s.Model, Model)
    assert loaded(data).number == 5


@pytest.mark.parametrize("extra", ["ignore", "forbid"])
def test_a_model_that_cannot_take_the_old_fields_says_so(become: Become, extra: Any) -> None:
    data = CODEC.encode(s.Model(n=5), "x")

    class Model(BaseModel):
        model_config = ConfigDict(extra=extra)
        number: int

    become(s.Model, Model)
    with pytest.raises(Damaged, match=r"thread 't'.*samples\.Model has other fields.*number"):
        loaded(data)


def test_a_namedtuple_gets_new_defaults(become: Become) -> None:
    data = CODEC.encode(s.Point(1, 2), "x")

    class Point(NamedTuple):
        x: int
        z: int = 9

    become(s.Point, Point)
    assert loaded(data) == (1, 9)


def test_an_enum_that_lost_a_member_says_which(become: Become) -> None:
    data = CODEC.encode([s.Color.RED], "x")

    class Color(enum.Enum):
        BLUE = "blue"

    become(s.Color, Color)
    with pytest.raises(Damaged, match=r"'red' is not a valid .*Color"):
        loaded(data)


def test_a_class_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CODEC.encode([s.Frozen(1), s.Outer.Inner(1)], "x")
    monkeypatch.delattr(s, "Frozen")
    with pytest.raises(
        Damaged, match=r"thread .t.*samples\.Frozen no longer exists .*Bring the class back"
    ):
        loaded(data)


def test_a_class_that_became_something_else_is_named(become: Become) -> None:
    data = CODEC.encode(s.Frozen(1), "x")

    class Frozen:
        pass

    become(s.Frozen, Frozen)
    with pytest.raises(Damaged, match=r"Frozen can no longer be deserialised: Frozen is neither"):
        loaded(data)
