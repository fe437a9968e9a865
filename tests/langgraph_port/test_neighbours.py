"""What LangChain's agents, middleware and models hold."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ExtendedModelResponse, ModelRequest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import PutOp
from langgraph.types import Command
from langgraph_sdk import Auth
from langsmith import Client
from pydantic import BaseModel

from perdure.langgraph_port import compiled_graphs, ecosystem
from perdure.server.authorization import authenticate_handler, on_handler


class Looks(AgentMiddleware[Any, Any, Any]):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[Command[Any]] | None] = []

    def _look(self, handler: Any) -> None:
        self.seen.append(ecosystem.middleware_commands(handler))

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        result = handler(request)
        self._look(handler)
        return result

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        result = await handler(request)
        self._look(handler)
        return result


class Updates(AgentMiddleware[Any, Any, Any]):
    """Changes the state beside the model's answer."""

    update: Command[Any] = Command(update={"messages": []})

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        return ExtendedModelResponse(handler(request), command=self.update)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        return ExtendedModelResponse(await handler(request), command=self.update)


async def test_a_handler_of_middleware_holds_the_updates_of_the_middleware_inside_of_it() -> None:
    model = FakeListChatModel(responses=["yes"])
    asked: Any = {"messages": [("user", "?")]}
    for middleware, expected in (([Updates()], [Updates.update]), ([], None)):
        looks = Looks()
        agent = create_agent(model, middleware=[looks, *middleware])
        agent.invoke(asked)
        await agent.ainvoke(asked)
        assert looks.seen == [expected, expected]


def test_a_model_tells_by_its_parameters_what_changes_its_answers() -> None:
    class Warm(FakeListChatModel):
        temperature: float = 0.0

        @property
        def _identifying_params(self) -> dict[str, Any]:
            return {"temperature": self.temperature}

    cold, warm = (Warm(responses=[], temperature=one) for one in (0.0, 1.0))
    assert ecosystem.model_parameters(cold) != ecosystem.model_parameters(warm)
    assert ecosystem.model_parameters(FakeListChatModel(responses=["a"])) == {"responses": ["a"]}
    assert ecosystem.model_parameters(object()) is None


class Part(BaseModel):
    word: str


class Answer(BaseModel):
    parts: list[Part]


def test_an_agent_closes_over_its_response_format() -> None:
    model = FakeListChatModel(responses=["hi"])
    agent = create_agent(model, [], response_format=Answer)
    outer = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent").compile()
    assert ecosystem.response_types(agent) == [Answer]
    assert ecosystem.response_types(outer) == [Answer]
    assert ecosystem.response_types(create_agent(model, [])) == []
    assert (Answer.__module__, "Part") in compiled_graphs.types_in([Answer])


URL = "http://127.0.0.1:9"


def made(**options: Any) -> Client:
    return Client(URL, api_key="key", auto_batch_tracing=False, info={}, **options)


def test_content_is_hidden_or_anonymized_as_the_client_does_it() -> None:
    inputs, outputs, metadata = {"a": "secret"}, {"b": "secret"}, {"c": "secret"}
    hiding = made(hide_inputs=True, hide_outputs=True, hide_metadata=True)
    assert ecosystem.hidden_content(hiding, inputs, outputs, metadata) == ({}, {}, {})
    masked = made(anonymizer=lambda value: json.loads(json.dumps(value).replace("secret", "***")))
    found = ecosystem.hidden_content(masked, inputs, outputs, metadata)
    assert found == ({"a": "***"}, {"b": "***"}, {"c": "***"})
    assert ecosystem.hidden_content(made(), inputs, outputs, metadata) == (
        inputs,
        outputs,
        metadata,
    )


def test_a_client_knows_what_it_samples_and_whether_it_queues() -> None:
    client = made(tracing_sampling_rate=0.0)
    assert not ecosystem.is_sampled(client, "01890000-0000-7000-8000-000000000000")
    assert ecosystem.is_sampled(made(), "any")
    assert not ecosystem.can_queue(client)


def test_the_most_specific_handler_is_the_one_that_counts() -> None:
    auth = Auth()

    @auth.authenticate
    async def who(authorization: str) -> str:
        return authorization

    @auth.on
    async def any_of_all(ctx: Any, value: Any) -> bool:
        return False

    @auth.on(actions="search")
    async def any_search(ctx: Any, value: Any) -> bool:
        return True

    @auth.on.threads
    async def any_thread(ctx: Any, value: Any) -> bool:
        return True

    @auth.on.threads.create
    async def new_thread(ctx: Any, value: Any) -> bool:
        return True

    @auth.on.store.put
    async def put(ctx: Any, value: Any) -> bool:
        return True

    assert authenticate_handler(auth) is who
    assert on_handler(auth, "threads", "create") is new_thread
    assert on_handler(auth, "threads", "create_run") is any_thread
    assert on_handler(auth, "threads", "search") is any_thread
    assert on_handler(auth, "crons", "search") is any_search
    assert on_handler(auth, "store", "put") is put
    assert on_handler(auth, "assistants", "read") is any_of_all


PUT = PutOp(("orders",), "7", {"paid": True})


@pytest.mark.parametrize(
    "kind",
    ["sqlite.SqliteStore", pytest.param("postgres.PostgresStore", marks=pytest.mark.postgres)],
)
def test_the_statements_of_a_store_can_be_run_on_its_own_cursor(
    kind: str, request: pytest.FixtureRequest
) -> None:
    module, _, name = kind.partition(".")
    url = ":memory:" if module == "sqlite" else request.getfixturevalue("postgres_url")
    made = getattr(importlib.import_module(f"langgraph.store.{module}"), name)
    with made.from_conn_string(url) as store:
        store.setup()
        assert ecosystem.can_write_queries(store)
        assert ecosystem.store_loop(store) is None
        queries, embed = ecosystem.put_queries(store, [PUT])
        assert embed is None
        with ecosystem.store_cursor(store) as cursor:
            for sql, params in queries:
                cursor.execute(sql, params)
        assert store.get(PUT.namespace, PUT.key).value == PUT.value


def test_a_store_that_embeds_gives_the_statement_and_the_texts_for_its_vectors() -> None:
    from langgraph.store.sqlite import SqliteStore

    index: Any = {"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]}
    with SqliteStore.from_conn_string(":memory:", index=index) as store:
        _, embed = ecosystem.put_queries(store, [PUT])
        sql, texts = embed
        assert sql.lstrip().startswith("INSERT")
        assert [text for *_, text in texts] == ['{"paid": true}']


async def test_a_store_that_is_only_awaited_knows_its_loop_and_has_an_async_cursor() -> None:
    from langgraph.store.sqlite import AsyncSqliteStore

    async with AsyncSqliteStore.from_conn_string(":memory:") as store:
        await store.setup()
        assert ecosystem.store_loop(store) is asyncio.get_running_loop()
        made, _ = ecosystem.put_queries(store, [PUT])
        async with ecosystem.store_cursor(store) as cursor:
            for sql, params in made:
                await cursor.execute(sql, params)
        found = await store.aget(PUT.namespace, PUT.key)
        assert found is not None
        assert found.value == PUT.value
