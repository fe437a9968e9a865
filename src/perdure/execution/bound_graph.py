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
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel

from perdure.commands.runs import RunRow
from perdure.effects.simulation import refuse_in_evaluation
from perdure.errors import LeaseLost, ThreadBusy
from perdure.execution import bound_call
from perdure.execution.bound_call import BoundCall
from perdure.execution.bound_runs import BoundRuns, taken_over
from perdure.execution.drive import Drive, Outcome, Raised, Returned
from perdure.execution.engine import Engine
from perdure.execution.graphs import Graph, check_saver
from perdure.execution.stream_capture import recorded
from perdure.journal import Journal, Refused
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

    @property
    def _journal(self) -> Journal:
        return self._engine.driver.journal  # not before: registering a graph opens nothing

    @contextlib.contextmanager
    def _leased(self, drive: Drive) -> Iterator[None]:
        """Keep the lease of a call. Raises `ThreadBusy` if it is lost while the run ends."""
        keeper = self._engine.keeper
        keeper.add(drive)
        try:
            yield
        except Refused as lost:  # while it ended
            raise taken_over(drive) from lost
        finally:
            keeper.remove(drive)

    @contextlib.contextmanager
    def _opening(self, call: BoundCall) -> Iterator[None]:
        """End with a call the run that it has accepted and not begun, however the call ends. Raises
        `ThreadBusy` if the run loses its lease while it begins."""
        try:
            yield
        except GeneratorExit:
            raise  # thrown away with its event loop, perhaps under a lock: its lease runs out
        except BaseException as error:
            self._runs.give_up(call)
            if isinstance(error, (LeaseLost, Refused)):
                busy = ThreadBusy(call.thread_id, "was stopped, or another worker drives")
                raise busy from error
            raise

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
            if bound_call.starts_own_run(self, input, config, kwargs):
                return bound_call.invoke(self, input, config, kwargs)
            return super().invoke(input, config, **kwargs)

        async def ainvoke(
            self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
        ) -> Any:
            """`invoke`, without blocking the event loop."""
            if bound_call.starts_own_run(self, input, config, kwargs):
                return await bound_call.ainvoke(self, input, config, kwargs)
            _INVOKING.set(True)
            return await super().ainvoke(input, config, **kwargs)

        def stream(
            self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
        ) -> Iterator[Any]:
            """Drive a run and yield LangGraph's chunks.

            A reader that stops early gives the run back, and a worker finishes it. The rest is as
            in `invoke`.
            """
            journal, pregel = self._journal, self._graph.pregel
            call = self._call(input, config, kwargs)
            if call is None:
                yield from pregel.stream(input, config, **kwargs)
                return
            refuse_in_evaluation("perdure.stream")
            with self._opening(call):
                drive = journal.run(self._runs.open(call))
                outcome: Outcome = Returned()
                with self._leased(drive):
                    try:
                        call.accepted = None  # it is begun
                        yield from pregel.stream(call.input, drive.config, **call.arguments)
                    except BaseException as error:
                        outcome = Raised(error)
                        if isinstance(error, LeaseLost):
                            raise taken_over(drive) from error
                        raise
                    finally:
                        journal.run(self._runs.close(drive, outcome))

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
            journal, pregel = self._journal, self._graph.pregel
            call = self._call(None, config, {})
            if call is None:
                return pregel.bulk_update_state(config, supersteps)
            refuse_in_evaluation("perdure.update_state")
            with self._opening(call):
                drive, waiting = journal.run(self._runs.lease_for_update(call))
                with self._leased(drive):
                    try:
                        call.accepted = None
                        return pregel.bulk_update_state(call.with_lease(drive), supersteps)
                    finally:
                        journal.run(self._runs.after_update(drive, waiting))

        async def abulk_update_state(
            self, config: RunnableConfig, supersteps: Any
        ) -> RunnableConfig:
            """`bulk_update_state`, without blocking the event loop."""
            journal, pregel = self._journal, self._graph.pregel
            call = self._call(None, config, {})
            if call is None:
                return await pregel.abulk_update_state(config, supersteps)
            refuse_in_evaluation("perdure.update_state")
            with self._opening(call):
                drive, waiting = await journal.arun(self._runs.lease_for_update(call))
                with self._leased(drive):
                    try:
                        call.accepted = None
                        return await pregel.abulk_update_state(call.with_lease(drive), supersteps)
                    finally:
                        await journal.arun(self._runs.after_update(drive, waiting))

    # -- running

    def invoke_run(self, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
        """`invoke`, for the effect that a node calls. Raises `AlreadyDone`. Internal."""
        return super().invoke(input, config, **kwargs)

    async def ainvoke_run(self, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
        return await super().ainvoke(input, config, **kwargs)

    def output_of(self, row: RunRow) -> Any:
        """Return the output of a run that is done. Internal."""
        return self._journal.run(self._engine.output_of(row))

    async def aoutput_of(self, row: RunRow) -> Any:
        return await self._journal.arun(self._engine.output_of(row))

    def _call(self, input: Any, config: RunnableConfig | None, kwargs: Any) -> BoundCall | None:
        """A call as one of its own, or None if it is a part of the run of another graph."""
        full = configs.full_config(self, config)
        if configs.is_nested(full["configurable"]):
            return None
        return BoundCall(input, config, full, kwargs)

    async def _astream(
        self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any], *, keep: bool
    ) -> AsyncIterator[Any]:
        journal, pregel = self._journal, self._graph.pregel
        call = self._call(input, config, kwargs)
        if call is not None and keep:
            call.keep_stream()
        if call is None:
            inner = cast(AsyncGenerator[Any], pregel.astream(input, config, **kwargs))
            async with contextlib.aclosing(inner):
                async for chunk in inner:
                    yield chunk
            return
        refuse_in_evaluation("perdure.stream")
        with self._opening(call):
            drive = await journal.arun(self._runs.open(call))
            outcome: Outcome = Returned()
            with self._leased(drive):
                try:
                    call.accepted = None  # it is begun
                    chunks = pregel.astream(call.input, drive.config, **call.arguments)
                    if (recorder := drive.segment.stream) is not None:
                        chunks = recorded(chunks, recorder, *call.stream_arguments)
                    async with contextlib.aclosing(cast(AsyncGenerator[Any], chunks)):
                        async for chunk in chunks:
                            yield chunk
                except BaseException as error:
                    outcome = Raised(error)
                    if isinstance(error, LeaseLost):
                        raise taken_over(drive) from error
                    raise
                finally:
                    await journal.arun(self._runs.close(drive, outcome))


_INVOKING: ContextVar[bool] = ContextVar("perdure_invoking", default=False)
"""Whether `ainvoke`, which LangGraph makes of `astream`, is about to call it."""


@functools.cache
def _bound_class(kind: type[Any]) -> type[Any]:
    """A graph class of LangGraph whose calls are runs."""
    return type(f"Bound{kind.__name__}", (BoundGraph, kind), {"__doc__": BoundGraph.__doc__})
