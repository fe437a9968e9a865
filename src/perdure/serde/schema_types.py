"""Types that annotations name and whose objects will certainly be refused.

Only what is certain is found, so that no graph is refused that works: a class whose objects could
be stored, were it not defined inside a function. `Any`, protocols, abstract and plain classes pass:
a subclass of theirs may be allowed. So does what cannot be resolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from perdure.errors import Unserializable
from perdure.serde.class_types import INSIDE_FUNCTION, is_storable_kind


def check_storable(annotation: Any, where: str) -> None:
    """Raise `Unserializable` for an annotation that names a type which cannot be stored."""
    for cls in classes_in(annotation):
        if "<locals>" in cls.__qualname__ and is_storable_kind(cls):
            raise Unserializable(where, f"{cls.__qualname__} {INSIDE_FUNCTION}")


def classes_in(annotation: Any) -> Iterator[type]:
    """The classes that an annotation names, inside of unions, containers and TypedDicts too."""
    return _classes(annotation, set())


def _classes(annotation: Any, seen: set[int]) -> Iterator[type]:
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    origin = get_origin(annotation)
    if origin is Literal:
        return
    if origin is not None:
        inside = get_args(annotation)
        for one in inside[:1] if origin is Annotated else inside:
            yield from _classes(one, seen)
    elif is_typeddict(annotation):
        try:
            hints = get_type_hints(annotation)
        except Exception:  # a name that only a type checker sees
            return
        for one in hints.values():
            yield from _classes(one, seen)
    elif isinstance(annotation, type):
        yield annotation
