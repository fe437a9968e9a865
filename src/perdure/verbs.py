"""Verbs: what one can ask of a journal, each declared once.

A verb is a plan, or a coroutine function, with its types and docstring. From it come

    the method of `Client`       `await client.pause(run_id)`
    the blocking method          `client.blocking.pause(run_id)`
    the recorded call of a node  the effect `perdure.pause`, if the verb changes something
    the HTTP route               `POST /perdure/runs/{run_id}/pause`, by `perdure_api`
    the command                  `perdure pause RUN`, if `cli.verb_commands` lists it

The first parameter of a plan is the connection to the journal. Other plans use `verb.plan`. Checks
of arguments that many verbs share are here too.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from contextvars import ContextVar
from datetime import timedelta
from enum import StrEnum
from functools import cached_property, partial, update_wrapper
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from perdure.commands.connection import Connection
from perdure.errors import BadArgument
from perdure.journal import Journal, Plan
from perdure.journal.names import check_text as check_text
from perdure.journal.names import new_id as new_id

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Connection)
E = TypeVar("E", bound=StrEnum)

VERBS: dict[str, Verb[..., Any]] = {}
"""Every verb by its name."""


GRACE = timedelta(seconds=10)
"""How long a step of a run that is stopped may go on, if the caller does not say."""

PAGE = 100
"""Length of a list, if the caller does not say."""


def check_member(kind: type[E], what: str, given: str) -> E:
    """A member of an enum, from itself or its value."""
    try:
        return kind(given)
    except ValueError:
        raise BadArgument(f"{given!r} is not {what}; use one of {', '.join(kind)}.") from None


def check_name(name: str, given: str) -> str:
    """A name: a text that is not empty."""
    if not given:
        raise BadArgument(f"{name} must not be empty.")
    return check_text(name, given)


def check_limit(limit: int) -> int:
    if limit < 1:
        raise BadArgument(f"limit={limit} must be at least 1.")
    return limit


def check_dict(name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise BadArgument(f"{name} must be a dict, not {given!r}.")
    return dict(given or {})


class NodeCall(Protocol):
    """The recorded call of a node that a plan runs in."""

    def key(self) -> str:
        """The key of its effect, for the far side: the same for every attempt."""

    def number(self) -> int | None:
        """A number for the change that it makes, the same for every attempt."""

    def parent(self, journal: Journal, *, ignores_parent_cancel: bool) -> Plan[Any]:
        """The run that starts another one by it, if both are in this journal."""


CALL: ContextVar[NodeCall | None] = ContextVar("perdure_call", default=None)


def call_key() -> str | None:
    """The key of the recorded call this is in. None outside of a run."""
    call = CALL.get()
    return None if call is None else call.key()


def call_number() -> int | None:
    """The number of the change that the recorded call makes. None outside of a run."""
    call = CALL.get()
    return None if call is None else call.number()


class Recorded(Generic[P, T]):
    """A plan, or a coroutine function, that is the effect `perdure.<name>` where a node calls it.

    Its arguments, `without` some, and its result must be values that can be stored. Journals hold
    the names of these effects and of their arguments: they must stay. If it returns a `Run`, the
    record has its id, and the caller gets the run as it is now.
    """

    def __init__(
        self,
        plan: Callable[Concatenate[Any, P], Any],
        *,
        name: str | None,
        without: Collection[str] = (),
        keep: Callable[[Any], Any] | None = None,
        verify: Callable[..., Any] | None = None,
    ) -> None:
        self.plan: Callable[Concatenate[Any, P], Plan[T]] = plan
        """As it was declared: what it gives is run by `run`."""
        self.effect_name = name
        """None: it changes nothing, so it is not recorded."""
        self.without, self.keep, self.verify = tuple(without), keep, verify
        update_wrapper(self, plan)

    def __call__(
        self, on: Connection, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        return on.perform(self, args, kwargs)

    async def run(self, on: Connection, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the plan, without a record."""
        plan: Any = self.plan(on, *args, **kwargs)
        return await (plan if inspect.iscoroutine(plan) else on.journal.arun(plan))

    @property
    def result(self) -> str:
        """The type of its result, as it is written."""
        written = str(self.plan.__annotations__["return"])
        return (
            written.removeprefix("Plan[").removesuffix("]")
            if written.startswith("Plan[")
            else written
        )

    @property
    def returns_run(self) -> bool:
        return self.result == "Run"

    @cached_property
    def signature(self) -> inspect.Signature:
        """Its signature as a method."""
        first, *others = inspect.signature(self.plan).parameters.values()
        return inspect.Signature(
            [first.replace(name="self", annotation=first.empty), *others],
            return_annotation=self.result,
        )

    @cached_property
    def types(self) -> dict[str, Any]:
        """The type of each parameter, and of what it returns as `return`."""
        types = get_type_hints(self.plan)
        if get_origin(types["return"]) is Generator:
            types["return"] = get_args(types["return"])[2]
        return types

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """Its parameters, without the connection."""
        return list(self.signature.parameters.values())[1:]


class Caller:
    """What has verbs as coroutine methods."""

    engine: Connection


class BlockingCaller:
    """What has verbs as blocking methods."""

    def call(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        """Call a coroutine method of its owner, and wait for the result."""
        raise NotImplementedError


class Verb(Recorded[P, T]):
    """A verb: a descriptor that is a coroutine method of `Client` and a blocking one of
    `Client.blocking`."""

    def __init__(self, plan: Callable[..., Any], *, called: str, **recording: Any) -> None:
        super().__init__(plan, **recording)
        self.name = called
        VERBS[self.name] = self

    @cached_property
    def function(self) -> Callable[..., Coroutine[Any, Any, T]]:
        """The method, as a function."""

        async def function(self_: Caller, /, *args: Any, **kwargs: Any) -> Any:
            return await self_.engine.perform(self, args, kwargs)

        method: Callable[..., Coroutine[Any, Any, T]] = self._like_a_method(function)
        return method

    @cached_property
    def blocking_function(self) -> Callable[..., T]:
        """The blocking method, as a function."""
        method = self.function

        def blocking_function(self_: BlockingCaller, /, *args: Any, **kwargs: Any) -> Any:
            return self_.call(method, *args, **kwargs)

        blocking: Callable[..., T] = self._like_a_method(blocking_function)
        return blocking

    def _like_a_method(self, function: Any) -> Any:
        made: Any = update_wrapper(function, self.plan)
        made.__name__ = self.name
        del made.__wrapped__  # it has another signature
        made.__signature__ = self.signature
        made.__annotations__ = {**made.__annotations__, "return": self.result}
        made.__qualname__ = f"Client.{self.name}"
        return made

    @overload
    def __get__(
        self, caller: None, kind: Any = None
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, caller: BlockingCaller, kind: Any = None) -> Callable[P, T]: ...

    @overload
    def __get__(self, caller: Caller, kind: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, caller: Any, kind: Any = None) -> Any:
        is_blocking = issubclass(kind or type(caller), BlockingCaller)
        function = self.blocking_function if is_blocking else self.function
        return function if caller is None else types.MethodType(function, caller)


class _Declare(Protocol):
    """A decorator of plans and coroutine functions."""

    @overload
    def __call__(
        self, plan: Callable[Concatenate[C, P], Coroutine[Any, Any, T]], /
    ) -> Verb[P, T]: ...

    @overload
    def __call__(self, plan: Callable[Concatenate[C, P], Plan[T]], /) -> Verb[P, T]: ...


def verb(
    *,
    name: str | None = None,
    effect: bool = False,
    without: Collection[str] = (),
    verify: Callable[..., Any] | None = None,
) -> _Declare:
    """Declare a verb.

    Args:
        name: Its name, if that is not the name of the function.
        effect: Whether it changes something, so that a node's call of it is recorded. A verb with
            another signature than its effect has calls a `recorded` plan instead.
        without: Arguments that are not in the record.
        verify: As for `perdure.effect`.
    """

    def declare(plan: Callable[..., Any]) -> Any:
        called = name or plan.__name__
        recording: Any = {"name": called if effect else None, "without": without, "verify": verify}
        return Verb(plan, called=called, **recording)

    return declare


class _Record(Protocol):
    @overload
    def __call__(
        self, plan: Callable[Concatenate[C, P], Coroutine[Any, Any, T]], /
    ) -> Recorded[P, T]: ...

    @overload
    def __call__(self, plan: Callable[Concatenate[C, P], Plan[T]], /) -> Recorded[P, T]: ...


def recorded(
    name: str,
    *,
    keep: Callable[[Any], Any] | None = None,
    verify: Callable[..., Any] | None = None,
) -> _Record:
    """Make a plan the effect `perdure.<name>` where a node calls it, for a verb whose effect has
    another signature. `keep` makes of its result what is recorded."""
    return cast(_Record, partial(Recorded, name=name, keep=keep, verify=verify))
