"""The body of a request that creates a run, as LangGraph's clients send it, and what it means.

Only `assistant_id` is required, and unknown keys are accepted. A null value is the same as a
missing key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from perdure.commands.streams import MODES, kept_modes
from perdure.server.errors import ApiError, invalid
from perdure.verbs import check_text

Nodes = list[str] | Literal["*"]
Json = dict[str, Any]
ACCUMULATED, PIECES = "messages", "messages-tuple"
"""The two stream modes for messages."""
StreamMode = Literal[
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "custom",
    "tasks",
    "checkpoints",
    "debug",
    "events",
]

SET_BY_SERVER = ("thread_id", "run_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
"""Keys of `configurable` that say where a run begins. `RunBody.place` reads them."""
RESERVED_PREFIXES = ("langgraph_auth_", "__")
"""Prefixes of `configurable` keys that only the server sets: callers cannot pass them."""
LONGEST_DELAY = timedelta(days=366 * 10).total_seconds()
END = "__end__"
"""LangGraph's name for the end of a graph."""
PLACE = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")
BESIDE_ANSWER = {
    *("assistant_id", "thread_id", "command", "config", "checkpoint", "checkpoint_id"),
    *("stream_mode", "stream_subgraphs", "stream_resumable", "if_not_exists", "strict_resume"),
}
"""Fields that a request may have that only answers: `RunBody.beyond_answer` looks into `command`
and `config`, and a checkpoint must be the latest. Streams only add to the output that is kept."""


def modes_of(modes: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stream modes of a body: a name, a list, or nothing, which means `values`."""
    names = [modes] if isinstance(modes, str) else modes or ()
    return tuple(dict.fromkeys(names)) or ("values",)


class WireBody(BaseModel):
    """A JSON object that may have unknown keys. Null is the same as absent."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, sent: Any) -> Any:
        if isinstance(sent, dict):
            return {key: value for key, value in sent.items() if value is not None}
        return sent


class SendBody(WireBody):
    """A task for a node: `goto` of a command."""

    node: str
    input: Any = None


class CommandBody(WireBody):
    """LangGraph's `Command`."""

    resume: Any = None
    update: Json | list[tuple[str, Any]] | None = None
    goto: str | SendBody | list[str | SendBody] | None = None

    @property
    def is_empty(self) -> bool:
        return self.resume is None and self.update is None and not self.goto

    def to_command(self) -> Any:
        """The command as LangGraph's `Command`."""
        from langgraph.types import Command, Send

        goto = self.goto if isinstance(self.goto, list) else [self.goto] if self.goto else []
        targets = [one if isinstance(one, str) else Send(one.node, one.input) for one in goto]
        return Command(resume=self.resume, update=self.update, goto=targets)


class ConfigBody(WireBody):
    """The parts of a LangChain `RunnableConfig` that can be sent as JSON."""

    tags: list[str] = Field(default_factory=list)
    recursion_limit: int | None = Field(default=None, ge=1)
    max_concurrency: int | None = Field(default=None, ge=1)
    run_name: str | None = None
    metadata: Json = Field(default_factory=dict)
    configurable: Json = Field(default_factory=dict)


NO_CONFIG = ConfigBody()


def _checked(config: Json) -> Json:
    ConfigBody.model_validate(config)
    return config


CheckedConfig = Annotated[Json, AfterValidator(_checked)]
"""A config as it was sent, which is a valid one."""


class CheckpointBody(WireBody):
    """Which checkpoint a run begins at."""

    thread_id: str | None = None
    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_map: dict[str, str] | None = None

    def check(self) -> None:
        """Raise 422 if no database can hold its names."""
        for id in (self.checkpoint_id, *(self.checkpoint_map or {}).values()):
            check_text("checkpoint_id", id or "")
        for namespace in (self.checkpoint_ns, *(self.checkpoint_map or {})):
            check_text("checkpoint_ns", namespace or "")


class PayloadBody(WireBody):
    """What a run is started with, now or by a cron."""

    assistant_id: str = Field(min_length=1)
    input: Any = None
    config: ConfigBody | None = None
    context: Json | None = None
    metadata: Json = Field(default_factory=dict)
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    webhook: str | None = None
    multitask_strategy: Literal["enqueue", "reject", "interrupt", "rollback"] = "enqueue"
    stream_mode: StreamMode | list[StreamMode] | None = None
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    durability: Literal["sync", "async", "exit"] | None = None

    def kept_stream(self) -> Json:
        """The part of a run's setup that says which output is kept. It includes the modes as they
        were sent, because a client that reconnects expects the same message format. The default is
        the state after each step, for readers of the thread's stream."""
        wire = modes_of(self.stream_mode)
        wanted = {ACCUMULATED if mode == PIECES else mode for mode in wire}
        modes = [mode for mode in MODES if mode in wanted]
        return {**(kept_modes(modes, self.stream_subgraphs) or {}), "wire": [*wire]}

    def breakpoints(self) -> Json:
        sent = {
            "interrupt_before": self.interrupt_before,
            "interrupt_after": self.interrupt_after,
        }
        return {name: nodes for name, nodes in sent.items() if nodes}


class RunBody(PayloadBody):
    """The body of `runs.create`, `stream` and `wait`."""

    command: CommandBody | None = None
    checkpoint: CheckpointBody | None = None
    checkpoint_id: str | None = None
    on_disconnect: Literal["cancel", "continue"] = "continue"
    on_completion: Literal["delete", "keep"] = "delete"
    if_not_exists: Literal["create", "reject"] = "reject"
    after_seconds: float | None = Field(default=None, ge=0, le=LONGEST_DELAY)
    strict_resume: bool = False

    @property
    def resumes(self) -> bool:
        """Whether it answers a question of a run on the thread."""
        return self.command is not None and self.command.resume is not None

    def beyond_answer(self) -> str | None:
        """The first field that does more than answer a question. None: there is no such field."""
        command, config = self.command or CommandBody(), self.config or NO_CONFIG
        fields = {f"command.{name}": getattr(command, name) for name in ("update", "goto")}
        for name in ConfigBody.model_fields:
            fields[f"config.{name}"] = getattr(config, name)
        fields["config.configurable"] = passed_on(config.configurable)
        for name, field in type(self).model_fields.items():
            if name not in BESIDE_ANSWER and getattr(self, name) != field.default:
                fields[name] = getattr(self, name)
        return next((name for name, value in fields.items() if value), None)

    @property
    def jumps_to_end(self) -> bool:
        """Whether it jumps to the end of the graph. People mark a question as resolved this way."""
        command = self.command
        return command is not None and command.resume is None and command.goto in (END, [END])

    @property
    def run_input(self) -> Any:
        """The input of the run: the command, unless it is empty."""
        if self.command is None or self.command.is_empty:
            return self.input
        return self.command.to_command()

    def place(self) -> Json:
        """Where the run begins, if not at the latest checkpoint of its thread. Raises 422."""
        sent = {} if self.config is None else dict(self.config.configurable)
        if self.checkpoint is not None:
            sent |= self.checkpoint.model_dump(exclude_none=True)
        if self.checkpoint_id is not None:
            sent["checkpoint_id"] = self.checkpoint_id
        place = {name: sent[name] for name in PLACE if sent.get(name)}
        if not place:
            return {}
        try:
            CheckpointBody.model_validate(place).check()
        except ValidationError as error:  # of a config, whose keys may be anything
            raise invalid(error, "config.configurable") from error
        return {} if [*place] == ["checkpoint_ns"] else place

    def check_thread(self, thread_id: str | None) -> None:
        """Raise 422 if the checkpoint belongs to another thread."""
        named = None if self.checkpoint is None else self.checkpoint.thread_id
        if named is not None and named != thread_id:
            raise ApiError(422, f"checkpoint.thread_id {named!r} is not the thread of this run.")


def merged_config(
    own: Mapping[str, Any], sent: ConfigBody | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """The config of a run: the assistant's, overridden by the request's, then by `more`, which the
    server adds to `configurable`."""
    request = sent or NO_CONFIG
    try:
        base = ConfigBody.model_validate(dict(own)) if own else NO_CONFIG
    except ValidationError as error:  # an assistant that was made in Python
        raise invalid(error, "config of the assistant") from error
    config: dict[str, Any] = {}
    if tags := [*dict.fromkeys([*base.tags, *request.tags])]:
        config["tags"] = tags
    for name in ("recursion_limit", "max_concurrency", "run_name"):
        value = getattr(request, name)
        value = getattr(base, name) if value is None else value
        if value is not None:
            config[name] = value
    if metadata := {**base.metadata, **request.metadata}:
        config["metadata"] = metadata
    passed = {**base.configurable, **request.configurable}
    config["configurable"] = {**passed_on(passed), **more}
    return config


def passed_on(configurable: Mapping[str, Any]) -> dict[str, Any]:
    """Those keys that a caller may put into `configurable`."""
    return {
        name: value
        for name, value in configurable.items()
        if name not in SET_BY_SERVER and not name.startswith(RESERVED_PREFIXES)
    }


def merged_context(
    own: Any, sent: Json | None, configurable: Mapping[str, Any], fields: Iterable[str]
) -> Any:
    """The context of a run: the assistant's, overridden by the request's. Without either, the keys
    of `configurable` that are `fields` of the graph's context: clients may use either place."""
    base = dict(own) if isinstance(own, Mapping) else {}
    if context := {**base, **(sent or {})}:
        return context
    return {name: configurable[name] for name in fields if name in configurable} or None
