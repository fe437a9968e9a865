"""The graphs of a project: imported, made, and registered under their names.

What a `langgraph.json` names is a graph, or a function or context manager that makes one. Those
are called once, for the life of the runtime, with an empty config; a graph that is to differ from
run to run reads its config in its nodes. A compiled graph's own checkpointer is left where it is:
the copy that is driven has the journal. A module is imported under the name it has on the
project's paths, so that its types keep their names in the journal, whoever loads it.
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
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

from perdure.errors import BadArgument, Error
from perdure.operations.error_text import one_line
from perdure.runtime import Runtime


class Source(Protocol):
    """What is known of a project before anything of it is imported; see `cli.project`."""

    @property
    def file(self) -> Path: ...
    @property
    def folder(self) -> Path: ...
    @property
    def graphs(self) -> dict[str, str]: ...
    @property
    def paths(self) -> list[Path]: ...
    @property
    def notes(self) -> list[str]: ...


def load(project: Source, url: str) -> Runtime:
    """A runtime on a journal that drives the graphs of a project."""
    missing = [str(path) for path in project.paths if str(path) not in sys.path]
    sys.path[:0] = missing
    importlib.invalidate_caches()
    rt = ProjectRuntime(url, project)
    try:
        for name, place in project.graphs.items():
            with _told(project, name):
                rt.take(name, find(project, place))
    except BaseException:
        rt.close()
        raise
    return rt


class ProjectRuntime(Runtime):
    """A runtime that makes the graphs of a project, and unmakes them when it is closed."""

    def __init__(self, url: str, project: Source) -> None:
        super().__init__(url)
        self.project = project
        self._entered = contextlib.ExitStack()
        self._entered_here = contextlib.AsyncExitStack()
        self._unmade: dict[str, Callable[[], Any]] = {}

    def take(self, name: str, value: Any) -> None:
        """Register what a name of the project stands for, now or in `async with`."""
        if inspect.isasyncgenfunction(value):
            value = contextlib.asynccontextmanager(value)
        elif inspect.isgeneratorfunction(value):
            value = contextlib.contextmanager(value)
        plain = inspect.unwrap(value) if callable(value) else value
        if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
            arguments = _arguments(value)
            self._unmade[name] = lambda: value(**arguments)
            self.engine.expect(self._unmade)
            return
        made = value(**_arguments(value)) if _makes(value) else value
        if inspect.isawaitable(made) or hasattr(made, "__aenter__"):
            self._unmade[name] = lambda: made
            self.engine.expect(self._unmade)
        elif hasattr(made, "__enter__"):
            self._add(name, self._entered.enter_context(made))
        else:
            self._add(name, made)

    def _add(self, name: str, graph: Any) -> None:
        if (own := getattr(graph, "checkpointer", None)) is not None:
            graph = copy.copy(graph)
            graph.checkpointer = None
            kind = type(own).__name__ if not isinstance(own, bool) else f"checkpointer={own}"
            self.project.notes.append(f"{name}: its {kind} is left alone; the journal is used")
        self.register(graph, name)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            for name, make in self._unmade.items():
                with _told(self.project, name):
                    made = make()
                    if inspect.isawaitable(made):
                        made = await made
                    if hasattr(made, "__aenter__"):
                        made = await self._entered_here.enter_async_context(made)
                    self._add(name, made)
            self._unmade = {}
            self.engine.expect(())
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._entered_here.aclose()
        finally:
            await super().__aexit__(kind, error, trace)

    def close(self) -> None:
        try:
            self._entered.close()
        finally:
            super().close()


# -- from a place to a value


def find(project: Source, place: str) -> Any:
    """What `path/file.py:name` or `package.module:name` stands for."""
    source, _, attribute = place.rpartition(":")
    if "/" in source or source.endswith(".py"):
        module = _from_file(project, (project.folder / source).resolve())
    else:
        module = _from_name(source)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = sorted(name for name, value in vars(module).items() if _is_graph(value))
            hint = f"; there is {', '.join(there)}" if there else ""
            raise BadArgument(f"{source} has no {attribute!r}{hint}.")
        found = getattr(found, part)
    return found


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise BadArgument(
            f"there is no module {name!r}. Is its folder among the dependencies, or is it to be "
            "installed?"
        ) from error


def _from_file(project: Source, file: Path) -> ModuleType:
    if not file.is_file():
        raise BadArgument(f"there is no file {_short(project, file)}.")
    name = _name_of(project, file)
    if name is not None:
        module = importlib.import_module(name)
        if module.__file__ is not None and Path(module.__file__).resolve() == file:
            return module
    # Its name is none, or another module's: it gets one of its own, the same in every process.
    parts = Path(_short(project, file)).with_suffix("").parts
    name = "_".join(["langgraph_json", *(part for part in parts if part != "..")])
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise BadArgument(f"{_short(project, file)} is no Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: its types look for it
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _name_of(project: Source, file: Path) -> str | None:
    """The name a file is imported by, from the nearest of the project's paths."""
    roots = [path for path in project.paths if file.is_relative_to(path)]
    if not roots:
        return None
    root = max(roots, key=lambda path: len(path.parts))
    parts = file.relative_to(root).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else None


# -- from a value to a graph


def _is_graph(value: Any) -> bool:
    if inspect.isclass(value) or inspect.ismodule(value):
        return False
    return hasattr(value, "compile") or hasattr(value, "checkpointer")


def _makes(value: Any) -> bool:
    """Whether a value is to be called: a function, and not a graph or a class."""
    if inspect.isclass(value):
        raise BadArgument(f"it is the class {value.__qualname__}; name a graph, or what makes one.")
    return callable(value) and not _is_graph(value)


def _arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function that makes a graph is called with."""
    asked = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    given: dict[str, Any] = {}
    for parameter in asked:
        if "Runtime" in str(parameter.annotation) or parameter.name == "runtime":
            given[parameter.name] = _server_runtime()
        elif "config" in parameter.name or len(asked) == 1:
            given[parameter.name] = {"configurable": {}}
        else:
            raise BadArgument(
                f"the function that makes it asks for {parameter.name!r}; what it can get is "
                "`config`, or `runtime`."
            )
    if any(p.kind is p.POSITIONAL_ONLY for p in asked):
        raise BadArgument("the function that makes it takes its argument by position only.")
    return given


def _server_runtime() -> Any:
    """What the Agent Server calls such a function with; here without a user and a store."""
    from langgraph_sdk import runtime

    nothing: Any = None
    return runtime._ExecutionRuntime(access_context="threads.create_run", store=nothing)


# -- what went wrong


@contextlib.contextmanager
def _told(project: Source, name: str) -> Iterator[None]:
    """Say which graph of which file it was."""
    key = f'{project.file}: graph "{name}" ({project.graphs[name]})'
    try:
        yield
    except Error as error:
        raise BadArgument(f"{key}: {error}") from error
    except (Exception, SystemExit) as error:
        hint = (
            f" Install what the project needs, such as: pip install -e {_short(project, None)}"
            if isinstance(error, ModuleNotFoundError)
            else ""
        )
        raise BadArgument(f"{key}: {one_line(error, str(project.folder))}.{hint}") from error


def _short(project: Source, path: Path | None) -> str:
    path = project.folder if path is None else path
    return os.path.relpath(path, project.folder if path != project.folder else Path.cwd())
