"""What can be asked of a compiled graph, and of LangGraph's stores."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from perdure import langgraph_port

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@dataclass
class Order:
    number: int


@dataclass
class Customer:
    name: str


class Part(BaseModel):
    word: str


class Answer(BaseModel):
    parts: list[Part]


class Shop(TypedDict, total=False):
    order: Order


def one(function: Any, **options: Any) -> StateGraph[Any]:
    builder: StateGraph[Any] = StateGraph(Shop, **options)
    return builder.add_node("node", function).add_edge(START, "node")


def test_a_compile_tells_the_saver_the_types_of_the_schemas() -> None:
    told: set[tuple[str, ...]] = set()

    class Notes(InMemorySaver):
        def with_allowlist(self, extra_allowlist: Any) -> Notes:
            told.update(extra_allowlist)
            return self

    langgraph_port.ask_graphs_for_their_types(load=True)
    one(lambda _: None).compile(Notes())
    assert (__name__, "Order") in told


def test_a_compiled_graph_has_the_types_of_its_schemas() -> None:
    graph = one(lambda _: None, context_schema=Customer).compile()
    assert langgraph_port.types_of(graph) >= {(__name__, "Order"), (__name__, "Customer")}


def test_the_output_of_a_graph_can_be_read_from_a_checkpoint() -> None:
    saver = InMemorySaver()
    graph = one(lambda _: {"order": Order(7)}).compile(saver)
    graph.invoke({}, CONFIG)
    last, *_, first = saver.list(CONFIG)
    assert langgraph_port.output_at(graph, last, saver) == {"order": Order(7)}
    assert langgraph_port.output_at(graph, first, saver) in (None, {})


INNER = one(lambda _: None).compile()


def calls_it(state: Shop) -> Any:
    return INNER.invoke(state)


async def awaits_it(state: Shop) -> Any:
    return await INNER.ainvoke(state)


def calls_none(state: Shop) -> Any:
    return None


@pytest.mark.parametrize(
    "function", [INNER, calls_it, awaits_it, RunnableLambda(calls_none) | INNER]
)
def test_the_graphs_that_a_node_is_or_calls_are_found_where_langgraph_looks(function: Any) -> None:
    node = one(function).compile().nodes["node"]
    found = langgraph_port.graphs_in(node.bound)
    assert found
    assert all(graph is INNER for graph in found)


def test_a_node_that_calls_no_graph_has_none() -> None:
    assert langgraph_port.graphs_in(one(calls_none).compile().nodes["node"].bound) == []


PUT = PutOp(("orders",), "7", {"paid": True})


def test_the_statements_of_a_store_on_sqlite_can_be_run_on_its_own_cursor() -> None:
    from langgraph.store.sqlite import SqliteStore

    with SqliteStore.from_conn_string(":memory:") as store:
        store.setup()
        assert langgraph_port.can_write_queries(store)
        assert langgraph_port.loop_of(store) is None
        made, embed = langgraph_port.put_queries(store, [PUT])
        assert embed is None
        with langgraph_port.cursor_of(store) as cursor:
            for sql, params in made:
                cursor.execute(sql, params)
        found = store.get(PUT.namespace, PUT.key)
        assert found is not None
        assert found.value == PUT.value


def test_a_store_that_embeds_gives_the_statement_and_the_texts_for_its_vectors() -> None:
    from langgraph.store.sqlite import SqliteStore

    index: Any = {"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]}
    with SqliteStore.from_conn_string(":memory:", index=index) as store:
        _, embed = langgraph_port.put_queries(store, [PUT])
        sql, texts = embed
        assert sql.lstrip().startswith("INSERT")
        assert [text for *_, text in texts] == ['{"paid": true}']


async def test_a_store_that_is_only_awaited_knows_its_loop_and_has_an_async_cursor() -> None:
    from langgraph.store.sqlite import AsyncSqliteStore

    async with AsyncSqliteStore.from_conn_string(":memory:") as store:
        await store.setup()
        assert langgraph_port.loop_of(store) is asyncio.get_running_loop()
        made, _ = langgraph_port.put_queries(store, [PUT])
        async with langgraph_port.cursor_of(store) as cursor:
            for sql, params in made:
                await cursor.execute(sql, params)
        found = await store.aget(PUT.namespace, PUT.key)
        assert found is not None
        assert found.value == PUT.value


def test_the_store_in_memory_has_no_statements_and_no_loop() -> None:
    store = InMemoryStore()
    assert not langgraph_port.can_write_queries(store)
    assert langgraph_port.loop_of(store) is None


def test_the_statements_of_a_store_on_postgresql_can_be_run_on_its_own_cursor(
    postgres_url: str,
) -> None:
    from langgraph.store.postgres import PostgresStore

    with PostgresStore.from_conn_string(postgres_url) as store:
        store.setup()
        assert langgraph_port.can_write_queries(store)
        made, _ = langgraph_port.put_queries(store, [PUT])
        with langgraph_port.cursor_of(store) as cursor:
            for sql, params in made:
                cursor.execute(sql, params)
        found = store.get(PUT.namespace, PUT.key)
        assert found is not None
        assert found.value == PUT.value


def test_an_agent_closes_over_its_response_format() -> None:
    model = FakeListChatModel(responses=["hi"])
    agent = create_agent(model, [], response_format=Answer)
    outer = StateGraph(Shop).add_node("agent", agent).add_edge(START, "agent").compile()
    assert langgraph_port.response_types(agent) == [Answer]
    assert langgraph_port.response_types(outer) == [Answer]
    assert langgraph_port.response_types(create_agent(model, [])) == []
    assert (Answer.__module__, "Part") in langgraph_port.types_in([Answer])


def test_a_graph_in_a_node_inherits_its_run_and_takes_no_second_input_in_it() -> None:
    seen, inherits = [], []
    inner: StateGraph[Any] = StateGraph(Names)
    inner.add_node("note", lambda state: seen.append(state["name"]))
    inner.add_edge(START, "note")
    called = inner.compile(checkpointer=InMemorySaver())

    def call(state: Names) -> None:
        for name in "ab":
            config: Any = {"configurable": {"thread_id": "inner"}}
            inherits.append(langgraph_port.inherits_run(langgraph_port.full_config(called, config)))
            called.invoke({"name": name}, config)

    outer: StateGraph[Any] = StateGraph(Names)
    outer.add_node("call", call)
    outer.add_edge(START, "call")
    outer.compile().invoke({"name": ""}, {"metadata": {langgraph_port.RUN: "the run"}})
    assert seen == ["a"]
    assert inherits == [True, True]
    assert not langgraph_port.inherits_run({"metadata": {langgraph_port.RUN: "its own"}})


class Names(TypedDict):
    name: str
