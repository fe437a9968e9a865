"""One call of a bound graph: the arguments of its caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from perdure.errors import BadArgument
from perdure.execution.node_outputs import redacted_output
from perdure.execution.segment_drive import BREAKPOINTS, Drive
from perdure.langgraph_port import configs
from perdure.operations.streams import MODES
from perdure.serde.serializer import Serializer
from perdure.service.streams import kept_modes
from perdure.service.validation import check_command


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
            self._config["tags"] = serializer.codec.redacted(list(tags))

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
