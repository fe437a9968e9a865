"""Plays one script of calls on a graph with any saver, and tells what happened, to compare.

A script is a generator: it yields the calls to make, one after the other, and gets their results
back, so that the same script is played blocking or as coroutines, with one saver for all calls
or a new one for each. What is told has no id in it that differs from play to play.
"""

import asyncio
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot
from pydantic import BaseModel

Graph = Pregel[Any, Any, Any, Any]
Api = Literal["blocking", "coroutines"]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")


class Call(NamedTuple):
    """One call of a graph's method; `failing` is the error it must raise."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    config: RunnableConfig | None
    failing: type[Exception] | None


Script = Generator[Call, Any, None]


class Story(NamedTuple):
    """A graph and what is done with it. `build` gets a list to note the calls of nodes in."""

    build: Callable[[BaseCheckpointSaver[Any], list[Any]], Graph]
    script: Callable[[], Script]


def invoke(
    given: Any,
    config: RunnableConfig | None = None,
    failing: type[Exception] | None = None,
    **kwargs: Any,
) -> Call:
    return Call("invoke", (given,), kwargs, config, failing)


def update(values: Any, config: RunnableConfig | None = None, as_node: str | None = None) -> Call:
    return Call("update_state", (), {"values": values, "as_node": as_node}, config, None)


def bulk_update(supersteps: Any) -> Call:
    return Call("bulk_update_state", (), {"supersteps": supersteps}, None, None)


def state(config: RunnableConfig | None = None) -> Call:
    return Call("get_state", (), {"subgraphs": True}, config, None)


def history(config: RunnableConfig | None = None, **kwargs: Any) -> Call:
    return Call("get_state_history", (), kwargs, config, None)


class Savers:
    """Where the saver for the next call comes from: one for all (warm), or one each (cold)."""

    def __init__(self, make: Callable[[], Any], cold: bool = False) -> None:
        self._make, self._cold = make, cold
        self._saver: Any = None

    def next(self) -> BaseCheckpointSaver[Any]:
        if self._saver is None or self._cold:
            self.close()
            self._saver = self._make()
        saver: BaseCheckpointSaver[Any] = self._saver
        return saver

    def close(self) -> None:
        if hasattr(self._saver, "close"):
            self._saver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def play(story: Story, savers: Savers, api: Api, thread_id: str) -> list[Any]:
    """The results of all calls, then the whole history, the last state and the nodes' calls."""
    try:
        if api == "blocking":
            return _play(story, savers, thread_id)
        return asyncio.run(_aplay(story, savers, thread_id))
    finally:
        savers.close()


def _play(story: Story, savers: Savers, thread_id: str) -> list[Any]:
    told: list[Any] = []
    calls: list[Any] = []
    script = _with_end(story.script())
    answer: Any = None
    while True:
        try:
            call = script.send(answer)
        except StopIteration:
            return [*told, sorted(calls, key=repr)]
        method = getattr(story.build(savers.next(), calls), call.method)
        config = _config(call, thread_id)
        try:
            answer = method(*call.args, config=config, **call.kwargs)
            if call.method == "get_state_history":
                answer = list(answer)
        except Exception as error:
            answer = _expected(call, error)
        told.append(_tell(call, answer))


async def _aplay(story: Story, savers: Savers, thread_id: str) -> list[Any]:
    told: list[Any] = []
    calls: list[Any] = []
    script = _with_end(story.script())
    answer: Any = None
    while True:
        try:
            call = script.send(answer)
        except StopIteration:
            return [*told, sorted(calls, key=repr)]
        method = getattr(story.build(savers.next(), calls), f"a{call.method}")
        config = _config(call, thread_id)
        try:
            if call.method == "get_state_history":
                answer = [one async for one in method(config=config, **call.kwargs)]
            else:
                answer = await method(*call.args, config=config, **call.kwargs)
        except Exception as error:
            answer = _expected(call, error)
        told.append(_tell(call, answer))


def _with_end(script: Script) -> Script:
    yield from script
    yield state()
    yield history()


def _config(call: Call, thread_id: str) -> RunnableConfig:
    if call.config is None:
        return {"configurable": {"thread_id": thread_id}}
    if "thread_id" in call.config["configurable"]:
        return call.config
    return {"configurable": {"thread_id": thread_id, **call.config["configurable"]}}


def _expected(call: Call, error: Exception) -> Exception:
    if call.failing is None or not isinstance(error, call.failing):
        raise error
    return error


# -- telling


def _tell(call: Call, answer: Any) -> Any:
    if call.method == "get_state_history":
        return [told(snapshot, answer) for snapshot in answer]
    if call.method == "get_state":
        return told(answer, ())
    if call.method in ("update_state", "bulk_update_state"):
        return "updated"
    if isinstance(answer, dict) and "__interrupt__" in answer:  # in the order in which threads end
        asked = sorted(answer["__interrupt__"], key=lambda one: repr(one.value))
        answer = {**answer, "__interrupt__": asked}
    return plain(answer)


def told(snapshot: StateSnapshot, line: Sequence[StateSnapshot]) -> dict[str, Any]:
    """A snapshot without ids; its parent is told by its place in the history."""
    ids = [_id(one.config) for one in line]
    parent = snapshot.parent_config and _id(snapshot.parent_config)
    metadata = {
        name: {ch: list(counts) for ch, counts in item.items()} if "delta" in name else item
        for name, item in cast(dict[str, Any], snapshot.metadata or {}).items()
        if name not in ("run_id", "thread_id")
    }
    return {
        "values": plain(snapshot.values),
        "next": snapshot.next,
        "metadata": plain(metadata),
        "parent": ids.index(parent) if parent in ids else bool(parent),
        "interrupts": [plain(one.value) for one in snapshot.interrupts],
        "tasks": [
            {
                "name": task.name,
                "path": plain(task.path),
                "error": None if task.error is None else str(task.error),
                "interrupts": [plain(one.value) for one in task.interrupts],
                "result": plain(task.result),
                "state": told(task.state, ())
                if isinstance(task.state, StateSnapshot)
                else plain(task.state),
            }
            for task in snapshot.tasks
        ],
    }


def _id(config: RunnableConfig) -> Any:
    return config["configurable"].get("checkpoint_id")


def plain(value: Any) -> Any:
    """A value as nested pairs of type name and content, with random ids taken out."""
    kind = type(value).__qualname__
    if isinstance(value, str):
        return kind, _UUID.sub("<id>", value)
    if isinstance(value, BaseModel):
        return kind, {k: plain(v) for k, v in value.__dict__.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return kind, {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return kind, [(plain(k), plain(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(plain, value), key=repr)
    if isinstance(value, (list, tuple)):
        return kind, [plain(item) for item in value]
    if isinstance(value, BaseException):
        return kind, str(value)
    return kind, value
