"""Importing perdure is cheap, and its modules import each other in one direction only.

The layers are the table of ARCHITECTURE.md: a module imports from its own layer and from those
above it. LangGraph takes seconds to import: it comes with the saver, not before.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure

HOME = Path(perdure.__file__).parent
ARCHITECTURE = HOME.parents[1] / "ARCHITECTURE.md"
WITHOUT_LANGGRAPH = (
    "errors",
    "types",
    "times",
    "serde",
    "journal",
    "commands",
    "views",
)


def layers() -> list[set[str]]:
    """The rows of the table of layers: folders (`journal`) and modules (`saver`,
    `execution/segment.py`) by name."""
    section = ARCHITECTURE.read_text().partition("## Layers")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("|")][2:]
    return [
        {
            name.rstrip("/").removesuffix(".py").replace("/", ".")
            for name in re.findall("`([^`]+)`", files)
        }
        for files in rows
    ]


LAYER = {name: n for n, names in enumerate(layers()) for name in names}


def layer_of(module: str) -> int:
    """That of the module itself, or else of the nearest folder it is in."""
    while module not in LAYER:
        module = module.rpartition(".")[0]
    return LAYER[module]


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by its name inside it."""
    for path in sorted(HOME.rglob("*.py")):
        parts = path.relative_to(HOME).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            yield name, path


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in it, as `a.b.c`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module
            # `from perdure.journal import failpoints` imports a module too
            for alias in node.names:
                if f"{node.module}.{alias.name}" in EVERY:
                    yield f"{node.module}.{alias.name}"


EVERY = {f"perdure.{name}" for name, _ in modules()}


def types_of_runtime(path: Path) -> bool:
    """Whether a file names `Runtime` for the type checker only, as the server does: it serves one,
    and `Runtime.asgi()` imports the server when it is called."""
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    return any(
        ast.unparse(block.test) == "TYPE_CHECKING" and "perdure.runtime" in ast.unparse(block)
        for block in blocks
    )


def own_imports(path: Path) -> set[str]:
    found = {name.removeprefix("perdure.") for name in imported(path) if name in EVERY}
    if path.is_relative_to(HOME / "server") and types_of_runtime(path):
        found.discard("runtime")
    # A package is imported along with each of its modules; what counts is the module.
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def test_every_layer_of_the_map_is_there_and_every_module_is_on_it() -> None:
    names = {name for name, _ in modules()}
    assert {name.partition(".")[0] for name in names} == {one.partition(".")[0] for one in LAYER}
    assert LAYER.keys() <= names


def test_a_module_imports_from_its_own_layer_and_those_above() -> None:
    wrong = [
        f"{name} imports {other}, which is below it"
        for name, path in modules()
        for other in own_imports(path)
        if layer_of(other) > layer_of(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_of_one_layer_do_not_import_in_a_circle() -> None:
    needs = {name: own_imports(path) for name, path in modules()}

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a circle: {' > '.join((*above, name))}"
        for other in needs.get(name, ()):
            package = name.startswith(f"{other}.")  # only as the package its neighbours are in
            if layer_of(other) == layer_of(name) and not package:
                visit(other, (*above, name))

    for name in needs:
        visit(name, ())


def assigned(path: Path) -> list[str]:
    """The names that a module gives values at its top level, each as often as it does."""
    body = ast.parse(path.read_text()).body
    targets = [one for node in body if isinstance(node, ast.Assign) for one in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign) and node.value]
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def test_no_module_gives_two_meanings_to_a_constant() -> None:
    for name, path in modules():
        twice = [one for one, count in Counter(assigned(path)).items() if count > 1]
        assert not twice, f"{name} assigns {twice} twice: what is above gets what is below"


def test_what_only_asks_the_journal_does_not_import_langgraph() -> None:
    heavy = {"langgraph", "langchain", "langchain_core"}
    wrong = [
        f"{name} imports {one}"
        for name, path in modules()
        if name.partition(".")[0] in WITHOUT_LANGGRAPH or name in ("client", "blocking")
        for one in imported(path)
        if one.partition(".")[0] in heavy
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_crash_test_command_imports_what_is_for_tests() -> None:
    users = {
        name
        for name, path in modules()
        if not name.startswith("testing")
        and any(one.startswith("perdure.testing") for one in imported(path))
    }
    assert users == {"cli.testing"}  # which is a test itself


def loaded_after(code: str) -> set[str]:
    """The top-level modules in a fresh interpreter that ran some code."""
    code += "; import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


HEAVY = {"langgraph", "langchain_core", "pydantic", "psycopg", "cryptography", "numpy"}


def test_importing_perdure_imports_nothing_heavy() -> None:
    assert loaded_after("import perdure").isdisjoint(HEAVY | {"asyncio", "dataclasses"})


def test_connecting_a_journal_imports_no_langgraph() -> None:
    code = "import perdure; perdure.connect('sqlite:///:memory:').close()"
    assert loaded_after(code).isdisjoint(HEAVY)


def test_the_public_names_are_there_and_no_others() -> None:
    assert dir(perdure) == sorted(perdure.__all__)
    for name in perdure.__all__:
        assert getattr(perdure, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perdure.nothing


def test_without_the_extra_the_command_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['click'] = None; import perdure.command_line as c; exit(c.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "perdure: the command line needs the extra: install perdure[cli].\n"
