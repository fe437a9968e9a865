"""What the code of an agent calls: waits, and reads that are the same when a node runs again.

Under a runtime a wait is a row, and the process is free. With only the saver these are LangGraph's
interrupts, to be resumed by `Command(resume=...)`, and nothing is recorded.
"""

from __future__ import annotations

import contextlib
import random as _random
import uuid as _uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.effects.context import current
from perdure.errors import BadArgument, Expired, NotInRun, TakenBack
from perdure.journal.names import check_text
from perdure.operations.answer_schema import check_schema
from perdure.operations.waits import TAKEN_BACK, Question, is_taken_back, is_time_up
from perdure.types import Kind, milliseconds, moment

if TYPE_CHECKING:
    from perdure.segments.segment import Segment

T = TypeVar("T")

_NOTHING: Any = object()


def sleep(until: timedelta | datetime) -> None:
    """Wait for a time. No process, thread or connection is held meanwhile.

    A timedelta counts from when the node first got here, however often it runs again.
    """
    if isinstance(until, timedelta):
        begun = now()
        at = begun + until
    elif isinstance(until, datetime):
        if until.tzinfo is None:
            raise BadArgument(
                "sleep() needs a time zone: datetime(..., tzinfo=UTC), or a timedelta."
            )
        at, begun = until, now()
    else:
        raise BadArgument(
            "sleep() takes a timedelta, such as timedelta(seconds=25), or a datetime, "
            f"not {until!r}."
        )
    # As it was the first time: then it asked, and has to ask again. Only a run remembers that.
    if at > begun or (isinstance(until, datetime) and _segment() is None):
        at = at.astimezone(UTC)
        _interrupt({"wake_at": at.isoformat()}, Question(Kind.CLOCK, wake_at=milliseconds(at)))


def ask(
    value: Any,
    *,
    response_schema: Any = None,
    expires: timedelta | datetime | None = None,
    unless: str | None = None,
    default: Any = _NOTHING,
) -> Any:
    """Ask a person, and wait for as long as it takes.

    `response_schema` (a Pydantic model, TypedDict, dataclass or JSON Schema) is what an answer must
    fit to be accepted; one that fits the schema and that the model still refuses is asked for
    again. After `expires` none is accepted any more, and once a signal of the name `unless` comes,
    or is there already, the question is taken back: then this gives `default`, or raises `Expired`
    or `TakenBack` if there is none.
    """
    if expires is None and unless is None and default is not _NOTHING:
        raise BadArgument(
            "ask(default=...) is only used with expires=... or unless=..., which are not given."
        )
    if unless is not None:
        _check_signal(unless)
    adapter = None
    if response_schema is not None and not isinstance(response_schema, dict):
        from pydantic import TypeAdapter

        adapter = TypeAdapter[Any](response_schema)
        response_schema = adapter.json_schema()
    elif response_schema is not None:
        check_schema(response_schema)
    question = Question(Kind.HUMAN, unless, expires_at=_deadline("expires", expires))
    while True:
        answer = _interrupt(value, question, response_schema)
        if is_time_up(answer):
            if default is _NOTHING:
                raise Expired("Nobody answered in time. Give ask() a default=, or catch this.")
            return default
        if unless is not None and is_taken_back(answer):
            if default is _NOTHING:
                raise TakenBack(unless, answer[TAKEN_BACK])
            return default
        if adapter is None:
            return answer
        # What the schema cannot say (a validator of the model) is only known here: ask again.
        with contextlib.suppress(ValueError):
            return adapter.validate_python(answer)


def wait_for(name: str, *, timeout: timedelta | datetime | None = None, default: Any = None) -> Any:
    """Wait for a signal and give its value, or `default` when the time is up."""
    _check_signal(name)
    question = Question(Kind.SIGNAL, name=name, expires_at=_deadline("timeout", timeout))
    value = _interrupt({"signal": name}, question)
    return default if is_time_up(value) else value


def _check_signal(name: str) -> None:
    if not name or not isinstance(name, str):
        raise BadArgument(f"A signal has a name, not {name!r}.")
    check_text("name", name)


def label(**values: Any) -> None:
    """Say more of the run, for whoever looks at it: it is in `Run.metadata` once this step is on
    disk, in the event of the step, and in the config of later segments."""
    if (segment := _segment()) is not None:
        segment.progress.label(values)


def now() -> datetime:
    """The time, as it was when this node first asked here."""
    segment = _segment()
    if segment is None:
        return datetime.now(UTC)
    return moment(_read(segment, segment.clock.now))


def random() -> float:
    """A number from 0 up to 1, the same when the node runs again."""
    segment = _segment()
    return _random.random() if segment is None else _read(segment, _random.random)  # noqa: S311


def uuid() -> _uuid.UUID:
    """A UUID, the same when the node runs again."""
    segment = _segment()
    return _uuid.uuid4() if segment is None else _read(segment, _uuid.uuid4)


def _config() -> dict[str, Any] | None:
    """The `configurable` of the node this is called in."""
    from langgraph.config import get_config

    try:
        return get_config().get("configurable")
    except RuntimeError:
        return None


def _segment() -> Segment | None:
    from perdure.segments.segment import find

    return find(_config() or {})


def _read(segment: Segment, make: Callable[[], T]) -> T:
    config = _config() or {}
    inside = current()
    if inside is not None and inside.owner is not None:
        # Its own, so that a recorded effect, which is not called again, shifts nothing.
        inside.reads += 1
        return segment.read(f"effect {inside.key}", None, inside.reads, make)
    info = getattr(config.get("__pregel_runtime"), "execution_info", None)
    attempt = getattr(info, "node_attempt", 1)
    task = config.get("checkpoint_ns", "")
    return segment.read_next(task, attempt, getattr(info, "checkpoint_id", None), make)


def _deadline(name: str, given: timedelta | datetime | None) -> int | None:
    if given is None:
        return None
    if isinstance(given, timedelta):
        return milliseconds(now() + given)
    if getattr(given, "tzinfo", None) is not None:
        return milliseconds(given)
    raise BadArgument(f"{name} is a timedelta or a datetime with a time zone, not {given!r}.")


def _interrupt(value: Any, question: Question, response_schema: Any = None) -> Any:
    from langgraph.errors import GraphInterrupt
    from langgraph.types import interrupt

    if "__pregel_scratchpad" not in (_config() or {}):
        raise NotInRun(
            "sleep(), ask() and wait_for() are for the nodes of a graph; nothing here could wait."
        )
    try:
        return interrupt(value, response_schema=response_schema)
    except GraphInterrupt as raised:
        if (segment := _segment()) is not None:
            for one in raised.args[0]:
                segment.questions.expect(one.id, question)
        raise
