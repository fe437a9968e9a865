"""Bound graphs: what `register` returns. LangGraph's methods, each call a run under a lease.

    invoke(input)              a new run of the thread; a run that waits on it is superseded, as in
                               LangGraph, and one that is driven is waited for
    invoke(Command(resume=…))  answers the run that waits, and drives it
    invoke(None)               drives the run that is under way, or goes on from the last checkpoint

If the caller's process dies, any worker goes on with the run.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import Command

from perdure.engine.bound_call import BoundCall, StreamResult
from perdure.engine.breakpoints import stop_at_breakpoint
from perdure.engine.driver import Driver
from perdure.engine.engine import Engine
from perdure.engine.graphs import Graph
from perdure.engine.segment_drive import Drive, Ended, Outcome, Raised, Returned, is_resume
from perdure.errors import (
    BadArgument,
    Error,
    LeaseLost,
    NotDurable,
    ThreadBusy,
)
from perdure.journal import Plan, Refused
from perdure.operations import claims, runs, waits
from perdure.operations.claims import SegmentEnd
from perdure.operations.events import change
from perdure.operations.run_payload import load_setup
from perdure.operations.runs import RunRow
from perdure.service.waits import WaitService
from perdure.types import ENDED, Control, EventKind, State, WaitState

P = ParamSpec("P")
T = TypeVar("T")

POLL = 0.05
"""Seconds between two looks at a run that another process drives."""
REFUSED = frozenset(
    [
        "batch",
        "abatch",
        "batch_as_completed",
        "abatch_as_completed",
        "transform",
        "atransform",
        "astream_events",
        "astream_log",
        "bulk_update_state",
        "abulk_update_state",
        "stream_events",
        "as_tool",
        "assign",
        "bind",
        "copy",
        "map",
        "pick",
        "pipe",
        "with_alisteners",
        "with_config",
        "with_fallbacks",
        "with_listeners",
        "with_retry",
        "with_types",
    ]
)
"""Methods that would run a graph outside of a lease, or return a graph that does."""


def _of_langgraph(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[BoundGraph, P], T]:
    """A method of LangGraph's graph, as a method of the bound graph. It runs no node."""

    def call(self: BoundGraph, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = getattr(self._graph.pregel, method.__name__)(*args, **kwargs)
        return found

    return functools.update_wrapper(call, method)


class BoundGraph:
    """A registered graph on a runtime's journal.

    It has the methods of a compiled LangGraph graph. Those that would run it outside of a lease
    raise `NotDurable`.

        graph = runtime.register(builder, name="campaign")
        graph.invoke({"to": "ada@example.com"}, {"configurable": {"thread_id": "ada"}})
    """

    def __init__(self, graph: Graph, engine: Engine) -> None:
        self._graph, self._engine = graph, engine

    @property
    def _driver(self) -> Driver:
        return self._engine.driver  # not before: registering a graph opens nothing

    @contextlib.contextmanager
    def _leased(self, drive: Drive) -> Iterator[None]:
        """While the lease of a call is renewed."""
        keeper = self._engine.keeper
        keeper.add(drive)
        try:
            yield
        finally:
            keeper.remove(drive)

    @property
    def name(self) -> str:
        """The name it is registered by."""
        return self._graph.name

    def __repr__(self) -> str:
        return f"<perdure graph {self._graph.key!r}>"

    if not TYPE_CHECKING:  # type checkers see the methods below, and find misspelled ones

        def __getattr__(self, name: str) -> Any:
            if name in REFUSED:
                raise NotDurable(
                    f"{name}() of the graph {self.name!r} would run outside of its lease. Use "
                    "invoke, ainvoke, stream or astream, or Runtime.start."
                )
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(self._graph.pregel, name)

    # -- running

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Drive a run to its end, or to its next wait, and return LangGraph's result."""
        result = StreamResult(kwargs)
        for chunk in self.stream(input, config, **result.kwargs):
            result.add(chunk)
        return result.result()

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """`invoke` without blocking the event loop."""
        result = StreamResult(kwargs)
        async for chunk in self.astream(input, config, **result.kwargs):
            result.add(chunk)
        return result.result()

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Drive a run and yield LangGraph's chunks. A worker goes on if reading stops."""
        journal = self._driver.journal
        call = BoundCall(input, config, kwargs)
        drive = journal.run(self._open(call))
        outcome: Outcome = Returned()
        with self._leased(drive):
            try:
                yield from self._graph.pregel.stream(call.input, drive.config, **call.arguments)
            except LeaseLost as lost:
                outcome = Raised(lost)
                raise _taken_over(drive) from lost
            except BaseException as error:
                outcome = Raised(error)
                raise
            finally:
                journal.run(self._close(drive, outcome))

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """`stream` without blocking the event loop."""
        journal = self._driver.journal
        call = BoundCall(input, config, kwargs)
        drive = await journal.arun(self._open(call))
        outcome: Outcome = Returned()
        with self._leased(drive):
            try:
                chunks = self._graph.pregel.astream(call.input, drive.config, **call.arguments)
                async with contextlib.aclosing(cast(AsyncGenerator[Any], chunks)):
                    async for chunk in chunks:
                        yield chunk
            except LeaseLost as lost:
                outcome = Raised(lost)
                raise _taken_over(drive) from lost
            except BaseException as error:
                outcome = Raised(error)
                raise
            finally:
                await journal.arun(self._close(drive, outcome))

    # -- looking and changing

    get_state = _of_langgraph(Pregel.get_state)
    aget_state = _of_langgraph(Pregel.aget_state)
    get_state_history = _of_langgraph(Pregel.get_state_history)
    aget_state_history = _of_langgraph(Pregel.aget_state_history)
    get_graph = _of_langgraph(Pregel.get_graph)
    get_subgraphs = _of_langgraph(Pregel.get_subgraphs)
    get_input_jsonschema = _of_langgraph(Pregel.get_input_jsonschema)
    get_output_jsonschema = _of_langgraph(Pregel.get_output_jsonschema)

    @property
    def nodes(self) -> Mapping[str, Any]:
        """The nodes by name, as LangGraph has them."""
        return self._graph.pregel.nodes

    def update_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, **kwargs: Any
    ) -> RunnableConfig:
        """Change the state of a thread. A run that waits on it is driven again on the new state."""
        journal = self._driver.journal
        call = BoundCall(None, config, {})
        drive, waiting = journal.run(self._lease_for_update(call))
        with self._leased(drive):
            try:
                return self._graph.pregel.update_state(
                    call.with_lease(drive), values, as_node, **kwargs
                )
            finally:
                journal.run(self._after_update(drive, waiting))

    async def aupdate_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, **kwargs: Any
    ) -> RunnableConfig:
        """`update_state` without blocking the event loop."""
        journal = self._driver.journal
        call = BoundCall(None, config, {})
        drive, waiting = await journal.arun(self._lease_for_update(call))
        with self._leased(drive):
            try:
                return await self._graph.pregel.aupdate_state(
                    call.with_lease(drive), values, as_node, **kwargs
                )
            finally:
                await journal.arun(self._after_update(drive, waiting))

    # -- plans

    def _open(self, call: BoundCall) -> Plan[Drive]:
        """The run of a call, claimed for it."""
        row = yield from self._find(call)
        begun = yield from self._driver.begin(row, self._graph, inline=True)
        if isinstance(begun, SegmentEnd):
            yield from self._driver.end(row, begun)
            raise Error(
                f"Run {row.id} cannot be driven: it is {begun.state.value}, "
                f"{begun.reason or 'because it was stopped'}."
            )
        call.apply(begun)
        return begun

    def _find(self, call: BoundCall) -> Plan[RunRow]:
        if call.input is None or is_resume(call.input):
            under_way: RunRow | None = yield runs.head(call.thread_id)
            if under_way is not None:
                if not self._is_mine(under_way):
                    raise ThreadBusy(call.thread_id, f"is of the graph {under_way.graph!r}")
                if is_resume(call.input):
                    yield from self._answer(under_way, call)
                claimed = yield from self._claim(under_way)
                if claimed is not None:
                    return claimed
                raise ThreadBusy(call.thread_id, "another worker drives")
        accepted = yield from self._engine.accept_inline(self._graph, call.thread_id, call.setup())
        while True:
            claimed = yield from self._claim(accepted)
            if claimed is not None:
                return claimed
            yield POLL
            accepted = (yield runs.find(accepted.id)) or accepted
            if accepted.state in ENDED or accepted.state in (State.PAUSED, State.HELD):
                raise ThreadBusy(call.thread_id, f"was {accepted.state} by another caller")
            head: RunRow | None = yield runs.head(call.thread_id)
            if head is None or head.n >= accepted.n:
                continue
            if head.state in (State.HELD, State.PAUSED):
                yield from self._withdraw(accepted)
                raise ThreadBusy(call.thread_id, f"is {head.state} ({head.id})")
            now, until = self._driver.clock.now(), self._engine.keeper.until()
            if head.state == State.WAITING and not self._is_due(head):
                made = change(accepted.thread_id, accepted.id, now)
                yield runs.supersede(self._driver.serializer, made)
            elif self._is_abandoned(head, 2 * now - until):
                yield from self._cancel_abandoned(head, accepted)
            elif accepted.ready_at < (now + until) // 2:
                yield runs.reserve(accepted, until)

    def _is_abandoned(self, head: RunRow, since: int) -> bool:
        """Whether a caller died, and for a whole lease no worker has gone on with its run."""
        dead = head.state == State.RUNNING and head.due_at is not None and head.due_at < since
        if not dead or not self._is_mine(head):
            return False
        return bool(load_setup(self._driver.serializer, head).get("inline"))

    def _cancel_abandoned(self, head: RunRow, by: RunRow) -> Plan[None]:
        claimed = yield from self._claim(head)
        if claimed is not None:
            reason = f"its caller died, and run {by.id} takes its place"
            end = SegmentEnd(State.CANCELLED, EventKind.CANCELLED, {"by": by.id}, reason=reason)
            yield from self._driver.end(claimed, end)

    def _is_mine(self, row: RunRow) -> bool:
        return (row.graph, row.version) == (self._graph.name, self._graph.version)

    def _withdraw(self, row: RunRow) -> Plan[None]:
        made = change(row.thread_id, row.id, self._driver.clock.now())
        reason = "its caller did not want to wait"
        yield runs.stop(self._driver.serializer, made, Control.CANCEL, 0, reason=reason)

    def _claim(self, row: RunRow) -> Plan[RunRow | None]:
        keeper = yield from self._engine.start_keeper()
        now = self._driver.clock.now()
        claimed: RunRow | None = yield claims.claim_run(
            self._driver.serializer, keeper.worker, now, keeper.until(), row.thread_id, row.id
        )
        return claimed

    def _answer(self, row: RunRow, call: BoundCall) -> Plan[None]:
        """Answer what the run waits for, as `Command(resume=...)` says."""
        found: list[waits.WaitRow] = yield waits.of_run(row.id)
        open = [wait for wait in found if wait.state == WaitState.OPEN]
        if not open and row.begun and all(wait.state in waits.FINISHED for wait in found):
            call.follows = True  # its state was changed: LangGraph gives it to whatever asks now
            return
        resume = call.input.resume
        by_id = {wait.interrupt_id: wait for wait in open}
        named = isinstance(resume, dict) and resume and all(map(_is_interrupt_id, resume))
        if named and resume.keys() <= by_id.keys():
            answers = [(by_id[id], value) for id, value in resume.items()]
        elif len(open) == 1 and not named:
            answers = [(open[0], resume)]
        else:
            raise BadArgument(
                f"Run {row.id} waits for {len(open)} answers; name them by their interrupt ids: "
                f"Command(resume={{id: answer}}) with {', '.join(sorted(by_id)) or 'none'}."
            )
        service = WaitService(self._driver.serializer, self._driver.clock)
        for wait, value in answers:
            yield from service.answer(wait.id, value, None)
        rest = Command(update=call.input.update, goto=call.input.goto)
        call.input, call.follows = (rest if rest != Command() else None), True

    def _close(self, drive: Drive, outcome: Outcome) -> Plan[None]:
        try:
            ended = yield from self._driver.finish(drive, outcome)
        except Refused:
            ended = Ended.LOST
        if ended is Ended.LOST and isinstance(outcome, Returned):
            raise _taken_over(drive)

    def _lease_for_update(self, call: BoundCall) -> Plan[tuple[Drive, bool]]:
        """Lease a thread to change its state: by its waiting run, or by a new one."""
        row: RunRow | None = yield runs.head(call.thread_id)
        if row is not None and not self._is_mine(row):
            raise ThreadBusy(call.thread_id, f"is of the graph {row.graph!r}")
        waiting = row is not None and row.state == State.WAITING and not self._is_due(row)
        claimed = None
        if row is not None and waiting:
            claimed = yield from self._claim(row)
        elif row is not None:
            raise ThreadBusy(call.thread_id, f"is {row.state} ({row.id})")
        if claimed is None:
            setup = {"metadata": {"source": "update_state"}}
            accepted = yield from self._engine.accept_inline(
                self._graph, call.thread_id, setup, "reject"
            )
            claimed = yield from self._claim(accepted)
        if claimed is None:
            raise ThreadBusy(call.thread_id, "another worker drives")
        begun = yield from self._driver.begin(claimed, self._graph, inline=True)
        if isinstance(begun, SegmentEnd):
            yield from self._driver.end(claimed, begun)
            raise ThreadBusy(call.thread_id, f"was {begun.state.value} just now")
        return begun, waiting

    def _is_due(self, row: RunRow) -> bool:
        return row.due_at is not None and row.due_at <= self._driver.clock.now()

    def _after_update(self, drive: Drive, waiting: bool) -> Plan[None]:
        source = {"source": "update_state"}
        end: SegmentEnd | None = SegmentEnd(State.DONE, EventKind.DONE, source)
        if waiting:
            found: list[waits.WaitRow] = yield waits.of_run(drive.row.id)
            at_breakpoint = any(wait.state == WaitState.OPEN and not wait.task_id for wait in found)
            # At a breakpoint it stays. Otherwise it goes on with its new state, and may ask again.
            stop = stop_at_breakpoint(self._engine.saver, drive)
            end = (yield from stop) if at_breakpoint else None
        now = self._driver.clock.now()
        again = SegmentEnd(State.PENDING, EventKind.UPDATED, {}, due_at=now)
        yield from self._driver.end(drive.row, end or again)


def _is_interrupt_id(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch("(breakpoint:.*|[0-9a-f]{32})", key) is not None


def _taken_over(drive: Drive) -> ThreadBusy:
    why = f"was stopped, or another worker drives ({drive.row.id})"
    return ThreadBusy(drive.row.thread_id, why)
