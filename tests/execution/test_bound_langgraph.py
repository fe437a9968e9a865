"""A bound graph is used as the graph itself.

What LangGraph's own graph on an `InMemorySaver` returns, streams, raises and remembers, this one
does too.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

import perdure
from perdure.errors import AmbiguousAnswer, BadArgument
from perdure.testing import TemporaryRuntime, runtime
from tests.support import stories
from tests.support.bound import Log, T, asking, asks
from tests.support.bound import rt as rt
from tests.support.scripts import Api, Savers, Story, plain, play

OTHERWISE = {
    "a subgraph that saves nothing": "LangGraph's durability='sync' breaks on such a subgraph",
}
SAME = sorted(stories.STORIES.keys() - OTHERWISE.keys())


def bound(story: Story) -> Story:
    """The same story on a graph bound to the runtime that takes the place of the saver."""
    known: dict[int, Any] = {}

    def build(rt: Any, calls: list[Any]) -> Any:
        if id(rt) not in known:
            known.clear()
            graph = story.build(None, calls)  # type: ignore[arg-type]
            known[id(rt)] = rt.register(graph, name="story")
        return known[id(rt)]

    return Story(build, story.script)


def is_told_the_same(name: str, runtimes: Savers, api: Api) -> None:
    story, thread_id = stories.STORIES[name], f"{name}, {api}"
    expected = play(story, Savers(InMemorySaver), api, thread_id)
    assert play(bound(story), runtimes, api, thread_id) == expected


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(
    ("api", "cold"),
    [("blocking", False), pytest.param("coroutines", True, marks=pytest.mark.slow)],
)
def test_a_story_on_sqlite_is_the_same_as_langgraphs(
    sqlite_url: str, name: str, api: Api, cold: bool
) -> None:
    is_told_the_same(name, Savers(lambda: perdure.Runtime(sqlite_url), cold), api)


@pytest.mark.parametrize("name", SAME)
def test_a_story_on_a_server_is_the_same_as_langgraphs(shared_url: str, name: str) -> None:
    is_told_the_same(name, Savers(lambda: perdure.Runtime(shared_url)), "blocking")


def resume_and_update(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume="yes", update={"log": ["too"]}), T)


def resume_and_go(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume="yes", goto="b"), T)


def resume_with_a_dict(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume={"ok": True}), T)


def resume_by_id(graph: Any) -> Any:
    found = graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume={found["__interrupt__"][0].id: "yes"}), T)


def resume_what_was_updated(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    graph.update_state(T, {"log": ["by hand"]})
    yield graph.get_state(T).next
    yield graph.invoke(Command(resume="yes"), T)


def ask_again_after_an_update(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    graph.update_state(T, {"log": ["by hand"]})
    yield graph.invoke(None, T)
    yield graph.invoke(Command(resume="yes"), T)


def new_input_over_a_question(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    yield graph.invoke({"log": ["instead"]}, T)
    yield graph.invoke(Command(resume="yes"), T)


def a_command_at_the_beginning(graph: Any) -> Any:
    yield graph.invoke(Command(goto="b", update={"log": ["in"]}), T)
    yield graph.invoke(Command(resume="for nothing"), T)


def breakpoints_of_one_call(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T, interrupt_before=["ask"])
    yield graph.get_state(T).next
    yield graph.invoke(None, T)


def forms_of_output(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T, version="v2")
    yield graph.invoke(Command(resume="yes"), T, version="v2")
    yield graph.invoke({"log": ["in"]}, T, output_keys="log")
    yield graph.invoke(Command(resume="yes"), T, stream_mode="updates")
    yield graph.invoke({}, T, stream_mode=["updates", "values"], subgraphs=True)


def states_by_hand(graph: Any) -> Any:
    graph.update_state(T, {"log": ["first"]}, as_node="a")
    yield graph.get_state(T).next
    yield graph.invoke(None, T)
    past = list(graph.get_state_history(T))
    yield [(one.values, one.next) for one in past]
    graph.update_state(past[-1].config, {"log": ["another past"]}, as_node="ask")
    yield graph.invoke(None, T)


def without_end(graph: Any) -> Any:
    with pytest.raises(GraphRecursionError) as raised:
        graph.invoke({"log": ["in"]}, {**T, "recursion_limit": 1})
    yield str(raised.value)
    yield graph.invoke(None, T)


TALES = {
    tale.__name__: tale
    for tale in (
        resume_and_update,
        resume_and_go,
        resume_with_a_dict,
        resume_by_id,
        resume_what_was_updated,
        ask_again_after_an_update,
        new_input_over_a_question,
        a_command_at_the_beginning,
        breakpoints_of_one_call,
        forms_of_output,
        states_by_hand,
        without_end,
    )
}


@pytest.mark.parametrize("name", list(TALES))
def test_a_call_gives_what_langgraphs_gives(rt: TemporaryRuntime, name: str) -> None:
    expected = plain(list(TALES[name](asking().compile(checkpointer=InMemorySaver()))))
    assert plain(list(TALES[name](rt.register(asking(), name="agent")))) == expected


def chatty() -> Any:
    """A model that streams, in a subgraph, beside a node that writes to the stream itself."""

    def tell(state: Any) -> Any:
        get_stream_writer()({"progress": len(state["messages"])})

    def talk(state: Any) -> Any:
        model = GenericFakeChatModel(messages=iter([AIMessage("well met by moonlight", id="m")]))
        return {"messages": [model.invoke(state["messages"])]}

    inner = StateGraph(MessagesState)
    inner.add_sequence([("tell", tell), ("talk", talk)])
    inner.add_edge(START, "tell")
    outer: Any = StateGraph(MessagesState)
    outer.add_sequence([("before", tell), ("inner", inner.compile())])
    outer.add_edge(START, "before")
    return outer


def streamed(chunk: Any) -> Any:
    """A chunk to compare: of what differs from play to play, only that it is there."""
    ns, mode, payload = chunk
    if mode == "messages":
        payload = (payload[0].content, payload[1]["langgraph_node"])
    elif mode in ("checkpoints", "tasks", "debug"):
        payload = sorted(payload)
    return plain((tuple(part.partition(":")[0] for part in ns), mode, payload))


HELLO = {"messages": [HumanMessage("hello", id="h")]}
MODES = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]


def test_a_stream_has_in_all_its_modes_what_langgraphs_has(rt: TemporaryRuntime) -> None:
    def chunks(graph: Any) -> Any:
        return [*map(streamed, graph.stream(HELLO, T, stream_mode=MODES, subgraphs=True))]

    expected = chunks(chatty().compile(checkpointer=InMemorySaver()))
    assert chunks(rt.register(chatty(), name="agent")) == expected
    assert {mode for _, (_, (_, mode), _) in expected} == set(MODES)


async def test_an_async_stream_has_in_all_its_modes_what_langgraphs_has() -> None:
    async def chunks(graph: Any) -> Any:
        found = graph.astream(HELLO, T, stream_mode=MODES, subgraphs=True)
        return [streamed(chunk) async for chunk in found]

    async with runtime() as rt:
        expected = await chunks(chatty().compile(checkpointer=InMemorySaver()))
        assert await chunks(rt.register(chatty(), name="agent")) == expected


@pytest.mark.parametrize("mode", ["values", "updates", "custom"])
def test_a_stream_of_one_mode_has_bare_chunks(rt: TemporaryRuntime, mode: str) -> None:
    stock = chatty().compile(checkpointer=InMemorySaver())
    ours: Any = rt.register(chatty(), name="agent")
    expected = [plain(chunk) for chunk in stock.stream(HELLO, T, stream_mode=mode)]
    assert [plain(chunk) for chunk in ours.stream(HELLO, T, stream_mode=mode)] == expected


def test_an_answer_to_an_interrupt_of_another_time_is_refused(rt: TemporaryRuntime) -> None:
    """LangGraph would ask again; handing the whole dict over as the answer would be worse."""
    graph = rt.register(asking(), name="agent")
    old = graph.invoke({"log": ["in"]}, T)["__interrupt__"][0].id
    new = graph.invoke({"log": ["instead"]}, T)["__interrupt__"][0].id
    with pytest.raises(BadArgument, match=new):
        graph.invoke(Command(resume={old: "yes"}), T)
    assert graph.invoke(Command(resume={new: "yes"}), T)["log"][-3:] == ["asked", "yes", "b"]


def test_one_answer_for_two_questions_is_refused_with_their_ids(rt: TemporaryRuntime) -> None:
    builder = StateGraph(Log)
    for name in ("left", "right"):
        builder.add_node(name, asks)
        builder.add_edge(START, name)
    graph = rt.register(builder, name="agent")
    found = graph.invoke({"log": ["in"]}, T)["__interrupt__"]
    with pytest.raises(AmbiguousAnswer, match="waits for 2 answers") as raised:
        graph.invoke(Command(resume="yes"), T)
    assert all(one.id in str(raised.value) for one in found)
    end = graph.invoke(Command(resume={one.id: n for n, one in enumerate(found)}), T)
    assert end == {"log": ["in", "asked", 0, "asked", 1]}


def test_a_call_without_a_thread_is_refused(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    for config in (None, RunnableConfig(), RunnableConfig(configurable={"thread_id": ""})):
        with pytest.raises(BadArgument, match="has no thread_id"):
            graph.invoke({"log": []}, config)
    assert rt.blocking.runs() == []
