"""The private parts of LangMem that `perdure.langmem.langmem_port` relies on.

When one of these fails, LangMem has changed: correct the function of the same fact in the port.
"""

from __future__ import annotations

import uuid
from importlib.metadata import version
from typing import Any

from langgraph.config import get_config, get_store
from langgraph.store.memory import InMemoryStore
from langmem import ReflectionExecutor
from langmem.knowledge.extraction import MemoryStoreManager
from langmem.utils import NamespaceTemplate

from perdure.langmem import langmem_port
from tests.support.memory import manager, remembered, talk, who

CHANGED = f"LangMem {version('langmem')} differs from 0.0.30: correct perdure.langmem.langmem_port."


def test_create_memory_store_manager_returns_a_memory_store_manager() -> None:
    assert type(manager()) is MemoryStoreManager, CHANGED
    assert langmem_port.is_memory_manager(manager()), CHANGED
    assert not langmem_port.is_memory_manager(talk)


def test_langmem_calls_only_invoke_of_any_object_and_sets_the_config_around_it() -> None:
    class Reflector:
        namespace = ("notes",)

        def invoke(self, payload: dict[str, str]) -> str:
            get_store().put(self.namespace, payload["key"], {})
            return str(get_config()["configurable"]["user"])

    store = InMemoryStore()
    reflector: Any = Reflector()
    with ReflectionExecutor(reflector, store=store) as executor:
        assert executor.submit({"key": "a"}, who("ann")).result(20) == "ann", CHANGED
    assert store.get(("notes",), "a") is not None, CHANGED


def test_a_manager_keeps_its_store_in_a_private_field() -> None:
    store = InMemoryStore()
    assert langmem_port.store_of_manager(manager(store=store)) is store, CHANGED
    assert langmem_port.store_of_manager(manager()) is None, CHANGED


def test_a_copied_manager_writes_to_its_own_store_and_the_original_is_unchanged() -> None:
    first, second = InMemoryStore(), InMemoryStore()
    original = manager(store=first)
    copied = langmem_port.copy_manager(original, second, ("memories", "ann"))
    copied.invoke(talk("fact-tea"), who("bob"))
    assert remembered(second, "ann") == ["fact-tea"], CHANGED
    assert (remembered(second, "bob"), remembered(first, "ann")) == ([], []), CHANGED
    assert langmem_port.store_of_manager(original) is first, CHANGED
    original.invoke(talk("fact-chess"), who("bob"))
    assert remembered(first, "bob") == ["fact-chess"], CHANGED


def test_a_copied_manager_does_not_fill_labels_that_look_like_variables() -> None:
    store = InMemoryStore()
    copied = langmem_port.copy_manager(manager(), store, ("memories", "{user}"))
    copied.invoke(talk("fact-tea"), who("bob"))
    assert (remembered(store, "{user}"), remembered(store, "bob")) == (["fact-tea"], []), CHANGED


def test_a_namespace_template_shows_its_labels_and_variables() -> None:
    template = NamespaceTemplate(("memories", "{user}", "{team}"))
    assert langmem_port.labels_of(template) == ("memories", "{user}", "{team}"), CHANGED
    assert langmem_port.variables_of(template) == ["user", "team"], CHANGED
    assert langmem_port.labels_of(NamespaceTemplate("memories")) == ("memories",), CHANGED
    assert langmem_port.labels_of(NamespaceTemplate(())) == (), CHANGED


def test_the_key_of_a_new_memory_is_a_random_uuid() -> None:
    store = InMemoryStore()
    manager(store=store).invoke(talk("fact-tea"), who("ann"))
    [item] = store.search(("memories", "ann"))
    assert langmem_port.is_generated_key(item.key), CHANGED
    assert not langmem_port.is_generated_key(str(uuid.uuid5(uuid.NAMESPACE_DNS, "a")))
    assert not langmem_port.is_generated_key("profile")
