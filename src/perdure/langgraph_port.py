"""The private parts of LangGraph and LangChain that perdure depends on, one function per fact.

No other module of perdure uses a private name of theirs. For each fact `tests/langgraph_port/` has
a test against the installed release, which fails when the fact changes. Nothing here imports
LangGraph before it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple
    from langgraph.pregel import Pregel
    from langgraph.store.base import BaseStore, PutOp
    from langgraph.types import Command

    Graph = Pregel[Any, Any, Any, Any]

VERIFIED = {
    "langgraph": "1.2.20",
    "langgraph-checkpoint": "4.3.1",
    "langchain-core": "1.7.2",
    "langchain": "1.4.7",
}
"""The releases against which the facts in this module were last read in the source."""

# -- names in checkpoints and results

START = "__start__"
"""The channel of a graph's input, and the node that reads it."""
INTERRUPT = "__interrupt__"
"""The key of interrupts in what a graph returns, and of its last stop in `versions_seen`."""
ERROR_SOURCE = "__error_source_node__"
"""The channel of the pending write that names the node whose error a handler is to see."""
COPY = "__copy__"
"""The `as_node` with which `update_state` copies a checkpoint and runs nothing."""
DELTA_SNAPSHOT = ("langgraph.checkpoint.serde.types", "_DeltaSnapshot")
"""The type of a `DeltaChannel`'s whole value in a checkpoint."""
_TASKS = "__pregel_tasks"
_JOIN = "join:"
_TRIGGERS = ("branch:to:", _JOIN)


def is_send(channel: str) -> bool:
    """A `Send` is a write to one channel of its own."""
    return channel == _TASKS


def pending_sends(values: Mapping[str, Any]) -> Sequence[Any]:
    """A checkpoint holds the `Send`s of the next step in the channel of `is_send`."""
    return values.get(_TASKS) or ()


def sent_nodes(values: Mapping[str, Any]) -> list[str]:
    """A `Send` has the name of its node."""
    return [send.node for send in pending_sends(values)]


def is_trigger(channel: str) -> bool:
    """An edge to a node is a channel that begins with `branch:to:` or, from several, `join:`."""
    return channel.startswith(_TRIGGERS) or channel in (START, _TASKS)


def has_joined(channel: str, node: str, value: Any, partly: bool) -> bool:
    """A node that waits for several has the channel `join:a+b:node`; its value is the set of those
    that ended, or, for a deferred node, a tuple of that set and a mark. After it ran it is empty.
    """
    if not channel.startswith(_JOIN):
        return True
    came = value[0] if isinstance(value, tuple) else value
    names = channel.removeprefix(_JOIN).removesuffix(f":{node}")
    return bool(came) and (partly or len("+".join(came)) == len(names))


def is_node(name: str) -> bool:
    """Entries of `versions_seen` that begin with two underscores are no nodes of the user."""
    return name[:2] != "__"


def versions_at_stop(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`versions_seen` holds, beside those of nodes, the versions at the last breakpoint."""
    return checkpoint["versions_seen"].get(INTERRUPT, {})


def namespace_nodes(ns: str) -> list[tuple[str, str]]:
    """A namespace is `node:task|node:task`; a number as a part counts the subgraphs of one task.

    Gives each node with the namespace up to it.
    """
    parts = ns.split("|")
    return [
        (part.partition(":")[0], "|".join(parts[: depth + 1]))
        for depth, part in enumerate(parts)
        if not part.isdigit()
    ]


# -- the task that runs, as its config describes it

_SCRATCHPAD, _RUNTIME = "__pregel_scratchpad", "__pregel_runtime"
_CHECKPOINTS = "checkpoint_map"
_PLACE = ("checkpoint_id", "checkpoint_ns", _CHECKPOINTS)
_OWN_KEYS = ("thread_id", *_PLACE)
_SAVER = "__pregel_checkpointer"
HIDDEN = "__pregel_"
"""Keys of a config that begin with this reach every task, and neither metadata nor streams."""


class TaskInfo(NamedTuple):
    """One execution of a task: a node, or a `@task`."""

    namespace: str
    checkpoint_id: str | None
    """Of the checkpoint its step began with."""
    attempt: int
    scratchpad: Any
    """Another one for each attempt. None outside of a task."""

    @property
    def execution(self) -> Any:
        """LangGraph makes this function anew for each execution of a task, and keeps it as long."""
        return self.scratchpad.get_null_resume


def task_info(configurable: Mapping[str, Any]) -> TaskInfo:
    """A task's config holds its scratchpad, and a `Runtime` whose `execution_info` numbers the
    attempt.
    """
    info = getattr(configurable.get(_RUNTIME), "execution_info", None)
    return TaskInfo(
        configurable.get("checkpoint_ns") or "",
        getattr(info, "checkpoint_id", None),
        getattr(info, "node_attempt", 1),
        configurable.get(_SCRATCHPAD),
    )


def is_in_task(configurable: Mapping[str, Any]) -> bool:
    """`interrupt()` works where the config has a scratchpad."""
    return _SCRATCHPAD in configurable


def outer_scratchpad(scratchpad: Any, levels: int) -> Any:
    """A scratchpad's `get_null_resume` closes over the scratchpad of the node outside."""
    for _ in range(levels):
        parent = _closed_over(scratchpad.get_null_resume, "parent_scratchpad")
        if parent is None:
            break
        scratchpad = parent
    return scratchpad


def interrupt_counter(configurable: Mapping[str, Any]) -> Callable[[], int] | None:
    """A scratchpad counts the interrupts of its task by a callable that gives the next number."""
    return getattr(configurable.get(_SCRATCHPAD), "interrupt_counter", None)


def answers_given(configurable: Mapping[str, Any]) -> list[Any]:
    """A scratchpad holds the answers of its task in a list, which `interrupt()` reads by number."""
    found: list[Any] = configurable[_SCRATCHPAD].resume
    return found


def interrupts_so_far(counter: Callable[[], int] | None) -> int:
    """The counter holds the `__next__` of an `itertools.count`, whose repr has the number."""
    following = getattr(counter, "_counter", None)
    return 0 if following is None else int(repr(following.__self__)[len("count(") : -1])


def check_strict_resume(
    configurable: Mapping[str, Any], resume: Any, pending: Collection[str]
) -> None:
    """A key of the config makes a graph raise `UnknownInterruptError` for an answer that does not
    say which of the pending interrupts it is for.
    """
    from langgraph.errors import UnknownInterruptError

    if not configurable.get("__pregel_strict_resume"):
        return
    ids = sorted(pending)
    if not isinstance(resume, dict) or any(len(str(key)) != 32 for key in resume):
        if len(ids) > 1:
            raise UnknownInterruptError(
                "When there are multiple pending interrupts, you must specify the interrupt id "
                "when resuming.",
                reason="ambiguous",
                pending_ids=ids,
            )
    elif not resume:
        raise UnknownInterruptError(
            "The resume map names no interrupt", reason="empty_map", pending_ids=ids
        )
    elif unknown := sorted(resume.keys() - pending):
        raise UnknownInterruptError(
            f"Unknown or already-consumed interrupt: {unknown[0]}",
            reason="not_pending",
            interrupt_ids=unknown,
            pending_ids=ids,
        )


def replaces_tasks(command: Command[Any]) -> bool:
    """The `Send`s of a command take the place of those that wait: their tasks are others then."""
    from langgraph.types import Send

    goto = command.goto if isinstance(command.goto, (list, tuple)) else [command.goto]
    return any(isinstance(to, Send) for to in goto)


def watch_interrupts(notice: Callable[[Sequence[Any]], None]) -> None:
    """Each `interrupt()` raises a `GraphInterrupt`, made from its interrupts inside of the task; a
    graph inside a node makes another one of them all. A stop at a breakpoint has none.

    `notice` is called with them. Code that catches the exception cannot undo that.
    """
    from langgraph.errors import GraphInterrupt

    make = GraphInterrupt.__init__

    @functools.wraps(make)
    def noticed(self: GraphInterrupt, interrupts: Sequence[Any] = ()) -> None:
        make(self, interrupts)
        if interrupts:
            notice(interrupts)

    GraphInterrupt.__init__ = noticed  # type: ignore[method-assign]


def current_configurable() -> Mapping[str, Any]:
    """LangChain's context variable holds the config of the task that runs, if there is one."""
    from langchain_core.runnables.config import var_child_runnable_config

    return (var_child_runnable_config.get() or {}).get("configurable") or {}


def resume_nothing() -> Command[Any]:
    """An answer to an interrupt that does not exist resumes a graph. At an old checkpoint `None`
    would not: there it means to run the tasks again, without the answers they have had.
    """
    from langgraph.types import Command

    return Command(resume={"0" * 32: None})


def is_graph_run(configurable: Mapping[str, Any]) -> bool:
    """A graph that runs passes its `Runtime` to the saver; `get_state` and the like do not."""
    return _RUNTIME in configurable


def runtime_of(configurable: Mapping[str, Any]) -> Any:
    """A node's config holds the `Runtime`, with its store."""
    return configurable.get(_RUNTIME)


def set_runtime(configurable: dict[str, Any], runtime: Any) -> None:
    """A graph, or a function that asks for its store, takes the `Runtime` from the config."""
    configurable[_RUNTIME] = runtime


def checkpointer_of(configurable: Mapping[str, Any]) -> Any:
    """A task's config holds the saver of its graph."""
    return configurable.get(_SAVER)


def is_nested(configurable: Mapping[str, Any]) -> bool:
    """A task's config has the key of its graph's saver, even without a saver. No other has it."""
    return _SAVER in configurable


def full_config(graph: Graph, config: RunnableConfig | None) -> RunnableConfig:
    """A graph merges the config of the code around it, its own, and the caller's."""
    from langgraph._internal._config import ensure_config

    return ensure_config(graph.config, config)


RUN = "run_id"
"""Where LangGraph finds the run of a config, in its metadata."""


def inherits_run(config: RunnableConfig) -> bool:
    """Whether a config names the run of the node around it: metadata is inherited. A graph takes no
    input if the last checkpoint of its thread is of the run that its config names."""
    from langchain_core.runnables.config import var_child_runnable_config

    around = ((var_child_runnable_config.get() or {}).get("metadata") or {}).get(RUN)
    return around is not None and (config.get("metadata") or {}).get(RUN) == around


def place_of(configurable: Mapping[str, Any]) -> dict[str, Any]:
    """A config names a checkpoint by its id, and by its ids in each namespace if that is one of a
    subgraph. A namespace alone names none.
    """
    place = {key: configurable[key] for key in _PLACE if configurable.get(key)}
    return {} if [*place] == ["checkpoint_ns"] else place


def root_checkpoint(place: Mapping[str, Any]) -> str | None:
    """Of a place in a subgraph, the checkpoint of the graph itself is in the map, by ''."""
    named: Mapping[str, str] = place.get(_CHECKPOINTS) or {}
    if place.get("checkpoint_ns") or set(named) - {""}:
        return None
    return named.get("") or place.get("checkpoint_id")


def durability_of(configurable: Mapping[str, Any]) -> str | None:
    """The config that reaches tasks and saver holds the caller's `durability`."""
    durability: str | None = configurable.get("__pregel_durability")
    return durability


def checkpoints_above(configurable: Mapping[str, Any]) -> dict[str, str]:
    """A task's config names, by namespace, the checkpoints it belongs to; for a `@task` that of its
    caller once more, as if the caller had a namespace of its own.
    """
    named: Mapping[str, str] = configurable.get(_CHECKPOINTS) or {}
    shortest = {named[ns]: ns for ns in sorted(named, key=len, reverse=True)}
    return {ns: id for id, ns in shortest.items()}


def is_own_key(key: str) -> bool:
    """LangGraph's own keys of a config name a checkpoint, or begin with two underscores."""
    return key in _OWN_KEYS or key.startswith("__")


@contextlib.contextmanager
def running_with(config: RunnableConfig) -> Iterator[None]:
    """LangChain and LangGraph find the config of the code that runs in a context variable."""
    from langchain_core.runnables.config import var_child_runnable_config

    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def current_node() -> str | None:
    """The config in that context variable names the node in its metadata."""
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get() or {}
    node: str | None = config.get("metadata", {}).get("langgraph_node")
    return node


def current_namespace() -> str:
    """And its checkpoint namespace, which is the same when the node runs again."""
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get() or {}
    namespace: str = config.get("metadata", {}).get("langgraph_checkpoint_ns", "")
    return namespace


def node_of_callback(tags: Sequence[str] | None, metadata: Mapping[str, Any] | None) -> str | None:
    """The callbacks of a node as a whole, not of what it calls, carry a tag `graph:step:N`."""
    if not any(tag.startswith("graph:step:") for tag in tags or ()):
        return None
    return (metadata or {}).get("langgraph_node")


# -- how a call came about, by the stack and by asyncio


def is_beside(in_thread: bool) -> bool:
    """A node runs below a frame of pregel/_retry.py, a tool below one of prebuilt/tool_node.py, a
    plain node or tool beside a loop below `wrapper` in langchain_core's runnables/config.py.

    Gives whether a tool of a ToolNode calls, or a thread that the node started.
    """
    frame: FrameType | None = sys._getframe(1)
    in_tool, before = False, None
    while frame is not None:
        code = frame.f_code
        kind = _kind_of(code.co_filename)
        if kind == "tool node":
            return True
        if kind == "node":
            return False  # the node itself, or one of a graph inside of a tool
        in_tool = in_tool or kind == "tool"
        if in_thread and kind == "thread" and code.co_name == "wrapper":
            # Here a plain node begins beside a loop; or a tool, or a part of a chain.
            return in_tool or before == "runnable"
        before = kind
        frame = frame.f_back
    return in_thread


@functools.cache
def _kind_of(file: str) -> str | None:
    """What a file on the stack says of a call, if anything. Every call looks at all of them."""
    langgraph, langchain = _homes()
    tail, is_langchain = file.removeprefix(langchain).replace("\\", "/"), file.startswith(langchain)
    kinds = {
        "tool node": file.startswith(langgraph) and tail.endswith("/prebuilt/tool_node.py"),
        "node": file.startswith(langgraph) and tail.endswith("/pregel/_retry.py"),
        "thread": is_langchain and tail == "runnables/config.py",
        "runnable": is_langchain and tail.startswith("runnables/"),
        "tool": is_langchain and tail.startswith("tools/"),
    }
    return next((kind for kind, is_it in kinds.items() if is_it), None)


@functools.cache
def _homes() -> tuple[tuple[str, ...], str]:
    import langchain_core
    import langgraph

    home = os.path.dirname(langchain_core.__file__)
    return tuple(os.path.join(path, "") for path in langgraph.__path__), os.path.join(home, "")


def is_of_node(caller: asyncio.Task[Any]) -> bool:
    """LangGraph runs a node in a task whose coroutine is its own, or waits in one for the task it
    made of the node's coroutine. Any other task was started by the node's own code.
    """
    if _is_langgraph(caller.get_coro()):
        return True
    above = [t for t in asyncio.all_tasks() if getattr(t, "_fut_waiter", None) is caller]
    return any(_is_langgraph(_innermost(task.get_coro())) for task in above)


def _innermost(coroutine: Any) -> Any:
    """The coroutine that really waits, of those that wait for each other."""
    while inspect.iscoroutine(inner := getattr(coroutine, "cr_await", None)):
        coroutine = inner
    return coroutine


def _is_langgraph(coroutine: Any) -> bool:
    code = getattr(coroutine, "cr_code", None)
    return code is not None and code.co_filename.startswith(_homes()[0])


def middleware_commands(handler: Callable[..., Any]) -> list[Command[Any]] | None:
    """The handler that middleware gets closes over a list, in which LangChain collects the state
    updates of middleware between it and the model. None if there is no such middleware.
    """
    commands: list[Command[Any]] | None = _closed_over(handler, "accumulated_commands")
    return commands


def _closed_over(function: Any, name: str) -> Any:
    """A variable that a function closes over, or None."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None


def model_parameters(model: Any) -> Any:
    """A model of LangChain gives in `_identifying_params` what tells its answers apart."""
    return getattr(model, "_identifying_params", None)


# -- graphs


def ask_graphs_for_their_types(*, load: bool) -> None:
    """LangGraph has a switch, read at every compile, that makes it call `with_allowlist` on the
    saver with the types a graph's schemas name. It leaves a saver with LangGraph's own serializer
    as it was.

    Without `load`, does nothing while LangGraph is not imported.
    """
    if load or "langgraph._internal._serde" in sys.modules:
        from langgraph._internal import _serde

        _serde.STRICT_MSGPACK_ENABLED = True  # type: ignore[attr-defined]


def types_of(graph: Graph) -> set[tuple[str, ...]]:
    """What a compile would give to `with_allowlist` can be made for a compiled graph, too."""
    from langgraph._internal._serde import build_serde_allowlist

    schemas = [graph.context_schema] if graph.context_schema else None
    return build_serde_allowlist(schemas=schemas, channels=graph.channels)


def response_types(graph: Graph) -> list[Any]:
    """An agent of LangChain closes over its `response_format`, whose `schema` is the type of the
    structured response. It is in no state schema. Gives those of graphs inside it, too.
    """
    found: list[Any] = []
    for node in graph.nodes.values():
        formats = _closed_over(getattr(node.bound, "func", None), "initial_response_format")
        if (schema := getattr(formats, "schema", None)) is not None:
            found.append(schema)
        for inner in graphs_in(node.bound):
            found += response_types(inner)
    return found


def types_in(schemas: Sequence[Any]) -> set[tuple[str, ...]]:
    """The types that schemas name, as a compile would give them to `with_allowlist`."""
    from langgraph._internal._serde import build_serde_allowlist

    return build_serde_allowlist(schemas=list(schemas))


def output_at(graph: Graph, at: CheckpointTuple, saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph's channels, made from a checkpoint, can be read as the graph does for its output."""
    from langgraph.errors import EmptyChannelError
    from langgraph.pregel._checkpoint import channels_from_checkpoint
    from langgraph.pregel._io import read_channels

    channels, _ = channels_from_checkpoint(
        graph.channels, at.checkpoint, saver=saver, config=at.config
    )
    try:
        return read_channels(channels, graph.output_channels)
    except EmptyChannelError:
        return None


def graphs_in(runnable: Any) -> list[Graph]:
    """LangGraph looks for subgraphs in a node's runnable, the steps of a sequence, and what its
    function (`func`, `afunc`) reaches from outside its scope.
    """
    from langgraph.pregel import Pregel
    from langgraph.pregel._utils import get_function_nonlocals

    if isinstance(runnable, Pregel):
        return [runnable]
    parts = list(getattr(runnable, "steps", ()))
    for function in (getattr(runnable, "func", None), getattr(runnable, "afunc", None)):
        if isinstance(function, FunctionType):
            held = get_function_nonlocals(function)
            parts += [getattr(one, "__self__", one) for one in held]
    return [graph for part in parts if part is not runnable for graph in graphs_in(part)]


# -- nodes under other names
#
# Where a checkpoint of a `StateGraph` has the name of a node:
#
#   versions_seen         its keys
#   branch:to:NODE        the channel of every edge, condition or goto that leads to a node
#   join:A+B:NODE         the channel of an edge from several; its value is the set of their names
#   Send.node             in the channel of `is_send`, and in pending writes to it
#   task id               a hash of checkpoint, namespace, step, node and all triggers of the node;
#                         of a `Send` and a `@task`, of its position instead of the triggers
#   namespace             `node:task`, and so the id of an interrupt and the subgraph's checkpoints
#
# Pending writes, answers, interrupts, waits and effects are all found by the task id. So a run goes
# on under the names it began with, in a graph that has them too.


class OldNode(NamedTuple):
    """A node under the name that a run knows it by."""

    now: str
    triggers: Sequence[str]


class OldJoin(NamedTuple):
    """An edge from several nodes under the names that a run knows them by."""

    channel: str
    end: str
    names: Mapping[str, str]
    """The old name of each node that it comes from, by its name now."""


def is_state_graph(graph: Graph) -> bool:
    """Only in a compiled `StateGraph` the triggers of a node are channels of its own."""
    from langgraph.graph.state import CompiledStateGraph

    return isinstance(graph, CompiledStateGraph)


def joins_of(graph: Graph) -> dict[str, tuple[tuple[str, ...], str]]:
    """The builder of a compiled graph keeps the edges from several nodes; gives them by channel."""
    builder: Any = graph.builder  # type: ignore[attr-defined]
    return {join_channel(starts, end): (starts, end) for starts, end in builder.waiting_edges}


def edge_channel(node: str) -> str:
    """The channel of the edges, conditions and gotos that lead to a node is named after it."""
    return f"branch:to:{node}"


def join_channel(starts: Sequence[str], end: str) -> str:
    """The channel of an edge from several nodes is named after all of them, in their order."""
    return f"{_JOIN}{'+'.join(starts)}:{end}"


def with_old_names(
    graph: Graph, nodes: Mapping[str, OldNode], joins: Mapping[str, OldJoin]
) -> Graph:
    """A copy of a compiled graph that has nodes under old names as well, and joins under old names
    instead. What its nodes write leads to the new ones.

    A graph reads its `nodes`, `channels` and what `validate` derives from them when it is called.
    A node's writers are `ChannelWrite`s; those of a join are plain entries.
    """
    made = copy.copy(graph)
    made.channels = {name: one for name, one in graph.channels.items() if name not in joins}
    for name, join in joins.items():
        channel: Any = copy.copy(graph.channels[name])
        channel.names = {join.names.get(one, one) for one in channel.names}
        made.channels[join.channel] = channel
    made.nodes = {name: _write_to_joins(node, joins) for name, node in graph.nodes.items()}
    for name, node in made.nodes.items():
        kept = [one for one in node.triggers if one not in joins]
        node.triggers = kept + [join.channel for join in joins.values() if join.end == name]
    for old, (now, triggers) in nodes.items():
        made.nodes[old] = made.nodes[now].copy({"triggers": [*triggers]})
        for trigger in triggers:
            made.channels.setdefault(trigger, copy.copy(graph.channels[edge_channel(now)]))
    handlers = {old: graph.node_error_handler_map.get(now) for old, (now, _) in nodes.items()}
    made.node_error_handler_map = {
        **graph.node_error_handler_map,
        **{old: handler for old, handler in handlers.items() if handler is not None},
    }
    made.interrupt_before_nodes = _and_old(graph.interrupt_before_nodes, nodes)
    made.interrupt_after_nodes = _and_old(graph.interrupt_after_nodes, nodes)
    return made.validate()


def _write_to_joins(node: Any, joins: Mapping[str, OldJoin]) -> Any:
    from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry

    def renamed(entry: Any) -> Any:
        join = joins.get(entry.channel) if isinstance(entry, ChannelWriteEntry) else None
        if join is None:
            return entry
        return entry._replace(channel=join.channel, value=join.names.get(entry.value, entry.value))

    writers = [
        ChannelWrite([*map(renamed, one.writes)], tags=one.tags)
        if isinstance(one, ChannelWrite)
        else one
        for one in node.writers
    ]
    return node.copy({"triggers": [*node.triggers], "writers": writers})


def _and_old(names: Any, nodes: Mapping[str, OldNode]) -> Any:
    """Breakpoints, with the old names of their nodes."""
    if isinstance(names, str):  # "*": all of them
        return names
    return [*names, *(old for old, (now, _) in nodes.items() if now in names)]


# -- stores


def loop_of(store: BaseStore | None) -> Any:
    """A store that is only awaited keeps the event loop it was made in."""
    return getattr(store, "_loop", None)


def can_write_queries(store: Any) -> bool:
    """The stores on SQLite and PostgreSQL make the statements of a batch before they run them."""
    return hasattr(store, "_prepare_batch_PUT_queries")


def put_queries(store: Any, ops: list[PutOp]) -> tuple[list[Any], Any]:
    """They give the statements of `put`s, and the statement and texts of what is to be embedded."""
    made, embed = store._prepare_batch_PUT_queries(list(enumerate(ops)))
    return list(made), embed


def cursor_of(store: Any) -> Any:
    """They give a cursor as a context manager; one that is only awaited, as an async one."""
    return store._cursor()
