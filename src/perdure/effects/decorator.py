"""`@perdure.effect`: a function whose calls are recorded and settled; and the outbox.

In a run of a graph, under the runtime or with only the saver, a call is recorded before and after
it is made. Anywhere else it is the plain function.

`perdure.outbox(topic, payload)` stores a message: inside a transactional effect with its writes,
elsewhere in a run as a transactional effect of its own. Then a worker with a handler for the topic
delivers it (`execution/duties.py`), at least once, always with the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from perdure.commands import messages
from perdure.effects import simulation
from perdure.effects.call import Bound, Call, ModelUsage
from perdure.effects.context import current
from perdure.effects.matching import CallPosition
from perdure.effects.settlement import plain_call, settle
from perdure.effects.simulation import check_unseen
from perdure.effects.spec import ONCE, OPTIONS, THRICE, EffectSpec, business_key, make_spec
from perdure.effects.task import TaskContext, current_task
from perdure.errors import BadArgument, NotInRun
from perdure.journal import Statement
from perdure.journal.names import check_text
from perdure.types import Record, Retry

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("perdure")

ATTRIBUTE = "__perdure_effect__"
"""The attribute of a decorated function that holds its `Effect`."""


@overload
def effect(function: Callable[P, T], /) -> Callable[P, T]: ...


@overload
def effect(
    *,
    name: str | None = None,
    key: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    unknown: Literal["retry", "hold"] = "retry",
    transactional: bool = False,
    retry: Retry | None = THRICE,
    timeout: float | timedelta | None = None,
    compensate: Callable[..., Any] | None = None,
    record: Record | Iterable[str] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def effect(function: Any = None, /, **options: Any) -> Any:
    """Record the calls of a function that leaves the process; a recorded call never repeats.

    For functions and methods, plain or coroutine. In a run, under a runtime or with only the saver,
    an intent with the arguments and the key is on disk before the call, and the outcome after it.
    When the node runs again, a recorded outcome is returned, or its exception raised, and the
    function is not called. Outside of a run the decorated function is the plain function.

        @perdure.effect
        def send(to): ...

        @perdure.effect(verify=find_order, retry=perdure.Retry(attempts=5))
        def order(item): ...

    If the process dies between intent and outcome, the outcome is unknown. `transactional`,
    `verify` and `unknown`, in this order, decide what happens then.

    Keyword Args:
        name (str): Name of the effect. It is part of the key, and finds compensations. Keep it when
            you rename a function under a sleeping run. Two effects with `key` or `compensate` need
            two names. Default: the qualified name of the function.
        key (Callable): Returns a business key from the arguments of the call: text, or a value that
            JSON can hold, not None. Calls with the same name and business key have one outcome,
            across runs and threads. The outcome outlives `prune`; `erase` of its thread or a
            compensation removes it. Default: a key from the run, the task and the place of the
            call.
        verify (Callable): Asks the far side about a call with an unknown outcome, after a crash or
            an exception. It gets the same arguments, and `perdure.key()` works inside it. It
            returns the result of the call, `Done(result)` if that may be None, or None if the call
            did not happen; then the call is made. If it raises, it is retried as `retry` allows,
            then the run is held. Must be a plain function if the effect is one.
        unknown (Literal["retry", "hold"]): What happens to a call with an unknown outcome without
            `verify`. `"retry"` calls again with the recorded arguments and the same key. `"hold"`
            holds the run until a person calls `settle`; only `NotDone` is retried then. Default:
            `"retry"`.
        transactional (bool): Commit what the function writes with `perdure.transaction()` together
            with the outcome, so that the outcome is never unknown. Only for plain functions,
            without `verify` or `timeout`. The function cannot call other effects, waits or recorded
            reads. On SQLite nothing else can write while it runs. Default: False.
        retry (Retry | None): How often the call is retried after an exception. A pause of more than
            five seconds is a clock wait of the run, and holds no process. None: the first exception
            is final. Default: `Retry()`, three attempts.
        timeout (float | timedelta): Seconds, or a timedelta, for one attempt. After that it raises
            `EffectTimeout`, and the outcome is unknown. A coroutine is cancelled; the thread of a
            plain function cannot be stopped, and its result is dropped. Default: no limit.
        compensate (Callable): Undoes the effect when its run is cancelled. It is called with the
            result, then with the recorded arguments by name, and is itself an effect with the same
            `retry` and `unknown`. The worker that cancels must have imported its module. Not
            available with only the saver.
        record (Record | Iterable[str]): Which parts of arguments and result are stored: names of
            arguments, or a `Record`. Default: everything except secrets.

    Returns:
        The decorated function, with the same signature.

    Raises:
        BadArgument: An option is unknown, options are mutually exclusive, or the function
            is a generator, whose result cannot be recorded.
    """
    if unknown := options.keys() - OPTIONS:
        raise BadArgument(f"@perdure.effect has no option {sorted(unknown)[0]!r}.")
    if function is None:
        return functools.partial(_decorate, options=options)
    return _decorate(function, options)


def _decorate(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    effect = Effect.of(function, **options)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await aperform(effect, args, kwargs)
    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return perform(effect, args, kwargs)

    setattr(wrapper, ATTRIBUTE, effect)
    return wrapper


@dataclass(frozen=True)
class Effect:
    """A decorated function, or one model call or tool call of an agent.

    Attributes:
        signature: None: the function takes its arguments by name.
        is_parallel: Whether other calls may come before one, if its caller in another thread knows.
        business_key: The business key, if `spec.key` does not make it.
        call_id: What identifies the call in place of its arguments.
        usage_of: What a result cost.
    """

    spec: EffectSpec
    function: Callable[..., Any]
    signature: inspect.Signature | None = None
    is_parallel: bool | None = None
    business_key: str | None = None
    call_id: str | None = None
    usage_of: Callable[[Any], ModelUsage] | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], **options: Any) -> Effect:
        """Make an effect of a function. `options` are those of `effect`."""
        effect = cls(make_spec(function, **options), function, inspect.signature(function))
        _register(effect)
        return effect

    def make_call(
        self, task: TaskContext, attempt: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call:
        spec, arguments, instance, module = self.spec, kwargs, None, ""
        key = self.business_key
        if self.signature is not None:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments, module = dict(bound.arguments), _module_of(self.function)
            first, value = next(iter(arguments.items()), ("", None))
            if first in ("self", "cls") and first in spec.record.without:
                instance = value
            if spec.key is not None:
                key = business_key(spec.name, spec.key(*bound.args, **bound.kwargs))
        position = CallPosition(attempt, is_parallel=self.is_parallel, instance=instance)
        call = Call(task, spec, self.function, self.bind, arguments, position, key)
        call.call_id, call.module, call.usage_of = self.call_id, module, self.usage_of
        return call

    def bind(self, arguments: Mapping[str, Any]) -> Bound:
        """Recorded arguments, as the function takes them."""
        if self.signature is None:
            return (), arguments
        bound = inspect.BoundArguments(self.signature, cast(Any, dict(arguments)))
        return bound.args, bound.kwargs


def _module_of(function: Callable[..., Any]) -> str:
    """The module of a function, by its name also if it runs as a script."""
    module = getattr(function, "__module__", "") or ""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else Path(getattr(main, "__file__", "") or "").stem


EFFECTS: dict[str, Effect] = {}
"""The effects of this process, by name."""


def is_effect_tool(tool: Any) -> bool:
    """Whether the function of a LangChain tool is decorated with `@perdure.effect`."""
    functions = [getattr(tool, name, None) for name in ("func", "coroutine")]
    if not any(functions):
        functions = [getattr(type(tool), name, None) for name in ("_run", "_arun")]
        return any(hasattr(function, ATTRIBUTE) for function in functions)
    return all(hasattr(function, ATTRIBUTE) for function in functions if function)


def _register(effect: Effect) -> None:
    """Make an effect available by its name, for compensations."""
    known = EFFECTS.get(effect.spec.name)
    if known is not None and not _are_same(known, effect) and known.spec.needs_unique_name:
        if not effect.spec.needs_unique_name:
            return
        there = f"{known.function.__module__}.{known.function.__qualname__}"
        raise BadArgument(
            f"There is already an effect {effect.spec.name!r} with key= or compensate= ({there}). "
            "Each would return the other's outcomes: give one of them another name=."
        )
    EFFECTS[effect.spec.name] = effect


def _are_same(one: Effect, other: Effect) -> bool:
    """Whether both are one function, decorated again or imported under another name."""
    modules = {one.function.__module__, other.function.__module__}
    same = one.function.__qualname__ == other.function.__qualname__
    return same and (len(modules) == 1 or "__main__" in modules)


_WARNED: set[str] = set()
_BACKGROUND: set[asyncio.Task[Any]] = set()


def perform(effect: Effect, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a plain function; as an effect, in a run."""
    spec, place = effect.spec, _place(effect.spec)
    if place is None:
        return plain_call(spec.name, effect.function, (args, kwargs)).call()
    call = effect.make_call(*place, args, kwargs)
    with _blocking(call.task, spec.name):
        return call.task.journal.run(settle(call))


async def aperform(effect: Effect, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a coroutine function; as an effect, in a run."""
    spec, place = effect.spec, _place(effect.spec)
    if place is None:
        return await plain_call(spec.name, effect.function, (args, kwargs)).acall()
    call = effect.make_call(*place, args, kwargs)
    return await _shielded(call.task.journal.arun(settle(call)))


def _place(spec: EffectSpec) -> tuple[TaskContext, int] | None:
    """The task of a call, and the attempt at it. None: it is not recorded."""
    place = current_task()
    if place is None or place[0].segment is None:
        check_unseen(spec.name, reads=spec.reads)
    return place


def _blocking(task: TaskContext, name: str) -> contextlib.AbstractContextManager[Any]:
    """Warn and let the segment know if a coroutine calls: that blocks its event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return contextlib.nullcontext()
    if name not in _WARNED:
        _WARNED.add(name)
        log.warning(
            "effect %r is a plain function called from a coroutine: it blocks the event loop, and "
            "every other run in it. Make it a coroutine, or its node a plain function.",
            name,
        )
    return contextlib.nullcontext() if task.segment is None else task.segment.blocking()


async def _shielded(call: Coroutine[Any, Any, T]) -> T:
    """Wait for a call. If the waiter is cancelled the call goes on, so its outcome is recorded."""
    task = asyncio.create_task(call)
    _BACKGROUND.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    _BACKGROUND.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not warn if nothing awaits it


def outbox(topic: str, payload: Any = None) -> str:
    """Store a message that workers deliver once it is committed.

    Inside a transactional effect it is committed with the effect's writes. Elsewhere in a node it
    is a separate effect. Workers whose runtime has a handler for the topic (`Runtime.deliver`)
    deliver it at least once, always with the same id, in any order.

    Args:
        topic: Topic of the message.
        payload: Its content: anything that can be stored.

    Returns:
        The id of the message.

    Raises:
        NotInRun: It is called outside of a node.
    """
    topic, context = check_text("topic", topic), current()
    if context is not None and context.transaction is not None:
        simulated = simulation.give("outbox", topic, payload)
        return _store(topic, payload) if simulated is None else str(simulated[0])
    id: str = perform(_OUTBOX, (topic, payload), {})
    return id


def _store(topic: str, payload: Any) -> str:
    called_in, context = current_task(), current()
    transaction = None if context is None else context.transaction
    if called_in is None or context is None or context.owner is None or transaction is None:
        raise NotInRun("outbox() is for the nodes of a graph, and for transactional effects.")
    task, _ = called_in
    id = f"{context.key}-{context.messages}"
    context.messages += 1
    owner, now = context.owner, context.now
    place = messages.place(owner.thread_id, id, owner.run_id, topic, now)
    params = {
        "thread_id": owner.thread_id,
        "id": owner.run_id,
        "message_id": id,
        "wait_id": None,
        "topic": topic,
        "now": now,
        "body": task.serializer.dumps(payload, place, f"a message of topic {topic!r}"),
    }
    transaction.run([Statement("insert_message", params)])
    return id


_OUTBOX = Effect.of(_store, name="outbox", transactional=True, retry=ONCE)
