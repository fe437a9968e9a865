"""One call of a bound graph: its arguments, and what it is in a node of another run.

There it is an effect, and its run a child on a thread of its own. A node that runs again gets the
recorded result. If the process died during the call, or the call raised, the next attempt finds the
run by the key of the effect. A run that is done is not driven again; any other goes on from its
last step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from perdure.commands.runs import RunRow
from perdure.commands.starting import check_command
from perdure.commands.streams import MODES, kept_modes
from perdure.effects.context import key
from perdure.effects.decorator import Effect, aperform, perform
from perdure.effects.task import is_in_run
from perdure.errors import BadArgument
from perdure.execution.drive import BREAKPOINTS, Drive, is_resume
from perdure.execution.graphs import redacted_output
from perdure.langgraph_port import configs
from perdure.serde.serializer import Serializer


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
        given = {k: v for k, v in _plain(self.configurable).items() if not configs.is_own_key(k)}
        self.configurable |= redacted(given)
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
        given = _plain(self.configurable)
        plain = {k: v for k, v in given.items() if not configs.is_own_key(k)}
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


_KEY: ContextVar[str | None] = ContextVar("perdure_invoke", default=None)
_STORED = {"context", "durability"}
"""Arguments with which the result is what the run returns."""


class AlreadyDone(Exception):
    """The run of an earlier attempt is done."""

    def __init__(self, row: RunRow) -> None:
        super().__init__(row.id)
        self.row = row


def starts_own_run(graph: Any, input: Any, config: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a bound graph starts a run of its own inside another run."""
    if input is None or is_resume(input) or not kwargs.keys() <= _STORED or not is_in_run():
        return False
    return not configs.is_nested(configs.full_config(graph, config)["configurable"])


def invoke(graph: Any, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    return perform(_INVOKE, (graph, graph.name, _thread_of(config), input, config, kwargs), {})


async def ainvoke(graph: Any, input: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    return await aperform(
        _AINVOKE, (graph, graph.name, _thread_of(config), input, config, kwargs), {}
    )


def take_key() -> str | None:
    """The key of the run that a call is about to start, once; None outside of a node."""
    found = _KEY.get()
    _KEY.set(None)  # not for the calls that its nodes make
    return found


def _thread_of(config: Any) -> str:
    return str(((config or {}).get("configurable") or {}).get("thread_id") or "")


@contextlib.contextmanager
def _keyed() -> Iterator[None]:
    token = _KEY.set(key())
    try:
        yield
    finally:
        _KEY.reset(token)


def _invoke(
    graph: Any, name: str, thread_id: str, input: Any, given: Any, kwargs: dict[str, Any]
) -> Any:
    with _keyed():
        try:
            return graph.invoke_run(input, given, kwargs)
        except AlreadyDone as done:
            return graph.output_of(done.row)


async def _ainvoke(
    graph: Any, name: str, thread_id: str, input: Any, given: Any, kwargs: dict[str, Any]
) -> Any:
    with _keyed():
        try:
            return await graph.ainvoke_run(input, given, kwargs)
        except AlreadyDone as done:
            return await graph.aoutput_of(done.row)


def _effect(function: Any) -> Effect:
    """An exception is no outcome: a run that failed is retried by the next attempt. A run goes on
    with its recorded input, but with the graph and the config of the call: only of the same one."""
    record = ("name", "thread_id", "input")
    made = Effect.of(function, name="perdure.invoke", retry=None, record=record)
    return replace(made, spec=replace(made.spec, keeps_errors=False, identity=record[:2]))


_INVOKE, _AINVOKE = _effect(_invoke), _effect(_ainvoke)
