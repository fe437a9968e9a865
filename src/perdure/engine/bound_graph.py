"""Bound graphs: what `register` returns. A LangGraph graph, and each call of it a run with a lease.

    invoke(input)              a new run of the thread; a run that waits on it is superseded, as in
                               LangGraph, and one that is driven is waited for
    invoke(Command(resume=…))  answers the run that waits, and drives it
    invoke(None)               drives the run that is under way, or goes on from the last checkpoint
    invoke(…, old config)      a new run from that checkpoint
    as a node of another graph a part of that graph's run, as in LangGraph

If the caller's process dies, any worker goes on with the run. Only what LangGraph's graph runs or
writes by itself is defined here: `stream`, `astream` and the updates of many states; all its other
methods, such as `invoke`, `batch` and `astream_events`, end in one of these.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import Command

from perdure.effects.client_calls import parent_of_call
from perdure.engine import calls_in_nodes
from perdure.engine.bound_call import BoundCall
from perdure.engine.breakpoints import stop_at_breakpoint
from perdure.engine.driver import Driver
from perdure.engine.engine import Engine
from perdure.engine.graphs import Graph, check_saver
from perdure.engine.pending_command import with_command
from perdure.engine.segment_drive import (
    Drive,
    Ended,
    Outcome,
    Raised,
    Returned,
    is_resume,
    latest_checkpoint,
)
from perdure.errors import AmbiguousAnswer, Error, LeaseLost, ThreadBusy
from perdure.journal import Plan, Refused
from perdure.langgraph_port import call_config, task_interrupts
from perdure.operations import claims, runs, waits
from perdure.operations.claims import SegmentEnd
from perdure.operations.events import change
from perdure.operations.run_payload import load_setup
from perdure.operations.runs import RunRow
from perdure.service.waits import WaitService
from perdure.types import ENDED, Control, EventKind, State, WaitState

POLL = 0.05
"""Seconds between two looks at a run that another process drives."""
UPDATED = "its state was changed"
"""The reason of a pending run that waited when its state was changed."""


class BoundGraph(Pregel[Any, Any, Any, Any]):
    """A registered graph on a runtime's journal. It is a LangGraph graph, of the class it had.

    graph = runtime.register(builder, name="campaign")
    graph.invoke({"to": "ada@example.com"}, {"configurable": {"thread_id": "ada"}})
    """

    _graph: Graph
    _engine: Engine

    @staticmethod
    def of(graph: Graph, engine: Engine) -> BoundGraph:
        """A registered graph as its callers have it."""
        kind = _bound_class(type(graph.pregel))
        bound: BoundGraph = object.__new__(kind)
        vars(bound).update(vars(graph.pregel), _graph=graph, _engine=engine)
        return bound

    def copy(self, update: dict[str, Any] | None = None) -> BoundGraph:
        """A copy with some attributes changed, on the same journal."""
        pregel = copy.copy(self._graph.pregel)
        for name, value in (update or {}).items():
            setattr(pregel, name, value)
        check_saver(pregel.checkpointer, self._engine.saver, self._graph.name)
        return BoundGraph.of(replace(self._graph, pregel=pregel), self._engine)

    @property
    def unbound(self) -> Pregel[Any, Any, Any, Any]:
        """The graph without its runtime."""
        return self._graph.pregel

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
        except Refused as lost:  # while it ended
            raise _taken_over(drive) from lost
        finally:
            keeper.remove(drive)

    def __repr__(self) -> str:
        return f"<perdure graph {self._graph.key!r}>"

    if not TYPE_CHECKING:  # type checkers see the signatures of LangGraph's methods

        def invoke(self, input, config=None, **kwargs):
            """Drive a run to its end, or to its next wait, and return LangGraph's result."""
            if calls_in_nodes.starts_own_run(self, input, config, kwargs):
                return calls_in_nodes.invoke(self, input, config, kwargs)
            return super().invoke(input, config, **kwargs)

        async def ainvoke(self, input, config=None, **kwargs):
            """`invoke` without blocking the event loop."""
            if calls_in_nodes.starts_own_run(self, input, config, kwargs):
                return await calls_in_nodes.ainvoke(self, input, config, kwargs)
            return await super().ainvoke(input, config, **kwargs)

        def stream(self, input, config=None, **kwargs):
            """Drive a run and yield LangGraph's chunks. A worker goes on if reading stops."""
            return self._stream(input, config, kwargs)

        def astream(self, input, config=None, **kwargs):
            """`stream` without blocking the event loop."""
            return self._astream(input, config, kwargs)

        def bulk_update_state(self, config, supersteps):
            """Change the state of a thread. A run that waits on it is driven again on the new
            state."""
            return self._update(config, supersteps)

        async def abulk_update_state(self, config, supersteps):
            """`bulk_update_state` without blocking the event loop."""
            return await self._aupdate(config, supersteps)

    # -- running

    def invoke_run(self, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
        """`invoke`, for the effect that a node calls. Raises `AlreadyDone`."""
        return super().invoke(input, config, **kwargs)

    async def ainvoke_run(self, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
        return await super().ainvoke(input, config, **kwargs)

    def output_of(self, row: RunRow) -> Any:
        """What a run that is done returned."""
        return self._driver.journal.run(self._engine.output_of(row))

    async def aoutput_of(self, row: RunRow) -> Any:
        return await self._driver.journal.arun(self._engine.output_of(row))

    def _call(self, input: Any, config: RunnableConfig | None, kwargs: Any) -> BoundCall | None:
        """A call as one of its own, or None if it is a part of the run of another graph."""
        full = call_config.full_config(self, config)
        if call_config.is_nested(full["configurable"]):
            return None
        return BoundCall(input, config, full, kwargs)

    def _stream(
        self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any]
    ) -> Iterator[Any]:
        journal, pregel = self._driver.journal, self._graph.pregel
        call = self._call(input, config, kwargs)
        if call is None:
            yield from pregel.stream(input, config, **kwargs)
            return
        with _opening(call):
            drive = journal.run(self._open(call))
        outcome: Outcome = Returned()
        with self._leased(drive):
            try:
                yield from pregel.stream(call.input, drive.config, **call.arguments)
            except LeaseLost as lost:
                outcome = Raised(lost)
                raise _taken_over(drive) from lost
            except BaseException as error:
                outcome = Raised(error)
                raise
            finally:
                journal.run(self._close(drive, outcome))

    async def _astream(
        self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any]
    ) -> AsyncIterator[Any]:
        journal, pregel = self._driver.journal, self._graph.pregel
        call = self._call(input, config, kwargs)
        if call is None:
            inner = cast(AsyncGenerator[Any], pregel.astream(input, config, **kwargs))
            async with contextlib.aclosing(inner):
                async for chunk in inner:
                    yield chunk
            return
        with _opening(call):
            drive = await journal.arun(self._open(call))
        outcome: Outcome = Returned()
        with self._leased(drive):
            try:
                chunks = pregel.astream(call.input, drive.config, **call.arguments)
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

    # -- changing

    def _update(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        journal, pregel = self._driver.journal, self._graph.pregel
        call = self._call(None, config, {})
        if call is None:
            return pregel.bulk_update_state(config, supersteps)
        with _opening(call):
            drive, waiting = journal.run(self._lease_for_update(call))
        with self._leased(drive):
            try:
                return pregel.bulk_update_state(call.with_lease(drive), supersteps)
            finally:
                journal.run(self._after_update(drive, waiting))

    async def _aupdate(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        journal, pregel = self._driver.journal, self._graph.pregel
        call = self._call(None, config, {})
        if call is None:
            return await pregel.abulk_update_state(config, supersteps)
        with _opening(call):
            drive, waiting = await journal.arun(self._lease_for_update(call))
        with self._leased(drive):
            try:
                return await pregel.abulk_update_state(call.with_lease(drive), supersteps)
            finally:
                await journal.arun(self._after_update(drive, waiting))

    # -- plans

    def _open(self, call: BoundCall) -> Plan[Drive]:
        """The run of a call, claimed for it."""
        row = yield from self._find(call)
        begun = yield from self._begin(row)
        if isinstance(begun, SegmentEnd):
            raise Error(
                f"Run {row.id} cannot be driven: it is {begun.state.value}, "
                f"{begun.reason or 'because it was stopped'}."
            )
        call.apply(begun)
        return begun

    def _begin(self, row: RunRow) -> Plan[Drive | SegmentEnd]:
        """Begin the segment of a run that was claimed, or end it if it cannot be driven."""
        with self._engine.keeper.renewing(row):
            begun = yield from self._driver.begin(row, self._graph, inline=True)
            if isinstance(begun, SegmentEnd):
                yield from self._driver.end(row, begun)
        return begun

    def _find(self, call: BoundCall) -> Plan[RunRow]:
        yield from self._find_place(call)
        if (call.input is None or is_resume(call.input)) and not call.place:
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
        accepted = yield from self._accept(call)
        while True:
            claimed = yield from self._claim(accepted)
            if claimed is not None:
                return claimed
            yield POLL
            accepted = (yield runs.find(accepted.id)) or accepted
            if accepted.state == State.DONE and accepted.parent_id is not None:
                raise calls_in_nodes.AlreadyDone(accepted)  # a worker went on with it
            if accepted.state in ENDED or accepted.state in (State.PAUSED, State.HELD):
                raise ThreadBusy(call.thread_id, f"was {accepted.state} by another caller")
            head: RunRow | None = yield runs.head(call.thread_id)
            if head is None or head.n >= accepted.n:
                continue
            if head.state in (State.HELD, State.PAUSED):
                yield from self._withdraw(accepted)
                raise ThreadBusy(call.thread_id, f"is {head.state} ({head.id})")
            now, until, _ = self._engine.keeper.times()
            if head.state == State.WAITING and not self._is_due(head):
                made = change(accepted.thread_id, accepted.id, now)
                yield runs.supersede(self._driver.serializer, made)
            elif self._is_mine(head) and (head.state, head.reason) == (State.PENDING, UPDATED):
                yield from self._replace(head, accepted, UPDATED)
            elif self._is_abandoned(head, 2 * now - until):
                yield from self._replace(head, accepted, "its caller died")
            elif accepted.ready_at < (now + until) // 2:
                yield runs.reserve(accepted, until)

    def _accept(self, call: BoundCall) -> Plan[RunRow]:
        """A new run, or in a node that runs again the one that it started."""
        key, parent = calls_in_nodes.take_key(), None
        if key is not None:
            parent = yield from parent_of_call(self._driver.journal, ignores_parent_cancel=False)
        accepted = yield from self._engine.accept_inline(
            self._graph, call.thread_id, call.setup(), key=key, parent=parent
        )
        if key is not None and accepted.state == State.DONE:
            raise calls_in_nodes.AlreadyDone(accepted)
        if key is not None and accepted.state == State.FAILED:
            made = change(accepted.thread_id, accepted.id, self._driver.clock.now())
            states = (State.FAILED,)
            yield runs.resume(self._driver.serializer, made, states, EventKind.RETRIED)
        return accepted

    def _is_abandoned(self, head: RunRow, since: int) -> bool:
        """Whether its caller is gone, and for a whole lease no worker has gone on with it."""
        left = head.state == State.RUNNING or (head.state == State.PENDING and head.begun)
        if not left or head.due_at is None or head.due_at >= since or not self._is_mine(head):
            return False
        return bool(load_setup(self._driver.serializer, head).get("inline"))

    def _replace(self, head: RunRow, by: RunRow, why: str) -> Plan[None]:
        """Cancel a run that is not driven, in favour of a new one."""
        claimed = yield from self._claim(head)
        if claimed is not None:
            reason = f"{why}, and run {by.id} takes its place"
            end = SegmentEnd(State.CANCELLED, EventKind.CANCELLED, {"by": by.id}, reason=reason)
            yield from self._driver.end(claimed, end)

    def _find_place(self, call: BoundCall) -> Plan[None]:
        """An answer at the thread's last checkpoint is an answer to what its run asks."""
        id = call_config.root_checkpoint(call.place)
        if id is None or not is_resume(call.input):
            return
        at = yield from latest_checkpoint(self._engine.saver, call.thread_id)
        if at is not None and at.checkpoint["id"] == id:
            call.forget_place()

    def _is_mine(self, row: RunRow) -> bool:
        return (row.graph, row.version) == (self._graph.name, self._graph.version)

    def _withdraw(self, row: RunRow) -> Plan[None]:
        made = change(row.thread_id, row.id, self._driver.clock.now())
        reason = "its caller did not want to wait"
        yield runs.stop(self._driver.serializer, made, Control.CANCEL, 0, reason=reason)

    def _claim(self, row: RunRow) -> Plan[RunRow | None]:
        keeper = yield from self._engine.start_keeper()
        claimed: RunRow | None = yield claims.claim_run(
            self._driver.serializer, keeper.worker, keeper.times(), row.thread_id, row.id
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
        task_interrupts.check_strict_resume(call.configurable, resume, by_id)
        named = isinstance(resume, dict) and resume and all(map(_is_interrupt_id, resume))
        if named and resume.keys() <= by_id.keys():
            answers = [(by_id[id], value) for id, value in resume.items()]
        elif len(open) == 1 and not named:
            answers = [(open[0], resume)]
        else:
            raise AmbiguousAnswer(row.id, sorted(by_id))
        # If a send replaces the task that asked, LangGraph gives the answer to whichever asks now.
        rest = Command(update=call.input.update, goto=call.input.goto)
        command = call.input if task_interrupts.replaces_tasks(call.input) else rest
        ids, setup = [wait.id for wait, _ in answers], None
        if rest != Command():
            setup = yield from with_command(self._engine.saver, row, command, ids, found)
        service = WaitService(self._driver.serializer, self._driver.clock)
        values = [value for _, value in answers]
        yield from service.answer_all(list(zip(ids, values, strict=True)), None, setup=setup)
        call.input, call.follows = None, True  # whoever claims the run has it all from the journal

    def _close(self, drive: Drive, outcome: Outcome) -> Plan[None]:
        ended = yield from self._driver.finish(drive, outcome)
        if ended is Ended.LOST and isinstance(outcome, Returned):
            raise _taken_over(drive)

    def _lease_for_update(self, call: BoundCall) -> Plan[tuple[Drive, bool]]:
        """Lease a thread to change its state: by its waiting run, or by a new one."""
        row: RunRow | None = yield runs.head(call.thread_id)
        if row is not None and not self._is_mine(row):
            raise ThreadBusy(call.thread_id, f"is of the graph {row.graph!r}")
        waiting = row is not None and (
            (row.state == State.WAITING and not self._is_due(row))
            or (row.state == State.PENDING and row.reason == UPDATED)
        )
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
        begun = yield from self._begin(claimed)
        if isinstance(begun, SegmentEnd):
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
        again = SegmentEnd(State.PENDING, EventKind.UPDATED, {}, due_at=now, reason=UPDATED)
        yield from self._driver.end(drive.row, end or again)


@functools.cache
def _bound_class(kind: type[Any]) -> type[Any]:
    """A graph class of LangGraph whose calls are runs."""
    return type(f"Bound{kind.__name__}", (BoundGraph, kind), {"__doc__": BoundGraph.__doc__})


def _is_interrupt_id(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch("(breakpoint:.*|[0-9a-f]{32})", key) is not None


@contextlib.contextmanager
def _opening(call: BoundCall) -> Iterator[None]:
    """Raise `ThreadBusy` if the run of a call loses its lease while it begins."""
    try:
        yield
    except (LeaseLost, Refused) as lost:
        raise ThreadBusy(call.thread_id, "was stopped, or another worker drives") from lost


def _taken_over(drive: Drive) -> ThreadBusy:
    why = f"was stopped, or another worker drives ({drive.row.id})"
    return ThreadBusy(drive.row.thread_id, why)
