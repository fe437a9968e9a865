"""The values that users see: runs, waits, events, effects, messages, and their states."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from html import escape
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from perdure.errors import BadArgument

Durability = Literal["auto", "sync", "async", "exit"]
Strategy = Literal["enqueue", "reject", "interrupt", "rollback"]


class State(StrEnum):
    """State of a run."""

    PENDING = "pending"
    """Due now, at a set time, or after the run before it on its thread."""
    RUNNING = "running"
    """Leased: a worker drives it."""
    WAITING = "waiting"
    """Waits for the clock, a person, a signal or another run."""
    PAUSED = "paused"
    """Rests until `resume`."""
    HELD = "held"
    """Needs a person; `reason` says why. `retry` continues it."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({State.DONE, State.FAILED, State.CANCELLED})
"""The states in which a run is over."""


class EventKind(StrEnum):
    """Kind of a run's event. `docs/reference/runtime.md` lists the data of each."""

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
    COMMENT = "comment"
    DONE = "done"


class EffectState(StrEnum):
    """State of an effect."""

    OPEN = "open"
    """The intent is stored; the call may have been made."""
    DONE = "done"
    FAILED = "failed"
    """It raised, and is not retried."""
    UNKNOWN = "unknown"
    """It may or may not have happened: a person settles it."""
    AGAIN = "again"
    """Known not to have happened: called when its task reaches it."""


class Kind(StrEnum):
    """What a wait is for."""

    CLOCK = "clock"
    HUMAN = "human"
    SIGNAL = "signal"
    RUN = "run"
    """For other runs to end: `join`."""


class WaitState(StrEnum):
    """State of a stored wait."""

    OPEN = "open"
    ANSWERED = "answered"
    """An answer was accepted; no driver has handed it to its task yet."""
    APPLIED = "applied"
    """A driver handed the answer to the task."""
    CONSUMED = "consumed"
    """The task went on with the answer."""
    CLOSED = "closed"
    """The run ended, or asks something else now."""


class Control(StrEnum):
    """What a driver has been asked to do with its run."""

    CANCEL = "cancel"
    PAUSE = "pause"


class DrivenBy(StrEnum):
    """What kind of process drives a segment."""

    WORKER = "worker"
    """`work`."""
    CRON = "cron"
    """`tick`."""
    CALL = "call"
    """The caller of a bound graph."""


@dataclass(frozen=True)
class RunError:
    """The exception that ended a run or its last segment."""

    kind: str
    message: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def _shortened(text: str) -> str:
    return text if len(text) <= 2000 else f"{text[:2000]}…"


@dataclass(frozen=True)
class Run:
    """One accepted input on a thread, as read from the journal. It does not change afterwards:
    call `get` again for the current state.

        run = await runtime.get(run_id)
        if run.state is State.HELD:
            print(run.reason)
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
    """The run whose node started it."""
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""

    @property
    def ended(self) -> bool:
        """Whether the run is done, failed or cancelled."""
        return self.state in ENDED

    def _repr_html_(self) -> str:
        """Its facts as a table, for notebooks."""
        version = f"@{self.version}" if self.version else ""
        facts = {
            "run": self.id,
            "state": self.state,
            "graph": f"{self.graph}{version}",
            "thread": self.thread_id,
            "parent": self.parent_id,
            "why": self.damaged or self.reason or self.error,
            "metadata": ", ".join(f"{name}={one}" for name, one in self.metadata.items()),
            "tags": ", ".join(self.tags),
            "created": f"{self.created_at:%Y-%m-%d %H:%M:%S %Z}",
            "due": f"{self.due_at:%Y-%m-%d %H:%M:%S %Z}" if self.due_at else None,
            "output": None if self.output is None else _shortened(repr(self.output)),
        }
        rows = [
            f'<tr><th style="text-align:left">{name}</th>'
            f'<td style="text-align:left">{escape(str(one))}</td></tr>'
            for name, one in facts.items()
            if one
        ]
        return f"<table>{''.join(rows)}</table>"


@dataclass(frozen=True)
class Wait:
    """An open wait of a run: for the clock, a person, a signal or other runs.

    for wait in await runtime.waits(kind="human"):
        await runtime.answer(wait.id, ask_a_person(wait.value))
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
    """The graph of the run."""
    assignee: str | None = None
    """The person responsible for the question. None if it is unassigned."""
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""


@dataclass(frozen=True)
class WaitRecord(Wait):
    """A wait that a run has or had, with its answer if one was accepted."""

    state: str = "open"
    answered_at: datetime | None = None
    answered_by: str | None = None
    answer: Any = None


class ScoreKind(StrEnum):
    """What a score consists of."""

    NUMBER = "number"
    CATEGORY = "category"
    TEXT = "text"
    """Only a comment."""


class PromptVersion(NamedTuple):
    """One text of a prompt: `version` is a hash of it."""

    name: str
    version: str


class Prompt(str):
    """The text of a prompt, with its name and version. It is stored as the plain text."""

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
        return PromptVersion(self.name, self.version)


class Actor(str):
    """The name of a person who decides something, with how (`via`) and from which `address`.
    Equals the plain name and is stored as such; the event of the decision has all three. The name
    may be empty.

        await client.answer(wait.id, True, by=Actor("ana", via="browser", address="10.0.0.7"))
    """

    __slots__ = ("address", "via")
    via: str | None
    """How the decision reached perdure: `browser`, `link`, `api`, `command line`. None: Python."""
    address: str | None
    """The network address it came from, if it came over a network."""

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
    """How well a run, or a part of it, did: a number, a category, or only a comment."""

    run_id: str
    name: str
    value: float | None
    """The number; None for a category or a text."""
    about: str
    """The part of the run it is about; empty for the whole run. Of a step, effect or question, its
    id; of one of several decisions in an answer, that and the number of the decision."""
    at: datetime
    comment: str | None = None
    by: str | None = None
    kind: ScoreKind = ScoreKind.NUMBER
    label: str | None = None
    """The category."""
    step: str | None = None
    """The checkpoint of the step it is about."""
    effect: str | None = None
    """The key of the effect it is about."""
    question: str | None = None
    """The wait whose answer was this decision."""
    action: str | None = None
    """The tool that the decision was about. The effect of its call is named `tool` and that."""
    call: str | None = None
    """The id of that tool call, if the question had it."""
    prompts: tuple[PromptVersion, ...] = ()
    """The prompt versions that its step, effect, question or run had read by then."""
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""


@dataclass(frozen=True)
class PromptOutcome:
    """How the runs, steps, effects and questions that read a prompt version were scored."""

    score: str
    """The name of the scores."""
    label: str | None
    """The category whose share this is; None for numbers."""
    n: int
    value: float
    """The mean of the numbers, or a share: of a category, or of numbers that are all 0 or 1."""
    low: float | None
    """The 95 % interval around it; None if there is only one number."""
    high: float | None
    share: bool = False
    """Whether `value` is a share."""
    variance: float = 0.0
    """Of the numbers."""


@dataclass(frozen=True)
class PromptRecord:
    """One version of a prompt, and the scores it earned."""

    name: str
    version: str
    text: str
    first_at: datetime
    """When it was first read."""
    runs: int
    """How many runs read it."""
    outcomes: tuple[PromptOutcome, ...] = ()
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""


@dataclass(frozen=True)
class Event:
    """One entry of a run's history. `n` counts from 1 without gaps; `kind` is an `EventKind`."""

    n: int
    at: datetime
    kind: str
    data: Mapping[str, Any]
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""


@dataclass(frozen=True)
class Decision:
    """A decision about a run from outside, such as an answer, and who made it."""

    run_id: str
    thread_id: str
    graph: str
    event: Event
    """Its entry in the run's history; `by`, `via` and `from` are in its data."""


@dataclass(frozen=True)
class Chunk:
    """A piece of what a run produces while it is driven. `n` counts from 1 without gaps."""

    n: int
    mode: str
    """LangGraph's stream mode, or `segment`."""
    namespace: tuple[str, ...]
    """Empty at the top of the graph, else the subgraphs it is in: `("node:task id",)`."""
    data: Any
    """As LangGraph streams it. Of `messages`: the message, or a piece of it, and its metadata."""
    at: datetime
    replaces_from: int | None = None
    """Of a `segment`, which begins where a process died or a node runs again: chunks from this
    number up to this one are void. What they said comes again, or has changed."""


@dataclass(frozen=True)
class EffectRecord:
    """One effect, as read from the journal."""

    key: str
    """The idempotency key the far side was given. `settle` takes it."""
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
    """Whether its compensation has run."""
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""


@dataclass(frozen=True)
class Done:
    """Returned by `verify` for an effect that did happen, with the result of the call.

    def verify(key, *arguments):
        found = api.payment_by_key(key)
        return Done(found.id) if found else None
    """

    result: Any = None


@dataclass(frozen=True)
class Record:
    """Which parts of an effect's arguments and result are stored.

    `arguments` names the arguments to store, all by default; `without` names those to leave out. A
    retry takes what was left out from the current call. Arguments named like a secret, and
    Pydantic's secrets, are never stored. `result` converts a result into the value that is stored,
    which the caller gets too, the first time included.
    """

    arguments: Collection[str] | None = None
    without: Collection[str] = ()
    result: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Message:
    """A message in the outbox. Every delivery of it has the same `id`."""

    id: str
    topic: str
    payload: Any
    thread_id: str
    run_id: str
    attempts: int
    sent_at: datetime
    due_at: datetime | None = None
    error: str | None = None
    """Why the last delivery failed."""
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""


@dataclass(frozen=True)
class Schedule:
    """Starts a run at each time of a cron line."""

    name: str
    graph: str
    cron: str
    timezone: str
    next_at: datetime
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""
    enabled: bool = True
    """Whether it starts runs. `next_at` of a disabled one is when it would start the next."""


@dataclass(frozen=True)
class Example:
    """One example of a dataset: an input, and what is expected of the target for it.

    Without an `id` it gets one made of its content when it is stored. `answers` are what people
    answer, in the order in which the run asks; `signals` what `wait_for` returns, by name.
    `run_id` is the real run that it was made from.

        Example({"to": "ada"}, expected={"subject": "Engines"}, answers=[{"approved": True}])
    """

    input: Any
    expected: Any = None
    id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    answers: Sequence[Any] = ()
    signals: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""

    @property
    def inputs(self) -> Any:
        """`input`, by the name that evaluators for LangSmith use."""
        return self.input

    @property
    def outputs(self) -> Any:
        """`expected`, by the name that evaluators for LangSmith use."""
        return self.expected

    @property
    def reference_outputs(self) -> Any:
        """`expected`, by the name that evaluators for LangSmith use."""
        return self.expected


@dataclass(frozen=True)
class DatasetInfo:
    """A version of a dataset: how many examples it has, and when it was made."""

    name: str
    version: int
    size: int
    updated_at: datetime
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""


@dataclass(frozen=True)
class ExperimentInfo:
    """The settings of an experiment, as they were stored when it began."""

    name: str
    dataset: str
    version: int
    """The version of the dataset."""
    target: str
    evaluators: tuple[str, ...]
    repetitions: int
    effects: Mapping[str, Any]
    """What is done about each effect, by name: `refuse`, `recorded`, `real`, `function` or
    `value`; "*" is any other."""
    metadata: Mapping[str, Any]
    created_at: datetime
    damaged: str | None = None
    """Why the row cannot be read. The other fields are then as stored, or empty."""


@dataclass(frozen=True)
class Counts:
    """What a call of `tick` or `work` did, in segments unless noted."""

    claimed: int = 0
    done: int = 0
    waiting: int = 0
    failed: int = 0
    held: int = 0
    cancelled: int = 0
    paused: int = 0
    released: int = 0
    """Given back unfinished: to be retried later, or because time ran out."""
    lost: int = 0
    """Taken over by another worker."""
    scheduled: int = 0
    """Runs started by schedules."""
    delivered: int = 0
    """Outbox messages delivered."""
    pruned: int = 0
    """Runs deleted by `Runtime(retention=…)`."""


class WorkerState(StrEnum):
    """The state of a worker."""

    ALIVE = "alive"
    DRAINING = "draining"
    """Was asked to claim nothing more and to exit."""
    SILENT = "silent"
    """Missed its heartbeats: it may be dead, stopped or disconnected."""
    DEAD = "dead"
    """Known to be dead. Only a runtime on the same host can know."""


@dataclass(frozen=True)
class DrivenRun:
    """A run that a worker drives now."""

    run_id: str
    thread_id: str
    graph: str
    version: str
    updated_at: datetime
    """When it last changed."""


@dataclass(frozen=True)
class WorkerInfo:
    """A process that drives runs, as it announced itself.

    A tick that ends quickly and the caller of a bound graph do not announce themselves: they are
    listed while they drive something, without `started_at`.
    """

    id: str
    host: str
    pid: int
    state: WorkerState
    driven: int
    """How many runs it drives."""
    runs: tuple[DrivenRun, ...] = ()
    """What it drives; not all if all workers together drive more than a thousand."""
    graphs: tuple[str, ...] = ()
    """What it can drive: `name`, or `name@version`."""
    concurrency: int | None = None
    started_at: datetime | None = None
    seen_at: datetime | None = None
    """When it last said that it is there."""
    drain_at: datetime | None = None
    """When it was asked to drain."""
    drain_by: Mapping[str, str] = field(default_factory=dict)
    """Who asked: `by`, `via` and `from`."""


@dataclass(frozen=True)
class DatabaseSize:
    """How large the database was."""

    at: datetime
    """The start of the hour."""
    bytes: int


@dataclass(frozen=True)
class Retention:
    """How long runs are kept after they ended; None keeps them forever.

    Workers delete a run that ended longer ago, with its history, and the checkpoints of a thread
    that has no run left, as `prune` does.

        Runtime(retention=Retention(done=timedelta(days=30), failed=timedelta(days=90)))
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
        """How long a run is kept, by the state it ended in."""
        ages = {State.DONE: self.done, State.FAILED: self.failed, State.CANCELLED: self.cancelled}
        return {state: age for state, age in ages.items() if age is not None}


@dataclass(frozen=True)
class Retry:
    """How often a segment or effect that raised is tried, and how long to wait in between.

    The pause is `first`, then grows by `factor` up to `longest`. Exceptions of the types in `final`
    are not retried.

        runtime.register(graph, retry=Retry(attempts=5, first=timedelta(seconds=2)))
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
        """Whether no further attempt is made."""
        return attempts >= self.attempts or isinstance(error, self.final)

    def pause(self, attempts: int) -> timedelta:
        """How long to wait after this many attempts."""
        try:
            return min(self.longest, self.first * self.factor ** (attempts - 1))
        except OverflowError:
            return self.longest


@runtime_checkable
class Observer(Protocol):
    """Called for each event that this process stored, after its commit.

    Never called before the commit or twice for one event, and not for an event that was refused or
    rolled back. A process that dies between the commit and the call does not call it: the journal
    is the complete history, an observer is for metrics and traces. An exception it raises is
    logged. It is called in a thread of its own, one event at a time and in order.

        class Counter:
            def on_event(self, kind, run_id, thread_id, data, at):
                metrics.increment(f"perdure.{kind}")

        runtime = Runtime(observe=Counter())
    """

    def on_event(
        self, kind: str, run_id: str, thread_id: str, data: Mapping[str, Any], at: datetime
    ) -> None:
        """`kind` is an `EventKind`; `data` is the event's data, as in `Event.data`. That of a claim
        also has the `graph` of the run, and the number of the `segment`."""
