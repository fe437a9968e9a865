"""The graphs of a LangGraph project: imported, made, and registered under their names.

A `langgraph.json` names graphs, and functions or context managers that make one. Those are called
once, for the life of the runtime, with an empty config; a graph that differs from run to run reads
its config in its nodes. A compiled graph keeps its own checkpointer: a copy on the journal is
driven. A module is imported under the name it has on the project's paths, so that its types have
the same names in the journal in every process.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from langgraph.store.base import BaseStore

from perdure.cli.project import FOLDER, URL, Project
from perdure.errors import BadArgument, Error
from perdure.journal_store import JournalStore
from perdure.runtime import Runtime
from perdure.text import one_line


def load_project(project: Project) -> ProjectRuntime:
    """A runtime that drives every graph of a project, with its environment and its paths.

    Variables that are set already keep their values. Graphs made by coroutines are made by `async
    with`, in the loop that will drive them.
    """
    if not os.environ.get(URL) and URL not in project.env:
        _make_folder(project.folder / FOLDER)
    url = project.url
    for name, value in project.env.items():
        os.environ.setdefault(name, value)
    sys.path[:0] = [str(path) for path in project.paths if str(path) not in sys.path]
    importlib.invalidate_caches()
    rt = ProjectRuntime(url, project)
    try:
        for name, place in project.graphs.items():
            with _named_errors(project, _graph_key(project, name)):
                rt.add(name, import_graph(project, place))
    except BaseException:
        rt.close()
        raise
    return rt


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        why = f"{folder} cannot be created ({error.strerror})"
        raise BadArgument(f"{why}: set {URL} to a journal elsewhere.") from error


class ProjectRuntime(Runtime):
    """A runtime that makes the graphs of a project, and exits their context managers at close."""

    def __init__(self, url: str, project: Project) -> None:
        super().__init__(url)
        self.project = project
        if (store := project_store(project, url)) is not None:
            self.use_store(store)
        self._exits = contextlib.ExitStack()
        self._async_exits = contextlib.AsyncExitStack()
        self._factories: dict[str, Callable[[], Any]] = {}
        """Coroutines that `async with` awaits to make graphs."""

    def add(self, name: str, value: Any) -> None:
        """Register a graph, or what makes one, now or in `async with`."""
        if inspect.isasyncgenfunction(value):
            value = contextlib.asynccontextmanager(value)
        elif inspect.isgeneratorfunction(value):
            value = contextlib.contextmanager(value)
        plain = inspect.unwrap(value) if callable(value) else value
        if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
            arguments = _arguments(value, self.store)
            self._factories[name] = lambda: value(**arguments)
            self.engine.expected = set(self._factories)
            return
        made = value(**_arguments(value, self.store)) if _is_factory(value) else value
        if inspect.isawaitable(made) or hasattr(made, "__aenter__"):
            self._factories[name] = lambda: made
            self.engine.expected = set(self._factories)
        elif hasattr(made, "__enter__"):
            self._register(name, self._exits.enter_context(made))
        else:
            self._register(name, made)

    def _register(self, name: str, graph: Any) -> None:
        if (own := getattr(graph, "checkpointer", None)) is not None:
            graph = copy.copy(graph)
            graph.checkpointer = None
            kind = type(own).__name__ if not isinstance(own, bool) else f"checkpointer={own}"
            self.project.notes.append(f"{name}: its {kind} is not used; the journal is")
        self.register(graph, name)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            for name, make in self._factories.items():
                with _named_errors(self.project, _graph_key(self.project, name)):
                    made = make()
                    if inspect.isawaitable(made):
                        made = await made
                    if hasattr(made, "__aenter__"):
                        made = await self._async_exits.enter_async_context(made)
                    self._register(name, made)
            self._factories = {}
            self.engine.expected = set()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._async_exits.aclose()
        finally:
            await super().__aexit__(*raised)

    def close(self) -> None:
        try:
            self._exits.close()
        finally:
            super().close()


def import_part(project: Project, key: str, place: str) -> Any:
    """Another object that a langgraph.json names, such as its `auth.path`."""
    with _named_errors(project, f'"{key}" ({place})'):
        return import_graph(project, place)


def import_graph(project: Project, place: str) -> Any:
    """The object at `path/file.py:name` or `package.module:name`."""
    source, _, attribute = place.rpartition(":")
    if "/" in source or source.endswith(".py"):
        module = _import_file(project, (project.folder / source).resolve())
    else:
        module = _import_module(source)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = sorted(name for name, value in vars(module).items() if _is_graph(value))
            hint = f"; there is {', '.join(there)}" if there else ""
            raise BadArgument(f"{source} has no {attribute!r}{hint}.")
        found = getattr(found, part)
    return found


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise BadArgument(
            f"there is no module {name!r}. Add its folder to the dependencies, or install it."
        ) from error


def _import_file(project: Project, file: Path) -> ModuleType:
    short = os.path.relpath(file, project.folder)
    if not file.is_file():
        raise BadArgument(f"there is no file {short}.")
    name = _module_name(project, file)
    if name is not None:
        module = importlib.import_module(name)
        if module.__file__ is not None and Path(module.__file__).resolve() == file:
            return module
    # It has no valid name, or another module has it: make one, the same in every process.
    parts = Path(short).with_suffix("").parts
    name = "_".join(["langgraph_json", *(part for part in parts if part != "..")])
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise BadArgument(f"{short} is not a Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: its types look it up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _module_name(project: Project, file: Path) -> str | None:
    """The name a file is imported by, from the nearest of the project's paths; None: invalid."""
    roots = [path for path in project.paths if file.is_relative_to(path)]
    if not roots:
        return None
    root = max(roots, key=lambda path: len(path.parts))
    parts = file.relative_to(root).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else None


def _is_graph(value: Any) -> bool:
    if inspect.isclass(value) or inspect.ismodule(value):
        return False
    return hasattr(value, "compile") or hasattr(value, "checkpointer")


def _is_factory(value: Any) -> bool:
    """Whether a value makes a graph: a callable that is neither a graph nor a class."""
    if inspect.isclass(value):
        raise BadArgument(f"it is the class {value.__qualname__}; name a graph, or its factory.")
    return callable(value) and not _is_graph(value)


def _arguments(function: Callable[..., Any], store: Any) -> dict[str, Any]:
    """The arguments for a function that makes a graph."""
    required = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    arguments: dict[str, Any] = {}
    for parameter in required:
        if "Runtime" in str(parameter.annotation) or parameter.name == "runtime":
            # The runtime that the Agent Server passes, here without a user.
            from langgraph_sdk import runtime

            made: Any = runtime._ExecutionRuntime  # noqa: SLF001  the SDK has no public one
            arguments[parameter.name] = made(access_context="threads.create_run", store=store)
        elif "config" in parameter.name or len(required) == 1:
            arguments[parameter.name] = {"configurable": {}}
        else:
            unknown = f"the function that makes it requires {parameter.name!r}"
            raise BadArgument(f"{unknown}; it can have `config` or `runtime`.")
    if any(p.kind is p.POSITIONAL_ONLY for p in required):
        raise BadArgument("the function that makes it has a positional-only argument.")
    return arguments


def _graph_key(project: Project, name: str) -> str:
    return f'graph "{name}" ({project.graphs[name]})'


@contextlib.contextmanager
def _named_errors(project: Project, part: str) -> Iterator[None]:
    """Add the file and the part of it to errors."""
    key = f"{project.file}: {part}"
    try:
        yield
    except Error as error:
        raise BadArgument(f"{key}: {error}") from error
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            folder = os.path.relpath(project.folder)
            hint = f" Install its packages, such as: pip install -e {folder}"
        raise BadArgument(f"{key}: {one_line(error, str(project.folder))}.{hint}") from error


# -- its store


def project_store(project: Project, url: str) -> BaseStore | None:
    """The store for a project's graphs without their own. None if LangGraph has no store for the
    journal's database."""
    settings = dict(project.store or {})
    if (place := settings.get("path")) is not None:
        return _own_store(project, import_part(project, "store.path", place))
    if url.startswith("d1:"):
        if project.store is not None:
            project.notes.append("not used here: store (LangGraph has no store for D1)")
        return None
    if index := settings.get("index"):
        index = dict(index)
        if ".py:" in str(embed := index.get("embed")):
            index["embed"] = import_part(project, "store.index.embed", str(embed))
    return JournalStore(url, index=index, ttl=settings.get("ttl"))


def _own_store(project: Project, found: Any) -> BaseStore:
    """The store that `store.path` names, or that the function it names returns."""
    made = found() if callable(found) and not isinstance(found, BaseStore) else found
    if not isinstance(made, BaseStore):
        raise BadArgument(
            f'{project.file}: "store.path" is a {type(made).__name__}, not a LangGraph store. '
            "Name a BaseStore, or a function that returns one."
        )
    return made
