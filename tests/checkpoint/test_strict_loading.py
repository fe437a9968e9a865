"""Only types of the graph's schemas, and those the user adds, are stored and loaded. A row that
names anything else is an error, runs nothing, and is never handed out as plain data."""

from __future__ import annotations

import operator
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from langgraph.graph import START, StateGraph

from perdure import Saver
from perdure.checkpoint.values import RowKind
from perdure.errors import Damaged, TypeNotAllowed
from perdure.serde.serializer import BUILTIN, KNOWN_TYPE, OBJECT, PAIRS, Serializer
from tests.checkpoint.forged import forge_state, forge_value, forge_writes
from tests.support import samples as s
from tests.support.raw import LONG, config, put
from tests.support.sqlite_only import url as url


class State(TypedDict, total=False):
    model: s.Model
    holders: Annotated[list[s.Plain], operator.add]
    by_color: dict[s.Color, s.Outer.Inner | None]
    mode: s.Mode
    anything: Any


def build(saver: Saver, update: dict[str, Any]) -> Any:
    builder = StateGraph(State)
    builder.add_node("node", lambda state: update)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


UPDATE = {
    "model": s.Model(n=1, deep=[s.Mode.FAST]),
    "holders": [s.Plain("a", [1])],
    "by_color": {s.Color.RED: s.Outer.Inner(2)},
    "mode": s.Mode.FAST,
}


def ext(code: int, body: Any) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(body)))


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists if code of a forged row ran."""
    mark = tmp_path / "mark"
    monkeypatch.setenv("PERDURE_TEST_MARK", str(mark))
    return mark


# -- where the allowlist comes from


def test_the_types_of_the_schema_are_allowed_by_themselves(url: str) -> None:
    with Saver(url) as saver:
        graph = build(saver, UPDATE)
        graph.invoke({}, config())
    with Saver(url) as saver:
        assert build(saver, {}).get_state(config()).values == UPDATE


def test_a_saver_that_no_graph_told_its_types_refuses_to_load_them(url: str) -> None:
    with Saver(url) as saver:
        build(saver, UPDATE).invoke({}, config())
    with Saver(url) as saver, pytest.raises(TypeNotAllowed, match=r"samples\.\w+.*allow="):
        saver.get_tuple(config())


def test_langgraph_still_tells_a_saver_the_types_of_a_graph(sqlite_url: str) -> None:
    told: set[tuple[str, ...]] = set()

    class Listening(Saver):
        def with_allowlist(self, extra_allowlist: Any) -> Saver:
            told.update(extra_allowlist)
            return super().with_allowlist(extra_allowlist)

    with Listening(sqlite_url) as saver:
        build(saver, {})
    assert {("tests.support.samples", "Model"), ("tests.support.samples", "Inner")} <= told


@pytest.mark.slow
def test_a_subgraph_compiled_before_there_was_a_saver_has_its_types_allowed_too(
    sqlite_url: str,
) -> None:
    child = f"""
        from typing import TypedDict
        from langgraph.graph import START, StateGraph
        from perdure import Saver
        from tests.support import samples as s
        class Inner(TypedDict, total=False):
            own: s.Frozen
        class Outer(TypedDict, total=False):
            n: int
        inner = StateGraph(Inner)
        inner.add_node("node", lambda state: {{"own": s.Frozen(1)}})
        inner.add_edge(START, "node")
        outer = StateGraph(Outer)
        outer.add_node("inner", inner.compile())
        outer.add_edge(START, "inner")
        with Saver({sqlite_url!r}) as saver:
            outer.compile(checkpointer=saver).invoke(
                {{"n": 1}}, {{"configurable": {{"thread_id": "t"}}}}
            )
            print("stored")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(child)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "stored\n", done.stderr[-600:]


# -- forged rows


@pytest.mark.parametrize("place", ["inline", "metadata", "list", "dict", "write", "odd key"])
def test_a_forged_type_is_refused_wherever_it_is(url: str, mark: Path, place: str) -> None:
    evil = ext(OBJECT, ["tests.support.samples", "Unknown", [{"n": 1}]])
    with Saver(url) as saver:
        where = put(saver, {"x": LONG, "small": 1})
        saver.put_writes(where, [("x", 1)], "task")
    if place in ("inline", "metadata"):
        index, key = (7, "small") if place == "inline" else (6, "source")
        value: Any = evil if place == "inline" else ormsgpack.Ext(*_unpacked(evil))

        def change(data: bytes) -> bytes:
            state = Serializer().decode(data, "x")
            state[index][key] = value
            return ormsgpack.packb(state)

        forge_state(url, change)
    elif place == "write":
        forge_writes(url, lambda data: ormsgpack.packb(["", [[0, "x", False, [evil]]]]))
    elif place == "odd key":
        forge_value(url, ext(PAIRS, [[ormsgpack.Ext(*_unpacked(evil)), 1]]))
    else:
        forge_value(url, ormsgpack.packb([evil]), RowKind.LIST if place == "list" else RowKind.DICT)
    with (
        Saver(url) as saver,
        pytest.raises(TypeNotAllowed, match=r"tests\.support\.samples\.Unknown"),
    ):
        saver.get_tuple(config())
    assert not mark.exists()


def _unpacked(data: bytes) -> tuple[int, bytes]:
    found: list[tuple[int, bytes]] = []
    ormsgpack.unpackb(data, ext_hook=lambda code, body: found.append((code, body)))
    return found[0]


GARBAGE = [
    b"", b"\xc1", b"\x92\x01", b"\xdd\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xa1\xff",
    ext(0, 1), ext(9, b""), ext(127, None), ext(BUILTIN, ["?", 1]), ext(BUILTIN, 1),
    ext(BUILTIN, ["d", ["x", None, 0]]), ext(BUILTIN, ["a", ["O", [1], "C", b"12345678", False]]),
    ext(BUILTIN, ["a", ["<i8", [9], "C", b"", False]]), ext(BUILTIN, ["r", ["(", 0]]),
    ext(BUILTIN, ["Z", "../../etc/passwd"]), ext(BUILTIN, ["e", ["eval", {}]]),
    ext(KNOWN_TYPE, [999, [{}]]), ext(KNOWN_TYPE, [0, 1]), ext(KNOWN_TYPE, [0, [1]]),
    ext(KNOWN_TYPE, [16, [{"__class__": 1}]]), ext(PAIRS, [[[], 1]]), ext(PAIRS, [1]),
    ext(OBJECT, 1), ext(OBJECT, ["tests.support.samples", "Model", [{"m": 1}]]),
]  # fmt: skip


@pytest.mark.parametrize("data", GARBAGE, ids=lambda one: type(one).__name__)
def test_garbage_with_a_right_checksum_is_damaged(url: str, data: bytes) -> None:
    with Saver(url) as saver:
        put(saver, {"x": LONG})
    forge_value(url, data)
    with Saver(url, allow=[s.Model]) as saver, pytest.raises(Damaged, match="thread 't'"):
        saver.get_tuple(config())


# -- damage
