"""One call of a bound graph, and its run: how it is found or accepted, answered, claimed, ended.

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
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from perdure.commands import claims, run_control, runs, starting, waits
from perdure.commands.claims import SegmentEnd
from perdure.commands.events import Change, change
from perdure.commands.runs import RunRow, load_output, load_setup
from perdure.commands.starting import check_command
from perdure.commands.streams import MODES, kept_modes
from perdure.commands.waits import WaitRow
from perdure.effects.task import parent_of_call
from perdure.errors import BadArgument, Error, ThreadBusy
from perdure.execution.drive import (
    BREAKPOINTS,
    Drive,
    Ended,
    Outcome,
    Returned,
    is_resume,
    latest_checkpoint,
    stop_at_breakpoint,
)
from perdure.execution.engine import Engine
from perdure.execution.graphs import Graph, redacted_output
from perdure.execution.resuming import answer_with_command, check_unanswered, note_command
from perdure.execution.segment_end import end_segment, finish_segment
from perdure.execution.segment_start import begin_segment
from perdure.journal import Plan, Poll, read_together
from perdure.journal.names import new_id
from perdure.langgraph_port import configs, task_interrupts
from perdure.serde.serializer import Serializer
from perdure.types import ENDED, Control, EventKind, State, WaitState


class BoundCall:
    """The arguments of one call of a bound graph."""

    def __init__(
        self,
        input: Any,
        config: RunnableConfig | None,
        full: RunnableConfig,
        kwargs: Mapping[str, Any],
    ) -> None:
        """`full` is the config with what the graph and the surroundings add to it."""
        check_command(input)
        self.input = input
        self.follows = False
        """Whether the call continues a run that has begun."""
        self.accepted: str | None = None
        """The run that the call has accepted and not begun to drive. It ends with the call."""
        self.run_waits = False
        """Whether a call that changes the state does so by a run that waits."""
        self._config: dict[str, Any] = dict(config or {})
        self._inherits_run = configs.inherits_run(full)
        self.configurable = dict(full["configurable"])
        self._kwargs = dict(kwargs)
        self._context = self._kwargs.pop("context", None)
        self._control = self._kwargs.pop("control", None)
        self._durability = self._kwargs.pop("durability", None)
        thread_id = self.configurable.get("thread_id")
        if thread_id is None or thread_id == "":
            raise BadArgument(
                "The config has no thread_id: pass {'configurable': {'thread_id': ...}}."
            )
        self.thread_id = str(thread_id)
        self.place = configs.place_of(self.configurable)
        """Where the run begins, if not at the thread's last checkpoint."""
        self.arguments: dict[str, Any] = {}
        self._kept: dict[str, Any] | None = None

    def keep_stream(self) -> None:
        """Have what the run produces in the modes of this call kept, if the caller names modes."""
        named, subgraphs = self._kwargs.get("stream_mode"), bool(self._kwargs.get("subgraphs"))
        modes = [named] if isinstance(named, str) else list(named or ())
        self._kept = kept_modes([mode for mode in modes if mode in MODES], subgraphs)

    @property
    def stream_arguments(self) -> tuple[Any, bool]:
        """The stream mode and whether subgraphs are streamed, as LangGraph is called with them."""
        return self.arguments.get("stream_mode"), bool(self.arguments.get("subgraphs"))

    def redact(self, serializer: Serializer) -> None:
        """Keep of the arguments what will be stored of them: the call sees no more than a worker
        that goes on with it."""
        if not serializer.redacts:
            return
        self.input = redacted_output(serializer, self.input)
        self._context = redacted_output(serializer, self._context)
        redacted = serializer.redacted_entries
        own = {k: v for k, v in _plain(self.configurable).items() if not configs.is_own_key(k)}
        self.configurable |= redacted(own)
        if metadata := self._config.get("metadata"):
            self._config["metadata"] = {**metadata, **redacted(_plain(metadata))}
        if tags := self._config.get("tags"):
            self._config["tags"] = serializer.redacted(list(tags))

    def forget_place(self) -> None:
        """Begin where the thread is."""
        self.configurable = {
            key: value for key, value in self.configurable.items() if key not in self.place
        }
        self.place = {}

    def setup(self) -> dict[str, Any]:
        """The part of the call that can be stored, enough for a worker to continue it."""
        setup: dict[str, Any] = {"inline": True}
        own = {"input": self.input, "context": self._context, "durability": self._durability}
        setup |= {name: value for name, value in own.items() if value is not None}
        setup |= {name: self._kwargs[name] for name in BREAKPOINTS if self._kwargs.get(name)}
        if self._kept:
            setup["stream"] = self._kept
        if self.place:
            setup["place"] = self.place
        keep = {k: self._config[k] for k in ("recursion_limit", "tags") if k in self._config}
        storable = _plain(self.configurable).items()
        plain = {k: v for k, v in storable if not configs.is_own_key(k)}
        setup["config"] = {**keep, "configurable": plain}
        setup["metadata"] = _plain(self._config.get("metadata"))
        return setup

    def apply(self, drive: Drive) -> None:
        """Combine the arguments of the caller with those of the run."""
        if self.input is None or (drive.input is None and not self.follows):
            self.input = drive.input
        if self._control is not None:
            drive.control = self._control
        own = {k: v for k, v in self._config.items() if k not in ("configurable", "metadata")}
        ours = cast(RunnableConfig, {"callbacks": drive.config.get("callbacks")})
        drive.config = cast(RunnableConfig, {**drive.config, **own, **self.with_lease(drive)})
        theirs = cast(RunnableConfig, {"callbacks": self._config.get("callbacks")})
        drive.config["callbacks"] = merge_configs(ours, theirs)["callbacks"]
        if self._inherits_run:
            metadata = drive.config.get("metadata") or {}
            drive.config["metadata"] = {**metadata, configs.RUN: drive.row.id}
        if self._context is not None:
            drive.context = self._context
        self.arguments = {**self._kwargs, **drive.arguments}

    def with_lease(self, drive: Drive) -> RunnableConfig:
        """The caller's config with the lease of the run."""
        configurable = {**self.configurable, **drive.config["configurable"]}
        return cast(RunnableConfig, {**self._config, "configurable": configurable})


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any]:
    storable = (str, int, float, bool, type(None))
    return {k: v for k, v in (values or {}).items() if isinstance(v, storable)}


CALL_KEY: ContextVar[str | None] = ContextVar("perdure_invoke", default=None)
"""In the call of a node, the key of its effect, which is that of the run."""


class AlreadyDone(Exception):
    """The run of an earlier attempt is done."""

    def __init__(self, engine: Engine, row: RunRow) -> None:
        super().__init__(row.id)
        self.journal = engine.journal
        self.output = load_output(engine.serializer, row, engine.state_at)


POLL = 0.05
"""Seconds between the first two looks at a run that waits for its turn."""
UPDATED = "its state was changed"
"""The reason of a pending run that waited when its state was changed."""


class BoundRuns:
    """Plans for the runs of a bound graph."""

    def __init__(self, graph: Graph, engine: Engine) -> None:
        self._graph, self.engine = graph, engine

    def open(self, call: BoundCall) -> Plan[Drive]:
        """The run of a call, claimed for it."""
        call.redact(self.engine.serializer)
        row = yield from self._find(call)
        begun = yield from self._begin(row)
        if isinstance(begun, SegmentEnd):
            raise Error(
                f"Run {row.id} cannot be driven: it is {begun.state.value}, "
                f"{begun.reason or 'because it was stopped'}."
            )
        if call.follows and call.input is not None:
            yield from note_command(self.engine.saver, begun.row)
        call.apply(begun)
        return begun

    def _begin(self, row: RunRow) -> Plan[Drive | SegmentEnd]:
        """Begin the segment of a run that was claimed, or end it if it cannot be driven."""
        with self.engine.keeper.renewing(row):
            begun = yield from begin_segment(self.engine, row, self._graph, inline=True)
            if isinstance(begun, SegmentEnd):
                yield from end_segment(self.engine, row, begun)
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
            found, head = yield read_together(
                "find_with_head", runs.find(accepted.id), runs.head(accepted.thread_id)
            )
            accepted = found or accepted
            if accepted.state == State.DONE and accepted.parent_id is not None:
                raise AlreadyDone(self.engine, accepted)  # a worker went on with it
            if accepted.reason == claims.GAVE_UP and accepted.key is None:
                return accepted
            if accepted.state in ENDED or accepted.state in (State.PAUSED, State.HELD):
                raise ThreadBusy(accepted.thread_id, f"was {accepted.state} by another caller")
            if head is None or head.n >= accepted.n:
                if accepted.state == State.RUNNING and not self._is_due(accepted):
                    continue  # another worker has it
                return accepted
            if head.state in (State.HELD, State.PAUSED):
                reason = "its caller did not want to wait"
                yield run_control.request_stop(
                    self.engine.serializer, self._change(accepted), Control.CANCEL, 0, reason=reason
                )
                raise ThreadBusy(accepted.thread_id, f"is {head.state} ({head.id})")
            now, until, _ = self.engine.keeper.times()
            if head.state == State.WAITING and not self._is_due(head):
                yield starting.supersede(self.engine.serializer, self._change(accepted))
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
        key, parent = CALL_KEY.get(), None
        CALL_KEY.set(None)  # not for the calls that its nodes make
        if key is not None:
            parent = yield from parent_of_call(self.engine.journal, ignores_parent_cancel=False)
        id = new_id()
        call.accepted = id if parent is None else None
        accepted = yield from self.engine.accept_inline(
            self._graph, call.thread_id, call.setup(), run_id=id, key=key, parent=parent
        )
        if key is not None and accepted.state == State.DONE:
            raise AlreadyDone(self.engine, accepted)
        if key is not None and accepted.state == State.FAILED:
            yield run_control.make_run_due(
                self.engine.serializer, self._change(accepted), (State.FAILED,), EventKind.RETRIED
            )
        return accepted

    def give_up(self, call: BoundCall) -> None:
        """Cancel the run that a call has accepted and not begun, because the call ends."""
        if call.accepted is not None:
            worker, now = self.engine.keeper.worker, self.engine.clock.now()
            end = change(call.thread_id, call.accepted, now)
            with contextlib.suppress(Error):  # then its lease runs out
                self.engine.journal.defer(claims.withdraw(self.engine.serializer, end, worker))

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
        return is_new and bool(load_setup(self.engine.serializer, row).get("inline"))

    def _end_without_call(self, row: RunRow) -> Plan[bool]:
        """Cancel the run of a call that reserves it no longer. False: it does."""
        if not self._is_due(row):
            return False
        return bool((yield claims.withdraw(self.engine.serializer, self._change(row))))

    def _change(self, row: RunRow) -> Change:
        return change(row.thread_id, row.id, self.engine.clock.now())

    def _is_abandoned(self, head: RunRow, since: int) -> bool:
        """Whether its caller is gone, and for a whole lease no worker has gone on with it."""
        left = head.state in (State.RUNNING, State.PENDING)
        if not left or head.due_at is None or head.due_at >= since or not self._is_mine(head):
            return False
        return bool(load_setup(self.engine.serializer, head).get("inline"))

    def _replace(self, head: RunRow, by: RunRow, why: str) -> Plan[None]:
        """Cancel a run that is not driven, in favour of a new one."""
        claimed = yield from self._claim(head)
        if claimed is not None:
            reason = f"{why}, and run {by.id} takes its place"
            end = SegmentEnd(State.CANCELLED, EventKind.CANCELLED, {"by": by.id}, reason=reason)
            yield from end_segment(self.engine, claimed, end)

    def _find_place(self, call: BoundCall) -> Plan[None]:
        """An answer at the thread's last checkpoint is an answer to what its run asks."""
        if not call.place or not is_resume(call.input):
            return
        at = yield from latest_checkpoint(self.engine.saver, call.thread_id)
        if at is not None and at.checkpoint["id"] == configs.root_checkpoint(call.place):
            call.forget_place()
        else:
            saver = self.engine.saver
            yield from check_unanswered(saver, call.thread_id, call.place, call.input)

    def _is_mine(self, row: RunRow) -> bool:
        return (row.graph, row.version) == (self._graph.name, self._graph.version)

    def _claim(self, row: RunRow) -> Plan[RunRow | None]:
        keeper = yield from self.engine.start_keeper()
        claimed: RunRow | None = yield claims.claim_run(
            self.engine.serializer, keeper.worker, keeper.times(), row.thread_id, row.id
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
        yield from answer_with_command(self.engine, row, found, open, call.input)
        call.input, call.follows = None, True  # the next driver reads both from the journal

    def close(self, drive: Drive, outcome: Outcome) -> Plan[None]:
        """End the segment of a call. Raises `ThreadBusy` if its output is no longer the run's."""
        ended = yield from finish_segment(self.engine, drive, outcome)
        if ended is Ended.LOST and isinstance(outcome, Returned):
            raise taken_over(drive)

    def open_for_update(self, call: BoundCall) -> Plan[Drive]:
        """Lease a thread to change its state: by its waiting run, or by a new one."""
        row = yield from self._head(call.thread_id)
        if row is not None and not self._is_mine(row):
            raise ThreadBusy(call.thread_id, f"is of the graph {row.graph!r}")
        call.run_waits = row is not None and (
            (row.state == State.WAITING and not self._is_due(row))
            or (row.state == State.PENDING and row.reason == UPDATED)
        )
        claimed = None
        if row is not None and call.run_waits:
            claimed = yield from self._claim(row)
        elif row is not None:
            raise ThreadBusy(call.thread_id, f"is {row.state} ({row.id})")
        if claimed is None:
            setup = {"inline": True, "updates": True, "metadata": {"source": "update_state"}}
            call.accepted = new_id()
            accepted = yield from self.engine.accept_inline(
                self._graph, call.thread_id, setup, "reject", run_id=call.accepted
            )
            claimed = yield from self._claim(accepted)
        if claimed is None:
            raise ThreadBusy(call.thread_id, "another worker drives")
        begun = yield from self._begin(claimed)
        if isinstance(begun, SegmentEnd):
            raise ThreadBusy(call.thread_id, f"was {begun.state.value} just now")
        return begun

    def _is_due(self, row: RunRow) -> bool:
        return row.due_at is not None and row.due_at <= self.engine.clock.now()

    def close_update(self, call: BoundCall, drive: Drive) -> Plan[None]:
        """Give a thread back whose state was changed. A run that waited goes on with it."""
        source = {"source": "update_state"}
        end: SegmentEnd | None = SegmentEnd(State.DONE, EventKind.DONE, source)
        if call.run_waits:
            found: list[WaitRow] = yield waits.of_run(drive.row.id)
            at_breakpoint = any(wait.state == WaitState.OPEN and not wait.task_id for wait in found)
            # At a breakpoint it stays. Otherwise it goes on with its new state, and may ask again.
            stop = stop_at_breakpoint(drive)
            end = (yield from stop) if at_breakpoint else None
        now = self.engine.clock.now()
        again = SegmentEnd(State.PENDING, EventKind.UPDATED, {}, due_at=now, reason=UPDATED)
        yield from end_segment(self.engine, drive.row, end or again)


def taken_over(drive: Drive) -> ThreadBusy:
    why = f"was stopped, or another worker drives ({drive.row.id})"
    return ThreadBusy(drive.row.thread_id, why)
