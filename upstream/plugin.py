"""A pytest plugin that runs LangGraph's own tests on perdure.

`UPSTREAM` says how: `stock` changes nothing, `saver` puts perdure's saver in the place of every
stock one, `bound` also binds each graph that is compiled with it, so that the test's calls go
through a runtime. The ids of the tests stay the same, so that the runs can be compared.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

HOW = os.environ.get("UPSTREAM", "stock")
RESULTS = os.environ.get("UPSTREAM_RESULTS")

_used = {"saver": False, "bound": False}
"""What the test that runs now has used."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before LangGraph's conftest imports the savers by name."""
    _watch_savers()
    if HOW != "stock":
        _replace_savers()
    if HOW == "bound":
        _bind_graphs()


def pytest_runtest_setup() -> None:
    _used.update(saver=False, bound=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    report.used = [what for what, is_used in _used.items() if is_used]
    return report


def pytest_runtest_logreport(report: Any) -> None:
    """Note each result. With xdist only the process that collects them does."""
    if RESULTS is None or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    line = {"id": report.nodeid, "when": report.when, "outcome": report.outcome}
    line |= {"used": getattr(report, "used", []), "error": None}
    if report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        line["error"] = (crash.message if crash else str(report.longrepr))[:2000]
    with pathlib.Path(RESULTS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if HOW != "bound":
        return
    for module in {getattr(item, "module", None) for item in items} - {None}:
        if getattr(module, "Pregel", None) is not None:
            module.Pregel = _BoundPregel  # type: ignore[union-attr]


# -- savers


def _watch_savers() -> None:
    """Note that a saver is made, of any kind."""
    from langgraph.checkpoint.base import BaseCheckpointSaver

    make = BaseCheckpointSaver.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        _used["saver"] = True
        make(self, *args, **kwargs)

    BaseCheckpointSaver.__init__ = init  # type: ignore[method-assign]


def _replace_savers() -> None:
    import langgraph.checkpoint.memory as memory

    import perdure.execution.graphs  # noqa: F401  # keeps the stock class, which it refuses
    from perdure.saver import Saver

    sys.path.insert(0, os.getcwd())
    asserts: Any = importlib.import_module(
        "tests.memory_assert"
    )  # before InMemorySaver is replaced

    class PerdureSaver(Saver):
        """perdure's saver with the constructor of LangGraph's in-memory saver."""

        def __init__(
            self, *, serde: Any = None, factory: Any = None, put_sleep: float = 0, **kwargs: Any
        ) -> None:
            kwargs.setdefault("url", "sqlite:///:memory:")
            super().__init__(**kwargs)
            self._put_sleep = put_sleep

        def put(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(self._put_sleep or 0)
            return super().put(*args, **kwargs)

    memory.InMemorySaver = memory.MemorySaver = PerdureSaver  # type: ignore[misc, assignment]
    asserts.InMemorySaver = asserts.MemorySaverAssertImmutable = PerdureSaver

    @contextlib.contextmanager
    def in_memory() -> Iterator[Saver]:
        with PerdureSaver() as saver:
            yield saver

    @contextlib.contextmanager
    def in_file() -> Iterator[Saver]:
        with (
            tempfile.TemporaryDirectory() as folder,
            Saver(f"sqlite:///{folder}/journal.db") as saver,
        ):
            yield saver

    @contextlib.contextmanager
    def encrypted() -> Iterator[Saver]:
        with Saver("sqlite:///:memory:", encryption_keys={"k": b"1234567890123456"}) as saver:
            yield saver

    @contextlib.asynccontextmanager
    async def in_file_async() -> AsyncIterator[Saver]:
        with in_file() as saver:
            yield saver

    fixtures: Any = importlib.import_module("tests.conftest_checkpointer")
    fixtures._checkpointer_memory = in_memory
    fixtures._checkpointer_sqlite = in_file
    fixtures._checkpointer_sqlite_aes = encrypted
    fixtures._checkpointer_sqlite_aio = in_file_async


# -- graphs


def _bound(graph: Any) -> Any:
    """The graph, bound to a runtime on its saver if that is perdure's."""
    from perdure.execution.engine import Engine
    from perdure.observe.observers import Observers
    from perdure.runtime import Runtime
    from perdure.saver import Saver

    saver = graph.checkpointer
    if not isinstance(saver, Saver):
        return graph
    _used["bound"] = True
    runtime: Any = getattr(saver, "runtime", None)
    if runtime is None:
        runtime = saver.runtime = Runtime("sqlite:///:memory:")  # type: ignore[attr-defined]
        engine = Engine(None, saver, 3.0, Observers())
        runtime._compose(engine, None, None)
    # One name for all graphs of a test: each is the next version of the one before.
    runtime.unregister("graph")
    return runtime.register(graph, name="graph")


def _bind_graphs() -> None:
    from langgraph.func import entrypoint
    from langgraph.graph.state import StateGraph

    for owner, name in ((StateGraph, "compile"), (entrypoint, "__call__")):
        _wrap(owner, name)


def _wrap(owner: Any, name: str) -> None:
    plain = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return _bound(plain(*args, **kwargs))

    setattr(owner, name, wrapped)


class _Binding(type):
    """LangGraph's `Pregel` as a test sees it: making one binds it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        from langgraph.pregel import Pregel

        return _bound(Pregel(*args, **kwargs))

    def __instancecheck__(cls, instance: Any) -> bool:
        from langgraph.pregel import Pregel

        return isinstance(instance, Pregel)


class _BoundPregel(metaclass=_Binding):
    pass
