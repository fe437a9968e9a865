"""What the code weighs: the figures that ARCHITECTURE.md has a budget for.

`python -m tests.support.weight` prints them; with `--write` it lowers the budgets to what is there.
Code lines are lines without docstrings, comments and blank lines.
"""

from __future__ import annotations

import ast
import asyncio
import io
import re
import sqlite3
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "perdure"
PAGE = ROOT / "ARCHITECTURE.md"
ROOMS = ("server", "cli", "langmem", "evals", "testing")
"""Folders that may import public names only."""
AROUND_THE_CORE = ("server", "views", "cli", "evals", "testing")
PUBLIC = re.compile(
    r"perdure(\.(errors|types|agent|client|runtime|saver|d1|langchain|langmem|evals|observe"
    r"|testing(\.crashtest)?|server|journal_store|thread_import|verbs|views(\.\w+)*|commands(\.[a-z]\w*)?|times|text|failures|failpoints|shutdown"
    r"|stores|context_managed))?$"
)
RUNS = 10
VERBS = {
    *("pause", "resume", "cancel", "wake", "retry", "comment", "score", "signal", "erase", "prune"),
    *("answer", "assign", "withdraw", "link", "settle", "redeliver", "drain"),
    *("schedule", "enable_schedule", "unschedule"),
}
"""What people and programs change: one declaration of each is enough."""


def code_lines(path: Path) -> int:
    """The number of code lines of a Python file."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        first = body[0]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            value = getattr(first, "value", None)
            if isinstance(first, ast.Expr) and isinstance(getattr(value, "value", None), str):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in no_code and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def only_forwards(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function does nothing but pass all its parameters on."""
    body = [
        one
        for one in function.body
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    ]
    arguments = [*function.args.args, *function.args.kwonlyargs]
    own = {one.arg for one in arguments} - {"self", "cls"}
    nodes = [node for one in body for node in ast.walk(one)]
    decides = (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.BoolOp, ast.Compare, ast.BinOp)
    builds = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
    if not own or len(body) > 3 or any(isinstance(node, decides + builds) for node in nodes):
        return False
    passed = {
        value.id
        for node in nodes
        if isinstance(node, ast.Call)
        for value in (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(value, ast.Name)
    }
    return own <= passed


def forwards(paths: Iterable[Path]) -> int:
    return sum(
        only_forwards(node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def imports_of_internals() -> Iterator[tuple[Path, str]]:
    """The imports with which the rooms around the core reach behind its public names."""
    for room in ROOMS:
        own = f"perdure.{room}"
        for path in sorted((SOURCE / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
                for name in names or ([module] if module else []):
                    inside = name == own or name.startswith(f"{own}.")
                    if (
                        name.partition(".")[0] == "perdure"
                        and not inside
                        and not PUBLIC.match(name)
                    ):
                        yield path, name


def declarations(paths: Iterable[Path]) -> Iterator[tuple[str, Path, int]]:
    """Where the `VERBS` are declared: the verb itself, and each function (a plan, a method, a
    command, a handler of a route) or body of a request that has its name and restates its
    parameters."""
    trees = {path: ast.parse(path.read_text()) for path in paths}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    wanted = {
        name: [one for one in _fields(node) if one != "on"]
        for _, node in nodes
        if (name := _verb_of(node)) in VERBS and name is not None
    }
    for path, node in nodes:
        name = _verb_of(node) or re.sub(
            "_?(body|form)$", "", str(getattr(node, "name", "")).lower()
        )
        if isinstance(node, ast.ClassDef) and name == node.name.lower():
            continue  # a value
        own, has = wanted.get(name.strip("_"), []), _fields(node)
        if own and own[0] in has and len({*own} & {*has}) >= len(own) / 2:
            yield name.strip("_"), path, getattr(node, "lineno", 0)


def _verb_of(node: ast.AST) -> str | None:
    """The name of the verb that a function declares."""
    for one in getattr(node, "decorator_list", ()):
        if isinstance(one, ast.Call) and getattr(one.func, "id", None) == "verb":
            named = [ast.literal_eval(word.value) for word in one.keywords if word.arg == "name"]
            return str(named[0] if named else getattr(node, "name", None))
    return None


def _fields(node: ast.AST) -> list[str]:
    """The parameters of a function, or the fields of a class."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
    body = node.body if isinstance(node, ast.ClassDef) else ()
    return [
        one.target.id
        for one in body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    ]


class Calls:
    """Counts the calls of our functions in every thread, since the birth of the thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_on = False
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename
        if self.is_on and event == "call" and name.startswith(str(SOURCE)):
            self.counts[name] += 1


async def no_op_runs() -> tuple[float, int]:
    """Calls of our functions for each of several runs that are driven together, and the files that
    the way from `start` to the first line of a node crosses."""
    calls, crossed = Calls(), [0]
    from langgraph.graph import START, StateGraph

    import perdure

    def node(state: Any) -> dict[str, Any]:
        crossed[0] = crossed[0] or (len(calls.counts) if calls.is_on else 0)
        return {"x": 1}

    with tempfile.TemporaryDirectory() as folder:
        async with perdure.Runtime(f"sqlite:///{folder}/journal.db") as rt:
            builder: Any = StateGraph(dict)
            rt.register(builder.add_node("n", node).add_edge(START, "n"), name="g")
            for _ in range(3):
                await rt.start("g", {})
                await rt.tick()
            calls.is_on = True
            await rt.start("g", {})
            await rt.tick()
            calls.counts.clear()
            for _ in range(RUNS):
                await rt.start("g", {})
            await rt.tick(limit=RUNS)
            calls.is_on = False
    return sum(calls.counts.values()) / RUNS, crossed[0]


def empty_journal() -> dict[str, int]:
    """Tables, indexes and bytes of a new SQLite journal."""
    import perdure

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        with perdure.Client(f"sqlite:///{path}"):
            pass
        database = sqlite3.connect(path)
        count = "SELECT count(*) FROM sqlite_schema WHERE type = ? AND name NOT LIKE 'sqlite_%'"
        tables, indexes = (
            database.execute(count, (one,)).fetchone()[0] for one in ("table", "index")
        )
        database.close()
        return {"tables": tables, "indexes": indexes, "bytes": path.stat().st_size}


def statements() -> int:
    text = (SOURCE / "journal" / "queries.sql").read_text()
    return len(re.findall(r"(?m)^-- name: ", text))


def words(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def measured() -> dict[str, float]:
    """Every figure, by its row in the table."""
    source = {path: code_lines(path) for path in python_files("src")}
    core = [
        lines
        for path, lines in source.items()
        if path.relative_to(SOURCE).parts[0] not in AROUND_THE_CORE
    ]
    journal = empty_journal()
    calls, crossed = asyncio.run(no_op_runs())
    folders = ("docs", "examples", "bench", "matrix", "upstream", "tests", "src")
    pages = [*ROOT.glob("*.md"), *(one for name in folders for one in (ROOT / name).rglob("*.md"))]
    return {
        "code lines of `src`": sum(source.values()),
        "of these the core": sum(core),
        "files of `src`": len(source),
        "lines of `src`": sum(len(path.read_text().splitlines()) for path in source),
        "files with fewer than 50 code lines": sum(0 < lines < 50 for lines in source.values()),
        "functions that only forward": forwards(source),
        "declarations of 20 verbs": len(list(declarations(source))),
        "calls of our functions for a no-op run": calls,
        "files from `start` to the node": crossed,
        "tables": journal["tables"],
        "indexes": journal["indexes"],
        "statements": statements(),
        "bytes of an empty journal": journal["bytes"],
        "imports of internals from the rooms": len(list(imports_of_internals())),
        "code lines of `tests`": sum(map(code_lines, python_files("tests"))),
        "of these `tests/support`": sum(map(code_lines, python_files("tests/support"))),
        "code lines of `examples`": sum(map(code_lines, python_files("examples"))),
        "lines of `bench` and `matrix`": sum(
            len(path.read_text().splitlines()) for path in python_files("bench", "matrix")
        ),
        "words of documentation": words(pages),
    }


def budgets() -> dict[str, tuple[int, int]]:
    """The table of ARCHITECTURE.md: of each figure the budget and the aim."""
    section = PAGE.read_text().partition("## Weight")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return {
        name.strip(): (int(budget.replace(",", "")), int(aim.replace(",", "")))
        for name, budget, aim in rows
    }


def write_budgets(found: dict[str, float]) -> None:
    """Have the table say what is there."""
    text = PAGE.read_text()
    for name, (_, aim) in budgets().items():
        row = rf"(?m)^\| {re.escape(name)} \|.*$"
        text = re.sub(row, f"| {name} | {found[name]:,.0f} | {aim:,} |", text)
    PAGE.write_text(text)


if __name__ == "__main__":
    figures = measured()
    if "--write" in sys.argv:
        write_budgets(figures)
    for row, (budget, aim) in budgets().items():
        print(f"{row:45} {figures[row]:>10,.0f}  budget {budget:>8,}  aim {aim:>8,}")
