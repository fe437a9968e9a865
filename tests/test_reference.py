"""The reference is whole and current: every command, setting, table, value and error is in it.

Pages below docs/reference/ are made from docstrings by the site, so what has a docstring is
documented. Here is checked that everything public has one, and that each page names all there is.
"""

import ast
import inspect
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
from docs import command_line, reference_groups
from perdure import errors, types
from perdure.commands.mail import Mail
from perdure.commands.webhooks import RunWebhooks, Webhook
from perdure.server.options import ServerOptions
from perdure.server.ui.identity import TrustedProxy, UiUser
from tests.support.commands import every_command
from tests.support.pages import blocks

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


# -- docstrings


def classes(module: Any) -> list[type]:
    """The public classes that a module defines."""
    found = vars(module).values()
    return [
        one
        for one in found
        if inspect.isclass(one)
        and one.__module__ == module.__name__
        and not one.__name__.startswith("_")
    ]


def exceptions() -> list[type]:
    return [one for one in classes(errors) if issubclass(one, BaseException)]


def documented(source: str) -> Iterator[tuple[str, str]]:
    """The attributes of a module's classes that are described, below them or in the docstring of
    the class: class and name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            section = (ast.get_docstring(node) or "").partition("\nAttributes:\n")[2]
            for name in re.findall(r"^    (\w+)(?: \(.+?\))?: ", section, re.MULTILINE):
                yield node.name, name
            for before, after in zip(node.body, node.body[1:], strict=False):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if is_text and isinstance(before, ast.AnnAssign):
                    yield node.name, ast.unparse(before.target)
                if is_text and isinstance(before, ast.Assign):
                    yield node.name, ast.unparse(before.targets[0])


OPTIONS = [Webhook, RunWebhooks, Mail, perdure.Redaction, UiUser, TrustedProxy, ServerOptions]


@pytest.mark.parametrize("kind", [*classes(types), *OPTIONS], ids=lambda kind: kind.__name__)
def test_every_value_and_each_of_its_fields_has_a_docstring(kind: type) -> None:
    assert inspect.getdoc(kind)
    source = inspect.getsourcefile(kind)
    assert source is not None
    found = {name for of, name in documented(Path(source).read_text()) if of == kind.__name__}
    wanted: set[str] = set()
    if is_dataclass(kind):
        wanted = {one.name for one in fields(kind)} & {*inspect.get_annotations(kind)}
    if issubclass(kind, StrEnum):
        wanted = {*kind.__members__}
    assert wanted <= found, f"{kind.__name__} has fields without a docstring: {wanted - found}"


@pytest.mark.parametrize("kind", exceptions(), ids=lambda kind: kind.__name__)
def test_every_error_says_when_it_is_raised_and_what_to_do(kind: type) -> None:
    doc = inspect.getdoc(kind) or ""
    summary, *paragraphs = doc.split("\n\n")
    assert summary.endswith("."), "the first line says what happened"
    assert "\n" not in summary
    assert any(re.match(r"Raised (when|by|in|inside) ", one) for one in paragraphs)
    assert any(one.startswith("What to do: ") for one in paragraphs)


def test_every_value_and_every_error_has_its_place_in_the_reference() -> None:
    for name, module in (("types", types), ("errors", errors)):
        text = reference_groups.expanded(page(name))
        listed = re.findall(rf"^::: perdure\.{name}\.(\w+)$", text, re.MULTILINE)
        assert len(listed) == len({*listed})
        assert {one.__name__ for one in classes(module)} <= {*listed}


def test_every_kind_of_event_says_what_its_data_is() -> None:
    doc = inspect.getdoc(types.EventKind) or ""
    for kind in types.EventKind:
        text = re.search(rf"^    {kind.name}: (.*?)(?=\n    \w|\Z)", doc, re.DOTALL | re.MULTILINE)
        assert text is not None
        assert "Data:" in text[1] or kind is types.EventKind.UPDATED, kind


@pytest.mark.parametrize("name", perdure.__all__)
def test_every_public_name_has_a_docstring_of_which_the_first_line_is_a_sentence(name: str) -> None:
    doc = inspect.getdoc(getattr(perdure, name)) or ""
    assert re.match(r"[^\n]+[.:]\n*", doc), doc.partition("\n")[0]


# -- the command line


def test_every_command_is_in_the_reference_with_each_of_its_options() -> None:
    text = command_line.generated()
    assert re.findall(r"^### `perdure (.+)`$", text, re.MULTILINE) == [*every_command()]
    for name, command in every_command().items():
        section = text.partition(f"### `perdure {name}`\n")[2].partition("\n### ")[0]
        for param in command.params:
            if param.param_type_name == "option":
                for option in [*param.opts, *param.secondary_opts]:
                    assert re.search(rf"(?<![\w-]){option}(?![\w-])", section), f"{name} {option}"


def test_the_first_line_of_a_commands_help_fits_the_list_of_commands() -> None:
    for name, command in every_command().items():
        first, *rest = command.help.split("\n\n")
        assert first.endswith("."), name
        assert len(command.short_help) <= 60, name
        assert not rest or all(one.strip() for one in rest)


def test_the_help_of_a_command_is_written_for_a_terminal_not_for_python() -> None:
    python = re.compile(r"\braises?\b|\bawait\b|\b[Ii]n a node\b|\bRun\.|\bcall(ed)? it again\b")
    for name, command in every_command().items():
        texts = [command.help, *(getattr(one, "help", None) or "" for one in command.params)]
        assert not any(map(python.search, texts)), name


# -- settings

VARIABLE = re.compile(r"\bPERDURE_[A-Z0-9_]+\b")


def test_the_page_of_settings_has_every_variable_that_the_source_reads_and_no_other() -> None:
    files = [one for one in (ROOT / "src").rglob("*") if one.suffix in (".py", ".js", ".jsonc")]
    read = {name for file in files for name in VARIABLE.findall(file.read_text(encoding="utf-8"))}
    listed = {*re.findall(r"^\| `(PERDURE_[A-Z0-9_]+)` \|", page("settings"), re.MULTILINE)}
    assert listed == read


def test_the_page_of_settings_has_the_variables_of_others_that_the_source_names() -> None:
    names = re.compile(r'"((?:OTEL|LANGSMITH)_[A-Z0-9_]+[A-Z0-9])"')
    sources = [one.read_text(encoding="utf-8") for one in (ROOT / "src").rglob("*.py")]
    for name in {name for source in sources for name in names.findall(source)}:
        assert f"`{name}`" in page("settings"), name


# -- the SQL schema


class Letter(TypedDict, total=False):
    to: str
    sent: str


def asks(state: Letter) -> Letter:
    return {"sent": perdure.ask({"to": state["to"]})}


@pytest.fixture
def used_journal(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, perdure.types.Run]]:
    """A journal with a run that asks a person."""
    with perdure.Runtime(f"sqlite:///{tmp_path}/agents.db") as runtime:
        graph = StateGraph(Letter).add_node("asks", asks).add_edge(START, "asks")
        runtime.register(graph, name="letter")
        run = runtime.blocking.start("letter", {"to": "ada"}, thread_id="1")
        runtime.blocking.tick()
    connection = sqlite3.connect(f"{tmp_path}/agents.db")
    yield connection, run
    connection.close()


def test_the_page_of_the_schema_has_every_table(
    used_journal: tuple[sqlite3.Connection, perdure.types.Run],
) -> None:
    database, _ = used_journal
    tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    listed = re.findall(r"^\| `(perdure_\w+)` \|", page("sql-schema"), re.MULTILINE)
    assert sorted(listed) == sorted(table for (table,) in tables)


def test_the_queries_on_the_page_of_the_schema_run_and_some_find_the_run(
    used_journal: tuple[sqlite3.Connection, perdure.types.Run],
) -> None:
    database, run = used_journal
    given = {"now": 2**53, "thread_id": run.thread_id, "run_id": run.id}
    found = {
        block.text.splitlines()[0]: database.execute(block.text, given).fetchall()
        for block in blocks(REFERENCE / "sql-schema.md")
        if block.language == "sql"
    }
    assert len(found) > 5
    assert found["SELECT graph, state, count(*) AS runs"] == [("letter", "waiting", 1)]
    assert [kind for _, _, kind in found["SELECT n, at, kind"]][:2] == ["started", "claimed"]
    questions = found["SELECT id, graph, thread_id, assignee, created_at, expires_at"]
    assert [row[1:3] for row in questions] == [("letter", "1")]


# -- the HTTP API


def test_the_page_of_the_http_api_has_every_operation_with_the_fields_of_its_body() -> None:
    with perdure.Runtime("sqlite:///:memory:") as runtime:
        api = runtime.asgi().openapi()
    own = ("/perdure/", "/ok", "/info", "/metrics", "/cron/")
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in api["paths"].items()
        if path.startswith(own)
        for method, operation in methods.items()
    }
    rows = dict(
        re.findall(r"^\| `([A-Z]+ /\S+)` \|[^|]+\| (.*) \|$", page("http-api"), re.MULTILINE)
    )
    assert rows.keys() == operations.keys()
    for name, operation in operations.items():
        body = str(operation.get("requestBody", {}))
        for schema in re.findall(r"#/components/schemas/(\w+)", body):
            for field in api["components"]["schemas"][schema]["properties"]:
                assert f"`{field}`" in rows[name], f"{name} takes {field}"
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "query" and "stream" not in name:
                assert f"`{parameter['name']}`" in rows[name], f"{name} takes {parameter['name']}"
