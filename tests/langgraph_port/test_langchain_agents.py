"""What LangChain's agents, middleware and models hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ExtendedModelResponse, ModelRequest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel

from perdure.langgraph_port import compiled_graphs, langchain_agents


class Looks(AgentMiddleware[Any, Any, Any]):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[Command[Any]] | None] = []

    def _look(self, handler: Any) -> None:
        self.seen.append(langchain_agents.middleware_commands(handler))

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
    assert langchain_agents.model_parameters(cold) != langchain_agents.model_parameters(warm)
    assert langchain_agents.model_parameters(FakeListChatModel(responses=["a"])) == {
        "responses": ["a"]
    }
    assert langchain_agents.model_parameters(object()) is None


class Part(BaseModel):
    word: str


class Answer(BaseModel):
    parts: list[Part]


def test_an_agent_closes_over_its_response_format() -> None:
    model = FakeListChatModel(responses=["hi"])
    agent = create_agent(model, [], response_format=Answer)
    outer = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent").compile()
    assert langchain_agents.response_types(agent) == [Answer]
    assert langchain_agents.response_types(outer) == [Answer]
    assert langchain_agents.response_types(create_agent(model, [])) == []
    assert (Answer.__module__, "Part") in compiled_graphs.types_in([Answer])
