"""Requests and reflectors: what `submit` stores; find a reflector, name it, call it with its writes
staged.

Stored are the payload, the namespace and the caller's config. The reflections of one conversation
in one namespace share a thread, and a run is started there with the strategy `replace`: one batch
cancels the run that has not begun and inserts the new one. A running reflection is not touched; the
new one follows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langmem.utils import NamespaceTemplate

from perdure.commands.reflections import PREFIX
from perdure.errors import BadArgument, UnknownReflector
from perdure.langmem.langmem_port import (
    copy_manager,
    is_memory_manager,
    labels_of,
    store_of_manager,
    variables_of,
)
from perdure.langmem.staged_writes import (
    StagedWrite,
    StagedWrites,
    StagingStore,
    StoreCalls,
    staging,
)
from perdure.stores import calling_with, storable_entries
from perdure.verbs import check_text

Namespace = tuple[str, ...]
LONGEST_DELAY = 100 * 365 * 86_400  # longest `after_seconds`: a hundred years

# Default of `submit(thread_id=...)`; None means a reflection without a conversation.
FROM_CONFIG: Any = object()


@dataclass(frozen=True)
class ReflectionRequest:
    """A submitted reflection as plain data: enough to run it in another process, weeks later."""

    payload: Any
    namespace: Namespace = ()
    thread_id: str | None = None  # the conversation's thread
    configurable: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, payload: Any, config: RunnableConfig, template: NamespaceTemplate, thread_id: Any
    ) -> ReflectionRequest:
        """Build a request. Raises `BadArgument` if the namespace cannot be resolved."""
        given = config.get("configurable") or {}
        if thread_id is FROM_CONFIG:
            thread_id = given.get("thread_id")
        return cls(
            payload,
            resolve_namespace(template, config),
            None if thread_id in (None, "") else check_text("thread_id", str(thread_id)),
            storable_entries(given),
            storable_entries(config.get("metadata") or {}),
            tuple(map(str, config.get("tags") or ())),
        )

    def thread(self, executor: str, key: str = "") -> str:
        """The thread that a reflection shares with those it replaces, or is replaced by. Without a
        conversation `key` makes it unique."""
        conversation = [*self.namespace, "", self.thread_id]
        parts = json.dumps([key] if self.thread_id is None else conversation)
        digest = hashlib.blake2b(parts.encode(), digest_size=16)
        return f"{PREFIX}{executor}:{digest.hexdigest()}"

    def config(self) -> RunnableConfig:
        """The config the reflector is called with."""
        configurable = dict(self.configurable)
        if self.thread_id is not None:
            configurable["thread_id"] = self.thread_id
        return {
            "configurable": configurable,
            "metadata": dict(self.metadata),
            "tags": list(self.tags),
        }


def check_delay(seconds: Any) -> None:
    """Raise `BadArgument` unless `seconds` is a number from 0 to a hundred years."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_DELAY:
        raise BadArgument(f"after_seconds={seconds!r}: pass a number of seconds, 0 or more.")


def current_config() -> RunnableConfig | None:
    """The config of the node this is called in, or None outside a node."""
    try:
        return get_config()
    except RuntimeError:
        return None


def resolve_namespace(template: NamespaceTemplate, config: RunnableConfig | None) -> Namespace:
    """Fill the variables of a namespace from the config's `configurable`."""
    given = (config or {}).get("configurable") or {}
    if missing := [name for name in variables_of(template) if given.get(name) is None]:
        raise BadArgument(
            f"The namespace {'/'.join(labels_of(template))} needs {missing[0]!r}, which is not in "
            f"config['configurable']: there is {', '.join(map(repr, given)) or 'nothing'}. Pass "
            f"config={{'configurable': {{{missing[0]!r}: ...}}}}."
        )
    found: Namespace = template({"configurable": {k: str(v) for k, v in given.items()}})
    for label in found:
        check_text("namespace", label)
    if bad := [label for label in found if not label or "." in label]:
        raise BadArgument(
            f"The namespace {found!r} has the label {bad[0]!r}, which LangGraph stores refuse: "
            "labels must not be empty or contain a '.'."
        )
    return found


# -- reflectors

CANNOT_WAIT = (
    "A reflection is one step and cannot wait for an answer or a timer. Make it a graph of the "
    "runtime and start that instead."
)


def name_of(reflector: Any, template: NamespaceTemplate) -> str:
    """Return a name that is the same after a restart: the reflector and its namespace."""
    if isinstance(reflector, str):
        own: Any = reflector
    else:
        own = getattr(reflector, "name", None) or getattr(reflector, "__name__", None)
    what = own if isinstance(own, str) and own != "LangGraph" else type(reflector).__name__
    where = "/".join(labels_of(template))
    # LangMem applications often have two managers on one namespace, one for each schema.
    listed = getattr(reflector, "schemas", None)
    listed = listed if isinstance(listed, (list, tuple)) else ()
    schemas = [getattr(one, "__name__", "") for one in listed]
    if schemas not in ([], ["Memory"]):
        where = f"{', '.join(schemas)} in {where}"
    return f"{what}({where})" if where else what


def template_of(reflector: Any, namespace: str | Namespace | None) -> NamespaceTemplate:
    """Return the namespace template that was passed, by default the reflector's own."""
    given: Any = getattr(reflector, "namespace", None) if namespace is None else namespace
    if isinstance(given, NamespaceTemplate):
        return NamespaceTemplate(given)
    if callable(given):  # as LangMem's executor calls it when it searches
        given = given()
    labels = () if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(labels, (tuple, list)) or not all(isinstance(one, str) for one in labels):
        raise BadArgument(f"namespace={given!r}: pass a string or a tuple of strings.")
    return NamespaceTemplate(tuple(labels))


def as_runnable(reflector: Any) -> Runnable[Any, Any]:
    """Return the reflector as a Runnable. Raises `BadArgument` if it cannot be called.

    LangMem's executor uses only the `invoke` of its reflector, so any object that has one is
    taken. It gets the config if it has a parameter of that name.
    """
    if isinstance(reflector, Runnable):
        return reflector
    for method in ("invoke", "ainvoke"):
        if callable(found := getattr(reflector, method, None)):
            return RunnableLambda(found, name=type(reflector).__name__)
    if callable(reflector):
        return RunnableLambda(reflector)
    raise BadArgument(
        f"{reflector!r} is not a reflector: pass the result of create_memory_store_manager(), a "
        "Runnable, a graph, an object with an invoke() method, a function, or the name of one "
        "('module:name')."
    )


def own_store(reflector: Any) -> BaseStore | None:
    """Return the store a reflector was created with, or None."""
    if isinstance(reflector, RunnableBindingBase):
        return own_store(reflector.bound)
    if is_memory_manager(reflector):
        return store_of_manager(reflector)
    with contextlib.suppress(Exception):  # a property may need a graph around it
        if isinstance(store := reflector.store, BaseStore):
            return store
    return None


def import_reflector(name: str) -> Any:
    """Import a reflector by its name, "module:name". Raises `UnknownReflector`."""
    module, _, attribute = name.partition(":")
    try:
        found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
        as_runnable(found)  # raises if it cannot be called
        return found
    except (ImportError, AttributeError, ValueError, BadArgument) as error:
        raise UnknownReflector(name, str(error)) from error


def call_reflector(
    reflector: Any,
    store: BaseStore,
    calls: StoreCalls,
    request: ReflectionRequest,
    reflection_id: str,
    callbacks: Any = None,
) -> tuple[Any, list[StagedWrite]]:
    """Call a reflector in this thread. Returns its result and its writes; the store is unchanged.

    It uses `invoke`, as LangMem does: an async model's connections belong to the application's
    event loop. A reflector that can only be awaited gets an event loop of its own.
    """
    stable_keys = any(is_memory_manager(part) for part in _parts(as_runnable(reflector)))
    writes = StagedWrites(store, calls, reflection_id, stable_keys=stable_keys)
    staging_store = StagingStore(store, writes)
    # Of the node that calls it, a reflector gets only the callbacks: a graph in it is not one of
    # the node's subgraphs and has no checkpoints.
    config = request.config()
    if callbacks:
        config["callbacks"] = callbacks
    bound = as_runnable(_bind(reflector, staging_store, tuple(request.namespace)))
    try:
        with calling_with(config, staging_store), staging(writes):
            if any(_is_only_async(part) for part in _parts(bound)):
                result = asyncio.run(bound.ainvoke(request.payload, config))
            else:
                result = bound.invoke(request.payload, config)
    except GraphBubbleUp as error:
        raise RuntimeError(CANNOT_WAIT) from error
    if writes.error is not None:
        raise writes.error
    if isinstance(result, dict) and "__interrupt__" in result:
        raise RuntimeError(CANNOT_WAIT)
    return _with_final_keys(result, writes), writes.to_list()


def _bind(reflector: Any, store: StagingStore, namespace: Namespace) -> Any:
    """Return a copy of the reflector that writes to this store."""
    if is_memory_manager(reflector):
        return copy_manager(reflector, store, namespace)
    if isinstance(reflector, Pregel):
        # One step without checkpoints: the staged writes of its first nodes would be lost if only
        # the later nodes ran again.
        no_stops: dict[str, Any] = {"interrupt_before_nodes": [], "interrupt_after_nodes": []}
        return reflector.copy({"store": store, "checkpointer": False, **no_stops})
    if isinstance(reflector, RunnableBindingBase):
        return reflector.model_copy(update={"bound": _bind(reflector.bound, store, namespace)})
    if isinstance(reflector, RunnableSequence):
        first, *middle, last = (_bind(step, store, namespace) for step in reflector.steps)
        return reflector.model_copy(update={"first": first, "middle": middle, "last": last})
    return reflector if own_store(reflector) is None else _copy_with_store(reflector, store)


def _copy_with_store(reflector: Any, store: StagingStore) -> Any:
    """Return a shallow copy of a user's object that has this store; or, if it cannot be copied or
    its `store` cannot be set, the object itself, which then writes to its own store."""
    with contextlib.suppress(Exception):
        copied = copy.copy(reflector)
        if copied is not reflector:
            copied.store = store
            return copied
    return reflector


def _parts(reflector: Any) -> Iterator[Any]:
    """The reflector, and every Runnable it is composed of."""
    yield reflector
    steps = getattr(reflector, "steps", None)
    for part in (getattr(reflector, "bound", None), *(steps if isinstance(steps, list) else ())):
        if isinstance(part, Runnable):
            yield from _parts(part)
    if isinstance(reflector, Pregel):
        for node in reflector.nodes.values():
            yield from _parts(node.bound)


def _is_only_async(part: Any) -> bool:
    return getattr(part, "afunc", None) is not None and getattr(part, "func", None) is None


def _with_final_keys(result: Any, writes: StagedWrites) -> Any:
    """A memory manager's result, with the keys under which its memories are stored."""
    if not isinstance(result, list):
        return result
    return [
        {**one, "key": writes.final_key(one["namespace"], one["key"])}
        if isinstance(one, dict) and {"namespace", "key"} <= one.keys()
        else one
        for one in result
    ]
