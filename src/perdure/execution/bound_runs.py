"""The run of a bound graph's call: how it is found or accepted, answered, claimed and ended.

The first lines of `bound_graph` say which run a call drives. A call reserves the run that it has
accepted, and ends it when it ends before its segment has begun. Where a call may end, and what that
leaves in the journal:

    a call ends                          on disk                     decided by
    while its run is being accepted      cancelled, or nothing       withdraw_run, queued behind it
    while it waits for its turn          cancelled                   withdraw_run
    while it claims, or begins           cancelled                   withdraw_run: it is not begun
    while LangGraph runs                 what `finish` says          end_segment
    its process is killed, or its loop   pending; cancelled by the   withdraw_run without a worker,
    closed, before its claim             next call, or by a worker   or claim: the lease is over
    killed after its claim               running: a worker goes on   claim

An exception ends a call: a cancelled task, a time-out, Ctrl-C, a handler of SIGTERM that raises. It
cannot wait for the journal then, so `give_up` only queues. A call that was silent for a whole lease
and finds its run cancelled accepts another one. The call of a node is made again by the next
attempt of the node: its run ends with its parent alone, and a worker may begin it.
"""

from __future__ import annotations

import contextlib

from perdure.commands import claims, run_control, runs, starting, waits
from perdure.commands.claims import SegmentEnd
from perdure.commands.events import Change, change
from perdure.commands.runs import RunRow, load_setup
from perdure.commands.waits import WaitRow
from perdure.effects.task import parent_of_call
from perdure.errors import Error, ThreadBusy
from perdure.execution import bound_call
from perdure.execution.bound_call import BoundCall
from perdure.execution.continuation import answer_with_command, check_unanswered, note_command
from perdure.execution.drive import (
    Drive,
    Driver,
    Ended,
    Outcome,
    Returned,
    is_resume,
    latest_checkpoint,
    stop_at_breakpoint,
)
from perdure.execution.engine import Engine
from perdure.execution.finish import end_segment, finish_segment
from perdure.execution.graphs import Graph
from perdure.execution.start import begin_segment
from perdure.journal import Plan, Poll
from perdure.journal.names import new_id
from perdure.langgraph_port import configs, task_interrupts
from perdure.types import ENDED, Control, EventKind, State, WaitState

POLL = 0.05
"""Seconds between the first two looks at a run that waits for its turn."""
UPDATED = "its state was changed"
"""The reason of a pending run that waited when its state was changed."""


class BoundRuns:
    """Plans for the runs of a bound graph."""

    def __init__(self, graph: Graph, engine: Engine) -> None:
        self._graph, self._engine = graph, engine

    @property
    def _driver(self) -> Driver:
        return self._engine.driver  # not before: registering a graph opens nothing

    def open(self, call: BoundCall) -> Plan[Drive]:
        """The run of a call, claimed for it."""
        call.redact(self._engine.serializer)
        row = yield from self._find(call)
        begun = yield from self._begin(row)
        if isinstance(begun, SegmentEnd):
            raise Error(
                f"Run {row.id} cannot be driven: it is {begun.state.value}, "
                f"{begun.reason or 'because it was stopped'}."
            )
        if call.follows and call.input is not None:
            yield from note_command(self._engine.saver, begun.row)
        call.apply(begun)
        return begun

    def _begin(self, row: RunRow) -> Plan[Drive | SegmentEnd]:
        """Begin the segment of a run that was claimed, or end it if it cannot be driven."""
        with self._engine.keeper.renewing(row):
            begun = yield from begin_segment(self._driver, row, self._graph, inline=True)
            if isinstance(begun, SegmentEnd):
                yield from end_segment(self._driver, row, begun)
        return begun

    def _find(self, call: BoundCall) -> Plan[RunRow]:
        yield from self._find_place(call)
        if (call.input is None or is_resume(call.input)) and not call.place:
            under_way = yield from self._head(call.thread_id)
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
        poll = Poll(POLL)
        while True:
            claimed = yield from self._claim(accepted)
            if claimed is not None:
                return claimed
            accepted = yield from self._wait_for_turn(accepted, poll)
            if accepted.state == State.CANCELLED:
                accepted = yield from self._accept(call)  # its place in the line is lost

    def _wait_for_turn(self, accepted: RunRow, poll: Poll) -> Plan[RunRow]:
        """Wait until a claim of a run that was accepted may succeed, or until it was taken for that
        of a call that went away. Raises `ThreadBusy` if neither can be. Each look is one read."""
        while True:
            yield poll
            found, head = yield runs.find_with_head(accepted.thread_id, accepted.id)
            accepted = found or accepted
            if accepted.state == State.DONE and accepted.parent_id is not None:
                raise bound_call.AlreadyDone(accepted)  # a worker went on with it
            if accepted.reason == claims.GAVE_UP and accepted.key is None:
                return accepted
            if accepted.state in ENDED or accepted.state in (State.PAUSED, State.HELD):
                raise ThreadBusy(accepted.thread_id, f"was {accepted.state} by another caller")
            if head is None or head.n >= accepted.n:
                if accepted.state == State.RUNNING and not self._is_due(accepted):
                    continue  # another worker has it
                return accepted
            if head.state in (State.HELD, State.PAUSED):
                made = self._made(accepted.thread_id, accepted.id)
                reason = "its caller did not want to wait"
                yield run_control.request_stop(
                    self._driver.serializer, made, Control.CANCEL, 0, reason=reason
                )
                raise ThreadBusy(accepted.thread_id, f"is {head.state} ({head.id})")
            now, until, _ = self._engine.keeper.times()
            if head.state == State.WAITING and not self._is_due(head):
                made = self._made(accepted.thread_id, accepted.id)
                yield starting.supersede(self._driver.serializer, made)
                return accepted
            if self._is_mine(head) and (head.state, head.reason) == (State.PENDING, UPDATED):
                yield from self._replace(head, accepted, UPDATED)
                return accepted
            if self._is_of_call(head):
                if (yield from self._end_without_call(head)):
                    return accepted
            elif self._is_abandoned(head, 2 * now - until):
                yield from self._replace(head, accepted, "its caller died")
                return accepted
            if accepted.ready_at < (now + 3 * until) // 4:
                yield claims.reserve(accepted, until)

    def _accept(self, call: BoundCall) -> Plan[RunRow]:
        """A new run, or in a node that runs again the one that it started."""
        key, parent = bound_call.take_key(), None
        if key is not None:
            parent = yield from parent_of_call(self._driver.journal, ignores_parent_cancel=False)
        id = new_id()
        call.accepted = id if parent is None else None
        accepted = yield from self._engine.accept_inline(
            self._graph, call.thread_id, call.setup(), run_id=id, key=key, parent=parent
        )
        if key is not None and accepted.state == State.DONE:
            raise bound_call.AlreadyDone(accepted)
        if key is not None and accepted.state == State.FAILED:
            made = self._made(accepted.thread_id, accepted.id)
            states = (State.FAILED,)
            yield run_control.continue_run(self._driver.serializer, made, states, EventKind.RETRIED)
        return accepted

    def give_up(self, call: BoundCall) -> None:
        """Cancel the run that a call has accepted and not begun, because the call ends."""
        if call.accepted is not None:
            worker, made = self._engine.keeper.worker, self._made(call.thread_id, call.accepted)
            with contextlib.suppress(Error):  # then its lease runs out
                self._driver.journal.defer(claims.withdraw(self._driver.serializer, made, worker))

    def _head(self, thread_id: str) -> Plan[RunRow | None]:
        """The run of a thread that is under way. Raises `ThreadBusy` if a call is about to drive
        it: that one has an input of its own."""
        while True:
            head: RunRow | None = yield runs.head(thread_id)
            if head is None or not self._is_of_call(head):
                return head
            if not (yield from self._end_without_call(head)):
                raise ThreadBusy(thread_id, f"has a call that has not begun ({head.id})")

    def _is_of_call(self, row: RunRow) -> bool:
        """Whether only the call that has accepted a run would drive it: that has not claimed it."""
        is_new = row.state == State.PENDING and not row.token and row.parent_id is None
        return is_new and bool(load_setup(self._driver.serializer, row).get("inline"))

    def _end_without_call(self, row: RunRow) -> Plan[bool]:
        """Cancel the run of a call that reserves it no longer. False: it does."""
        if not self._is_due(row):
            return False
        made = self._made(row.thread_id, row.id)
        return bool((yield claims.withdraw(self._driver.serializer, made)))

    def _made(self, thread_id: str, run_id: str) -> Change:
        return change(thread_id, run_id, self._driver.clock.now())

    def _is_abandoned(self, head: RunRow, since: int) -> bool:
        """Whether its caller is gone, and for a whole lease no worker has gone on with it."""
        left = head.state in (State.RUNNING, State.PENDING)
        if not left or head.due_at is None or head.due_at >= since or not self._is_mine(head):
            return False
        return bool(load_setup(self._driver.serializer, head).get("inline"))

    def _replace(self, head: RunRow, by: RunRow, why: str) -> Plan[None]:
        """Cancel a run that is not driven, in favour of a new one."""
        claimed = yield from self._claim(head)
        if claimed is not None:
            reason = f"{why}, and run {by.id} takes its place"
            end = SegmentEnd(State.CANCELLED, EventKind.CANCELLED, {"by": by.id}, reason=reason)
            yield from end_segment(self._driver, claimed, end)

    def _find_place(self, call: BoundCall) -> Plan[None]:
        """An answer at the thread's last checkpoint is an answer to what its run asks."""
        if not call.place or not is_resume(call.input):
            return
        at = yield from latest_checkpoint(self._engine.saver, call.thread_id)
        if at is not None and at.checkpoint["id"] == configs.root_checkpoint(call.place):
            call.forget_place()
        else:
            saver = self._engine.saver
            yield from check_unanswered(saver, call.thread_id, call.place, call.input)

    def _is_mine(self, row: RunRow) -> bool:
        return (row.graph, row.version) == (self._graph.name, self._graph.version)

    def _claim(self, row: RunRow) -> Plan[RunRow | None]:
        keeper = yield from self._engine.start_keeper()
        claimed: RunRow | None = yield claims.claim_run(
            self._driver.serializer, keeper.worker, keeper.times(), row.thread_id, row.id
        )
        return claimed

    def _answer(self, row: RunRow, call: BoundCall) -> Plan[None]:
        """Answer what the run waits for, as `Command(resume=...)` says."""
        found: list[WaitRow] = yield waits.of_run(row.id)
        open = [wait for wait in found if wait.state == WaitState.OPEN]
        if not open and row.begun and all(wait.state in waits.FINISHED for wait in found):
            call.follows = True  # its state was changed: LangGraph gives it to whatever asks now
            return
        pending = {wait.interrupt_id for wait in open}
        task_interrupts.check_strict_resume(call.configurable, call.input.resume, pending)
        yield from answer_with_command(
            self._engine, self._engine.saver, row, found, open, call.input
        )
        call.input, call.follows = None, True  # the next driver reads both from the journal

    def close(self, drive: Drive, outcome: Outcome) -> Plan[None]:
        """End the segment of a call. Raises `ThreadBusy` if its output is no longer the run's."""
        ended = yield from finish_segment(self._driver, drive, outcome)
        if ended is Ended.LOST and isinstance(outcome, Returned):
            raise taken_over(drive)

    def lease_for_update(self, call: BoundCall) -> Plan[tuple[Drive, bool]]:
        """Lease a thread to change its state: by its waiting run, or by a new one."""
        row = yield from self._head(call.thread_id)
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
            setup = {"inline": True, "updates": True, "metadata": {"source": "update_state"}}
            call.accepted = new_id()
            accepted = yield from self._engine.accept_inline(
                self._graph, call.thread_id, setup, "reject", run_id=call.accepted
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

    def after_update(self, drive: Drive, waiting: bool) -> Plan[None]:
        """Give a thread back whose state was changed. A run that waited goes on with it."""
        source = {"source": "update_state"}
        end: SegmentEnd | None = SegmentEnd(State.DONE, EventKind.DONE, source)
        if waiting:
            found: list[WaitRow] = yield waits.of_run(drive.row.id)
            at_breakpoint = any(wait.state == WaitState.OPEN and not wait.task_id for wait in found)
            # At a breakpoint it stays. Otherwise it goes on with its new state, and may ask again.
            stop = stop_at_breakpoint(self._engine.saver, drive)
            end = (yield from stop) if at_breakpoint else None
        now = self._driver.clock.now()
        again = SegmentEnd(State.PENDING, EventKind.UPDATED, {}, due_at=now, reason=UPDATED)
        yield from end_segment(self._driver, drive.row, end or again)


def taken_over(drive: Drive) -> ThreadBusy:
    why = f"was stopped, or another worker drives ({drive.row.id})"
    return ThreadBusy(drive.row.thread_id, why)
