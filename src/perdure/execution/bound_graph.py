"""Bound graphs: what `register` returns. A LangGraph graph, and each call of it a run with a lease.

    invoke(input)              a new run of the thread; a run that waits on it is superseded, as in
                               LangGraph, and one that is driven is waited for
    invoke(Command(resume=…))  answers the run that waits, and drives it
    invoke(None)               drives the run that is under way, or goes on from the last checkpoint
    invoke(…, old config)      a new run from that checkpoint
    as a node of another graph a part of that graph's run, as in LangGraph

If the caller's process dies, any worker goes on with the run that the call had begun; `bound_runs`
says what else a call leaves when it ends. Only what LangGraph's graph runs or writes by itself is
defined here: `stream`, `astream` and the updates of many states; all its other methods, such as
`invoke`, `batch` and `astream_events`, end in one of these.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel

from perdure.effects.context import key
from perdure.effects.decorator import Effect, aperform, perform
from perdure.effects.simulation import refuse_in_evaluation
from perdure.effects.task import is_in_run
from perdure.errors import LeaseLost, ThreadBusy
from perdure.execution.bound_runs import CALL_KEY, AlreadyDone, BoundCall, BoundRuns, taken_over
from perdure.execution.drive import Drive, Raised, Returned, is_resume
from perdure.execution.engine import Engine
from perdure.execution.graphs import Graph, check_saver
from perdure.execution.stream_capture import recorded
from perdure.journal import Plan, Refused
from perdure.langgraph_port import configs


class BoundGraph(Pregel[Any, Any, Any, Any]):
    """A registered graph, bound to a runtime's journal. It is a LangGraph graph of the same class.

    It has all methods of that class: `invoke`, `stream`, `batch`, `astream_events`, `update_state`,
    `with_config`, `get_state` and the rest. Each call that runs or changes something is a run in
    the journal, under a lease and with a history; each input of a `batch` is one.

        graph = runtime.register(builder, name="campaign")
        graph.invoke({"to": "ada"}, {"configurable": {"thread_id": "ada"}})

    If the calling process dies, a worker that has the graph takes the run over. A call that ends
    before it has begun its run, because it is cancelled or dies while it waits for its turn, takes
    the run with it: its input is never applied.
    """

    _graph: Graph
    _engine: Engine
    _runs: BoundRuns

    @staticmethod
    def of(graph: Graph, engine: Engine) -> BoundGraph:
        """Return a registered graph as its callers use it."""
        kind = _bound_class(type(graph.pregel))
        bound: BoundGraph = object.__new__(kind)
        vars(bound).update(
            vars(graph.pregel), _graph=graph, _engine=engine, _runs=BoundRuns(graph, engine)
        )
        return bound

    def copy(self, update: dict[str, Any] | None = None) -> BoundGraph:
        """Return a copy with some attributes changed, on the same journal.

        Args:
            update: The attributes to change, by name.

        Raises:
            NotDurable: The copy would have another checkpointer.
        """
        pregel = copy.copy(self._graph.pregel)
        for name, value in (update or {}).items():
            setattr(pregel, name, value)
        check_saver(pregel.checkpointer, self._engine.saver, self._graph.name)
        return BoundGraph.of(replace(self._graph, pregel=pregel), self._engine)

    @property
    def unbound(self) -> Pregel[Any, Any, Any, Any]:
        """The compiled graph without its runtime."""
        return self._graph.pregel

    def __repr__(self) -> str:
        return f"<perdure graph {self._graph.key!r}>"

    if not TYPE_CHECKING:  # type checkers see the signatures of LangGraph's methods

        def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
            """Drive a run to its end, or to its next wait, and return LangGraph's result.

            Which run it is depends on `input`. An exception in a node reaches the caller and the
            run is `failed`; nothing is retried automatically. If the graph interrupts, the run is
            `waiting`, and any worker goes on with it.

            Args:
                input: An input starts a new run. `Command(resume=…)` answers the run that waits and
                    drives it. `None` drives the run of the thread that has not ended, or goes on
                    from the last checkpoint.
                config: LangGraph's config, with the `thread_id` in `configurable`. With the
                    `checkpoint_id` of an old checkpoint, a new run begins there.
                **kwargs: The other arguments of LangGraph's method.

            Raises:
                ThreadBusy: Another worker drives the run, the thread's run is `paused` or `held`,
                    or the run was taken over or stopped meanwhile.
                BadAnswer: The answer does not fit the question. Nothing was stored.
                AmbiguousAnswer: The command does not say which of several questions it answers.
                AlreadyAnswered: The question was answered at this old checkpoint. Nothing was
                    stored.
            """
            if self._starts_own_run(input, config, kwargs):
                return perform(_INVOKE, _recorded_call(self, input, config, kwargs), {})
            return super().invoke(input, config, **kwargs)

        async def ainvoke(
            self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
        ) -> Any:
            """`invoke`, without blocking the event loop."""
            if self._starts_own_run(input, config, kwargs):
                return await aperform(_AINVOKE, _recorded_call(self, input, config, kwargs), {})
            _INVOKING.set(True)
            return await super().ainvoke(input, config, **kwargs)

        def stream(
            self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
        ) -> Iterator[Any]:
            """Drive a run and yield LangGraph's chunks.

            A reader that stops early gives the run back, and a worker finishes it. The rest is as
            in `invoke`.
            """
            pregel, call = self._graph.pregel, self._call(input, config, kwargs)
            if call is None:
                yield from pregel.stream(input, config, **kwargs)
                return
            refuse_in_evaluation("perdure.stream")
            with _Session(self._runs, call) as drive:
                yield from pregel.stream(call.input, drive.config, **call.arguments)

        def astream(
            self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
        ) -> AsyncIterator[Any]:
            """`stream`, without blocking the event loop.

            Chunks of the modes that the caller names in `stream_mode` are also kept, for readers in
            other processes: `Client.stream`.
            """
            is_invoked = _INVOKING.get()
            _INVOKING.set(False)  # a node may call another graph
            return self._astream(input, config, kwargs, keep=not is_invoked)

        def bulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
            """Change the state of a thread. `update_state` ends here.

            A run that waits on the thread is driven again on the new state, unless a new input
            comes first.

            Args:
                config: LangGraph's config, with the `thread_id` in `configurable`.
                supersteps: The updates, as in LangGraph.

            Raises:
                ThreadBusy: A run of the thread is driven now.
            """
            pregel, call = self._graph.pregel, self._call(None, config, {})
            if call is None:
                return pregel.bulk_update_state(config, supersteps)
            refuse_in_evaluation("perdure.update_state")
            with _Session(self._runs, call, updates=True) as drive:
                return pregel.bulk_update_state(call.with_lease(drive), supersteps)

        async def abulk_update_state(
            self, config: RunnableConfig, supersteps: Any
        ) -> RunnableConfig:
            """`bulk_update_state`, without blocking the event loop."""
            pregel, call = self._graph.pregel, self._call(None, config, {})
            if call is None:
                return await pregel.abulk_update_state(config, supersteps)
            refuse_in_evaluation("perdure.update_state")
            async with _Session(self._runs, call, updates=True) as drive:
                return await pregel.abulk_update_state(call.with_lease(drive), supersteps)

    def _call(self, input: Any, config: RunnableConfig | None, kwargs: Any) -> BoundCall | None:
        """A call as one of its own, or None if it is a part of the run of another graph."""
        full = configs.full_config(self, config)
        if configs.is_nested(full["configurable"]):
            return None
        return BoundCall(input, config, full, kwargs)

    def _starts_own_run(self, input: Any, config: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether a call starts a run of its own inside another run."""
        if input is None or is_resume(input) or not kwargs.keys() <= _STORED or not is_in_run():
            return False
        return not configs.is_nested(configs.full_config(self, config)["configurable"])

    async def _astream(
        self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any], *, keep: bool
    ) -> AsyncIterator[Any]:
        pregel, call = self._graph.pregel, self._call(input, config, kwargs)
        if call is None:
            inner = cast(AsyncGenerator[Any], pregel.astream(input, config, **kwargs))
            async with contextlib.aclosing(inner):
                async for chunk in inner:
                    yield chunk
            return
        if keep:
            call.keep_stream()
        refuse_in_evaluation("perdure.stream")
        async with _Session(self._runs, call) as drive:
            chunks = pregel.astream(call.input, drive.config, **call.arguments)
            if (recorder := drive.stream) is not None:
                chunks = recorded(chunks, recorder, *call.stream_arguments)
            async with contextlib.aclosing(cast(AsyncGenerator[Any], chunks)):
                async for chunk in chunks:
                    yield chunk


class _Session:
    """While LangGraph runs in a call: its run is claimed, and its lease kept. The end stores what
    the outcome means."""

    def __init__(self, runs: BoundRuns, call: BoundCall, *, updates: bool = False) -> None:
        self._runs, self._engine, self._call = runs, runs.engine, call
        self._updates = updates

    def __enter__(self) -> Drive:
        with self._opening():
            return self._add(self._engine.journal.run(self._open()))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._closing(error):
            self._engine.journal.run(self._close(error))

    async def __aenter__(self) -> Drive:
        with self._opening():
            return self._add(await self._engine.journal.arun(self._open()))

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._closing(error):
            await self._engine.journal.arun(self._close(error))

    def _open(self) -> Plan[Drive]:
        return (self._runs.open_for_update if self._updates else self._runs.open)(self._call)

    def _add(self, drive: Drive) -> Drive:
        self._engine.keeper.add(drive)
        self._call.accepted = None  # it is begun
        self._drive = drive
        return drive

    def _close(self, error: BaseException | None) -> Plan[None]:
        if self._updates:
            return self._runs.close_update(self._call, self._drive)
        return self._runs.close(self._drive, Returned() if error is None else Raised(error))

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        """End with a call the run that it has accepted and not begun, however the call ends. Raises
        `ThreadBusy` if the run loses its lease while it begins."""
        try:
            yield
        except GeneratorExit:
            raise  # thrown away with its event loop, perhaps under a lock: its lease runs out
        except BaseException as error:
            self._runs.give_up(self._call)
            if isinstance(error, (LeaseLost, Refused)):
                busy = ThreadBusy(self._call.thread_id, "was stopped, or another worker drives")
                raise busy from error
            raise

    @contextlib.contextmanager
    def _closing(self, error: BaseException | None) -> Iterator[None]:
        """Keep the lease until the run has ended. Raises `ThreadBusy` if it is lost before."""
        try:
            yield
        except Refused as lost:
            raise taken_over(self._drive) from lost
        finally:
            self._engine.keeper.remove(self._drive)
        if isinstance(error, (LeaseLost, Refused)):
            raise taken_over(self._drive) from error


_STORED = {"context", "durability"}
"""Arguments with which the result is what the run returns."""


def _recorded_call(graph: BoundGraph, input: Any, config: Any, kwargs: Any) -> tuple[Any, ...]:
    thread_id = ((config or {}).get("configurable") or {}).get("thread_id")
    return graph, graph.name, str(thread_id or ""), input, config, kwargs


@contextlib.contextmanager
def _keyed() -> Iterator[None]:
    token = CALL_KEY.set(key())
    try:
        yield
    finally:
        CALL_KEY.reset(token)


def _invoke(
    graph: Any, name: str, thread_id: str, input: Any, config: Any, kwargs: dict[str, Any]
) -> Any:
    with _keyed():
        try:
            return super(BoundGraph, graph).invoke(input, config, **kwargs)
        except AlreadyDone as done:
            return done.journal.run(done.output)


async def _ainvoke(
    graph: Any, name: str, thread_id: str, input: Any, config: Any, kwargs: dict[str, Any]
) -> Any:
    with _keyed():
        try:
            return await super(BoundGraph, graph).ainvoke(input, config, **kwargs)
        except AlreadyDone as done:
            return await done.journal.arun(done.output)


def _effect(function: Any) -> Effect:
    """An exception is no outcome: a run that failed is retried by the next attempt. A run goes on
    with its recorded input, but with the graph and the config of the call: only of the same one."""
    record = ("name", "thread_id", "input")
    effect = Effect.of(function, name="perdure.invoke", retry=None, record=record)
    return replace(effect, spec=replace(effect.spec, keeps_errors=False, identity=record[:2]))


_INVOKE, _AINVOKE = _effect(_invoke), _effect(_ainvoke)
_INVOKING: ContextVar[bool] = ContextVar("perdure_invoking", default=False)
"""Whether `ainvoke`, which LangGraph makes of `astream`, is about to call it."""


@functools.cache
def _bound_class(kind: type[Any]) -> type[Any]:
    """A graph class of LangGraph whose calls are runs."""
    return type(f"Bound{kind.__name__}", (BoundGraph, kind), {"__doc__": BoundGraph.__doc__})
