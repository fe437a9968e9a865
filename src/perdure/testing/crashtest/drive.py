"""Drives an agent's run to its end from any state: by perdure, or by LangGraph alone.

Both are called the same way in the first process and in every process after a kill. Time is a
movable clock, so a sleep takes no time.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import perdure
from perdure.commands.answer_dialects import dialect_of
from perdure.commands.waits import TIME_IS_UP
from perdure.errors import AlreadyAnswered, BadArgument
from perdure.testing.crashtest.judge import plain
from perdure.testing.crashtest.observer import JudgeConnection, ProcessObserver
from perdure.types import Kind, State

NAME = THREAD = "crashtest"
_NEVER = 3600.0


async def graph_of(found: Any) -> Any:
    """The graph at a place, or the one its function returns, without its own checkpointer."""
    from langgraph.graph import StateGraph
    from langgraph.pregel import Pregel

    if not isinstance(found, (StateGraph, Pregel)) and callable(found):
        found = found()
        if inspect.isawaitable(found):
            found = await found
    if isinstance(found, Pregel):
        found = copy.copy(found)
        found.checkpointer = None
    elif not isinstance(found, StateGraph):
        raise BadArgument(
            f"It is {found!r}, and no StateGraph, compiled graph, @entrypoint, or "
            "function without arguments that returns one."
        )
    return found


async def by_perdure(
    graph: Any, order: dict[str, Any], connection: JudgeConnection, observer: ProcessObserver
) -> None:
    """Start the run, or find it, and drive it until nothing is left to do."""
    from perdure.runtime import Runtime
    from perdure.testing import Clock

    clock = Clock(datetime.fromtimestamp(order["clock"] / 1000, UTC))
    url = order["url"]
    if url.startswith("sqlite:"):
        url += "?synchronous=normal"  # faster, and enough against a kill
    async with Runtime(url, clock=clock) as rt:
        bound = rt.register(graph, name=NAME)
        # No commits by the clock: the same point is then the same in every trial.
        rt.journal.set_interval(_NEVER)
        with observer.armed("while the run was accepted"):
            run = await rt.start(
                NAME, order["input"], thread_id=THREAD, key="once", context=order["context"]
            )
        while True:
            with observer.armed():
                await rt.tick(10_000)
            run = await rt.get(run.id)
            if run.ended or run.state in (State.HELD, State.PAUSED):
                break
            if waits := await rt.waits(run_id=run.id, kind=Kind.HUMAN):
                for wait in waits:
                    answering = observer.armed("while an answer was stored")
                    with answering, contextlib.suppress(AlreadyAnswered):
                        await rt.answer(wait.id, _answer(wait.value, order["answer"]), by=NAME)
            elif run.due_at is None:
                break  # only a signal could wake it
            else:
                clock.move_to(max(clock.time + timedelta(milliseconds=1), run.due_at))
                connection.send("clock", clock.now())
        state = await bound.aget_state({"configurable": {"thread_id": THREAD}})
        connection.send("points", observer.points)
        connection.send(
            "end",
            run.state.value,
            {"output": plain(run.output), "state": plain(state.values)},
            run.reason or (str(run.error) if run.error else ""),
            run.error.traceback if run.error else "",
        )


async def by_langgraph(
    graph: Any, order: dict[str, Any], connection: JudgeConnection, observer: ProcessObserver
) -> None:
    """The same with LangGraph's own saver: resumed with None, or called with the input again."""
    from langgraph.graph import StateGraph

    async with stock_saver(order["url"], observer) as saver:
        if isinstance(graph, StateGraph):
            pregel: Any = graph.compile(checkpointer=saver)
        else:
            pregel, graph.checkpointer = graph, saver
        config: Any = {"configurable": {"thread_id": THREAD}}
        given = order["input"]
        if order["again"] and order["resume"] == "none":
            given = await _next_input(pregel, config, order)
        output = None
        error: Exception | None = None
        try:
            while given is not _OVER:
                with observer.armed():
                    output = await pregel.ainvoke(
                        given, config, durability="sync", context=order["context"]
                    )
                given = await _next_input(pregel, config, order)
        except Exception as raised:
            error = raised
        state = await pregel.aget_state(config)
        if output is None:
            output = state.values
        elif isinstance(output, dict):
            output = {key: one for key, one in output.items() if not key.startswith("__")}
        connection.send("points", observer.points)
        connection.send(
            "end",
            "failed" if error else "done",
            {"output": plain(output), "state": plain(state.values)},
            f"{type(error).__name__}: {error}" if error else "",
            "",
        )


_OVER: Any = object()


async def _next_input(pregel: Any, config: Any, order: dict[str, Any]) -> Any:
    """The input that a careful caller passes to LangGraph next."""
    from langgraph.types import Command

    state = await pregel.aget_state(config)
    if state.created_at is None:
        return order["input"]
    if state.interrupts:
        answers = {one.id: _answer(one.value, order["answer"]) for one in state.interrupts}
        return Command(resume=answers if len(answers) > 1 else next(iter(answers.values())))
    return None if state.next or state.tasks else _OVER


def _answer(question: Any, answer: Any) -> Any:
    if isinstance(question, dict) and question.keys() == {"wake_at"}:
        return True
    if isinstance(question, dict) and "signal" in question:
        return TIME_IS_UP
    return agreeing_answer(question) if answer is None else answer


def agreeing_answer(question: Any) -> Any:
    """The answer that approves, in the dialect of the question: LangChain's
    `HumanInTheLoopMiddleware`, Agent Inbox, or the agent's own."""
    dialect = dialect_of(question)
    if dialect is None:
        is_tool = isinstance(question, dict) and question.get("type") == "tool_approval"
        return {"type": "approve"} if is_tool else {"ok": True}
    if dialect.field is not None:
        return {dialect.field: [{"type": "approve"} for _ in dialect.parts]}
    return dialect.example  # accepts, if that is allowed


@contextlib.asynccontextmanager
async def stock_saver(url: str, observer: ProcessObserver | None) -> AsyncIterator[Any]:
    """LangGraph's own saver, with points before and after what it stores."""
    kind: Any
    if url.startswith("sqlite:"):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver as kind  # noqa: N813

        url = url.removeprefix("sqlite:///")
    else:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver as kind  # noqa: N813

    def at(point: str) -> None:
        if observer is not None:
            observer.at(point)

    class Watched(kind):  # type: ignore[misc]
        async def aput(self, *args: Any, **kwargs: Any) -> Any:
            at("put.before")
            stored = await super().aput(*args, **kwargs)
            at("put.after")
            return stored

        async def aput_writes(self, *args: Any, **kwargs: Any) -> Any:
            at("put_writes.before")
            await super().aput_writes(*args, **kwargs)
            at("put_writes.after")

    async with Watched.from_conn_string(url) as saver:
        await saver.setup()
        yield saver


async def prepare(url: str, stock: bool) -> None:
    """Make the tables, once for all trials."""
    if stock:
        async with stock_saver(url, None):
            pass
    else:
        perdure.connect(url).close()
