"""Every endpoint that is not public says which scope it needs."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fastapi.routing import APIRoute

import perdure

DEPTH = 4
"""How many calls deep an endpoint may ask."""


def endpoints() -> Iterator[tuple[str, Callable[..., Any]]]:
    for route in perdure.Runtime("sqlite:///:memory:").router(worker=False).routes:
        assert isinstance(route, APIRoute)
        if (route.openapi_extra or {}).get("security") != []:
            yield f"{sorted(route.methods or ())} {route.path}", inspect.unwrap(route.endpoint)


def asks(function: Any, depth: int = DEPTH) -> bool:
    """Whether a function calls `.require(...)`, or a function of perdure that does; of a table of
    functions that it uses, each does."""
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return False
    names = vars(sys.modules[function.__module__])
    for node in ast.walk(tree):
        table = names.get(node.id) if isinstance(node, ast.Name) else None
        if depth and isinstance(table, dict) and table and all(map(callable, table.values())):
            return all(asks(one, depth - 1) for one in table.values())
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "require":
            return True
        called = names.get(getattr(node.func, "id", ""))
        if called is None and isinstance(node.func, ast.Attribute):
            called = getattr(names.get(getattr(node.func.value, "id", "")), node.func.attr, None)
        module = getattr(called, "__module__", None) or ""
        if depth and module.startswith("perdure.server") and asks(called, depth - 1):
            return True
    return False


def test_every_endpoint_that_is_not_public_requires_a_scope() -> None:
    forgot = [name for name, endpoint in endpoints() if not asks(endpoint)]
    assert not forgot, "\n".join(forgot)
