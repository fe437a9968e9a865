"""Every private part of LangMem that perdure relies on, one function each.

Verified on LangMem 0.0.30. `tests/langmem/test_langmem_port.py` has a test for each fact.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any, TypeGuard

from langgraph.store.base import BaseStore
from langmem.knowledge.extraction import MemoryStoreManager
from langmem.utils import NamespaceTemplate


def is_memory_manager(reflector: Any) -> TypeGuard[MemoryStoreManager]:
    """Whether this is what `create_memory_store_manager` returns.

    LangMem 0.0.30: a `MemoryStoreManager`, a class that `langmem` itself does not export.
    """
    return isinstance(reflector, MemoryStoreManager)


def store_of_manager(manager: MemoryStoreManager) -> BaseStore | None:
    """Return the store a manager was created with, or None.

    LangMem 0.0.30 keeps it in `_store`. Without one, the public property `store` raises outside a
    graph, and keeps the graph's store inside one.
    """
    store: BaseStore | None = manager._store
    return store


def copy_manager(
    manager: MemoryStoreManager, store: BaseStore, namespace: tuple[str, ...]
) -> MemoryStoreManager:
    """Return a copy that writes to this store and namespace. The original does not change.

    LangMem 0.0.30: a shallow copy shares nothing that a call changes, except `_store` and
    `namespace`. A template without `vars` is used as it is, so labels that look like variables are
    not filled in a second time. An empty namespace leaves the manager's own.
    """
    copied = copy.copy(manager)
    copied._store = store
    if namespace:
        copied.namespace = NamespaceTemplate(())
        copied.namespace.template = namespace
    return copied


def labels_of(template: NamespaceTemplate) -> tuple[str, ...]:
    """Return the labels of a namespace template, variables as `{name}`.

    LangMem 0.0.30 keeps them in `template`, which its documentation does not mention.
    """
    labels: tuple[str, ...] = template.template
    return labels


def variables_of(template: NamespaceTemplate) -> list[str]:
    """Return the names of the variables in a namespace template.

    LangMem 0.0.30 keeps them in `vars`, by position, which its documentation does not mention.
    """
    return list(template.vars.values())


def is_generated_key(key: str) -> bool:
    """Whether LangMem made this key for a new memory.

    LangMem 0.0.30 uses a random UUID, version 4.
    """
    try:
        return uuid.UUID(key).version == 4
    except ValueError:
        return False
