"""What `register` gives back: a graph to be used as before, each call a run under a lease.

    invoke(input)              a new run of the thread; who waits on it is superseded, as LangGraph
                               does, and one that is driven is waited for
    invoke(Command(resume=…))  answers the run that waits, and drives it
    invoke(None)               drives the run that is under way, or goes on from the last checkpoint

If the caller's process dies, any worker goes on with the run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, StateSnapshot

from perdure.engine.bound_call import Call, Gathered
from perdure.engine.driver import Drive, Driver, Raised, Returned, is_resume
from perdure.engine.graphs import Graph
from perdure.engine.lease_keeper import Hold, Keeper
from perdure.errors import (
    BadArgument,
    Error,
    LeaseLost,
    NotDurable,
    ThreadBusy,
)
from perdure.journal import Plan, Refused
from perdure.operations import runs, waits
from perdure.operations.events import change
from perdure.operations.run_payload import open_setup
from perdure.operations.runs import End, RunRow
from perdure.service.waits import Inbox
from perdure.types import ENDED, State

POLL = 0.05
"""Seconds between two looks at a run that another one drives."""
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
"""What LangGraph would run outside of a lease, or what makes another graph that does."""

Accept = Callable[..., Plan[RunRow]]


class BoundGraph:
    """A graph on a runtime's journal."""

    def __init__(
        self,
        graph: Graph,
        driver: Callable[[], Driver],
        keeper: Callable[[], Keeper],
        accept: Accept,
    ) -> None:
        self._graph, self._keeper, self._accept = graph, keeper, accept
        self._get_driver = driver

    @property
    def _driver(self) -> Driver:
        return self._get_driver()  # registering a graph opens nothing

    @property
    def _inbox(self) -> Inbox:
        return Inbox(self._driver.serializer, self._driver.clock)

    def _holding(self, drive: Drive) -> _Holding:
        return _Holding(self._keeper(), drive)

    @property
    def name(self) -> str:
        return self._graph.name

    def __repr__(self) -> str:
        return f"<perdure graph {self._graph.key!r}>"

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED:
            raise NotDurable(
                f"{name}() of the graph {self.name!r} would run outside of its lease. Use invoke, "
                "ainvoke, stream or astream, or Runtime.start."
            )
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._graph.pregel, name)

    # -- running

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._whole(self.stream, input, config, kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        gathered = Gathered(kwargs)
        async for chunk in self.astream(input, config, **gathered.kwargs):
            gathered.add(chunk)
        return gathered.result()

    def _whole(self, stream: Any, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
        gathered = Gathered(kwargs)
        for chunk in stream(input, config, **gathered.kwargs):
            gathered.add(chunk)
        return gathered.result()

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        journal = self._driver.journal
        call = Call(input, config, kwargs)
        drive = journal.run(self._open(call))
        outcome: Returned | Raised = Returned()
        with self._holding(drive):
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
        journal = self._driver.journal
        call = Call(input, config, kwargs)
        drive = await journal.arun(self._open(call))
        outcome: Returned | Raised = Returned()
        with self._holding(drive):
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

    def get_state(self, config: RunnableConfig, **kwargs: Any) -> StateSnapshot:
        return self._graph.pregel.get_state(config, **kwargs)

    async def aget_state(self, config: RunnableConfig, **kwargs: Any) -> StateSnapshot:
        return await self._graph.pregel.aget_state(config, **kwargs)

    def get_state_history(self, config: RunnableConfig, **kwargs: Any) -> Iterator[StateSnapshot]:
        return self._graph.pregel.get_state_history(config, **kwargs)

    def aget_state_history(
        self, config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[StateSnapshot]:
        return self._graph.pregel.aget_state_history(config, **kwargs)

    def update_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, **kwargs: Any
    ) -> RunnableConfig:
        """As LangGraph's. A run that waits on the thread is driven again on the new state."""
        journal = self._driver.journal
        call = Call(None, config, {})
        drive, rests = journal.run(self._occupy(call))
        with self._holding(drive):
            try:
                return self._graph.pregel.update_state(
                    call.with_lease(drive), values, as_node, **kwargs
                )
            finally:
                journal.run(self._after_update(drive, rests))

    async def aupdate_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, **kwargs: Any
    ) -> RunnableConfig:
        journal = self._driver.journal
        call = Call(None, config, {})
        drive, rests = await journal.arun(self._occupy(call))
        with self._holding(drive):
            try:
                return await self._graph.pregel.aupdate_state(
                    call.with_lease(drive), values, as_node, **kwargs
                )
            finally:
                await journal.arun(self._after_update(drive, rests))

    # -- plans

    def _open(self, call: Call) -> Plan[Drive]:
        """The run of a call, claimed for it."""
        row = yield from self._find(call)
        begun = yield from self._driver.begin(row, self._graph, inline=True)
        if isinstance(begun, End):
            yield from self._driver.let_go(row, begun)
            raise Error(
                f"Run {row.id} cannot be driven: it is {begun.state.value}, "
                f"{begun.reason or 'because somebody stopped it'}."
            )
        call.take(begun)
        return begun

    def _find(self, call: Call) -> Plan[RunRow]:
        if call.input is None or is_resume(call.input):
            under_way = yield from self._under_way(call.thread_id)
            if under_way is not None and not self._is_mine(under_way):
                raise ThreadBusy(call.thread_id, f"is of the graph {under_way.graph!r}")
            if under_way is not None and is_resume(call.input):
                yield from self._answer(under_way, call)
            if under_way is not None:
                claimed = yield from self._claim(under_way)
                if claimed is not None:
                    return claimed
                raise ThreadBusy(call.thread_id, "another worker drives")
        accepted = yield from self._accept(self._graph, call.thread_id, call.setup())
        while True:
            claimed = yield from self._claim(accepted)
            if claimed is not None:
                return claimed
            yield POLL
            accepted = (yield runs.find(accepted.id)) or accepted
            if accepted.state in ENDED or accepted.state in (State.PAUSED, State.HELD):
                raise ThreadBusy(call.thread_id, f"was {accepted.state} by somebody else")
            head = yield from self._under_way(call.thread_id)
            if head is None or head.n >= accepted.n:
                continue
            if head.state in ("held", "paused"):
                yield from self._withdraw(accepted)
                raise ThreadBusy(call.thread_id, f"is {head.state} ({head.id})")
            now, until = self._driver.clock.now(), self._keeper().until()
            if head.state == State.WAITING and not self._is_due(head):
                made = change(accepted.thread_id, accepted.id, now)
                yield runs.supersede(self._driver.serializer, made)
            elif self._is_left_behind(head, 2 * now - until):
                yield from self._clear_away(head, accepted)
            elif accepted.ready_at < (now + until) // 2:
                yield runs.reserve(accepted, until)

    def _is_left_behind(self, head: RunRow, since: int) -> bool:
        """Whether a call died with its process, and for a whole lease nobody went on with it."""
        dead = head.state == State.RUNNING and head.due_at is not None and head.due_at < since
        if not dead or not self._is_mine(head):
            return False
        return bool(open_setup(self._driver.serializer, head).get("inline"))

    def _clear_away(self, head: RunRow, by: RunRow) -> Plan[None]:
        claimed = yield from self._claim(head)
        if claimed is not None:
            reason = f"its caller is gone, and run {by.id} is called for"
            end = End(State.CANCELLED, "cancelled", {"by": by.id}, reason=reason)
            yield from self._driver.let_go(claimed, end)

    def _is_mine(self, row: RunRow) -> bool:
        return (row.graph, row.version) == (self._graph.name, self._graph.version)

    def _withdraw(self, row: RunRow) -> Plan[None]:
        made = change(row.thread_id, row.id, self._driver.clock.now())
        yield runs.stop(
            self._driver.serializer,
            made,
            control="cancel",
            state=State.CANCELLED,
            grace=0,
            reason="its caller did not want to wait",
            by=None,
        )

    def _under_way(self, thread_id: str) -> Plan[RunRow | None]:
        """The run of a thread that is not over."""
        head: RunRow | None = yield runs.head(thread_id)
        return head

    def _claim(self, row: RunRow) -> Plan[RunRow | None]:
        keeper = self._keeper()
        keeper.start()
        now = self._driver.clock.now()
        claimed: RunRow | None = yield runs.claim_run(
            self._driver.serializer, keeper.worker, now, keeper.until(), row.thread_id, row.id
        )
        return claimed

    def _answer(self, row: RunRow, call: Call) -> Plan[None]:
        """Answer what the run waits for, as `Command(resume=...)` says."""
        found: list[waits.WaitRow] = yield waits.of_run(row.id)
        open = [wait for wait in found if wait.state == "open"]
        if not open and row.begun and all(w.state in ("consumed", "closed") for w in found):
            call.follows = True  # its state was changed: what asks now gets it, by LangGraph's way
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
        for wait, value in answers:
            yield from self._inbox.answer(wait.id, value, None)
        rest = Command(update=call.input.update, goto=call.input.goto)
        call.input, call.follows = (rest if rest != Command() else None), True

    def _close(self, drive: Drive, outcome: Returned | Raised) -> Plan[None]:
        try:
            ended = yield from self._driver.finish(drive, outcome)
        except Refused:
            ended = "lost"
        if ended == "lost" and isinstance(outcome, Returned):
            raise _taken_over(drive)

    def _occupy(self, call: Call) -> Plan[tuple[Drive, bool]]:
        """A lease on a thread for something else than driving: on its waiting run, or a new one."""
        row = yield from self._under_way(call.thread_id)
        if row is not None and not self._is_mine(row):
            raise ThreadBusy(call.thread_id, f"is of the graph {row.graph!r}")
        rests = row is not None and row.state == State.WAITING and not self._is_due(row)
        claimed = None
        if row is not None and rests:
            claimed = yield from self._claim(row)
        elif row is not None:
            raise ThreadBusy(call.thread_id, f"is {row.state} ({row.id})")
        if claimed is None:
            setup = {"metadata": {"source": "update_state"}}
            accepted = yield from self._accept(self._graph, call.thread_id, setup, "reject")
            claimed = yield from self._claim(accepted)
        if claimed is None:
            raise ThreadBusy(call.thread_id, "another worker drives")
        begun = yield from self._driver.begin(claimed, self._graph, inline=True)
        if isinstance(begun, End):
            yield from self._driver.let_go(claimed, begun)
            raise ThreadBusy(call.thread_id, f"was {begun.state.value} just now")
        return begun, rests

    def _is_due(self, row: RunRow) -> bool:
        return row.due_at is not None and row.due_at <= self._driver.clock.now()

    def _after_update(self, drive: Drive, rests: bool) -> Plan[None]:
        end: End | None = End(State.DONE, "done", {"source": "update_state"})
        if rests:
            found: list[waits.WaitRow] = yield waits.of_run(drive.row.id)
            stands = any(wait.state == "open" and not wait.task_id for wait in found)
            # At a breakpoint it stays. Else it looks at its new state, and asks again if it has to.
            end = (yield from self._driver.after_breakpoint(drive)) if stands else None
        again = End(State.PENDING, "updated", {}, due_at=self._driver.clock.now())
        yield from self._driver.let_go(drive.row, end or again)


class _Holding:
    """Keeps the lease of an inline call."""

    def __init__(self, keeper: Keeper, drive: Drive) -> None:
        self._keeper, self._hold = keeper, Hold(drive, None, lambda kind: None)

    def __enter__(self) -> None:
        self._keeper.hold(self._hold)

    def __exit__(self, *_: object) -> None:
        self._keeper.drop(self._hold)


def _is_interrupt_id(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch("(breakpoint:.*|[0-9a-f]{32})", key) is not None


def _taken_over(drive: Drive) -> ThreadBusy:
    why = f"was stopped, or another worker drives ({drive.row.id})"
    return ThreadBusy(drive.row.thread_id, why)
