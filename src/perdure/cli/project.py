"""LangGraph projects: their `langgraph.json`, and where their journal is.

The file is read, and nothing of the project is imported or changed; `graph_loading` imports it. The
journal is `PERDURE_URL`, from the environment or from the project's `env`; else a SQLite file in
`.perdure` beside the langgraph.json, which git ignores. An error names the file, the key, and what
to do.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from perdure.errors import BadArgument

FILE = "langgraph.json"
FOLDER = ".perdure"
URL = "PERDURE_URL"
JAVASCRIPT = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs")
USED_KEYS = {"graphs", "dependencies", "env", "store", "auth", "http"}
HTTP_KEYS = {"app", "configurable_headers", "cors"}
IMAGE_KEYS = {
    "$schema",
    "api_version",
    "base_image",
    "dockerfile_lines",
    "image_distro",
    "keep_pkg_tools",
    "node_version",
    "pip_config_file",
    "pip_installer",
    "python_version",
    "source",
    "version",
}
"""Keys for building an image: they do not concern a project that runs where it is installed."""


@dataclass(frozen=True)
class Project:
    """A `langgraph.json`, checked as far as possible without importing."""

    file: Path
    graphs: dict[str, str]
    """Where each graph is: `path/file.py:name` or `package.module:name`."""
    paths: list[Path] = field(default_factory=list)
    """Folders that its modules are imported from, in order."""
    env: dict[str, str] = field(default_factory=dict)
    auth: str | None = None
    """Where its `langgraph_sdk.Auth` is."""
    app: str | None = None
    """Where its own web application is, to which the routes are added."""
    configurable_headers: list[str] = field(default_factory=list)
    """Patterns of headers that runs have in `configurable`; one with `!` excludes."""
    cors: list[str] = field(default_factory=list)
    """Origins of pages that may call."""
    store: dict[str, Any] | None = None
    """The settings of its store, such as `index`."""
    notes: list[str] = field(default_factory=list)
    """What is ignored, and why; not errors."""

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def url(self) -> str:
        """The URL of its journal, which may not exist yet."""
        path = str(self.folder / FOLDER / "agents.db").replace("%", "%25").replace("?", "%3F")
        return os.environ.get(URL) or self.env.get(URL) or f"sqlite:///{path}"

    def set_secret(self) -> None:
        """Give this process the secret of a D1 journal, if the project's `env` has it."""
        if secret := self.env.get("PERDURE_D1_SECRET"):
            os.environ.setdefault("PERDURE_D1_SECRET", secret)


def find_project(start: str | Path | None = None) -> Project | None:
    """The project of a folder, of the nearest one above it, or of a langgraph.json; or None."""
    place = Path(start or ".").resolve()
    if place.is_file():
        return _read_project(place)
    for folder in (place, *place.parents):
        if (folder / FILE).is_file():
            return _read_project(folder / FILE)
    return None


def _read_project(file: Path) -> Project:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadArgument(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadArgument(f"{file} is not JSON: {error}. Correct it, and start again.") from error
    if not isinstance(content, dict):
        raise BadArgument(f'{file} is not a JSON object: it begins with {{"graphs": …}}.')
    notes: list[str] = []
    if unused := sorted(content.keys() - USED_KEYS - IMAGE_KEYS):
        notes.append(f"not used here: {', '.join(unused)}")
    http = _read_object(file, "http", content.get("http"))
    if ignored := sorted(http.keys() - HTTP_KEYS):
        notes.append(f"not used here: {', '.join(f'http.{key}' for key in ignored)}")
    auth = _read_object(file, "auth", content.get("auth"))
    store = content.get("store")
    return Project(
        file,
        auth=_read_place(file, "auth.path", auth.get("path")),
        app=_read_place(file, "http.app", http.get("app")),
        configurable_headers=_read_headers(file, http.get("configurable_headers")),
        cors=_read_cors(file, http.get("cors"), notes),
        store=None if store is None else _read_object(file, "store", store),
        graphs=_read_graphs(file, content.get("graphs")),
        paths=_read_paths(file, content.get("dependencies")),
        env=_read_env(file, content.get("env"), notes),
        notes=notes,
    )


def _read_graphs(file: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        raise BadArgument(
            f'{file}: "graphs" names no graph; write "graphs": {{"agent": "./agent.py:graph"}}.'
        )
    found = {}
    for name, where in value.items():
        key = f'{file}: graph "{name}"'
        place = where.get("path") if isinstance(where, dict) else where
        if not isinstance(place, str):
            wrong = json.dumps(where)
            raise BadArgument(f'{key} is {wrong}; write its place, such as "./agent.py:graph".')
        source, _, attribute = place.rpartition(":")
        if (source or place).endswith(JAVASCRIPT):
            raise BadArgument(
                f"{key} is JavaScript ({place}), and perdure drives only Python. Put it into "
                "another langgraph.json."
            )
        if not source or not attribute:
            raise BadArgument(
                f"{key} is {place!r}, without a name: write {(source or place) + ':graph'!r} if "
                "the graph is called graph there."
            )
        found[name] = place
    return found


def _read_object(file: Path, key: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise BadArgument(f'{file}: "{key}" is {json.dumps(value)}; it must be an object.')
    return value or {}


def _read_texts(file: Path, key: str, value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadArgument(f'{file}: "{key}" must be a list of texts.')
    return value


def _read_place(file: Path, key: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or ":" not in value:
        raise BadArgument(f'{file}: "{key}" must be a place, such as "./{key[:4]}.py:{key[:4]}".')
    return value


def _read_headers(file: Path, value: Any) -> list[str]:
    key = "http.configurable_headers"
    given = _read_object(file, key, value)
    includes = _read_texts(file, f"{key}.includes", given.get("includes", given.get("include")))
    excludes = _read_texts(file, f"{key}.excludes", given.get("excludes", given.get("exclude")))
    return [*includes, *(f"!{one}" for one in excludes)]


def _read_cors(file: Path, value: Any, notes: list[str]) -> list[str]:
    given = _read_object(file, "http.cors", value)
    if ignored := sorted(given.keys() - {"allow_origins"}):
        notes.append(f"not used here: {', '.join(f'http.cors.{key}' for key in ignored)}")
    return _read_texts(file, "http.cors.allow_origins", given.get("allow_origins"))


def _read_paths(file: Path, value: Any) -> list[Path]:
    """The folders among the dependencies, each with its `src`. The others are packages."""
    if value is not None and not isinstance(value, list):
        raise BadArgument(f'{file}: "dependencies" is a list, such as ["."].')
    found = []
    for one in [*(value or ()), "."]:
        if not isinstance(one, str):
            raise BadArgument(f'{file}: "dependencies" has {one!r}, which is not a string.')
        if one.startswith((".", "/")):
            folder = (file.parent / one).resolve()
            if not folder.is_dir():
                raise BadArgument(f'{file}: "dependencies" names {one}, which is not a folder.')
            found += [folder, folder / "src"]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def _read_env(file: Path, value: Any, notes: list[str]) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        path = file.parent / value
        if not path.is_file():
            notes.append(f"env names {value}, which does not exist: its variables are not set")
            return {}
        found = parse_env(path.read_text(encoding="utf-8-sig"), path)
    elif isinstance(value, dict):
        found = {str(name): str(one) for name, one in value.items()}
    else:
        raise BadArgument(f'{file}: "env" must be the name of a file, or an object of texts.')
    if URL in found:
        found[URL] = absolute_url(found[URL], file.parent)
    return found


def absolute_url(url: str, folder: Path) -> str:
    """A journal's URL that does not depend on the working directory."""
    path = url.removeprefix("sqlite:///")
    return url if path in (url, ":memory:") else f"sqlite:///{folder / path}"


def parse_env(text: str, path: Path) -> dict[str, str]:
    """The variables of a `.env` file, as python-dotenv reads them. A line it cannot read is an
    error."""
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    for one in parse_stream(StringIO(text)):
        if one.error:
            blank, line = one.original.string.partition(one.original.string.strip())[:2]
            number = one.original.line + blank.count("\n")
            raise BadArgument(f"{path}, line {number}: {line[:20]!r}… is not KEY=VALUE.")
    return {name: value or "" for name, value in dotenv_values(stream=StringIO(text)).items()}
