"""Classes that tests store, in a module of their own, so that another process finds them."""

from __future__ import annotations

import enum
import os
from collections import namedtuple
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, field_validator

T = TypeVar("T")
RAN: list[str] = []
"""What code of these classes ran."""


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)
    LIST = [1, 2]  # noqa: RUF012 (an enum's value, not a class attribute)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Mode(enum.StrEnum):
    FAST = "fast"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    y: Any = None


Old = namedtuple("Old", "a b")


class Checked(NamedTuple("Checked", [("n", int)])):
    def __new__(cls, n: int) -> Checked:
        RAN.append("Checked.__new__")
        return super().__new__(cls, n)


@dataclass
class Plain:
    name: str
    tags: list[Any] = field(default_factory=list)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        RAN.append("Plain.__post_init__")
        self.total = len(self.tags)


@dataclass(frozen=True)
class Frozen:
    x: int
    y: Any = None


@dataclass(slots=True)
class Slotted:
    x: int
    later: str = field(init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    x: int


@dataclass
class Beside:
    """Sets more than its fields."""

    x: int

    def __post_init__(self) -> None:
        self.doubled = 2 * self.x

    @cached_property
    def dear(self) -> int:
        RAN.append("dear")
        return self.x + 1


@dataclass
class Holder(Generic[T]):
    item: T


class Outer:
    @dataclass
    class Inner:
        n: int

    class Kind(enum.Enum):
        ONE = 1


class Model(BaseModel):
    n: int
    name: str = "none"
    deep: Any = None
    tags: list[str] = Field(default_factory=list)

    @field_validator("n")
    @classmethod
    def _seen(cls, value: int) -> int:
        RAN.append("Model.n")
        return value

    @cached_property
    def doubled(self) -> int:
        return 2 * self.n


class Forbids(Model):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int = 0


class Private(BaseModel):
    n: int
    _secret: str = PrivateAttr(default="s")
    _list: list[int] = PrivateAttr(default_factory=list)
    _unset: int = PrivateAttr()


class Aliased(BaseModel):
    kind: str = Field(alias="type")
    by: str = Field(validation_alias="author", serialization_alias="writer")


class Box(BaseModel, Generic[T]):
    item: T


IntBox = Box[int]


class Root(RootModel[list[int]]):
    pass


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Names(list[str]):
    owner: str


class Table(dict[Any, Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        RAN.append("Table.__init__")
        super().__init__(*args, **kwargs)


class Unknown(BaseModel):
    """Never in anybody's allowlist. Leaves a mark where the environment says when it is made."""

    n: int = 0

    def model_post_init(self, context: Any) -> None:
        leave_a_mark()


def leave_a_mark(*_: Any, **__: Any) -> None:
    with open(os.environ["PERDURE_TEST_MARK"], "w") as file:
        file.write("code ran")


ALL: list[type] = [
    Color, Level, Mode, Access, Bits, Point, Old, Checked, Plain, Frozen, Slotted, Sealed, Beside,
    Holder, Outer.Inner, Outer.Kind, Model, Forbids, Open, Private, Aliased, Box, Root,
    Text, Number, Real, Names, Table,
]  # fmt: skip
