"""Chunks as v1 events: messages as received so far, ids, resuming, and what is replaced."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolCallChunk
from langgraph.types import Interrupt

from perdure.server.agent_api.run_events import (
    COMPLETE,
    METADATA,
    PARTIAL,
    Position,
    RunEvents,
    WireEvent,
    modes_of,
    parse_filter,
    parse_position,
    without_interrupts,
)
from perdure.server.errors import ApiError
from perdure.types import Chunk

AT = datetime(2026, 11, 17, tzinfo=UTC)
ABOUT = {"langgraph_node": "chat"}


def chunk(n: int, mode: str, data: Any = None, ns: tuple[str, ...] = (), **more: Any) -> Chunk:
    return Chunk(n, mode, ns, data, AT, **more)


def piece(n: int, text: str, id: str = "m1", *, last: bool = False) -> Chunk:
    message = AIMessageChunk(content=text, id=id, chunk_position="last" if last else None)
    return chunk(n, "messages", (message, ABOUT))


def told(events: list[WireEvent]) -> list[tuple[str, str, Any]]:
    """Ids, names and data, with a message as its text."""

    def text(data: Any) -> Any:
        return data[0].text if isinstance(data, list) else data

    return [(str(one.position), one.name, text(one.data)) for one in events]


def events_of(chunks: list[Chunk], *modes: str, **options: Any) -> list[WireEvent]:
    source = RunEvents("r", modes, **options)
    return [event for one in chunks for event in source.feed(one)]


def test_a_streamed_message_is_sent_as_received_so_far() -> None:
    events = events_of([piece(1, "he"), piece(2, "llo"), piece(3, "", last=True)], "messages")
    assert told(events) == [
        ("1", METADATA, {"m1": {"metadata": ABOUT}}),
        ("1-1", PARTIAL, "he"),
        ("2", PARTIAL, "hello"),
        ("3", PARTIAL, "hello"),
    ]
    assert events[-1].data[0].type == "ai"


def test_a_message_that_was_not_streamed_is_complete() -> None:
    events = events_of([chunk(1, "messages", (HumanMessage("hi", id="h"), ABOUT))], "messages")
    assert told(events) == [
        ("1", METADATA, {"h": {"metadata": ABOUT}}),
        ("1-1", COMPLETE, "hi"),
    ]


def test_tool_calls_are_joined_from_their_pieces() -> None:
    def call(n: int, args: str, name: str | None = None, id: str | None = None) -> Chunk:
        one = ToolCallChunk(name=name, args=args, id=id, index=0, type="tool_call_chunk")
        message = AIMessageChunk(content="", id="m1", tool_call_chunks=[one])
        return chunk(n, "messages", (message, ABOUT))

    events = events_of([call(1, '{"a"', "add", "c1"), call(2, ": 1}")], "messages")
    assert events[-1].data[0].tool_calls == [
        {"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
    ]


def test_a_subgraph_is_named_in_its_events_except_those_of_messages() -> None:
    inside = ("sub:1",)
    message = (AIMessageChunk(content="x", id="m"), ABOUT)
    chunks = [chunk(1, "updates", {}, inside), chunk(2, "messages", message, inside)]
    modes = ("updates", "messages", "messages-tuple")
    names = [one.name for one in events_of(chunks, *modes, subgraphs=True)]
    assert names == ["updates|sub:1", "messages|sub:1", METADATA, PARTIAL]
    assert not events_of(chunks, *modes)


def test_a_replacing_segment_says_what_is_void_and_starts_its_messages_afresh() -> None:
    chunks = [
        piece(1, "kept", "m0", last=True),
        piece(2, "lo"),
        chunk(3, "segment", replaces_from=2),
        piece(4, "lo", "m2"),
        piece(5, "st", "m2", last=True),
    ]
    events = told(events_of(chunks, "messages"))
    void = {"run_id": "r", "attempt": 2, "replaces_from": 2}
    assert events[4:] == [
        ("3", "metadata", void),
        ("4", METADATA, {"m2": {"metadata": ABOUT}}),
        ("4-1", PARTIAL, "lo"),
        ("5", PARTIAL, "lost"),
    ]


def test_a_message_with_the_same_id_is_not_continued_after_it_became_void() -> None:
    chunks = [piece(1, "lo"), chunk(2, "segment", replaces_from=1), piece(3, "lost", last=True)]
    assert told(events_of(chunks, "messages"))[-1] == ("3-1", PARTIAL, "lost")


@given(
    texts=st.lists(st.text(max_size=5), min_size=1, max_size=12),
    ids=st.lists(st.sampled_from(["a", "b", "c"]), min_size=12, max_size=12),
    cut=st.integers(0, 60),
)
def test_a_reader_that_resumes_anywhere_gets_exactly_the_later_events(
    texts: list[str], ids: list[str], cut: int
) -> None:
    chunks = [piece(n, text, ids[n - 1]) for n, text in enumerate(texts, 1)]
    modes = ("messages", "messages-tuple")
    whole = events_of(chunks, *modes)
    seen = whole[: cut % (len(whole) + 1)]
    position = parse_position(str(seen[-1].position)) if seen else Position(0)
    assert position is not None
    behind = [one for one in events_of(chunks, *modes) if one.position > position]
    assert told(seen + behind) == told(whole)


@given(
    kept=st.lists(st.text(min_size=1, max_size=3), max_size=4),
    lost=st.lists(st.text(min_size=1, max_size=3), max_size=4),
    again=st.lists(st.text(min_size=1, max_size=3), max_size=6),
)
def test_dropping_ids_from_replaces_from_on_leaves_the_stream_without_the_crash(
    kept: list[str], lost: list[str], again: list[str]
) -> None:
    before = [piece(n, text, f"k{n}") for n, text in enumerate(kept, 1)]
    first = len(kept) + 1
    void = [piece(n, text, "x") for n, text in enumerate(lost, first)]
    segment = first + len(lost)
    after = [piece(n, text, "y") for n, text in enumerate(again, segment + 1)]
    marker = chunk(segment, "segment", replaces_from=first)

    held: list[WireEvent] = []
    for event in events_of([*before, *void, marker, *after], "messages"):
        if event.name == "metadata":
            drop = event.data["replaces_from"]
            held = [one for one in held if one.position.n < drop]
        else:
            held.append(event)
    assert told(held) == told(events_of([*before, *after], "messages"))


def test_ids_increase_strictly() -> None:
    chunks = [piece(1, "a"), piece(2, "b"), chunk(3, "segment", replaces_from=2), piece(4, "c")]
    positions = [one.position for one in events_of(chunks, "messages", "messages-tuple")]
    assert positions == sorted(set(positions))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("7", Position(7)),
        ("7-2", Position(7, 2)),
        ("0", Position(0)),
        ("-1", Position(-1)),
        ("-", Position(-1)),
        (None, None),
        ("", None),
        ("1747-x", None),
        ("ten", None),
        ("²", None),
        ("7-2-1", None),
        ("9" * 30, None),
    ],
)
def test_a_last_event_id_names_a_place_or_none(text: str | None, position: Position | None) -> None:
    assert parse_position(text) == position


def test_interrupts_that_ask_no_person_are_hidden_from_clients() -> None:
    asks, sleeps = Interrupt("ok?", "i1"), Interrupt({"wake_at": "2026-01-01"}, "i2")
    both = chunk(1, "values", {"a": 1, "__interrupt__": (asks, sleeps)})
    left = without_interrupts(both, {"i2"})
    assert left is not None
    assert left.data == {"a": 1, "__interrupt__": (asks,)}
    assert without_interrupts(both, {"i1", "i2"}) is None


def test_modes_are_a_name_a_list_or_nothing() -> None:
    assert modes_of("messages-tuple") == ("messages-tuple",)
    assert modes_of([]) == modes_of(None) == ("values",)
    assert modes_of(["values", "custom", "values"]) == ("values", "custom")


@pytest.mark.parametrize("modes", [["tools"], ["values", "lifecycle"], ['["values", 3]'], ["[["]])
def test_a_query_with_an_unknown_stream_mode_is_refused(modes: list[str]) -> None:
    with pytest.raises(ApiError) as raised:
        parse_filter(modes)
    assert raised.value.status_code == 422


@pytest.mark.parametrize(
    ("query", "modes"),
    [
        ([], None),
        ([""], None),
        (["values", "updates"], ("values", "updates")),
        (['["values", "custom"]'], ("values", "custom")),
    ],
)
def test_a_query_filters_by_repeated_modes_or_by_a_json_list(
    query: list[str], modes: tuple[str, ...] | None
) -> None:
    assert parse_filter(query) == modes
