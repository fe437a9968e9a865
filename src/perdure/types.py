"""The values that users see: runs, waits, events, effects, messages, and their states."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from perdure.errors import BadArgument

Durability = Literal["auto", "sync", "async", "exit"]
"""When a run waits for its checkpoints to reach the disk.

`auto` waits when the run hands control back: at its last checkpoint, an interrupt or an error.
`sync` waits for every checkpoint. `async` does not wait. `exit` waits as `auto` does, and writes
steps in between about once a second. In every mode an effect is called only after everything that
led to it is on disk.
"""
Strategy = Literal["enqueue", "reject", "interrupt", "rollback"]
"""What `start` does if the thread has an unfinished run.

`enqueue` lets the new run wait for its turn. `reject` raises `ThreadBusy`. `interrupt` cancels the
unfinished runs and keeps what they stored. `rollback` also deletes their checkpoints.
"""


class State(StrEnum):
    """State of a run. Each member equals its text: `run.state == "done"`.

    Attributes:
        PENDING: Due: now, at a set time, or after the previous run of its thread.
        RUNNING: A worker holds the lease and drives it.
        WAITING: Waits for the clock, a person, a signal or another run. No process is held.
        PAUSED: Paused until `resume`.
        HELD: Needs a person; `Run.reason` says why. `retry`, `settle` or `cancel` ends the hold.
        DONE: Ended: the graph returned. `Run.output` has the result.
        FAILED: Ended: the graph raised and is not retried. `Run.error` has the exception.
        CANCELLED: Ended: cancelled by a person, its parent or a later run of its thread.
    """

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    HELD = "held"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({State.DONE, State.FAILED, State.CANCELLED})
"""The states in which a run has ended."""


class EventKind(StrEnum):
    """Kind of an event in the history of a run.

    The members below list the keys of `Event.data`. A key without a value is left out.

    Events with `by` may also have `via`, the way the decision was made (`browser`, `link`, `api`,
    `command line`; absent for Python), and `from`, the network address it came from.

    `saved` counts what came from the record since the previous `step` or `effect`: `effects`,
    `model_calls`, `tokens`, and in `replayed` the name and key of the first 50 effects. The event
    that ends a segment may have it too.

    Attributes:
        STARTED: The run was accepted. Data: `graph`, `version`, `key`, `parent`, and `traceparent`,
            the tracing span in which it was started.
        CLAIMED: A segment began. Data: `worker` (`host:pid:…`), and `driven`, the kind of driver:
            `worker`, `cron` or `call`.
        RECOVERED: A segment began after the previous worker died or was silent too long. Data:
            `worker`, `driven`; `silent`, workers on the same host that live, but let leases run
            out.
        STEP: A checkpoint was stored. Data: `step`, `source`, `checkpoint`; `nodes`, the nodes
            whose results it holds, as far as this process knows; `ns`, the namespace of a subgraph;
            `labels`, `prompts`, `saved`.
        WAIT: The run began to wait. Data: `wait`, its id; `kind`, `name`, `wake_at`, `expires_at`;
            `runs`, the runs that a `join` waits for.
        WAITING: The segment ended, and the run waits. Data: `caught_in`, the node that caught the
            exception of its wait; `saved`.
        WOKE: A sleep is over. Data: `wait`; `early` and `by` if a person woke the run.
        EXPIRED: A question, signal or join reached its deadline. Data: `wait`.
        ANSWER: An answer was accepted. Data: `wait`, `by`.
        WITHDRAWN: An answer was withdrawn. Data: `wait`, `by`, `reason`.
        SIGNAL: A signal was delivered. Data: `wait`, `name`.
        JOINED: The runs that a `join` waited for have ended. Data: `wait`; `runs`, each with its
            state.
        EFFECT: An effect has an outcome, will be retried, or has an unknown outcome. The intent has
            no event. Data: `name`, `key`, `state`, `attempt`, `begun_at`; `error`, `retry_at`,
            `why`, `transactional`; `prompts`, a list of (name, version); `usage` of a model call
            (`model`, `input_tokens`, `output_tokens`); `how`: `called again` after a crash,
            `verified`, `simulated`, or the other run that made the call; `saved`.
        DIFFERS: A call had different arguments from its record. It got the recorded outcome, or was
            made with the recorded arguments. Data: `name`, `key`.
        SETTLED: A person settled an effect. Data: `name`, `key`, `state`, `by`, `reason`.
        POSTPONED: The segment ended, and the run waits for the next attempt at an effect. Data:
            `effect`, `key`, `attempt`, `saved`.
        FAILED: The segment raised, or its step took too long. Data: `kind`, `message`, `traceback`,
            `attempts`; `retry_at` if it will be retried, else `final`; `saved`.
        HELD: The run needs a person. Data: `reason`; `lost`, `removed` and `added` nodes after a
            change to the graph; `effects`, the keys of effects with an unknown outcome; `saved`.
        RELEASED: The segment ended early, and the run is due again: a drain, a reader that left the
            stream, calls in a different order, or an event loop that did not respond. Data:
            `forced`; `reason`, why the loop did not; `effect` and `key` of the call that was out of
            order; `saved`.
        CANCELLING: The worker was asked to cancel the run, or effects are being undone. Data:
            `reason`, `by`.
        PAUSING: The worker was asked to pause the run. Data: `reason`, `by`.
        CANCELLED: The run was cancelled. Data: `reason`, `by`; `forced` if it was stopped in the
            middle of a step; the keys of effects that were `undone`, `kept` because they have no
            compensation, or are `unknown`; `saved`.
        PAUSED: The run was paused. Data: `reason`, `by`; `forced` if it was stopped in the middle
            of a step; `saved`.
        RESUMED: The run is due again after a pause, or after its effects were settled. Data: `by`.
        RETRIED: A failed or held run is due again. Data: `by`.
        UPDATED: `update_state` changed the state of the thread.
        SCORED: The run was scored, possibly weeks after its end. Data: `name`; `value` or `label`;
            `about`, `step`, `effect` with its `attempt`, or `wait`; `action`, `call`, `prompts`,
            `by`. The comment is not in the event.
        ASSIGNED: A question has a new assignee. Data: `wait`, `by`; `to`, absent if it was
            unassigned.
        REWOUND: The database went back in time, and the run's last acknowledged changes are gone.
            Data: `reason`.
        COMMENT: A person commented. Data: `text`, `by`; `wait` if the comment is about a question.
        DONE: The graph returned. Data: `saved`.
    """

    STARTED = "started"
    CLAIMED = "claimed"
    RECOVERED = "recovered"
    STEP = "step"
    WAIT = "wait"
    WAITING = "waiting"
    WOKE = "woke"
    EXPIRED = "expired"
    ANSWER = "answer"
    WITHDRAWN = "withdrawn"
    SIGNAL = "signal"
    JOINED = "joined"
    EFFECT = "effect"
    DIFFERS = "differs"
    SETTLED = "settled"
    POSTPONED = "postponed"
    FAILED = "failed"
    HELD = "held"
    RELEASED = "released"
    CANCELLING = "cancelling"
    PAUSING = "pausing"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    RESUMED = "resumed"
    RETRIED = "retried"
    UPDATED = "updated"
    SCORED = "scored"
    ASSIGNED = "assigned"
    REWOUND = "rewound"
    COMMENT = "comment"
    DONE = "done"


class EffectState(StrEnum):
    """State of an effect.

    Attributes:
        OPEN: The intent is stored. The call may or may not have been made.
        DONE: It returned, and the result is stored.
        FAILED: It raised and is not retried, or a person settled it as failed.
        UNKNOWN: The outcome is unknown: a person has to `settle` it.
        AGAIN: It is known not to have happened. The next execution of its node calls it.
    """

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    AGAIN = "again"


class Kind(StrEnum):
    """What a wait is for.

    Attributes:
        CLOCK: A time: `sleep`, or the pause before an effect is retried.
        HUMAN: A person: `ask`, or LangGraph's `interrupt`.
        SIGNAL: A signal: `wait_for`.
        RUN: The end of other runs: `join`.
    """

    CLOCK = "clock"
    HUMAN = "human"
    SIGNAL = "signal"
    RUN = "run"


class WaitState(StrEnum):
    """State of a stored wait.

    Attributes:
        OPEN: Not answered yet.
        ANSWERED: The answer is stored, and not yet handed to the node.
        APPLIED: A driver handed the answer to the node.
        CONSUMED: The node continued with the answer, and its result is stored.
        CLOSED: The run ended, or asks something else now.
    """

    OPEN = "open"
    ANSWERED = "answered"
    APPLIED = "applied"
    CONSUMED = "consumed"
    CLOSED = "closed"


class Control(StrEnum):
    """What a worker was asked to do with its run.

    Attributes:
        CANCEL: Cancel it.
        PAUSE: Pause it.
    """

    CANCEL = "cancel"
    PAUSE = "pause"


class DrivenBy(StrEnum):
    """Kind of process that drives a segment.

    Attributes:
        WORKER: A worker: `work`.
        CRON: A tick: `tick`.
        CALL: The caller of a bound graph.
    """

    WORKER = "worker"
    CRON = "cron"
    CALL = "call"


@dataclass(frozen=True)
class RunError:
    """An exception, as stored with a run or an effect. `str()` gives kind and message.

    Attributes:
        kind: Name of the exception's class.
        message: Its message, without secrets.
        traceback: Its traceback as text.
    """

    kind: str
    message: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True)
class Run:
    """A snapshot of a run: one accepted input on a thread.

    It does not change afterwards. Call `get` again for the current state.

        run = await runtime.get(run_id)
        if run.state is State.HELD:
            print(run.reason)

    Attributes:
        id: Id of the run.
        thread_id: Its thread.
        graph: Name of its graph.
        state: Its state.
        output: What the graph returned, once the run is `done`. None before that, and in lists with
            `output=False`.
        error: The exception of the last segment, if it raised. If a row of the run cannot be read,
            the reason: a type that is not allowed, a damaged row, a missing key.
        reason: Why it is `held` or was `cancelled`.
        metadata: The metadata given to `start`, with the labels that the agent added with
            `perdure.label`.
        tags: The tags given to `start`, with a tag for the last driver: `runtime:worker`,
            `runtime:cron` or `runtime:call`.
        created_at: When it was accepted.
        updated_at: When it last changed.
        due_at: When a worker should claim it: the end of the lease while it is driven, the end of
            its next clock wait while it waits. None if only a person, a signal or another run can
            make it due.
        key: The idempotency key given to `start`.
        version: The version of the graph that the run stays on.
        attempts: Number of claims since the last progress.
        saved: What continuing after a crash, a restart, a wait or a retry did not do again: `steps`
            that were stored, `effects` that came from their records, and `model_calls` in either.
        parent_id: The run whose node started it.
        damaged: Why the row cannot be read. The other fields are then as stored, or empty.
    """

    id: str
    thread_id: str
    graph: str
    state: State
    output: Any
    error: RunError | None
    reason: str | None
    metadata: Mapping[str, Any]
    tags: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    key: str | None = None
    version: str = ""
    attempts: int = 0
    saved: Mapping[str, int] = field(default_factory=dict)
    parent_id: str | None = None
    damaged: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the run is done, failed or cancelled."""
        return self.state in ENDED


@dataclass(frozen=True)
class Wait:
    """A snapshot of an open wait: for the clock, a person, a signal or other runs.

    Answer the open questions:

        for wait in await runtime.waits(kind="human"):
            await runtime.answer(wait.id, ask_a_person(wait.value))

    Attributes:
        id: Id of the wait. `answer` takes it.
        run_id: The run that waits.
        thread_id: The thread of that run.
        kind: What the run waits for.
        value: The question, as passed to `ask` or `interrupt`. For a signal, the `value` of
            `wait_for`.
        wake_at: When a clock wait is over.
        name: The signal it waits for, or that withdraws the question.
        expires_at: When the wait expires. None: never.
        created_at: When the run began to wait.
        response_schema: JSON Schema of the answer, if `ask` was given one.
        interrupt_id: LangGraph's id of the interrupt, for `Command(resume={id: answer})`.
        graph: The graph of the run.
        assignee: The person responsible for the question. None if it is unassigned.
        damaged: Why the row cannot be read. The other fields are then as stored, or empty.
    """

    id: str
    run_id: str
    thread_id: str
    kind: Kind
    value: Any
    wake_at: datetime | None
    name: str | None
    expires_at: datetime | None
    created_at: datetime
    response_schema: Mapping[str, Any] | None = None
    interrupt_id: str = ""
    graph: str = ""
    assignee: str | None = None
    damaged: str | None = None


@dataclass(frozen=True)
class WaitRecord(Wait):
    """A wait in any state, with its answer if one was accepted.

    Attributes:
        state: A `WaitState`.
        answered_at: When the answer was accepted.
        answered_by: The person who answered, as passed in `by`.
        answer: The accepted answer.
    """

    state: str = "open"
    answered_at: datetime | None = None
    answered_by: str | None = None
    answer: Any = None


class ScoreKind(StrEnum):
    """What a score consists of.

    Attributes:
        NUMBER: A number.
        CATEGORY: The name of a category.
        TEXT: Only a comment.
    """

    NUMBER = "number"
    CATEGORY = "category"
    TEXT = "text"


class PromptVersion(NamedTuple):
    """One version of a prompt.

    Attributes:
        name: Name of the prompt.
        version: A hash of its text.
    """

    name: str
    version: str


class Prompt(str):
    """The text of a prompt, with its name and version. It is stored as plain text.

    Attributes:
        name: Name of the prompt.
        version: A hash of the text.
    """

    __slots__ = ("name", "version")
    name: str
    version: str

    def __new__(cls, name: str, text: str) -> Prompt:
        self = super().__new__(cls, text)
        self.name = name
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6)
        self.version = digest.hexdigest()
        return self

    def __reduce__(self) -> tuple[type[Prompt], tuple[str, str]]:
        return Prompt, (self.name, str(self))

    @property
    def id(self) -> PromptVersion:
        """Name and version together."""
        return PromptVersion(self.name, self.version)


class Actor(str):
    """The person behind a decision, for `by=`: a name, the channel and the network address.

    It equals the plain name, which may be empty, and is stored as such. The event of the decision
    has all three.

        await client.answer(wait.id, True, by=Actor("ana", via="browser", address="10.0.0.7"))

    Attributes:
        via: How the decision was made: `browser`, `link`, `api` or `command line`. None: Python. If
            a token acts under a name other than its own, the token is named too: `api, token
            backend`.
        address: The network address it came from, if any.
    """

    __slots__ = ("address", "via")
    via: str | None
    address: str | None

    def __new__(
        cls, name: str = "", *, via: str | None = None, address: str | None = None
    ) -> Actor:
        self = super().__new__(cls, name)
        self.via, self.address = via, address
        return self

    def __reduce__(self) -> tuple[Callable[..., Actor], tuple[str]]:
        return partial(Actor, via=self.via, address=self.address), (str(self),)


@dataclass(frozen=True)
class Score:
    """How well a run, or a part of it, did: a number, a category, or only a comment.

    Attributes:
        run_id: The run.
        name: Name of the score, such as `tone`.
        value: The number. None for other kinds.
        about: The part of the run that was scored, empty for the whole run. For a step or effect it
            is its id.
        at: When it was given.
        comment: A comment.
        by: The person who gave it.
        kind: Whether it is a number, a category or text.
        label: The category. None for other kinds.
        step: Checkpoint of the step that was scored.
        effect: Key of the effect that was scored.
        prompts: The prompt versions that the scored step, effect or run had read by then.
        damaged: Why the row cannot be read. The other fields are then as stored, or empty.
    """

    run_id: str
    name: str
    value: float | None
    about: str
    at: datetime
    comment: str | None = None
    by: str | None = None
    kind: ScoreKind = ScoreKind.NUMBER
    label: str | None = None
    step: str | None = None
    effect: str | None = None
    prompts: tuple[PromptVersion, ...] = ()
    damaged: str | None = None


@dataclass(frozen=True)
class Event:
    """One entry in the history of a run.

    Attributes:
        n: Number of the event in its run, from 1 without gaps.
        at: When it was stored, by the journal's clock.
        kind: An `EventKind`.
        data: Facts about the event. `EventKind` lists the keys of each kind.
        damaged: Why the row cannot be read. The other fields are then as stored, or empty.
    """

    n: int
    at: datetime
    kind: str
    data: Mapping[str, Any]
    damaged: str | None = None


@dataclass(frozen=True)
class Chunk:
    """A piece of the output that a run produces while it is driven.

    Attributes:
        n: Number of the chunk in its run, from 1 without gaps.
        mode: LangGraph's stream mode, or `segment`.
        namespace: The subgraphs it comes from, as `("node:task id",)`. Empty at the top of the
            graph.
        data: As LangGraph streams it. For `messages`: the message, or a piece of it, and its
            metadata.
        at: When it was stored.
        replaces_from: For a `segment`, which begins where a process died or a node runs again:
            chunks from this number up to this one are void. Their content is repeated, or has
            changed.
    """

    n: int
    mode: str
    namespace: tuple[str, ...]
    data: Any
    at: datetime
    replaces_from: int | None = None


@dataclass(frozen=True)
class EffectRecord:
    """A snapshot of one effect.

    Attributes:
        key: The idempotency key that `perdure.key()` returned. `settle` takes it.
        name: Name of the effect. A compensation is named `undo` followed by the name of the effect
            it undoes.
        state: Its state.
        run_id: The run that called it. Empty with only the saver.
        thread_id: The thread of that run.
        attempts: Number of calls so far, including one that is about to be made.
        arguments: The recorded arguments, without secrets.
        result: The recorded result, if it is `done`.
        error: The exception, if it failed. For an open or unknown effect, the last exception.
        created_at: When the first intent was stored.
        updated_at: When it last changed.
        due_at: When the next attempt is due, between two attempts.
        undone: Whether its compensation has run.
        damaged: Why the row cannot be read. The other fields are then as stored, or empty.
    """

    key: str
    name: str
    state: EffectState
    run_id: str
    thread_id: str
    attempts: int
    arguments: Mapping[str, Any]
    result: Any
    error: RunError | None
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    undone: bool = False
    damaged: str | None = None


@dataclass(frozen=True)
class Done:
    """Returned by `verify` for an effect that did happen.

    Use it where the result of the call may be None; any other result can be returned as it is.

        def find(order_id):
            payment = api.payment_by_key(perdure.key())
            return Done(payment.id) if payment else None

    Attributes:
        result: The result of the call.
    """

    result: Any = None


@dataclass(frozen=True)
class Record:
    """Which parts of an effect's arguments and result are stored.

    Arguments with the name of a secret (`token`, `api_key`, `password`, …) and Pydantic's secrets
    are never stored. A retry takes what was left out from the current call.

        @perdure.effect(record=Record(without=["page"], result=len))
        def upload(name, page): ...

    Attributes:
        arguments: Names of the arguments to store. None: all.
        without: Names of the arguments to leave out.
        result: Converts the result into the value that is stored. The caller gets that value too,
            the first time included.
    """

    arguments: Collection[str] | None = None
    without: Collection[str] = ()
    result: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Message:
    """A message in the outbox.

    Attributes:
        id: Id of the message, the same at each delivery.
        topic: Its topic. `deliver` sets the handler of a topic.
        payload: Its content.
        thread_id: The thread of the run that sent it.
        run_id: The run that sent it.
        attempts: Number of delivery attempts.
        sent_at: When it was stored.
        due_at: When it is delivered next. None: perdure has given up on it.
        error: Why the last delivery failed.
        damaged: Why the row cannot be read. The other fields are then as stored, or empty.
    """

    id: str
    topic: str
    payload: Any
    thread_id: str
    run_id: str
    attempts: int
    sent_at: datetime
    due_at: datetime | None = None
    error: str | None = None
    damaged: str | None = None


@dataclass(frozen=True)
class Schedule:
    """A schedule that starts runs according to a cron expression.

    Attributes:
        name: Name of the schedule.
        graph: The graph it starts.
        cron: The cron expression.
        timezone: Time zone of the cron expression.
        next_at: When it starts the next run, or would if it were enabled.
        damaged: Why the row cannot be read. The other fields are then as stored, or empty.
        enabled: Whether it starts runs.
        missed: How many of its times started no run, because they were too late or their run was
            refused.
        missed_at: When it last missed one.
        problem: Why it started no run when it was last due. `None` if it did, or was not due yet.
    """

    name: str
    graph: str
    cron: str
    timezone: str
    next_at: datetime
    damaged: str | None = None
    enabled: bool = True
    missed: int = 0
    missed_at: datetime | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Example:
    """One example of an evaluation: an input, and the output expected for it.

    The run of this example asks a person once:

        Example({"to": "ada"}, expected={"subject": "Engines"}, answers=[{"approved": True}])

    Attributes:
        input: Input of the target.
        expected: The expected output.
        id: Its id, the same in each evaluation. By default a hash of its content.
        metadata: Your own facts about it.
        answers: People's answers, in the order in which the run asks.
        signals: Values that `wait_for` returns, by signal name.
        run_id: The real run that it was made from, whose outcomes `effects="recorded"` takes.
    """

    input: Any
    expected: Any = None
    id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    answers: Sequence[Any] = ()
    signals: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None

    @property
    def inputs(self) -> Any:
        """`input`, under the name that LangSmith's evaluators use."""
        return self.input

    @property
    def outputs(self) -> Any:
        """`expected`, under the name that LangSmith's evaluators use."""
        return self.expected

    @property
    def reference_outputs(self) -> Any:
        """`expected`, under the name that LangSmith's evaluators use."""
        return self.expected


@dataclass(frozen=True)
class Counts:
    """What a call to `tick` or `work` did, in segments unless noted.

    Attributes:
        claimed: Segments begun.
        done: Runs that ended `done`.
        waiting: Segments that ended in a wait.
        failed: Runs that ended `failed`.
        held: Runs that are `held`.
        cancelled: Runs that were cancelled.
        paused: Runs that were paused.
        released: Given back unfinished, to be retried later or because time ran out.
        lost: Taken over by another worker.
        scheduled: Runs started by schedules.
        delivered: Outbox messages delivered.
        pruned: Runs deleted by `Runtime(retention=…)`.
    """

    claimed: int = 0
    done: int = 0
    waiting: int = 0
    failed: int = 0
    held: int = 0
    cancelled: int = 0
    paused: int = 0
    released: int = 0
    lost: int = 0
    scheduled: int = 0
    delivered: int = 0
    pruned: int = 0


class WorkerState(StrEnum):
    """State of a worker.

    Attributes:
        ALIVE: It sends heartbeats.
        DRAINING: It was asked to claim nothing more and to exit.
        SILENT: It missed three heartbeats: it may be dead, stopped or disconnected.
        DEAD: It is known to be dead. Only a runtime on the same host can know.
    """

    ALIVE = "alive"
    DRAINING = "draining"
    SILENT = "silent"
    DEAD = "dead"


@dataclass(frozen=True)
class DrivenRun:
    """A run that a worker drives now.

    Attributes:
        run_id: The run.
        thread_id: Its thread.
        graph: Its graph.
        version: Version of the graph.
        updated_at: When the run last changed.
    """

    run_id: str
    thread_id: str
    graph: str
    version: str
    updated_at: datetime


@dataclass(frozen=True)
class WorkerInfo:
    """A process that drives runs.

    A short tick and the caller of a bound graph do not announce themselves. They are listed only
    while they drive something, without `started_at` and `seen_at`.

    Attributes:
        id: Id of the worker, as in the events `claimed` and `recovered`.
        host: Its host.
        pid: Its process id.
        state: Its state.
        driven: Number of runs it drives.
        runs: The runs it drives. Incomplete if all workers together drive more than a thousand.
        graphs: The graphs it can drive, as `name` or `name@version`.
        concurrency: Maximum number of segments at once.
        started_at: When it started.
        seen_at: Its last heartbeat.
        drain_at: When it was asked to drain.
        drain_by: The person who asked: `by`, `via` and `from`.
    """

    id: str
    host: str
    pid: int
    state: WorkerState
    driven: int
    runs: tuple[DrivenRun, ...] = ()
    graphs: tuple[str, ...] = ()
    concurrency: int | None = None
    started_at: datetime | None = None
    seen_at: datetime | None = None
    drain_at: datetime | None = None
    drain_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Retention:
    """How long runs are kept after their end, by the state they ended in.

    Workers delete older runs with their history, as `prune` does. A thread without runs loses its
    checkpoints.

        Runtime(retention=Retention(done=timedelta(days=30), failed=timedelta(days=90)))

    Attributes:
        done: Age at which `done` runs are deleted. None: never.
        failed: Age at which `failed` runs are deleted. None: never.
        cancelled: Age at which `cancelled` runs are deleted. None: never.

    Raises:
        BadArgument: No time is given, or one is negative.
    """

    done: timedelta | None = None
    failed: timedelta | None = None
    cancelled: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("done", "failed", "cancelled"):
            age = getattr(self, name)
            if age is not None and (not isinstance(age, timedelta) or age < timedelta(0)):
                raise BadArgument(f"Retention({name}={age!r}): give a timedelta, or None.")
        if not self.ages:
            raise BadArgument("Retention() keeps everything: say how long, or leave it out.")

    @property
    def ages(self) -> dict[State, timedelta]:
        """The ages that are set, by state."""
        ages = {State.DONE: self.done, State.FAILED: self.failed, State.CANCELLED: self.cancelled}
        return {state: age for state, age in ages.items() if age is not None}


@dataclass(frozen=True)
class Retry:
    """How often a segment or effect that raised is retried, and how long to pause in between.

        runtime.register(graph, retry=Retry(attempts=5, first=timedelta(seconds=2)))

    Attributes:
        attempts: Maximum number of attempts, including the first.
        first: Pause before the second attempt.
        factor: Factor by which each further pause grows.
        longest: Maximum pause.
        final: Types of exceptions that are not retried.

    Raises:
        BadArgument: `attempts` or `factor` is below 1, or a time is negative.
    """

    attempts: int = 3
    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=5)
    final: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.factor < 1 or min(self.first, self.longest) < timedelta(0):
            raise BadArgument(
                f"{self}: attempts and factor must be at least 1, and no time may be negative."
            )

    def is_over(self, attempts: int, error: BaseException) -> bool:
        """Whether no further attempt is made.

        Args:
            attempts: Number of attempts so far.
            error: The exception of the last attempt.
        """
        return attempts >= self.attempts or isinstance(error, self.final)

    def pause(self, attempts: int) -> timedelta:
        """How long to pause before the next attempt.

        Args:
            attempts: Number of attempts so far.
        """
        try:
            return min(self.longest, self.first * self.factor ** (attempts - 1))
        except OverflowError:
            return self.longest


@runtime_checkable
class Observer(Protocol):
    """An object that is called for each event that this process stored, after its commit.

    The observer is never called before the commit, never twice for one event, and not for an event
    that was refused or rolled back. If the process dies between the commit and the call, the call
    is lost: use an observer for metrics and traces, and the journal for data that must be complete.
    An exception in the observer is logged and changes nothing. Calls come in order, one at a time,
    in a separate thread.

        class Counter:
            def on_event(self, kind, run_id, thread_id, data, at):
                metrics.increment(f"perdure.{kind}")

        runtime = Runtime(observe=Counter())
    """

    def on_event(
        self, kind: str, run_id: str, thread_id: str, data: Mapping[str, Any], at: datetime
    ) -> None:
        """Handle one event.

        Args:
            kind: An `EventKind`.
            run_id: The run.
            thread_id: Its thread.
            data: The data of the event, as in `Event.data`. For a claim it also has the `graph` of
                the run and the number of the `segment`.
            at: When the event was stored, by the journal's clock.
        """
