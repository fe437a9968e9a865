"""A type that cannot be stored is refused when its graph is registered, and not after a model or a
person has answered. What may work is not refused."""

from __future__ import annotations

import operator
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, Literal, Protocol, TypedDict, TypeVar

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage
from langgraph.channels import UntrackedValue
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

import perdure
from perdure.errors import Unserializable
from perdure.types import State
from tests.support.agents import driven, opened
from tests.support.journal_graphs import Scripted

T = TypeVar("T")
ANNOTATED: Any = Annotated
ON_MODULE_LEVEL = "is defined inside a function.*move it to module level"


class Verdict(BaseModel):
    good: bool


class Review(BaseModel):
    verdict: Verdict
    words: str


class Shape(Protocol):
    size: int


class Base(ABC):  # noqa: B024
    pass


class Plain:
    pass


def local_types() -> list[Any]:
    @dataclass
    class Point:
        x: int

    class Model(BaseModel):
        x: int

    class Color(Enum):
        RED = 1

    return [Point, Model, Color]


def graph_of(annotation: Any) -> Any:
    schema: Any = TypedDict("schema", {"it": annotation})
    builder: Any = StateGraph(schema)
    return builder.add_node("node", lambda state: {"it": None}).add_edge(START, "node")


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["dataclass", "model", "enum"])
@pytest.mark.parametrize(
    "inside",
    [
        lambda cls: cls,
        lambda cls: cls | None,
        list.__class_getitem__,
        lambda cls: dict.__class_getitem__((str, list.__class_getitem__(cls))),
        lambda cls: ANNOTATED[list.__class_getitem__(cls), operator.add],
    ],
    ids=["itself", "union", "list", "dict", "reducer"],
)
async def test_a_class_defined_inside_a_function_is_refused_at_registration(
    sqlite_url: str, kind: int, inside: Callable[[Any], Any]
) -> None:
    cls = local_types()[kind]
    async with opened(sqlite_url) as rt:
        with pytest.raises(
            Unserializable, match=f"'it' in the state of graph 'g'.*{ON_MODULE_LEVEL}"
        ):
            rt.register(graph_of(inside(cls)), name="g")
        assert rt.graphs == []


def passing() -> list[Any]:
    class Inner(TypedDict):
        x: int

    class Abstract(ABC):  # noqa: B024
        pass

    class Seen(Protocol):
        x: int

    class Box(Generic[T]):
        pass

    [point, *_] = local_types()
    return [
        *(
            Any,
            object,
            int,
            str | None,
            list[Any],
            dict[str, Any],
            Literal["a"],
            Callable[..., Any],
        ),
        *(Inner, list[Inner], Abstract, Seen, Box, Box[int], Base, Shape, Plain, Verdict),
        *(T, tuple[int, ...], type, None),
        Annotated[point, UntrackedValue],
    ]


@pytest.mark.parametrize("n", range(len(passing())))
def test_what_may_be_stored_is_not_refused(sqlite_url: str, n: int) -> None:
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(graph_of(passing()[n]), name="g")


def agent(response: Any) -> Any:
    call = {"name": "Review", "args": {"verdict": {"good": True}, "words": "fine"}, "id": "c1"}
    return create_agent(
        Scripted(responses=[AIMessage("", tool_calls=[call])]), [], response_format=response
    )


@pytest.mark.parametrize("wrap", [lambda cls: cls, ToolStrategy], ids=["type", "strategy"])
async def test_the_response_format_of_an_agent_is_allowed(sqlite_url: str, wrap: Any) -> None:
    async with opened(sqlite_url) as rt:
        run = await driven(rt, agent(wrap(Review)), {"messages": ["hi"]})
        done = await rt.get(run.id)
        assert done.state == State.DONE, done.error
        assert done.output["structured_response"] == Review(
            verdict=Verdict(good=True), words="fine"
        )


async def test_a_response_format_that_cannot_be_stored_is_refused_at_registration(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as rt:
        with pytest.raises(
            Unserializable, match=f"response_format of graph 'g'.*{ON_MODULE_LEVEL}"
        ):
            rt.register(agent(local_types()[1]), name="g")
