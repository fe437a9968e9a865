"""What is too large or cannot be stored is refused before anything is acknowledged, by channel and
path, and what was stored before stays as it was and can be gone on from."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from perdure import Saver
from perdure.checkpoint.values import INLINE
from perdure.errors import Error, TooLarge, Unserializable
from tests.support.raw import LONG, config, put, values_of

Durability = Literal["auto", "sync", "async", "exit"]
LONE = "a\ud800"


class State(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    table: dict[Any, Any]
    one: Any


def graph_of(saver: Saver, *updates: Any) -> Any:
    """A graph whose nodes return these updates, one after the other."""
    builder = StateGraph(State)
    for n, update in enumerate(updates):
        builder.add_node(f"n{n}", lambda state, update=update: update)
        builder.add_edge(f"n{n - 1}" if n else START, f"n{n}")
    return builder.compile(checkpointer=saver)


# -- size


def test_a_state_over_the_limit_is_refused_and_the_thread_goes_on_from_its_last(url: str) -> None:
    with Saver(url, max_bytes=10_000) as saver:
        one = {"items": ["x" * 3_000]}
        for n in range(3):
            graph_of(saver, one).invoke({}, config())
            assert len(values_of(saver)["items"]) == n + 1
        with pytest.raises(TooLarge, match=r"thread 't'.*max_bytes") as told:
            graph_of(saver, one).invoke({}, config())
        assert told.value.size > told.value.limit == 10_000
        assert len(values_of(saver)["items"]) == 3
    with Saver(url, max_bytes=10_000) as saver:
        assert values_of(saver)["items"] == ["x" * 3_000] * 3
        graph_of(saver, {"items": ["small"]}).invoke({}, config())
        assert values_of(saver)["items"] == ["x" * 3_000] * 3 + ["small"]


def test_writes_over_the_limit_are_refused_and_those_before_stay(url: str) -> None:
    with Saver(url, max_bytes=10_000) as saver:
        where = put(saver, {"a": 1})
        saver.put_writes(where, [("a", "first")], "one")
        for wrong in ("x" * 20_000, ["x" * 6_000, "y" * 6_000], {"x": "z" * 20_000}):
            with pytest.raises(TooLarge, match=r"task two .*thread 't'"):
                saver.put_writes(where, [("a", "small"), ("b", wrong)], "two")
        saver.put_writes(where, [("a", "third")], "three")
        found = saver.get_tuple(config())
        assert found is not None
        assert found.pending_writes == [("one", "a", "first"), ("three", "a", "third")]


# -- what cannot be stored


@pytest.mark.parametrize("langgraph", ["sync", "async", "exit"])
@pytest.mark.parametrize("durability", ["auto", "sync", "async", "exit"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_a_node_returns_and_cannot_be_stored_is_told_to_the_caller(
    sqlite_url: str, durability: Durability, langgraph: str, colour: str
) -> None:
    with Saver(sqlite_url, durability) as saver:
        graph_of(saver, {"items": ["good"], "one": 1}).invoke({}, config())
        graph = graph_of(saver, {"items": ["new"]}, {"one": [len]}, {"items": ["never"]})

        def invoke() -> Any:
            if colour == "sync":
                return graph.invoke({}, config(), durability=langgraph)
            return asyncio.run(graph.ainvoke({}, config(), durability=langgraph))

        with pytest.raises(Unserializable, match=r"one\[0\] cannot be stored") as told:
            invoke()
        assert told.value.path.endswith("one[0]")
    with Saver(sqlite_url) as saver:
        found = values_of(saver)
        assert found["one"] == 1
        assert found["items"] in (["good"], ["good", "new"])


@pytest.mark.parametrize("key", ["f", "n"])
def test_metadata_that_cannot_be_stored_is_named_as_such(url: str, key: str) -> None:
    wrong = {"f": len, "n": 2**64}[key]
    with Saver(url) as saver:
        with pytest.raises(Unserializable) as told:
            put(saver, {"a": 1}, metadata={"source": "update", key: wrong})
        assert f"metadata['{key}']" in told.value.path
        assert saver.get_tuple(config()) is None


def test_a_refused_put_in_the_middle_does_not_corrupt_the_next(url: str) -> None:
    """What a saver remembers of the last checkpoint moves while the next is being stored."""
    with Saver(url, max_bytes=20_000) as saver:
        items: list[Any] = [f"{n} {LONG}" for n in range(5)]
        where = put(saver, {"items": items, "other": list(items)})
        for wrong in (len, "x" * 30_000):
            with pytest.raises(Error):  # the first channel is done when the second is refused
                put(
                    saver,
                    {"items": [*items, "lost"], "other": [*items, wrong]},
                    parent=where,
                )
            items = [*items, f"kept {len(items)} {LONG}"]
            where = put(saver, {"items": items, "other": items[1:]}, parent=where)
            assert values_of(saver) == {"items": items, "other": items[1:]}
    with Saver(url) as saver:
        assert values_of(saver) == {"items": items, "other": items[1:]}
        assert len(list(saver.list(config()))) == 3


# -- names


@pytest.mark.parametrize("bad", ["a\x00b", LONE], ids=["NUL", "surrogate"])
def test_names_that_a_database_cannot_hold_are_refused_by_every_method(url: str, bad: str) -> None:
    with Saver(url) as saver:
        good = put(saver, {"a": 1})
        for where in (config(bad), config("t", bad), config("t", "", bad)):
            with pytest.raises(Unserializable):
                saver.get_tuple(where)
            with pytest.raises(Unserializable):
                put(saver, {"a": 1}, parent=where)
            with pytest.raises(Unserializable):
                list(saver.list(where))
        with pytest.raises(Unserializable):
            list(saver.list(config(), before=config("t", "", bad)))
        for writes, task, path in (
            ([("a", 1)], bad, ""),
            ([("a", 1)], "task", bad),
            ([(bad, 1)], "task", ""),
        ):
            with pytest.raises(Unserializable):
                saver.put_writes(good, writes, task, path)
        for values in ({bad: 1}, {bad: LONG}, {bad: [LONG]}):
            with pytest.raises(Unserializable):
                put(saver, values)
        with pytest.raises(Unserializable):
            saver.delete_thread(bad)
        with pytest.raises(Unserializable):
            saver.prune([bad])
        with pytest.raises(Unserializable):
            saver.delete_for_runs([bad])
        with pytest.raises(Unserializable):
            saver.copy_thread("t", bad)
        saver.flush()  # nothing that was refused is in the queue
        assert values_of(saver) == {"a": 1}


def test_a_thread_id_that_is_not_text_is_its_text_as_in_langgraph(url: str) -> None:
    with Saver(url) as saver:
        graph = graph_of(saver, {"items": ["x"]})
        graph.invoke({}, config(7))
        assert values_of(saver, config("7"))["items"] == ["x"]
        graph.invoke({}, config("7"))
        assert len(graph.get_state(config(7)).values["items"]) == 2
        saver.delete_thread(7)  # type: ignore[arg-type]
        assert saver.get_tuple(config(7)) is None


# -- shapes of a state


def test_empty_values_stay_what_they_are(url: str) -> None:
    empty: dict[str, Any] = {
        "a": [],
        "b": {},
        "c": "",
        "d": b"",
        "e": (),
        "f": None,
        "g": set(),
        "h": [[]],
        "": {},
    }
    full = {"a": [LONG], "b": {"k": LONG}, "c": LONG, "d": b"x", "e": (1,), "f": 1}
    with Saver(url) as saver:
        where: Any = None
        for values in (empty, full, empty, {}, full):
            where = put(saver, values, parent=where)
            assert values_of(saver) == values
        with Saver(url) as other:
            assert [t.checkpoint["channel_values"] for t in other.list(config())] == [
                full, {}, empty, full, empty,
            ]  # fmt: skip


@pytest.mark.parametrize("size", range(INLINE - 5, INLINE + 4))
def test_values_around_the_inline_limit_come_back_when_they_grow_and_shrink(
    sqlite_url: str, size: int
) -> None:
    def values(n: int) -> dict[str, Any]:
        text = "x" * n
        return {"text": text, "list": [text], "dict": {"k": text}, "bytes": text.encode()}

    with Saver(sqlite_url) as saver:
        where: Any = None
        for n in (size, size + 1, size, size - 1, size):
            where = put(saver, values(n), parent=where)
            assert values_of(saver) == values(n)
            with Saver(sqlite_url) as other:
                assert values_of(other) == values(n)
