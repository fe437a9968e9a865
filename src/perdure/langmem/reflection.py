"""A reflection is a run of a small graph: reflect, then keep what was written.

    reflect    calls the reflector, when no other reflection works in its namespace, with a draft in
               place of the store: it changes nothing outside
    keep       brings the draft into the store, once; or has it made again, if another reflection
               worked in its namespace since

Between the two is a checkpoint, so a reflection that was cut off before it is begun again with
nothing written, and one that was cut off after it asks no model again.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import importlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol, TypedDict

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime as Context
from langgraph.store.base import BaseStore
from langgraph.types import Command
from langmem.knowledge.extraction import MemoryStoreManager
from langmem.utils import NamespaceTemplate

from perdure import langgraph_port
from perdure.agent import sleep
from perdure.effects.recording import is_secret
from perdure.errors import BadArgument, Error, UnknownReflector
from perdure.journal.names import check_text
from perdure.langmem.draft import Door, Draft, Write, drafting
from perdure.serde.serializer import Serializer

log = logging.getLogger("perdure")

Namespace = tuple[str, ...]
FIRST, LONGEST = timedelta(seconds=0.2), timedelta(seconds=5)
"""How long a reflection waits for another one in its namespace before it looks again."""
NO_WAITING = (
    "A reflection is one step and cannot wait for somebody: make it a graph of the runtime, and "
    "start that."
)
FARTHEST = 100 * 365 * 86_400
"""Seconds a reflection can wait: a hundred years."""


@dataclass(frozen=True)
class Request:
    """What was submitted, as plain data: enough to do it in another process, weeks later."""

    payload: Any
    namespace: Namespace = ()
    thread_id: str | None = None
    """Of the conversation."""
    configurable: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, payload: Any, config: RunnableConfig, template: NamespaceTemplate, thread_id: Any
    ) -> Request:
        given = config.get("configurable") or {}
        if thread_id is UNSAID:
            thread_id = given.get("thread_id")
        return cls(
            payload,
            resolved(template, config),
            None if thread_id in (None, "") else check_text("thread_id", str(thread_id)),
            {key: value for key, value in given.items() if _is_kept(key, value)},
            {k: v for k, v in (config.get("metadata") or {}).items() if _is_kept(k, v)},
            tuple(map(str, config.get("tags") or ())),
        )

    def config(self) -> dict[str, Any]:
        """What a reflector is called with."""
        inner = dict(self.configurable)
        if self.thread_id is not None:
            inner["thread_id"] = self.thread_id
        return {"configurable": inner, "metadata": dict(self.metadata), "tags": list(self.tags)}

    def place(self, executor: str, key: str) -> str:
        """The thread its run is on: one for each conversation in each namespace, so that a later
        one takes its place; if it belongs to none, one of its own."""
        told = [*self.namespace, "", self.thread_id] if self.thread_id is not None else [key]
        digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=16)
        return f"reflection:{executor}:{digest.hexdigest()}"


class _Unsaid:
    def __repr__(self) -> str:
        return "<the thread of the config>"


UNSAID: Any = _Unsaid()


def _is_kept(key: Any, value: Any) -> bool:
    """What of a config is stored: what its user put there, if it is no secret; not what LangGraph
    works with."""
    scalar = type(value) in (str, float, bool, type(None)) or (
        type(value) is int and abs(value) < 2**63
    )
    ours = isinstance(key, str) and not langgraph_port.is_own_key(key) and key != "run_id"
    return ours and scalar and not is_secret(key)


def check_delay(seconds: Any) -> None:
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= FARTHEST:
        raise BadArgument(f"after_seconds={seconds!r}: pass a number of seconds, 0 or more.")


def current_config() -> RunnableConfig | None:
    """Of the node this is called in."""
    try:
        return get_config()
    except RuntimeError:
        return None


def resolved(template: NamespaceTemplate, config: RunnableConfig | None) -> Namespace:
    """A namespace without variables."""
    given = (config or {}).get("configurable") or {}
    if missing := [name for name in template.vars.values() if given.get(name) is None]:
        raise BadArgument(
            f"The namespace {'/'.join(template.template)} needs {missing[0]!r}, which is not in "
            f"config['configurable']: there is {', '.join(map(repr, given)) or 'nothing'}. Pass "
            f"config={{'configurable': {{{missing[0]!r}: ...}}}}."
        )
    found: Namespace = template({"configurable": {k: str(v) for k, v in given.items()}})
    for label in found:
        check_text("namespace", label)
    if bad := [label for label in found if not label or "." in label]:
        raise BadArgument(
            f"The namespace {found!r} cannot be used: a store takes no label that is empty or has "
            f"a '.', such as {bad[0]!r}."
        )
    return found


# -- the reflector


def name_of(reflector: Any, template: NamespaceTemplate) -> str:
    """A name that is the same after a restart: what the reflector is, and where it writes."""
    if isinstance(reflector, str):
        own: Any = reflector
    else:
        own = getattr(reflector, "name", None) or getattr(reflector, "__name__", None)
    what = own if isinstance(own, str) and own != "LangGraph" else type(reflector).__name__
    where = "/".join(template.template)
    # Two managers of one namespace, one for each kind of memory, are LangMem's usual pair.
    kinds = [getattr(one, "__name__", "") for one in getattr(reflector, "schemas", None) or ()]
    if kinds not in ([], ["Memory"]):
        where = f"{', '.join(kinds)} in {where}"
    return f"{what}({where})" if where else what


def template_of(reflector: Any, namespace: str | Namespace | None) -> NamespaceTemplate:
    given = getattr(reflector, "namespace", None) if namespace is None else namespace
    if given is not None and not isinstance(given, (str, tuple, NamespaceTemplate)):
        raise BadArgument(f"namespace={given!r}: use a text, or a tuple of texts.")
    return NamespaceTemplate(() if given is None else given)


def as_runnable(reflector: Any) -> Runnable[Any, Any]:
    if isinstance(reflector, Runnable):
        return reflector
    if callable(reflector):
        return RunnableLambda(reflector)
    raise BadArgument(
        f"{reflector!r} cannot reflect: use what create_memory_store_manager() gives, a Runnable, "
        "a graph, a function, or the name of one ('module:name')."
    )


def find(name: str) -> Runnable[Any, Any]:
    """A reflector by its name."""
    module, _, attribute = name.partition(":")
    try:
        found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
        return as_runnable(found)
    except (ImportError, AttributeError, ValueError, BadArgument) as error:
        raise UnknownReflector(name, str(error)) from error


def bound(reflector: Any, door: Door, namespace: Namespace) -> Any:
    """A reflector that writes through a door; what was given is not changed."""
    if isinstance(reflector, MemoryStoreManager):
        manager = copy.copy(reflector)
        manager._store = door
        if namespace:
            manager.namespace = NamespaceTemplate(())
            manager.namespace.template = namespace  # as it is: its variables are filled in
        return manager
    if isinstance(reflector, Pregel):
        # As one step: what its nodes write must not be lost when only the later ones run again.
        never: dict[str, Any] = {"interrupt_before_nodes": [], "interrupt_after_nodes": []}
        return reflector.copy({"store": door, "checkpointer": False, **never})
    if isinstance(reflector, RunnableBindingBase):
        return reflector.model_copy(update={"bound": bound(reflector.bound, door, namespace)})
    if isinstance(reflector, RunnableSequence):
        first, *middle, last = (bound(step, door, namespace) for step in reflector.steps)
        return reflector.model_copy(update={"first": first, "middle": middle, "last": last})
    return reflector


def _parts(reflector: Any) -> Iterator[Any]:
    """A reflector, and those it is made of."""
    yield reflector
    for part in (getattr(reflector, "bound", None), *(getattr(reflector, "steps", None) or ())):
        if part is not None:
            yield from _parts(part)
    if isinstance(reflector, Pregel):
        for node in reflector.nodes.values():
            yield from _parts(node.bound)


def _needs_loop(reflector: Any) -> bool:
    """Whether a part of it can only be awaited."""
    return any(
        getattr(part, "afunc", None) is not None and getattr(part, "func", None) is None
        for part in _parts(reflector)
    )


# -- the graph


class Reflecting(TypedDict, total=False):
    request: dict[str, Any]
    id: str
    writes: list[Write] | None
    result: Any


class Reflected(TypedDict, total=False):
    result: Any


class Needs(Protocol):
    """What a reflection needs that cannot be stored; see `means.py`."""

    def reflector(self) -> Any: ...

    def needed_store(self) -> BaseStore: ...

    def keep(self, writes: list[Write], is_current: bool) -> bool: ...

    def take_turn(self, namespace: Namespace, run_id: str) -> bool: ...

    def has_turn(self, namespace: Namespace, run_id: str) -> bool: ...

    @property
    def serializer(self) -> Serializer: ...


def build(means: Needs) -> StateGraph[Reflecting, None, Reflecting, Reflected]:
    """The graph of a reflection."""

    def reflect(state: Reflecting, config: RunnableConfig) -> Reflecting:
        request = Request(**state["request"])
        pause = FIRST
        # What two conversations of one user teach at once, each without knowing of the other, would
        # be learned twice.
        while not means.take_turn(tuple(request.namespace), config["configurable"]["run_id"]):
            sleep(pause)
            pause = min(2 * pause, LONGEST)
        if state["writes"] is not None:
            return {}  # it was done before, where only a store keeps records
        result, writes = reflect_on(
            means.reflector(), means.needed_store(), request, state["id"], config
        )
        return {
            "writes": writes,
            "result": _storable(result, means.serializer, config["configurable"]["run_id"]),
        }

    def keep(state: Reflecting, config: RunnableConfig) -> Reflecting | Command[Literal["reflect"]]:
        # If it was given back in between, another one may have had its turn: of what that wrote,
        # this one did not know.
        namespace = tuple(state["request"]["namespace"])
        is_current = means.has_turn(namespace, config["configurable"]["run_id"])
        if means.keep(state["writes"] or [], is_current):
            return {}
        return Command(update={"writes": None}, goto="reflect")

    builder = StateGraph(Reflecting, output_schema=Reflected)
    builder.add_node("reflect", reflect)
    builder.add_node("keep", keep)
    builder.add_edge(START, "reflect")
    builder.add_edge("reflect", "keep")
    return builder


def reflect_on(
    reflector: Runnable[Any, Any],
    store: BaseStore,
    request: Request,
    reflection_id: str,
    config: RunnableConfig | None = None,
) -> tuple[Any, list[Write]]:
    """Call a reflector, in a thread. Gives what it returned and what it wrote; the store is as
    before.

    Plainly, as LangMem does: the connections of a model that is awaited belong to the event loop of
    the application. What can only be awaited has a loop of its own.
    """
    renames = any(isinstance(part, MemoryStoreManager) for part in _parts(reflector))
    draft = Draft(store, reflection_id, renames=renames)
    door = Door(store, draft)
    mine = _config(request, door, config or {})
    made = bound(reflector, door, tuple(request.namespace))
    try:
        with langgraph_port.running_with(mine), drafting(draft):
            if _needs_loop(made):
                result = asyncio.run(made.ainvoke(request.payload, mine))
            else:
                result = made.invoke(request.payload, mine)
    except GraphBubbleUp as error:
        raise RuntimeError(NO_WAITING) from error
    if draft.failed is not None:
        raise draft.failed
    if isinstance(result, dict) and langgraph_port.INTERRUPT in result:
        raise RuntimeError(NO_WAITING)
    return _with_keys(result, draft), draft.writes


def _config(request: Request, store: BaseStore, around: Mapping[str, Any]) -> RunnableConfig:
    """The config of who submitted. Of the node that works on it, only who listens: a graph in a
    reflector is none of its subgraphs, and has no checkpoints."""
    given: Any = request.config()
    langgraph_port.set_runtime(given["configurable"], Context(store=store))
    if callbacks := around.get("callbacks"):
        given["callbacks"] = callbacks
    found: RunnableConfig = given
    return found


def _with_keys(result: Any, draft: Draft) -> Any:
    """What a memory manager returned, with the keys under which its memories are kept."""
    if not isinstance(result, list):
        return result
    return [
        {**one, "key": draft.key(one["namespace"], one["key"])}
        if isinstance(one, dict) and {"namespace", "key"} <= one.keys()
        else one
        for one in result
    ]


def _storable(result: Any, serializer: Serializer, reflection_id: str) -> Any:
    """What a reflector returned is for whoever waits for it; its memories are what counts."""
    try:
        serializer.codec.encode(result, "the result")
    except Error as error:
        told = "What reflection %s returned is not kept, its memories are: %s"
        log.warning(told, reflection_id, error)
        return None
    return result
