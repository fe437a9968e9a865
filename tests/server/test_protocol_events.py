"""Chunks as frames of the v2 protocol: messages, lifecycle, questions, tools, and their numbers."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models.chat_model_stream import ChatModelStream
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langgraph.types import Interrupt

from perdure.server.agent_api.protocol_events import Frame, RunFrames, run_of, seq_of
from perdure.types import Chunk

AT = datetime(2026, 11, 17, tzinfo=UTC)
ABOUT = {"langgraph_node": "chat"}


def chunk(n: int, mode: str, data: Any = None, ns: tuple[str, ...] = (), **more: Any) -> Chunk:
    return Chunk(n, mode, ns, data, AT, **more)


def said(n: int, message: Any, ns: tuple[str, ...] = ()) -> Chunk:
    return chunk(n, "messages", (message, ABOUT), ns)


def piece(n: int, text: str, id: str = "m1", *, last: bool = False) -> Chunk:
    return said(n, AIMessageChunk(content=text, id=id, chunk_position="last" if last else None))


def frames_of(chunks: list[Chunk], method: str | None = None) -> list[Frame]:
    source = RunFrames(1, "g")
    found = [frame for one in chunks for frame in source.feed(one)]
    return [one for one in found if method is None or one.method == method]


def data_of(chunks: list[Chunk], method: str) -> list[Any]:
    return [one.data for one in frames_of(chunks, method)]


def assembled(events: list[dict[str, Any]]) -> AIMessage:
    """What LangChain's own client makes of the events of one message."""
    stream = ChatModelStream(namespace=[], node=None, message_id=None)
    for one in events:
        stream.dispatch(one)
    message = stream.output
    assert isinstance(message, AIMessage)
    return message


@given(pieces=st.lists(st.text(max_size=4), max_size=10))
def test_the_client_assembles_the_text_of_the_pieces(pieces: list[str]) -> None:
    chunks = [piece(n, text) for n, text in enumerate(pieces, 1)]
    chunks.append(piece(len(chunks) + 1, "", last=True))
    assert assembled(data_of(chunks, "messages")).text == "".join(pieces)


def call(n: int, args: str, *, last: bool = False, **more: Any) -> Chunk:
    one: Any = {"name": None, "id": None, "index": 0, "type": "tool_call_chunk", "args": args}
    one |= more
    message = AIMessageChunk(
        content="",
        id="m1",
        tool_call_chunks=[one],
        chunk_position="last" if last else None,
    )
    return said(n, message)


@given(cuts=st.lists(st.integers(0, 30), max_size=8))
def test_the_client_assembles_a_tool_call_from_any_pieces(cuts: list[int]) -> None:
    args = '{"path": "a.txt", "n": 12345678}'
    edges = [0, *sorted(cuts), len(args)]
    parts = [args[a:b] for a, b in itertools.pairwise(edges)]
    chunks = [call(1, "", name="write", id="c1")]
    chunks += [call(n, part) for n, part in enumerate(parts, 2)]
    chunks.append(call(len(chunks) + 1, "", last=True))
    message = assembled(data_of(chunks, "messages"))
    assert message.tool_calls == [
        {"name": "write", "args": {"path": "a.txt", "n": 12345678}, "id": "c1", "type": "tool_call"}
    ]


def test_long_arguments_are_sent_a_few_times_and_not_for_every_piece() -> None:
    chunks = [call(n, '{"a": "' if n == 1 else "x" * 4) for n in range(1, 3001)]
    sent = sum(len(str(one)) for one in data_of(chunks, "messages"))
    assert sent < 12_000 * 15


def test_arguments_that_are_not_json_finish_as_an_invalid_call() -> None:
    events = data_of([call(1, '{"a', name="add", id="c1"), call(2, "", last=True)], "messages")
    assert events[-2]["content"]["type"] == "invalid_tool_call"


def test_usage_is_added_up() -> None:
    def with_usage(n: int, tokens: int, *, last: bool = False) -> Chunk:
        usage: Any = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1}
        usage["input_token_details"] = {"cache_read": tokens}
        message = AIMessageChunk(
            content="x",
            id="m",
            usage_metadata=usage,
            chunk_position="last" if last else None,
        )
        return said(n, message)

    usage = data_of([with_usage(1, 5), with_usage(2, 0, last=True)], "messages")[-1]["usage"]
    assert usage["input_tokens"] == 5
    assert usage["output_tokens"] == 2
    assert usage["input_token_details"] == {"cache_read": 5}


def test_a_message_whose_last_piece_is_not_marked_ends_with_its_node() -> None:
    chunks = [piece(1, "hi"), chunk(2, "updates", {"chat": {"messages": []}})]
    assert data_of(chunks, "messages")[-1]["event"] == "message-finish"


def test_a_tool_that_failed_says_so() -> None:
    result = ToolMessage("boom", tool_call_id="c1", name="add", status="error")
    assert data_of([said(1, result)], "tools")[-1] == {
        "event": "tool-error",
        "tool_call_id": "c1",
        "message": "boom",
    }


def test_a_question_is_requested_once_with_its_value_under_both_names() -> None:
    asked = Interrupt({"draft": "x"}, "i1")
    inside = ("sub:t1",)
    chunks = [
        chunk(1, "updates", {"__interrupt__": (asked,)}, inside),
        chunk(2, "values", {"a": 1, "__interrupt__": (asked,)}, inside),
        chunk(3, "updates", {"__interrupt__": (asked,)}),
    ]
    (request,) = frames_of(chunks, "input.requested")
    assert request.namespace == inside
    assert request.channel == "input"
    assert request.data == {
        "interrupt_id": "i1",
        "payload": {"draft": "x"},
        "value": {"draft": "x"},
    }
    assert data_of(chunks, "values") == [{"a": 1}]
    assert not data_of(chunks, "updates")


def test_a_subgraph_starts_with_its_first_output_and_ends_with_its_task() -> None:
    def result(n: int, **more: Any) -> Chunk:
        task: dict[str, Any] = {"id": "t1", "name": "sub", "error": None, "result": {}}
        task["interrupts"] = []
        return chunk(n, "tasks", {**task, **more})

    first = chunk(1, "updates", {"inner": {}}, ("sub:t1",))
    frames = frames_of([first, result(2)], "lifecycle")
    assert [(one.namespace, one.data["event"]) for one in frames] == [
        (("sub:t1",), "started"),
        (("sub:t1",), "completed"),
    ]
    failed = data_of([first, result(2, error=ValueError("no"))], "lifecycle")
    assert failed[-1] == {"event": "failed", "graph_name": "sub", "error": "no"}
    asked = data_of([first, result(2, interrupts=[{"id": "i"}])], "lifecycle")
    assert asked[-1]["event"] == "interrupted"


def test_a_run_that_rests_and_goes_on_reports_both() -> None:
    source = RunFrames(1, "g")
    source.feed(piece(1, "hi"))
    rests = source.rest("interrupted", AT)
    on = source.feed(chunk(2, "values", {"a": 1}))
    assert [one.data.get("event") for one in rests] == [
        "content-block-finish",
        "message-finish",
        "interrupted",
    ]
    assert on[0].data["event"] == "running"
    numbers = [one.seq for one in (*rests, *on)]
    assert numbers == sorted(set(numbers))


def test_a_message_that_is_replaced_ends_in_an_error() -> None:
    chunks = [
        piece(1, "lo"),
        chunk(2, "segment", replaces_from=1),
        piece(3, "lost", "m2", last=True),
    ]
    frames = frames_of(chunks)
    void = [one.data for one in frames if one.data.get("event") == "error"]
    assert void == [
        {
            "event": "error",
            "message_id": "m1",
            "message": "This message was cut off, and comes again.",
            "code": "replaced",
        }
    ]
    assert "running" in [one.data.get("event") for one in frames]


def test_numbers_of_later_runs_are_higher_and_fit_a_javascript_number() -> None:
    assert seq_of(2, 0, 0) > seq_of(1, (1 << 24) - 1, 511)
    assert run_of(seq_of(7, 12345, 510)) == 7
    assert seq_of((1 << 20) - 1, 1 << 30, 511) < 2**53


MODES = st.sampled_from(["values", "messages", "updates", "custom", "last"])


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[Chunk], list[Chunk]]:
    """What a live reader sees of a run with crashes, and what one sees that comes afterwards."""

    def one(n: int) -> Chunk:
        mode = draw(MODES)
        if mode in ("messages", "last"):
            return piece(n, "x", draw(st.sampled_from(["a", "b"])), last=mode == "last")
        ns = draw(st.sampled_from([(), ("sub:t",)]))
        return chunk(n, mode, {"chat": {"v": n}}, ns)

    live: list[Chunk] = []
    later: list[Chunk] = []
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(0, 4))):  # up to a checkpoint: no message is open there
            made = chunk(len(live) + 1, "values", {"v": 1})
            live.append(made)
            later.append(made)
        first = len(live) + 1
        for _ in range(draw(st.integers(0, 5))):
            live.append(one(len(live) + 1))
        segment = chunk(len(live) + 1, "segment", replaces_from=first)
        live.append(segment)
        later.append(segment)
    for _ in range(draw(st.integers(0, 6))):
        made = one(len(live) + 1)
        live.append(made)
        later.append(made)
    return live, later


@given(stories())
def test_a_frame_has_the_same_number_for_every_reader(
    story: tuple[list[Chunk], list[Chunk]],
) -> None:
    live, later = frames_of(story[0]), frames_of(story[1])
    numbers = [one.seq for one in live]
    assert numbers == sorted(set(numbers))
    seen = {one.seq: one.wire() for one in live}
    assert all(seen[one.seq] == one.wire() for one in later)
