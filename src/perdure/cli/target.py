"""The target of a command: a journal by its URL, `module:name` of a Runtime, or a LangGraph
project. Only commands that say so create a journal."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.logs import EVENTS
from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.cli.project import Project
    from perdure.client import Client
    from perdure.observe import Metrics
    from perdure.runtime import Runtime

NAME_JOURNAL = (
    "Name one with --at, such as --at sqlite:///agents.db or --at agents:runtime, or set "
    "PERDURE_URL."
)
NAME_RUNTIME = "Name the Runtime: module:name."
SENT = {
    "OpenTelemetry": "traces over OTLP",
    "Metrics": "metrics over OTLP",
    "LangSmith": "traces and scores to LangSmith",
}
"""What an observer that the environment configures sends, in words."""


def runtime_at(at: str | None) -> Runtime:
    """The runtime of a target, with its graphs; by default the one of PERDURE_URL, if it names one,
    or the project here."""
    place = at or os.environ.get("PERDURE_URL", "")
    if "://" in place:
        if at or _project_at(".", search_parents=True) is None:
            raise BadArgument(
                "This needs the graphs, not only their journal: pass --at module:name of the "
                "Runtime."
            )
        place = ""  # the project here, on this journal
    if not place:
        project = _project_at(".", search_parents=True)
        place = "." if project is None else str(project.file)
    return load_runtime(place)


def observed(rt: Runtime, *, log_events: bool = False) -> Runtime:
    """A runtime with the observers that the environment configures, unless it has its own; and
    with one that logs each event as a line of JSON."""
    from perdure.observe import Logs, from_env

    if not rt.engine.observers:
        for one in from_env():
            rt.engine.observers.add(one)
            logging.getLogger("perdure").info("sending %s", SENT[type(one).__name__])
    if log_events:
        rt.engine.observers.add(Logs(json=True, logger=EVENTS))
    return rt


def measured(rt: Runtime) -> Metrics:
    """The metrics of a runtime; adds them if it has none. Raises `Error` without the extra."""
    from perdure.observe import Metrics

    found: Metrics | None = rt.engine.observers.metrics
    if found is None:
        found = Metrics()
        rt.engine.observers.add(found)
    return found


def load_runtime(place: str) -> Runtime:
    """The runtime named by `module:name`, or made of a folder with a langgraph.json."""
    from perdure.runtime import Runtime

    project = _project_at(place)
    if project is not None:
        from perdure.cli.graph_loading import load_project

        return load_project(project)
    found = import_object(place)
    if not isinstance(found, Runtime):
        raise BadArgument(f"{place} is not a perdure.Runtime but {found!r}.")
    return found


def client_at(at: str | None, *, create: bool = False) -> Client:
    """A client of the target's journal, not opened yet. Without `create` the journal must exist."""
    from perdure.client import Client

    place = at or os.environ.get("PERDURE_URL", "")
    if _may_be_project(place):
        project = project_of(at)
        if project is None:
            raise _bad_place(place, NAME_JOURNAL)
        project.set_secret()
        client = Client(project.url)
        if client.schema_version() is None:
            missing = f"The project in {project.folder} has no journal"
            raise BadArgument(f"{missing}: `perdure dev` makes it.")
        return client
    if re.match(r"\w+:/|sqlite:", place):
        client = Client(place)
    else:
        client = import_object(place)
        if not isinstance(client, Client):
            raise BadArgument(f"{place} is not a perdure.Runtime but {client!r}.")
    if not create and client.schema_version() is None:
        raise BadArgument(
            f"There is no journal at {client.url}. A worker makes it, or `perdure migrate`."
        )
    return client


def find_id(client: Client, what: str, prefix: str) -> str:
    """The id of a run or wait, or the key of an effect, by the beginning of it."""
    from perdure.commands.runs import resolve

    return client.journal.run(resolve(what, prefix))


def check_graph(at: str | None, graph: str) -> None:
    """Refuse a graph that the project of a target does not have. Other targets are not checked."""
    project = project_of(at)
    if project is not None and graph not in project.graphs:
        names = ", ".join(project.graphs)
        raise BadArgument(f"There is no graph {graph!r} in {project.file}; there is {names}.")


def project_of(at: str | None) -> Project | None:
    """The LangGraph project of a target, if it is one."""
    place = at or os.environ.get("PERDURE_URL", "")
    if not _may_be_project(place):
        return None
    return _project_at(place or ".", search_parents=not place)


def _may_be_project(place: str) -> bool:
    return ":" not in place or Path(place).exists()


def _project_at(place: str, *, search_parents: bool = False) -> Project | None:
    path = Path(place)
    is_folder = path.is_dir() and (search_parents or (path / "langgraph.json").exists())
    if not is_folder and path.name != "langgraph.json":
        return None
    from perdure.cli.project import find_project

    return find_project(path)


def import_object(place: str) -> Any:
    """The object at `module:name`."""
    module, _, name = place.partition(":")
    if not module or not name or "@" in place:
        raise _bad_place(place, NAME_RUNTIME)
    if module.endswith(".py"):
        raise BadArgument(f"{place!r}: name the module without .py, as {module[:-3]}:{name}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise BadArgument(f"There is no module {module!r} in {Path.cwd()}.") from error
        from perdure.text import one_line

        raise BadArgument(f"{module} raised {one_line(error, str(Path.cwd()))}.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadArgument(f"The module {module!r} has no {name!r}.")
        found = getattr(found, part)
    return found


def _bad_place(place: str, next_step: str) -> BadArgument:
    if not place:
        return BadArgument(f"Which journal? {next_step}")
    path = Path(place)
    if path.is_dir():
        return BadArgument(f"There is no langgraph.json in {path.absolute()}. {next_step}")
    if path.is_file():
        if next_step == NAME_JOURNAL:
            next_step = f"name a journal by its URL, sqlite:///{place}."
        return BadArgument(f"{place!r} is a file: {next_step}")
    if "/" in place and ":" not in place:
        return BadArgument(f"There is no folder {place}. {next_step}")
    shown = "This" if "@" in place else repr(place)  # it may be a URL with a password
    return BadArgument(f"{shown} does not name a runtime: use module:name, as agents:runtime.")
