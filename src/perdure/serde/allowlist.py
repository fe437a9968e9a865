"""The types that may be stored and loaded. Any other type is refused, on the way in and out.

Of the types that annotations name, those whose objects will certainly be refused are found at
registration. Only what is certain, so that no graph is refused that works: a class whose objects
could be stored, were it not defined inside a function. `Any`, protocols, abstract and plain classes
pass: a subclass of theirs may be allowed. So does what cannot be resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from perdure.errors import Error, TypeNotAllowed, Unserializable
from perdure.langgraph_port import checkpoint_names
from perdure.serde.class_types import INSIDE_FUNCTION, is_storable_kind

# Types every graph may store. A type's place in this tuple is its number on disk: append only.
KNOWN: tuple[tuple[str, str], ...] = (
    ("langchain_core.messages.human", "HumanMessage"),
    ("langchain_core.messages.ai", "AIMessage"),
    ("langchain_core.messages.tool", "ToolMessage"),
    ("langchain_core.messages.system", "SystemMessage"),
    ("langchain_core.messages.chat", "ChatMessage"),
    ("langchain_core.messages.function", "FunctionMessage"),
    ("langchain_core.messages.modifier", "RemoveMessage"),
    ("langchain_core.messages.base", "BaseMessage"),
    ("langchain_core.messages.base", "BaseMessageChunk"),
    ("langchain_core.messages.human", "HumanMessageChunk"),
    ("langchain_core.messages.ai", "AIMessageChunk"),
    ("langchain_core.messages.tool", "ToolMessageChunk"),
    ("langchain_core.messages.system", "SystemMessageChunk"),
    ("langchain_core.messages.chat", "ChatMessageChunk"),
    ("langchain_core.messages.function", "FunctionMessageChunk"),
    ("langchain_core.documents.base", "Document"),
    ("langgraph.types", "Send"),
    ("langgraph.types", "Interrupt"),
    ("langgraph.types", "Command"),
    ("langgraph.types", "Overwrite"),
    ("langgraph.types", "TimeoutPolicy"),
    ("langgraph.types", "StateSnapshot"),
    ("langgraph.types", "PregelTask"),
    ("langgraph.store.base", "Item"),
    ("langgraph.store.base", "GetOp"),
    checkpoint_names.DELTA_SNAPSHOT,
    ("langgraph.store.base", "SearchItem"),
    ("langchain_core.messages.base", "TextAccessor"),
    ("langchain_core.runnables.utils", "AddableDict"),
)
KNOWN_NUMBERS = {key: number for number, key in enumerate(KNOWN)}


class Allowlist:
    """The `KNOWN` types, and those that a graph's schemas or the user allow."""

    def __init__(self, allow: Iterable[type | tuple[str, ...]] = ()) -> None:
        self._types = {*KNOWN, *_type_keys(allow)}

    @property
    def types(self) -> list[tuple[str, str]]:
        """The types as (module, name)."""
        return sorted(self._types)

    def add(self, more: Iterable[type | tuple[str, ...]]) -> None:
        """Allow more types. Types already allowed stay."""
        self._types.update(_type_keys(more))

    def check(self, module: str, name: str, location: str) -> None:
        """Raise `TypeNotAllowed` for a type that is not allowed."""
        if (module, name) in self._types:
            return
        # LangGraph names a nested class by its last part only; Page[int] goes with Page.
        plain = name.partition("[")[0]
        last = plain.rpartition(".")[2] + name[len(plain) :]
        if self._types.isdisjoint({(module, plain), (module, last)}):
            raise TypeNotAllowed(str(module), str(name), location)


def _type_keys(allow: Iterable[type | tuple[str, ...]]) -> set[tuple[str, str]]:
    """`(module, qualname)` of types given as classes or as pairs."""
    keys = set()
    for item in allow:
        if isinstance(item, type):
            keys.add((item.__module__, item.__qualname__))
        elif type(item) is tuple and len(item) == 2:
            keys.add((item[0], item[1]))
        else:
            raise Error(f"allow= takes classes or (module, name) pairs, not {item!r}")
    return keys


def check_storable(annotation: Any, where: str) -> None:
    """Raise `Unserializable` for an annotation that names a type which cannot be stored."""
    for cls in classes_in(annotation):
        if "<locals>" in cls.__qualname__ and is_storable_kind(cls):
            raise Unserializable(where, f"{cls.__qualname__} {INSIDE_FUNCTION}")


def classes_in(annotation: Any, seen: set[int] | None = None) -> Iterator[type]:
    """The classes that an annotation names, inside of unions, containers and TypedDicts too.
    Annotations that were `seen` are left out."""
    seen = set() if seen is None else seen
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    origin = get_origin(annotation)
    if origin is Literal:
        return
    if origin is not None:
        inside = get_args(annotation)
        for one in inside[:1] if origin is Annotated else inside:
            yield from classes_in(one, seen)
    elif is_typeddict(annotation):
        try:
            hints = get_type_hints(annotation)
        except Exception:  # a name that only a type checker sees
            return
        for one in hints.values():
            yield from classes_in(one, seen)
    elif isinstance(annotation, type):
        yield annotation
