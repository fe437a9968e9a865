"""What a command works on: a journal by its URL, by the place of its runtime in the code, or by the
LangGraph project it is in. Looking at a journal never makes one."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.cli.project import Project
    from perdure.client import Client
    from perdure.runtime import Runtime

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        "-a",
        metavar="PLACE",
        help="The journal: its URL, module:name of its Runtime (needed for encryption and own "
        "types), or a folder with a langgraph.json. Default: PERDURE_URL, or the project here.",
    ),
]
DRIVEN = "The Runtime to drive, as module:name; or a folder with a langgraph.json."
NEXT = (
    "Name one with --at, such as --at sqlite:///agents.db or --at agents:runtime, or set "
    "PERDURE_URL."
)


@contextlib.contextmanager
def opened(at: str | None, *, new: bool = False) -> Iterator[Client]:
    """The journal at a place. With `new` it may be one that is not there yet."""
    with _client(at, new) as client:
        yield client


@contextlib.contextmanager
def opened_runtime(at: str | None) -> Iterator[Runtime]:
    """The runtime at a place, with its graphs."""
    place = at or os.environ.get("PERDURE_URL", "")
    if "://" in place or (not at and place):
        raise BadArgument(
            "This needs the graphs, not only their journal: pass --at module:name of the Runtime."
        )
    with load(place or ".") as runtime:
        yield runtime


def load(place: str) -> Runtime:
    """The runtime that `module:name`, or a folder with a langgraph.json, names."""
    from perdure.runtime import Runtime

    project = _project_at(place)
    if project is not None:
        return project.load()
    found = _named(place)
    if not isinstance(found, Runtime):
        raise BadArgument(f"{place} is no perdure.Runtime but {found!r}.")
    return found


def check_graph(at: str | None, graph: str) -> None:
    """Refuse a graph that the project at a place does not name. Of other places nobody can know."""
    project = project_of(at)
    if project is not None and graph not in project.graphs:
        names = ", ".join(project.graphs)
        raise BadArgument(f"There is no graph {graph!r} in {project.file}; there is {names}.")


def project_of(at: str | None) -> Project | None:
    """The LangGraph project that a place is, if it is one."""
    place = at or os.environ.get("PERDURE_URL", "")
    if not _may_be_project(place):
        return None
    return _project_at(place or ".", above=not place)


def _may_be_project(place: str) -> bool:
    return ":" not in place or Path(place).exists()


def url_of(at: str | None) -> str:
    """The URL of the journal at a place, whether it is there or not."""
    return _client(at, new=True)._url or os.environ.get("PERDURE_URL", "")


def speak(*, quiet: bool) -> None:
    """Log what is driven to stderr; or only warnings."""
    import logging

    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("perdure").setLevel(level)


def typed(at: str | None) -> str:
    """The --at of a command that goes on from this one, as it is typed."""
    import shlex

    return f" --at {shlex.quote(at)}" if at else ""


def settling(key: str, place: str) -> str:
    """The command by which a person settles an effect; pasted as it is, it pipes into nothing."""
    import shlex

    return f"perdure settle {shlex.quote(key)} done --result JSON{place}  (or retry, or fail)"


def _client(at: str | None, new: bool) -> Client:
    from perdure.client import Client

    url = at or os.environ.get("PERDURE_URL", "")
    if _may_be_project(url):
        project = project_of(at)
        if project is None:
            raise _no_place(url, NEXT) if url else BadArgument(f"Which journal? {NEXT}")
        return Client(_journal_of(project))
    elif not re.match(r"\w+:/|sqlite:", url):
        client = _named(url)
        if not isinstance(client, Client):
            raise BadArgument(f"{url} is no perdure.Runtime but {client!r}.")
        if not new:
            check_there(client.url)
        return client
    return Client(url if new else check_there(url))


def _named(place: str) -> Any:
    """What `module:name` names."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise _no_place(place)
    if module.endswith(".py"):
        raise BadArgument(f"{place!r}: name the module without .py, as {module[:-3]}:{name}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise BadArgument(f"There is no module {module!r} in {Path.cwd()}.") from error
        from perdure.operations.error_text import one_line

        raise BadArgument(f"{module} raised {one_line(error, str(Path.cwd()))}.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadArgument(f"The module {module!r} has no {name!r}.")
        found = getattr(found, part)
    return found


def _no_place(place: str, next: str = "Name the Runtime: module:name.") -> BadArgument:
    path = Path(place)
    if path.is_dir():
        return BadArgument(f"There is no langgraph.json in {path.absolute()}. {next}")
    if path.is_file():
        journal = f"name a journal by its URL, sqlite:///{place}."
        return BadArgument(f"{place!r} is a file: {journal if next == NEXT else next}")
    if "/" in place and ":" not in place:
        return BadArgument(f"There is no folder {place}. {next}")
    return BadArgument(f"{place!r} names no runtime: use module:name, such as agents:runtime.")


def _project_at(place: str, *, above: bool = False) -> Project | None:
    """The LangGraph project in a folder, or of a langgraph.json; with `above`, around a folder."""
    path = Path(place)
    if path.name != "langgraph.json" and not path.is_dir():
        return None
    if not above and path.is_dir() and not (path / "langgraph.json").exists():
        return None
    from perdure.cli.project import find_project

    return find_project(path)


def _journal_of(project: Project) -> str:
    from perdure.journal import version

    if version(project.url) is None:
        raise BadArgument(
            f"The project in {project.folder} has no journal: `perdure dev` makes it."
        )
    return project.url


def check_there(url: str) -> str:
    """The URL of a journal that exists: looking at one must not make it."""
    from perdure.client import Client
    from perdure.journal import version

    if version(url) is None:
        raise BadArgument(
            f"There is no journal at {Client(url).url}. A worker makes it, or `perdure migrate`."
        )
    return url
