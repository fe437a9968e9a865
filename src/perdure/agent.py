"""What an agent's code calls: waits, and reads that return the same value when a node runs again.

Under a runtime a wait is a row, and the process is free meanwhile. With only the saver these are
LangGraph's interrupts, resumed by `Command(resume=...)`, and nothing is recorded.
"""

from __future__ import annotations

import contextlib
import random as _random
import uuid as _uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from perdure.commands.answer_schema import check_schema
from perdure.commands.runs import find_all
from perdure.commands.signals import check_signal_name
from perdure.commands.waits import TAKEN_BACK, Question, is_taken_back, is_time_up
from perdure.effects.context import current
from perdure.effects.matching import configurable
from perdure.errors import (
    BadArgument,
    Expired,
    JoinFailed,
    NotDurable,
    NotInRun,
    TakenBack,
    forgot_await,
)
from perdure.journal.names import check_text
from perdure.langgraph_port import configs, task_interrupts
from perdure.times import deadline, moment
from perdure.types import Kind, Prompt, Run, State

if TYPE_CHECKING:
    from perdure.execution.segment import Segment

T = TypeVar("T")


_NOTHING: Any = object()


def sleep(until: timedelta | datetime) -> None:
    """Wait until a time. No process, thread or connection is held while it waits.

    Under a runtime the wait is a row, and any worker can continue the run. The node runs again from
    its first line when the time is up. With a time in the past, this returns at once. By the
    journal's clock, a wait never ends early; workers look every 0.2 seconds, on D1 every 1.5, and a
    cron as often as it ticks.

        perdure.sleep(timedelta(days=3))

    `Runtime.wake` ends a sleep early. With only a `Saver`, this is LangGraph's interrupt, which the
    caller resumes.

    Args:
        until: A time with a time zone, or a delay. A delay counts from the first time the node
            got here, however often the node runs again.

    Raises:
        BadArgument: `until` is neither, or has no time zone.
        NotInRun: The call is not in a node of a graph.
        NotDurable: The graph has no checkpointer.
    """
    if not isinstance(until, (timedelta, datetime)):
        raise BadArgument(
            "sleep() takes a timedelta, such as timedelta(seconds=25), or a datetime, "
            f"not {until!r}."
        )
    if isinstance(until, datetime) and until.tzinfo is None:
        raise BadArgument("sleep() needs a time zone: datetime(..., tzinfo=UTC), or a timedelta.")
    begun = now()
    wake_at = deadline("until", until, lambda: begun)
    # A node that slept here the first time has to do so again. Only a run remembers its first time.
    at = begun + until if isinstance(until, timedelta) else until
    if at > begun or (isinstance(until, datetime) and _segment() is None):
        _interrupt(
            {"wake_at": at.astimezone(UTC).isoformat()}, Question(Kind.CLOCK, wake_at=wake_at)
        )


def ask(
    value: Any,
    *,
    response_schema: Any = None,
    expires: timedelta | datetime | None = None,
    unless: str | None = None,
    default: Any = _NOTHING,
) -> Any:
    """Ask a person and wait for the answer, for as long as it takes.

    The question is stored with the checkpoint, and listed by `Client.waits` and in the inbox until
    `Client.answer` answers it. Then the node runs again from its first line, and this returns the
    answer. The answer belongs to what was shown: if the node asks something else when it runs
    again, that is a new question, and an answer to the old one is refused. So produce the shown
    value in an earlier node or in an effect, and take the time from `now()`.

        decision = perdure.ask({"draft": text}, response_schema=Decision)

    Do not wrap it in `except Exception`: LangGraph waits by raising. A wait that is caught is kept
    anyway, and what the node did after it is not stored. With only a `Saver`, this is LangGraph's
    interrupt, and `expires` and `unless` have no effect.

    Args:
        value: What the person sees: text, or data that can be stored.
        response_schema: What an answer must look like: a Pydantic model, a TypedDict, a dataclass,
            or a JSON Schema as a dict. An answer that does not fit is refused when it is given. If
            it fits the schema but the model's own validation refuses it, the question is asked
            again.
        expires: When the question expires, as a time or a delay. By default never.
        unless: The name of a signal to the thread that withdraws the question. A signal that came
            earlier counts too.
        default: What to return if the question expires or is withdrawn. Without a default, this
            raises an error.

    Returns:
        The answer, as an instance of the model, TypedDict or dataclass; without one, the value as
            it was sent. Or `default`.

    Raises:
        Expired: The question expired, and there is no default.
        TakenBack: A signal withdrew the question, and there is no default; `value` is the signal's
            value.
        BadArgument: The schema is not valid, or a default is given without `expires` and `unless`.
        NotInRun: The call is not in a node of a graph.
        NotDurable: The graph has no checkpointer.
    """
    if expires is None and unless is None and default is not _NOTHING:
        raise BadArgument(
            "ask(default=...) needs expires=... or unless=...: without them it is never returned."
        )
    if unless is not None:
        check_signal_name(unless)
    adapter = None
    if response_schema is not None and not isinstance(response_schema, dict):
        from pydantic import TypeAdapter

        adapter = TypeAdapter[Any](response_schema)
        response_schema = adapter.json_schema()
    elif response_schema is not None:
        check_schema(response_schema)
    question = Question(Kind.HUMAN, unless, expires_at=deadline("expires", expires, now))
    while True:
        answer = _interrupt(value, question, response_schema)
        if is_time_up(answer):
            if default is _NOTHING:
                raise Expired("The question expired. Give ask() a default=, or catch this.")
            return default
        if unless is not None and is_taken_back(answer):
            if default is _NOTHING:
                raise TakenBack(unless, answer[TAKEN_BACK])
            return default
        if adapter is None:
            return answer
        # A validator of the model can refuse what its schema allows. Only this process has it.
        with contextlib.suppress(ValueError):
            return adapter.validate_python(answer)


def wait_for(
    name: str,
    *,
    timeout: timedelta | datetime | None = None,
    default: Any = None,
    value: Mapping[str, Any] | None = None,
) -> Any:
    """Wait for a signal to this thread, and return its value.

    A signal that came before the node got here counts; the oldest is taken first, and each is
    delivered once. No process is held while it waits, and the node runs again from its first line
    afterwards.

        reply = perdure.wait_for("reply", timeout=timedelta(days=7))

    `Client.signal` sends it.

    Args:
        name: The name of the signal.
        timeout: When to stop waiting, as a time or a delay. By default never.
        default: What to return after the timeout.
        value: Data that describes the wait, shown in lists of waits. The key `signal` is reserved.

    Returns:
        The value of the signal, or `default`.

    Raises:
        BadArgument: The name is empty, or `value` has the key `signal`.
        NotInRun: The call is not in a node of a graph.
        NotDurable: The graph has no checkpointer.
    """
    check_signal_name(name)
    if value is not None and "signal" in value:
        raise BadArgument(
            "wait_for(value=...) must not have the key 'signal': that is the signal's name."
        )
    question = Question(Kind.SIGNAL, name=name, expires_at=deadline("timeout", timeout, now))
    answer = _interrupt({"signal": name, **(value or {})}, question)
    return default if is_time_up(answer) else answer


@overload
def join(
    run: Run | str, /, *, timeout: timedelta | datetime | None = None, default: Any = _NOTHING
) -> Any: ...


@overload
def join(
    *runs: Run | str | Iterable[Run | str],
    timeout: timedelta | datetime | None = None,
    default: Any = _NOTHING,
) -> list[Any]: ...


def join(
    *runs: Run | str | Iterable[Run | str],
    timeout: timedelta | datetime | None = None,
    default: Any = _NOTHING,
) -> Any:
    """Wait until other runs have ended, and return their outputs. Only under a runtime.

    No process is held while it waits. The end of a run and the wake-up of the run that joins it are
    one commit. Any run of the journal can be joined, not only a child; but not this run itself, or
    one that is queued behind it on its thread. Two runs that join each other wait forever. A run
    that is `held` has not ended.

        child = await runtime.start("research", {"topic": topic})
        found = perdure.join(child)

    The outputs are stored with the wait, so the node sees the same ones when it runs again.

    Args:
        *runs: Runs, or their ids; or one list of them.
        timeout: When to stop waiting, as a time or a delay. By default never. The runs continue.
        default: What to return after the timeout. Without a default, this raises an error.

    Returns:
        For one run, its output; for several, or for a list, a list of outputs in the same order. Or
            `default`.

    Raises:
        JoinFailed: All have ended, and one of them failed or was cancelled; or one is not in this
            journal. Join them one by one to get each result.
        Expired: The time is up, and there is no default.
        BadArgument: A run cannot be joined from here.
        NotInRun: The call is not in a node that a runtime drives.
    """
    ids = _joined_ids(runs)
    segment = _segment()
    if segment is None:
        raise NotInRun("join() can only be called in a node of a graph that a Runtime drives.")
    outcomes: Any = []
    if ids:
        unique = tuple(dict.fromkeys(ids))
        _check_joinable(segment, unique)
        expires_at = deadline("timeout", timeout, now)
        question = Question(Kind.RUN, expires_at=expires_at, runs=unique)
        outcomes = _interrupt({"join": list(unique)}, question)
        if is_time_up(outcomes):
            if default is _NOTHING:
                raise Expired(f"Not all of {', '.join(ids)} ended in time. Give join() a default=.")
            return default
    ended = {one["id"]: one for one in outcomes}
    for id in ids:
        if ended[id]["state"] != State.DONE:
            raise JoinFailed(id, ended[id]["state"], ended[id]["error"])
    is_one = len(runs) == 1 and isinstance(runs[0], (str, Run))
    outputs = [ended[id]["output"] for id in ids]
    return outputs[0] if is_one else outputs


def _joined_ids(runs: Iterable[object]) -> list[str]:
    ids = []
    for one in runs:
        if isinstance(one, str):
            ids.append(one)
        elif isinstance(one, Run):
            ids.append(one.id)
        elif isinstance(one, Iterable):
            ids += _joined_ids(one)
        else:
            kind = type(one).__name__
            raise BadArgument(f"join() takes runs or their ids, not {kind}.{forgot_await(one)}")
    return ids


def _check_joinable(segment: Segment, ids: Iterable[str]) -> None:
    mine = segment.row
    for row in segment.journal.do(find_all(ids)):
        if row.thread_id == mine.thread_id and row.n >= mine.n:
            raise BadArgument(
                f"Run {mine.id} cannot join run {row.id}: it begins only when this one has ended, "
                f"as both are on thread {row.thread_id!r}. Start it on another thread."
                if row.id != mine.id
                else f"Run {mine.id} cannot join itself: it would wait forever."
            )


def label(**values: Any) -> None:
    """Add to the metadata of this run, for people who look at it.

    The labels are in `Run.metadata` once this step is on disk, in the event of the step (`labels`),
    and in the config of later segments. Outside a run this does nothing.

        perdure.label(stage="negotiating", priority=2)

    A later value of the same name replaces the earlier one.

    Args:
        **values: Names and values, which must be storable.
    """
    if (segment := _segment()) is not None:
        segment.progress.label(values)


def prompt(name: str, text: str) -> Prompt:
    """Return the text of a prompt, and record which version of it this step used.

    The version is a hash of the text; the text itself is not stored. A prompt that a node reads is
    named in the event of the step and of the effects that the node calls afterwards; one that an
    effect reads, in the event of the effect. Traces have it as `perdure.prompts`, and a score the
    versions that its step, effect or run had read by then. Call it in the node, or in the effect,
    that uses the text; a prompt made when a module is imported is not recorded. Outside a run this
    returns just the text.

        model.invoke([perdure.prompt("writer", "Write a short letter."), *messages])

    Args:
        name: The name of the prompt, the same for all its versions.
        text: The text.

    Returns:
        The text, a `str` with the attributes `name` and `version`.

    Raises:
        BadArgument: The name is empty.
    """
    version = Prompt(check_text("name", name), text)
    if not name:
        raise BadArgument("prompt() needs a name.")
    config = configurable()
    if (segment := _segment()) is None:
        return version
    inside = current()
    if inside is not None and inside.owner is not None:
        inside.prompts[version.id] = None
    else:
        task = configs.task_info(config)
        above = configs.checkpoints_above(config)
        segment.progress.note_prompt(task.namespace, above, version.id)
    return version


def now() -> datetime:
    """Return the time when this node first got here. It stays the same when the node runs again.

    The n-th read of a task gets the n-th recorded value. It is queued before anything the node does
    next, so no checkpoint, wait or effect is on disk without it. Outside a run, and with only a
    `Saver`, this is the current time.

    Returns:
        A datetime in UTC.
    """
    segment = _segment()
    if segment is None:
        return datetime.now(UTC)
    return moment(_read(segment, segment.clock.now))


def random() -> float:
    """Return a random number from 0 to 1. It stays the same when the node runs again.

    It is recorded as `now` is.
    """
    segment = _segment()
    return _random.random() if segment is None else _read(segment, _random.random)  # noqa: S311


def uuid() -> _uuid.UUID:
    """Return a random UUID. It stays the same when the node runs again.

    It is recorded as `now` is. To use it as an idempotency key for another service, use
    `perdure.key()` in an effect, or draw it one step earlier.
    """
    segment = _segment()
    return _uuid.uuid4() if segment is None else _read(segment, _uuid.uuid4)


def _segment() -> Segment | None:
    """The segment of the node this is called in."""
    from perdure.execution.segment import segment_of

    return segment_of(configurable())


def _read(segment: Segment, make: Callable[[], T]) -> T:
    segment.check()
    config = configurable()
    inside = current()
    if inside is not None and inside.owner is not None:
        # An effect has its own count: a recorded one is not called again, and must shift nothing.
        inside.reads += 1
        return segment.reads.read(f"effect {inside.key}", None, inside.reads, make)
    task = configs.task_info(config)
    return segment.reads.read_next(task.namespace, task.attempt, task.checkpoint_id, make)


def _interrupt(value: Any, question: Question, response_schema: Any = None) -> Any:
    from langgraph.errors import GraphInterrupt
    from langgraph.types import interrupt

    config = configurable()
    if not configs.is_in_task(config):
        raise NotInRun("sleep(), ask() and wait_for() can only be called in a node of a graph.")
    _check_durable(config)
    _place_answer(value, question.kind)
    try:
        return interrupt(value, response_schema=response_schema)
    except GraphInterrupt as raised:
        if (segment := _segment()) is not None:
            for one in raised.args[0]:
                segment.questions.expect(one, question)
        raise


def _check_durable(config: Mapping[str, Any]) -> None:
    """Refuse a wait that nothing would remember, or whose answer could not be handed over."""
    if configs.checkpointer_of(config) is None:
        raise NotDurable(
            "sleep(), ask(), wait_for() and join() need a graph with a checkpointer: without one, "
            "nothing would remember the wait. Register the graph with a Runtime, or compile it "
            "with checkpointer=perdure.Saver(...)."
        )
    if (segment := _segment()) is not None:
        segment.check_answerable(config)


def _place_answer(value: Any, kind: Kind) -> None:
    """Make sure that this question does not get the answer to another."""
    segment, config = _segment(), configurable()
    if segment is not None:
        task = configs.task_info(config)
        index = task_interrupts.interrupts_so_far(task_interrupts.interrupt_counter(config))
        place = (task.namespace.rpartition(":")[2], task.attempt)
        answers = task_interrupts.answers_given(config)
        segment.questions.place_answer(place, index, answers, kind, value)
