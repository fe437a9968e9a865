"""A LangGraph project as it is: what its `langgraph.json` says, and where its runs are kept.

`find_project` reads the file and imports nothing of the project; `Project.load` imports its graphs.
Nothing of the project is changed. The journal is `PERDURE_URL`, from the environment or from the
project's `env`; without it a SQLite file in `.perdure` beside the langgraph.json, a folder that
tells git to leave it alone. What is wrong is told with the file, the key, and what to do.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.runtime import Runtime

FILE = "langgraph.json"
FOLDER = ".perdure"
URL = "PERDURE_URL"
JAVASCRIPT = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs")
USED = {"graphs", "dependencies", "env"}
BUILD = {
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
"""What an image is built with: it means nothing to a project that runs where it is installed."""


@dataclass(frozen=True)
class Project:
    """A `langgraph.json` that was read, and is sound as far as one can tell without importing."""

    file: Path
    graphs: dict[str, str]
    """Where each graph is: `path/file.py:name` or `package.module:name`."""
    paths: list[Path] = field(default_factory=list)
    """Folders that its modules are imported from, the first first."""
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What is of no use here, a line each; none of it is an error."""

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def url(self) -> str:
        """Where its journal is, or will be. Asking does not make it."""
        path = str(self.folder / FOLDER / "agents.db").replace("%", "%25").replace("?", "%3F")
        return os.environ.get(URL) or self.env.get(URL) or f"sqlite:///{path}"

    def load(self) -> Runtime:
        """A runtime that drives every graph of the project, with its environment and its paths.

        What is in the environment already stays. Graphs that coroutines make are made by `async
        with`, in the loop that will drive them.
        """
        from perdure.cli.loading import load

        if not os.environ.get(URL) and URL not in self.env:
            keep = self.folder / FOLDER
            try:
                keep.mkdir(exist_ok=True)
                (keep / ".gitignore").write_text("*\n", encoding="utf-8")
            except OSError as error:
                raise BadArgument(
                    f"{keep} cannot be made ({error.strerror}): set {URL} to a journal elsewhere."
                ) from error
        url = self.url
        for name, value in self.env.items():
            os.environ.setdefault(name, value)
        return load(self, url)


def find_project(start: str | Path | None = None) -> Project | None:
    """The project of a folder, or of one above it, or of the file itself; None if there is none."""
    place = Path(start or ".").resolve()
    if place.is_file():
        return _read(place)
    for folder in (place, *place.parents):
        if (folder / FILE).is_file():
            return _read(folder / FILE)
    return None


def _read(file: Path) -> Project:
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadArgument(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadArgument(f"{file} is no JSON: {error}. Correct it, and start again.") from error
    if not isinstance(said, dict):
        raise BadArgument(f'{file} is not a JSON object: it begins with {{"graphs": …}}.')
    notes: list[str] = []
    if unused := sorted(said.keys() - USED - BUILD):
        notes.append(f"not used here: {', '.join(unused)}")
    env = _env(file, said.get("env"), notes)
    return Project(
        file=file,
        graphs=_graphs(file, said.get("graphs")),
        paths=_paths(file, said.get("dependencies")),
        env=env,
        notes=notes,
    )


def _graphs(file: Path, said: Any) -> dict[str, str]:
    if not isinstance(said, dict) or not said:
        raise BadArgument(
            f'{file}: "graphs" names no graph; write "graphs": {{"agent": "./agent.py:graph"}}.'
        )
    found = {}
    for name, where in said.items():
        place = where.get("path") if isinstance(where, dict) else where
        if not isinstance(place, str):
            raise BadArgument(
                f"{_key(file, name)} is {json.dumps(where)}; write where it is, such as "
                '"./agent.py:graph".'
            )
        source, _, attribute = place.rpartition(":")
        if (source or place).endswith(JAVASCRIPT):
            raise BadArgument(
                f"{_key(file, name)} is JavaScript ({place}), and perdure drives Python only. "
                "Keep it in a langgraph.json of its own."
            )
        if not source or not attribute:
            raise BadArgument(
                f"{_key(file, name)} is {place!r}, without the name in it: write "
                f"{(source or place) + ':graph'!r} if the graph is called graph there."
            )
        found[name] = place
    return found


def _paths(file: Path, said: Any) -> list[Path]:
    """The folders among the dependencies, each with its `src`; the rest are installed packages."""
    if said is not None and not isinstance(said, list):
        raise BadArgument(f'{file}: "dependencies" is a list, such as ["."].')
    found = []
    for one in [*(said or ()), "."]:
        if not isinstance(one, str):
            raise BadArgument(f'{file}: "dependencies" has {one!r}, which is no text.')
        if one.startswith((".", "/")):
            folder = (file.parent / one).resolve()
            if not folder.is_dir():
                raise BadArgument(f'{file}: "dependencies" names {one}, which is no folder.')
            found += [folder, folder / "src"]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def _key(file: Path, name: str) -> str:
    return f'{file}: graph "{name}"'


# -- the environment


def _env(file: Path, said: Any, notes: list[str]) -> dict[str, str]:
    if said is None:
        return {}
    if isinstance(said, str):
        path = file.parent / said
        if not path.is_file():
            notes.append(f"no file {said}, which env names: what it would set is not set")
            return {}
        found = parse_env(path.read_text(encoding="utf-8-sig"), path)
    elif isinstance(said, dict):
        found = {str(name): str(value) for name, value in said.items()}
    else:
        raise BadArgument(f'{file}: "env" is the name of a file, or an object of texts.')
    if URL in found:
        found[URL] = absolute(found[URL], file.parent)
    return found


def absolute(url: str, folder: Path) -> str:
    """A journal's URL that means the same in every folder."""
    path = url.removeprefix("sqlite:///")
    return url if path in (url, ":memory:") else f"sqlite:///{folder / path}"


_NAME = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*")
_QUOTED = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)""", re.S)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_env(text: str, path: Path) -> dict[str, str]:
    """The variables of a `.env` file: `KEY=value`, `export`, quotes, comments, `${OTHER}`."""
    found: dict[str, str] = {}

    def expand(value: str) -> str:
        def look(match: re.Match[str]) -> str:
            return os.environ.get(match[1], found.get(match[1], ""))

        return re.sub(r"\$\{(\w+)\}", look, value)

    at = 0
    while at < len(text):
        end = text.find("\n", at) % (len(text) + 1)
        line = text[at:end].strip()
        if not line or line.startswith("#"):
            at = end + 1
        elif (name := _NAME.match(text, at)) is None:
            number = text.count("\n", 0, at) + 1
            raise BadArgument(f"{path}, line {number}: {line[:20]!r}… is not KEY=VALUE.")
        elif quoted := _QUOTED.match(text, name.end()):
            single, double = quoted.groups()
            if double is not None:
                double = re.sub(r"\\(.)", lambda e: _ESCAPES.get(e[1], e[1]), double, flags=re.S)
            found[name[1]] = single if double is None else expand(double)
            at = quoted.end()
        else:
            plain = text[name.end() : max(end, name.end())]
            found[name[1]] = expand(re.split(r"(?:^|\s)#", plain)[0].strip())
            at = end + 1
    return found
