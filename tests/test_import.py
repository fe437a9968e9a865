"""Importing perdure is cheap, and its modules import each other in one direction only.

LangGraph takes seconds to import: it comes with the saver, not before.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from tests.support.interpreter import loaded_after

HOME = Path(perdure.__file__).parent

# A module imports from the layers above its own, and from its own.
LAYERS = [
    {"errors", "allowlist"},
    {"names"},
    {"seal", "shapes", "kinds"},
    {"codec"},
    {"journal.op", "journal.probe", "journal.sql", "journal.migrate"},
    {"journal.commit", "journal.pool", "journal.log", "journal.sqlite", "journal.postgres"},
    {"journal"},
    {"types", "box", "clock", "ids", "schemas"},
    {"history"},
    {"runs", "waits", "schedules", "scores"},
    {"told", "doctor"},
    {"segment"},
    {"checkpoint"},
    {"checkpoint.cells", "checkpoint.lanes", "checkpoint.ops", "checkpoint.rows"},
    {"checkpoint.write", "checkpoint.read", "checkpoint.prune"},
    {"checkpoint.config"},
    {"saver"},
    {"reflections"},
    {"effects"},
    {"effects.ops", "effects.record", "effects.messages"},
    {"effects.desk", "effects.inside"},
    {"effects.filing"},
    {"effects.settle"},
    {"effects.deeds"},
    {"effects.call", "effects.book"},
    {"effects.undo", "effects.outbox", "langchain", "agent"},
    {"graphs", "arguments"},
    {"driver", "presence", "threads", "delivery"},
    {"keeper", "ledger", "inbox", "calls", "blocking"},
    {"worker", "bound", "client"},
    {"server", "server.cron"},
    {"server.app"},
    {"runtime"},
    {"langmem.draft"},
    {"langmem.memories", "langmem.reflection"},
    {"langmem.means"},
    {"langmem.driving"},
    {"langmem.executor"},
    {"langmem.records"},
    {"langmem.kept"},
    {"langmem"},
    {"cli.group", "cli.given", "cli.tell", "cli.loading", "cli.schema"},
    {"cli.project", "cli.timeline"},
    {"cli.place", "cli.lookup"},
    {"cli.complete", "cli.feed"},
    {"cli.runs"},
    {"cli.demo", "cli.dev", "cli.drive", "cli.start", "cli.inbox", "cli.control"},
    {"cli.effects", "cli.schedules", "cli.reflections", "cli.upkeep", "cli.export"},
    {"cli.show", "cli.crashtest"},
    {"cli"},
    {"__main__"},
]
SPEAK_LANGGRAPH = {
    "agent",
    "effects.desk",
    "langchain",
    "saver",
    "graphs",
    "driver",
    "calls",
    "bound",
}
LAYER = {name: n for n, names in enumerate(LAYERS) for name in names}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by its name inside it; not what is only for tests."""
    for path in sorted(HOME.rglob("*.py")):
        parts = path.relative_to(HOME).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and parts[0] != "testing":
            yield name, path


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in it, as `a.b.c`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module
            # `from perdure.journal import probe` imports a module too
            for alias in node.names:
                if f"{node.module}.{alias.name}" in EVERY:
                    yield f"{node.module}.{alias.name}"


EVERY = {f"perdure.{name}" for name, _ in modules()}
EACH = pytest.mark.parametrize(
    ("name", "path"), [pytest.param(name, path, id=name) for name, path in modules()]
)


def own_imports(path: Path) -> set[str]:
    found = {name.removeprefix("perdure.") for name in imported(path) if name in EVERY}
    # A package is imported along with each of its modules; what counts is the module.
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


@EACH
def test_a_module_imports_from_above_only(name: str, path: Path) -> None:
    assert name in LAYER, f"{name} is new: give it a place in LAYERS"
    for other in own_imports(path):
        if other == "journal" and name.startswith("journal."):
            continue  # only as the package its neighbours are in
        assert LAYER[other] <= LAYER[name], f"{name} imports {other}, which is below it"


def test_modules_of_one_layer_do_not_import_in_a_circle() -> None:
    needs = {name: own_imports(path) for name, path in modules()}

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a circle: {' > '.join((*above, name))}"
        for other in needs[name]:
            if LAYER[other] == LAYER[name]:
                visit(other, (*above, name))

    for name in needs:
        visit(name, ())


@EACH
def test_only_what_drives_graphs_and_stores_checkpoints_imports_langgraph(
    name: str, path: Path
) -> None:
    if name not in SPEAK_LANGGRAPH and not name.startswith(("checkpoint.", "langmem.")):
        roots = {one.partition(".")[0] for one in imported(path)}
        assert roots.isdisjoint({"langgraph", "langchain", "langchain_core"})


@EACH
def test_nothing_imports_what_is_only_for_tests(name: str, path: Path) -> None:
    uses = any(one.startswith("perdure.testing") for one in imported(path))
    assert uses == (name == "cli.crashtest")  # which is a test itself


HEAVY = {"langgraph", "langchain_core", "pydantic", "psycopg", "cryptography", "numpy"}


def test_importing_perdure_imports_nothing_heavy() -> None:
    assert loaded_after("import perdure").isdisjoint(HEAVY)


def test_connecting_a_journal_imports_no_langgraph() -> None:
    code = "import perdure; perdure.connect('sqlite:///:memory:').close()"
    assert loaded_after(code).isdisjoint(HEAVY)


def test_the_public_names_are_there_and_no_others() -> None:
    assert dir(perdure) == sorted(perdure.__all__)
    for name in perdure.__all__:
        assert getattr(perdure, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perdure.nothing
