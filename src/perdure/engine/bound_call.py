"""One call of a bound graph: the caller's arguments, and the stream as a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.types import GraphOutput

from perdure import langgraph_port
from perdure.engine.segment_drive import BREAKPOINTS, Drive
from perdure.errors import BadArgument


class BoundCall:
    """The arguments of one call of a bound graph."""

    def __init__(self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any]) -> None:
        self.input = input
        self.follows = False
        """Whether the call continues a run that has begun."""
        self._config: dict[str, Any] = dict(config or {})
        self._context = kwargs.pop("context", None)
        self._kwargs = kwargs
        configurable = dict(self._config.get("configurable") or {})
        thread_id = configurable.get("thread_id")
        if thread_id is None or thread_id == "":
            raise BadArgument(
                "The config has no thread_id: pass {'configurable': {'thread_id': ...}}."
            )
        self.thread_id = str(thread_id)
        self._durability = kwargs.pop("durability", None)
        self.arguments: dict[str, Any] = {}

    def setup(self) -> dict[str, Any]:
        """The part of the call that can be stored, enough for a worker to continue it."""
        setup: dict[str, Any] = {"inline": True}
        own = {"input": self.input, "context": self._context, "durability": self._durability}
        setup |= {name: value for name, value in own.items() if value is not None}
        setup |= {name: self._kwargs[name] for name in BREAKPOINTS if self._kwargs.get(name)}
        keep = {k: self._config[k] for k in ("recursion_limit", "tags") if k in self._config}
        given = _plain(self._config.get("configurable"))
        plain = {k: v for k, v in given.items() if not langgraph_port.is_own_key(k)}
        setup["config"] = {**keep, "configurable": plain}
        setup["metadata"] = _plain(self._config.get("metadata"))
        return setup

    def apply(self, drive: Drive) -> None:
        """Combine the arguments of the caller with those of the run."""
        if not self.follows and (self.input is None or drive.input is None):
            self.input = drive.input
        own = {k: v for k, v in self._config.items() if k not in ("configurable", "metadata")}
        drive.config = cast(RunnableConfig, {**drive.config, **own, **self.with_lease(drive)})
        if self._context is not None:
            drive.context = self._context
        self.arguments = {**self._kwargs, **drive.arguments}

    def with_lease(self, drive: Drive) -> RunnableConfig:
        """The caller's config with the lease of the run."""
        configurable = {
            **(self._config.get("configurable") or {}),
            **drive.config["configurable"],
        }
        return cast(RunnableConfig, {**self._config, "configurable": configurable})


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any]:
    storable = (str, int, float, bool, type(None))
    return {k: v for k, v in (values or {}).items() if isinstance(v, storable)}


class StreamResult:
    """Collects a stream into what `invoke` returns."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        self._mode = kwargs.pop("stream_mode", "values")
        self._is_v2 = kwargs.get("version") == "v2"
        both = self._mode == "values" and not self._is_v2
        wanted = ["updates", "values"] if both else self._mode
        self.kwargs = {**kwargs, "stream_mode": wanted}
        self._chunks: list[Any] = []
        self._latest: Any = None
        self._interrupts: list[Any] = []

    def add(self, chunk: Any) -> None:
        if self._mode != "values":
            self._chunks.append(chunk)
            return
        if self._is_v2:
            self._latest = chunk["data"]
            self._interrupts.extend(chunk.get("interrupts", ()))
            return
        mode, payload = chunk[-2:]
        if mode == "values":
            self._latest = payload
        elif isinstance(payload, dict) and payload.get(langgraph_port.INTERRUPT) is not None:
            self._interrupts.extend(payload[langgraph_port.INTERRUPT])

    def result(self) -> Any:
        if self._mode != "values":
            return self._chunks
        if self._is_v2:
            return GraphOutput(value=self._latest, interrupts=tuple(self._interrupts))
        if not self._interrupts:
            return self._latest
        values = self._latest if isinstance(self._latest, dict) else {}
        return {**values, langgraph_port.INTERRUPT: self._interrupts}
