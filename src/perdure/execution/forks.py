"""Forks: a new run on a new thread that goes on from a checkpoint of another.

A fork of the latest checkpoint is a copy of the whole thread, so that subgraphs, finished branches
and answers are as they were, and sleeps and deadlines go on. A fork of an earlier checkpoint, or
one whose state is updated, gets a new checkpoint at the head of the copy. Effects belong to a run,
so those of a fork are new calls.

The run is accepted last. A crash before that leaves a copied thread that nothing drives; then fork
again, to another thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel

from perdure.commands import run_reads, runs, starting
from perdure.commands.runs import RunRow, load_setup
from perdure.errors import BadArgument, GraphChanged, NotFound, UnknownGraph, WrongState
from perdure.execution.code_changes import find_change
from perdure.execution.drive import latest_checkpoint
from perdure.execution.engine import Engine
from perdure.execution.graphs import Graph
from perdure.journal.names import check_id, check_text
from perdure.langgraph_port import checkpoint_names
from perdure.types import Run
from perdure.verbs import call_key, verb


@verb(effect=True)
async def fork(
    on: Engine,
    run_id: str,
    *,
    at: str | None = None,
    update: Any = None,
    as_node: str | None = None,
    thread_id: str | None = None,
) -> Run:
    """Start a run on a new thread that continues from a checkpoint of this run.

    The old run and its thread stay as they are. A fork of the latest checkpoint continues where
    the run is, whatever its state. A fork of an earlier one starts over from there: it asks
    again, and sleeps for the whole time. Effects, random numbers and UUIDs of the fork are new.

        again = await runtime.fork(run.id, update={"draft": "Dear Bo"})

    The run is accepted last: a process that dies before that leaves a copied thread that
    nothing drives. Fork again, to another thread.

    Args:
        run_id: The id of the run.
        at: The id of a checkpoint of its thread. By default the latest.
        update: A change to the state at that checkpoint, in the form of a node's return value.
            With it, a subgraph that was waiting starts over.
        as_node: The node after which the fork continues. Needed if the graph no longer has the
            place where the run is; otherwise LangGraph works it out.
        thread_id: The thread of the fork, without runs. By default a new one.

    Returns:
        The new run, `pending`. It has the metadata, tags, context and config of the old run,
            but not its webhook.

    Raises:
        GraphChanged: The graph no longer has the place where the run is. Register the new names
            of its nodes with `register(renamed=…)`, or pass `as_node`.
        WrongState: The run has no checkpoint yet.
        NotFound: The journal has no such run, or its thread has no such checkpoint.
        UnknownGraph: The run's graph is not registered here.
        BadArgument: The thread has runs already, or the graph has no node `as_node`.
    """
    if thread_id is None and (key := call_key()) is not None:
        thread_id = str(uuid.uuid5(uuid.NAMESPACE_OID, key))
        if found := await on.journal.ado(runs.page(thread_id=thread_id, count=1)):
            # An attempt that was cut off accepted it.
            return await on.journal.arun(run_reads.get.plan(on, found[0].id))
        await on.saver.adelete_thread(thread_id)
    row = await _fork(on, check_id("run", run_id), at, update, as_node, thread_id)
    on.wake()
    return await on.journal.arun(run_reads.show(on, row))


async def _fork(
    engine: Engine,
    run_id: str,
    at: str | None,
    update: Any,
    as_node: str | None,
    thread_id: str | None,
) -> RunRow:
    """Accept a run that goes on from a checkpoint of this one, by default the latest."""
    saver, journal = engine.saver, engine.saver.journal
    row = await journal.arun(run_reads.find_row(engine, run_id))
    graph = engine.graphs.find(row.graph, row.version) or engine.graphs.newest.get(row.graph)
    if graph is None:
        raise UnknownGraph(row.graph, sorted(engine.graphs.chosen()))
    target = check_text("thread_id", thread_id or str(uuid.uuid4()))
    if await journal.ado(runs.page(thread_id=target, count=1)):
        raise BadArgument(f"Thread {target!r} has runs already; fork to a new thread.")
    head = await journal.arun(latest_checkpoint(saver, row.thread_id))
    if head is None:
        raise WrongState(run_id, row.state, "be forked", "it has no checkpoint yet.")
    if (
        at is not None
        and await journal.arun(latest_checkpoint(saver, row.thread_id, id=at)) is None
    ):
        raise NotFound("checkpoint", at)
    is_latest = at in (None, head.checkpoint["id"])
    used, fingerprint = await _graph_for(engine, row, graph, None if is_latest else at, as_node)
    await saver.acopy_thread(row.thread_id, target)
    origin = {"thread_id": row.thread_id, "id": row.id, "tasks": {}}
    if not is_latest or update is not None or as_node is not None:
        node = as_node if update is not None or as_node is not None else checkpoint_names.COPY
        await used.pregel.aupdate_state(_place(target, at), update, node)
        if is_latest:
            origin["tasks"] = await _same_tasks(used.pregel, row.thread_id, target)
    setup = load_setup(saver.serializer, row)
    setup.pop("input", None)
    setup.pop("webhook", None)
    plan = starting.accept(
        engine,
        (graph.name, graph.version),
        target,
        {**setup, "fork": origin if is_latest else {}},
        "reject",
        fingerprint=fingerprint,
        begun=True,
    )
    return await journal.arun(plan)


async def _graph_for(
    engine: Engine, row: RunRow, graph: Graph, at: str | None, as_node: str | None
) -> tuple[Graph, str | None]:
    """The graph that a fork is made with, and the fingerprint its run begins with. Raises
    `GraphChanged` if the place of the run is gone and the caller names no other."""
    if as_node is not None:
        if checkpoint_names.is_node(as_node) and as_node not in graph.pregel.nodes:
            nodes = ", ".join(filter(checkpoint_names.is_node, graph.pregel.nodes))
            raise BadArgument(f"The graph {graph.name!r} has no node {as_node!r}, only {nodes}.")
        await engine.saver.journal.ado(runs.store_topology(graph.fingerprint, graph.topology))
        return graph, graph.fingerprint
    used, change = await engine.saver.journal.arun(find_change(engine.saver, row, graph, at))
    if change is not None:
        raise GraphChanged(row.id, change["reason"], change["lost"])
    return used, row.fingerprint


async def _same_tasks(
    pregel: Pregel[Any, Any, Any, Any], source: str, target: str
) -> Mapping[str, str]:
    """The tasks that a copied thread has under new ids, with the ids they had."""
    before = (await pregel.aget_state(_place(source))).tasks
    after = (await pregel.aget_state(_place(target))).tasks
    known = {(task.name, task.path): task.id for task in before}
    return {task.id: known[place] for task in after if (place := (task.name, task.path)) in known}


def _place(thread_id: str, checkpoint_id: str | None = None) -> RunnableConfig:
    found = {"thread_id": thread_id}
    return {"configurable": found | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}
