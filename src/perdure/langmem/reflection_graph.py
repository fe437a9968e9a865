"""The graph of a reflection: `reflect`, then `keep`.

    reflect    waits until no other reflection works in its namespace, then calls the reflector with
               its writes staged: nothing outside changes
    keep       commits the staged writes to the store, once; or goes back to `reflect` if another
               reflection has worked in the namespace since

Between the two is a checkpoint. A reflection that a crash ends before it starts again with nothing
written; one that a crash ends after it does not call the model again.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Literal, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from perdure.agent import sleep
from perdure.errors import Error
from perdure.langmem.reflection_request import ReflectionRequest
from perdure.langmem.reflector import call_reflector
from perdure.langmem.resources import ExecutorResources
from perdure.langmem.staged_writes import StagedWrite
from perdure.serde.serializer import Serializer

log = logging.getLogger("perdure")

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=0.2), timedelta(seconds=5)
"""Pauses between two attempts to get the turn in a namespace; each is twice the one before."""


class ReflectionState(TypedDict, total=False):
    request: dict[str, Any]
    id: str
    writes: list[StagedWrite] | None
    result: Any


class ReflectionOutput(TypedDict, total=False):
    result: Any


def build_reflection_graph(
    resources: ExecutorResources,
) -> StateGraph[ReflectionState, None, ReflectionState, ReflectionOutput]:
    """Build the graph whose runs are the reflections of one executor."""

    def reflect(state: ReflectionState, config: RunnableConfig) -> ReflectionState:
        request, run_id = ReflectionRequest(**state["request"]), config["configurable"]["run_id"]
        pause = FIRST_PAUSE
        # Two reflections of one user that run at once would learn the same thing twice: neither
        # sees the other's memories.
        while not resources.take_turn(tuple(request.namespace), run_id):
            sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        result, writes = call_reflector(
            resources.reflector(),
            resources.required_store(),
            resources.store_calls,
            request,
            state["id"],
            config.get("callbacks"),
        )
        return {"writes": writes, "result": _storable(result, resources.serializer, run_id)}

    def keep(
        state: ReflectionState, config: RunnableConfig
    ) -> ReflectionState | Command[Literal["reflect"]]:
        # A worker may have given this run back between the two nodes. If another reflection had
        # the turn since, this one was made without knowing what that one wrote.
        namespace = tuple(state["request"]["namespace"])
        has_turn = resources.has_turn(namespace, config["configurable"]["run_id"])
        if resources.commit(state["writes"] or [], is_current=has_turn):
            return {}
        return Command(update={"writes": None}, goto="reflect")

    builder = StateGraph(ReflectionState, output_schema=ReflectionOutput)
    builder.add_node("reflect", reflect)
    builder.add_node("keep", keep)
    builder.add_edge(START, "reflect")
    builder.add_edge("reflect", "keep")
    return builder


def _storable(result: Any, serializer: Serializer, reflection_id: str) -> Any:
    """The result, or None if it cannot be stored: the memories are what counts."""
    try:
        serializer.codec.encode(result, "the result")
    except Error as error:
        log.warning(
            "The result of reflection %s is not stored, its memories are: %s", reflection_id, error
        )
        return None
    return result
