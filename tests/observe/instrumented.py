"""A run in a process with an instrumentation of others, which stays in a process it was in."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langgraph.graph import START, StateGraph
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import perdure
from perdure.observe import OpenTelemetry
from perdure.testing import TemporaryRuntime
from perdure.types import State
from tests.observe.otlp_receiver import Collector
from tests.support.fork_server import Tell
from tests.support.langchain_child import Script, says

INSTRUMENTORS: dict[str, Any] = {
    "openinference": LangChainInstrumentor,
    "openllmetry": LangchainInstrumentor,
}


class Wide(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def model() -> BaseChatModel:
    return Script(answers=[says("yes")])


@perdure.effect
def draft(to: str) -> str:
    return str(model().invoke(to).text)


def plain(state: Wide) -> Wide:
    return {"log": [str(model().invoke("a question").text)]}


async def coroutine(state: Wide) -> Wide:
    return {"log": [str((await model().ainvoke("a question")).text)]}


def in_effect(state: Wide) -> Wide:
    return {"log": [draft("ana")]}


def wide() -> StateGraph[Any]:
    """Two branches beside each other behind a plain node."""
    graph = StateGraph(Wide)
    for node in (plain, coroutine, in_effect):
        graph.add_node(node)
    graph.add_edge(START, "plain")
    graph.add_edge("plain", "coroutine")
    graph.add_edge("plain", "in_effect")
    return graph


def trace(order: dict[str, Any], tell: Tell) -> None:
    """Tell which of their spans are not in ours, and how many chats they have."""
    theirs, ours = Collector(), Collector()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    INSTRUMENTORS[order["which"]]().instrument(tracer_provider=provider)
    with TemporaryRuntime(order["url"], observe=OpenTelemetry(ours)) as rt:
        rt.register(wide(), name="wide")
        run = rt.blocking.start("wide", {"log": []}, thread_id="t")
        rt.blocking.tick()
        assert rt.blocking.get(run.id).state is State.DONE
    spans = {(span.trace, span.id): span for span in [*ours.spans, *theirs.spans]}
    for span in theirs.spans:
        above = span
        while above.parent and (above.trace, above.parent) in spans:
            above = spans[above.trace, above.parent]
        if above.what != "run":
            tell("orphan", span.name, above.name)
    tell("traces", len({trace for trace, _ in spans}))
    tell("chats", sum("Script" in span.name or "script" in span.name for span in theirs.spans))
    tell("names", [span.name for span in theirs.spans])
