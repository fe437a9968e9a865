"""Loops, statements and cursors of LangGraph's stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore, PutOp


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
