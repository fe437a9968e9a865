"""What a run produces can be read from any process, while it is produced and afterwards."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure import Redaction
from perdure.commands.streams import between
from perdure.errors import BadArgument, NotFound
from perdure.testing import Clock
from perdure.types import Chunk
from tests.support.agents import NOON, Calls, Log, chain, driving, opened
from tests.support.polling import auntil
from tests.support.raw import execute


def speak(state: Log) -> Log:
    write = get_stream_writer()
    for n in range(5):
        write(n)
    return {"log": ["spoke"]}


def ask(state: Log) -> Log:
    get_stream_writer()("before the question")
    return {"value": perdure.ask({"text": "may I?"})}


async def read(client: perdure.Client, run_id: str, **options: Any) -> list[Chunk]:
    return [chunk async for chunk in client.stream(run_id, **options)]


async def streamed(rt: Any, graph: Any, stream: Any, **options: Any) -> perdure.Run:
    """A run whose output is kept, driven until it rests."""
    rt.register(graph, name="agent")
    options = {"input": {"log": []}, "stream": stream, **options}
    run: perdure.Run = await rt.start("agent", **options)
    await rt.work(until_idle=True)
    return run


def shown(chunks: list[Chunk]) -> list[tuple[int, str, Any]]:
    return [(chunk.n, chunk.mode, chunk.data) for chunk in chunks]


async def test_a_stream_has_the_chunks_of_the_modes_it_was_started_with(url: str) -> None:
    async with opened(url) as rt:
        run = await streamed(rt, chain(speak), ["custom", "updates"])
        found = await read(rt, run.id)
        assert shown(found) == [
            *((n + 1, "custom", n) for n in range(5)),
            (6, "updates", {"speak": {"log": ["spoke"]}}),
        ]
        assert shown(await read(rt, run.id, after=4)) == shown(found)[4:]
        assert shown(await read(rt, run.id, modes="updates")) == shown(found)[5:]
        assert [chunk.namespace for chunk in found] == [()] * 6


async def test_nothing_is_kept_unless_it_is_asked_for(url: str) -> None:
    async with opened(url) as rt:
        run = await streamed(rt, chain(speak), ())
        assert await read(rt, run.id) == []
        assert await rt.journal.ado(between(run.thread_id, run.id, 0, 10)) == []


async def test_an_unknown_mode_and_an_unknown_run_are_refused(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(speak), name="agent")
        with pytest.raises(BadArgument, match="stream mode 'token': use one of values, updates"):
            await rt.start("agent", {"log": []}, stream="token")
        with pytest.raises(NotFound):
            await read(rt, "01a1ea12-ea37-76aa-852f-0f2fab6dbbdc")


async def test_a_stream_can_end_where_the_run_waits_for_a_person(url: str) -> None:
    async with opened(url) as rt:
        run = await streamed(rt, chain(ask, speak), ["custom"])
        before = await read(rt, run.id, until_waiting=True)
        assert shown(before) == [(1, "custom", "before the question")]
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        await rt.work(until_idle=True)
        after = await read(rt, run.id, after=1)
        assert shown(after)[:2] == [(2, "segment", None), (3, "custom", "before the question")]
        assert after[0].replaces_from == 1
        # A reader that comes later has each sentence once.
        assert [one.data for one in await read(rt, run.id, modes="custom")][1:] == [
            "before the question",
            *range(5),
        ]


async def test_a_subgraph_streams_under_its_namespace(sqlite_url: str) -> None:
    inner = chain(speak).compile()
    async with opened(sqlite_url) as rt:
        rt.register(chain(("outer", inner)), name="agent")
        run = await rt.start("agent", {"log": []}, stream=["custom", "updates"])
        flat = await rt.start("agent", {"log": []}, stream=["updates"], stream_subgraphs=False)
        await rt.work(until_idle=True)
        found = await read(rt, run.id)
        assert [one.namespace[0].split(":")[0] for one in found[:6]] == ["outer"] * 6
        assert found[-1].namespace == ()
        assert [one.namespace for one in await read(rt, flat.id)] == [()]


async def test_messages_come_with_their_metadata(url: str) -> None:
    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("hello", id="m1")]}

    graph = StateGraph(MessagesState).add_node(reply).add_edge(START, "reply")
    async with opened(url) as rt:
        run = await streamed(rt, graph, "messages", input={"messages": []})
        [chunk] = await read(rt, run.id)
        message, metadata = chunk.data
        assert (message.content, message.id) == ("hello", "m1")
        assert metadata["langgraph_node"] == "reply"


async def test_events_are_those_of_astream_events(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        run = await streamed(rt, chain(speak), ["events", "custom"])
        found = await read(rt, run.id)
        kinds = [one.data["event"] for one in found if one.mode == "events"]
        assert kinds[0] == "on_chain_start"
        assert kinds[-1] == "on_chain_end"
        assert [one.data for one in found if one.mode == "custom"] == [*range(5)]
        assert (await rt.get(run.id)).output == {"log": ["spoke"]}


async def test_what_cannot_be_stored_is_given_by_the_name_of_its_type(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        pass

    def writes(state: Log) -> Log:
        get_stream_writer()({"fine": 1, "odd": Odd(), "many": [Odd()]})
        return {}

    async with opened(sqlite_url) as rt:
        run = await streamed(rt, chain(writes), "custom")
        [chunk] = await read(rt, run.id)
        assert chunk.data == {"fine": 1, "odd": "<Odd>", "many": ["<Odd>"]}
    assert "streams a value that cannot be stored, in mode custom" in caplog.text


async def test_a_state_is_given_once_though_the_node_behind_it_is_tried_again(url: str) -> None:
    tries: list[int] = []

    def fails_once(state: Log) -> Log:
        tries.append(1)
        get_stream_writer()("trying")
        if len(tries) == 1:
            raise ValueError("not yet")
        return {"log": ["done"]}

    async with opened(url) as rt:
        retry = perdure.Retry(attempts=2, first=timedelta(0))
        rt.register(chain(speak, fails_once), name="agent", retry=retry)
        run = await rt.start("agent", {"log": []}, stream=["values", "custom"])
        await rt.work(until_idle=True)
        states = [one.data["log"] for one in await read(rt, run.id, modes="values") if one.data]
        assert states == [[], ["spoke"], ["spoke", "done"]]
        assert len(tries) == 2


async def test_a_state_that_a_run_resumes_from_is_given_again_once_per_answer(url: str) -> None:
    tries: list[int] = []

    def fails_once(state: Log) -> Log:
        answers = [perdure.ask("may I?"), perdure.ask("really?")]
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return {"log": answers}

    async with opened(url) as rt:
        retry = perdure.Retry(attempts=2, first=timedelta(0))
        rt.register(chain(speak, fails_once), name="agent", retry=retry)
        run = await rt.start("agent", {"log": []}, stream="values")
        await rt.work(until_idle=True)
        for answer, states in ("yes", [["spoke"]]), ("oh yes", [["spoke"], ["spoke", "yes"]]):
            asked = (await read(rt, run.id, until_waiting=True))[-1].n
            [wait] = await rt.waits()
            await rt.answer(wait.id, answer)
            await rt.work(until_idle=True)
            found = await read(rt, run.id, after=asked, until_waiting=True)
            plain = [
                one for one in found if one.mode == "values" and "__interrupt__" not in one.data
            ]
            assert [one.data["log"][:2] for one in plain] == states
        assert len(tries) == 2


async def test_chunks_are_encrypted_and_redacted_as_everything_else(sqlite_url: str) -> None:
    def leaks(state: Log) -> Log:
        get_stream_writer()({"text": "sk-live-1234567890abcdef", "password": "hunter2"})
        return {}

    secrets = Redaction(keys=["password"])
    async with opened(sqlite_url, encryption_keys={"k1": b"0" * 32}, redact=secrets) as rt:
        run = await streamed(rt, chain(leaks), "custom")
        [chunk] = await read(rt, run.id)
        assert chunk.data["password"] != "hunter2"
    [[body]] = execute(sqlite_url, "SELECT body FROM perdure_stream")
    assert b"sk-live" not in body


async def test_tokens_are_not_kept_where_patterns_are_redacted(sqlite_url: str) -> None:
    """A pattern would not find a secret that comes in pieces."""

    async def reply(state: MessagesState) -> dict[str, Any]:
        model = GenericFakeChatModel(messages=iter([AIMessage("write to ada@example.com now")]))
        return {"messages": [await model.ainvoke("hi"), AIMessage("to ada@example.com", id="m")]}

    graph = StateGraph(MessagesState).add_node(reply).add_edge(START, "reply")
    async with opened(sqlite_url, redact=Redaction(patterns=[Redaction.EMAIL])) as rt:
        run = await streamed(rt, graph, ["messages", "events", "values"], input={"messages": []})
        found = await read(rt, run.id)
        assert [one.data[0].id for one in found if one.mode == "messages"] == ["m"]
        assert "ada@" not in repr([one.data for one in found])


async def test_pruning_and_erasing_delete_chunks(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(speak), name="agent")
        runs = [await rt.start("agent", {"log": []}, stream="custom") for _ in range(2)]
        await rt.work(until_idle=True)
        assert (await rt.erase(runs[0].thread_id))["stream"] > 0
        await rt.prune(older_than=timedelta(0))
        for run in runs:
            assert await rt.journal.ado(between(run.thread_id, run.id, 0, 10)) == []


async def test_chunks_are_deleted_some_time_after_the_run_has_ended(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock, stream_ttl=timedelta(hours=1)) as rt:
        rt.register(chain(speak), name="agent")
        rt.register(chain(speak, ask), name="asks")
        ended = await rt.start("agent", {"log": []}, stream="custom")
        waits = await rt.start("asks", {"log": []}, stream="custom")
        await rt.work(until_idle=True)
        clock.advance(timedelta(minutes=59))
        await rt.work(until_idle=True)
        assert len(await read(rt, ended.id)) == 5
        clock.advance(timedelta(minutes=2))
        await rt.work(until_idle=True)
        assert await read(rt, ended.id) == []
        assert len(await read(rt, waits.id, until_waiting=True)) == 6
        assert (await rt.get(ended.id)).output == {"log": ["spoke"]}


def test_a_caller_without_an_event_loop_reads_a_stream(sqlite_url: str) -> None:
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(chain(speak), name="agent")
        run = rt.blocking.start("agent", {"log": []}, stream="custom")
        rt.blocking.work(until_idle=True)
        assert [one.data for one in rt.blocking.stream(run.id)] == [*range(5)]
        chunks = rt.blocking.stream(run.id, after=2)
        assert next(iter(chunks)).n == 3
        chunks.close()  # type: ignore[attr-defined]


async def test_a_bound_graphs_astream_can_be_read_elsewhere(url: str) -> None:
    async with opened(url) as rt, perdure.Client(url) as reader:
        graph = rt.register(chain(speak), name="agent")
        config: Any = {"configurable": {"thread_id": "t"}}
        seen = [one async for one in graph.astream({"log": []}, config, stream_mode="custom")]
        assert seen == [*range(5)]
        [run] = await reader.runs(thread_id="t")
        assert [one.data for one in await read(reader, run.id)] == seen
        await graph.ainvoke({"log": []}, config)
        [later, _] = await reader.runs(thread_id="t")
        assert await read(reader, later.id) == []


async def test_join_returns_at_once_when_another_process_ends_the_run(url: str) -> None:
    calls = Calls()
    async with opened(url) as rt, perdure.Client(url) as other:
        rt.register(chain(calls.node("one")), name="agent")
        run = await other.start("agent", {"log": []})
        joining = asyncio.create_task(other.join(run.id, timeout=timedelta(seconds=30)))
        await auntil(lambda: other.journal.feed.watches, "a caller that joins")
        await rt.work(until_idle=True)
        assert (await joining).state == "done"
        assert not other.journal.feed.watches


async def test_what_a_run_streams_does_not_wake_those_who_join_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, looks = asyncio.Event(), 0

    async def talks(state: Log) -> Log:
        for n in range(20):
            get_stream_writer()(n)
            await heard.wait()
            heard.clear()
        return {}

    async with opened(url) as rt, perdure.Client(url) as other:
        get = other.get

        async def counted(run_id: str) -> perdure.Run:
            nonlocal looks
            looks += 1
            return await get(run_id)

        monkeypatch.setattr(other, "get", counted)
        rt.register(chain(talks), name="agent")
        run = await other.start("agent", {"log": []}, stream="custom")
        joining = asyncio.create_task(other.join(run.id, timeout=timedelta(minutes=1)))
        async with driving(rt):
            async for _ in other.stream(run.id):
                heard.set()
            assert (await joining).state == "done"
        assert looks < 10
