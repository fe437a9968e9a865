"""The docs are true: their Python runs, their output is what it prints, and they name no machine.
The reference is whole: every command, method, field and error is in it.

Blocks of one page share a namespace and run in order, in an empty working directory. A block may
use `await` at its top level. In the page's source,

- `<!-- no-run: reason -->` on the line before a Python block: it is compiled, not run;
- `<!-- output -->` on the line before a text or console block: it equals what the Python block
  above it printed.
"""

import asyncio
import contextlib
import functools
import importlib
import inspect
import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langgraph.pregel import Pregel

import perdure
from docs.reference_groups import expanded
from perdure import errors
from perdure.blocking import LoopThread
from perdure.client import BlockingClient, Client
from perdure.commands import health
from perdure.execution.bound_graph import BoundGraph
from perdure.runtime import BlockingRuntime, Runtime
from perdure.saver import Saver
from perdure.types import State
from tests.support.fork_server import ForkServer
from tests.support.forked_python import instead_of_subprocess
from tests.support.pages import Block, blocks

REFERENCE_PAGES = Path(__file__).parents[1] / "docs" / "reference"
_DIRECTIVE = re.compile(r"^::: ([\w.]+)\n((?: {4}.*\n)*)", re.MULTILINE)
_MEMBERS = re.compile(r"\bmembers: (false|\[[^\]]*\])")


def public(kind: type) -> list[str]:
    """The public names that a class defines itself."""
    return sorted(name for name in vars(kind) if not name.startswith("_"))


def path_of(value: Any) -> str:
    """Where a class, function or method is defined, however it was reached."""
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(getattr(value, "func", value))  # a cached property
    return f"{value.__module__}.{value.__qualname__}"


@functools.cache
def described() -> dict[str, Any]:
    """Everything that has an entry in the reference, by where it is defined."""
    found: dict[str, Any] = {}
    for page in sorted(REFERENCE_PAGES.glob("*.md")):
        for path, options in _DIRECTIVE.findall(expanded(page.read_text(encoding="utf-8")) + "\n"):
            value = _resolve(path)
            if not callable(value):
                continue
            found[path_of(value)] = value
            if inspect.isclass(value):
                found |= _members(value, _MEMBERS.search(f" {options}"))
    return found


def undescribed_parameters(value: Any) -> list[str]:
    """The parameters that the docstring of a class or function does not explain."""
    text = inspect.getdoc(value) or ""
    names = [
        one.name
        for one in inspect.signature(value).parameters.values()
        if one.name not in ("self", "cls")
    ]
    return [name for name in names if not re.search(rf"^ {{4}}\**{name}: ", text, re.MULTILINE)]


def _resolve(path: str) -> Any:
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"The reference names {path}, which is not there.")


def _members(kind: type, named: re.Match[str] | None) -> dict[str, Any]:
    wanted = None
    if named is not None:
        wanted = [] if named[1] == "false" else re.findall(r"\w+", named[1])
    found = {}
    for base in kind.__mro__:
        if base.__module__.startswith("perdure"):
            for name in public(base):
                value = inspect.getattr_static(base, name)
                value = getattr(value, "__func__", value)  # of a class method
                is_field = isinstance(value, (property, functools.cached_property))
                if is_field or (inspect.isfunction(value) and (wanted is None or name in wanted)):
                    found[path_of(value)] = value
    return found


ROOT = Path(__file__).parent.parent
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))] if page.exists()
]


def run_page(page: Path) -> None:
    """Run a page as a reader would, top to bottom, and compare what it claims to print."""
    module = ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module  # annotations are looked up in here
    printed: str | None = None
    try:
        with asyncio.Runner() as runner:
            for block in blocks(page):
                if block.language == "python":
                    printed = _run(block, module, runner)
                elif block.comment == "output":
                    assert block.language in ("text", "console"), f"{block.place}: not a text block"
                    assert printed is not None, f"{block.place}: no Python block ran before this"
                    assert block.text.rstrip() == printed.rstrip(), (
                        f"{block.place}: prints otherwise"
                    )
    finally:
        del sys.modules[module.__name__]


def _run(block: Block, module: ModuleType, runner: asyncio.Runner) -> str | None:
    code = block.compile()
    if block.comment == "no-run":
        assert block.reason, f"{block.place}: no-run needs a reason"
        return None
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        result = eval(code, module.__dict__)
        if inspect.iscoroutine(result):
            runner.run(result)
    return output.getvalue()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page.name == "README.md" else [pytest.mark.slow])
        for page in PAGES
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_python_block_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer
) -> None:
    monkeypatch.chdir(tmp_path)
    instead_of_subprocess(fork_server, monkeypatch)
    run_page(page)


def page_of(directory: Path, text: str) -> Path:
    page = directory / "page.md"
    page.write_text(textwrap.dedent(text), encoding="utf-8")
    return page


def test_blocks_share_a_namespace_and_may_await(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        """
        ```python
        import asyncio
        async def double(n: int) -> int:
            await asyncio.sleep(0)
            return 2 * n
        ```

        1. In a list:

           ```python
           print(await double(21))
           ```

           <!-- output -->
           ```text
           42
           ```
        """,
    )
    run_page(page)


def test_output_that_differs_fails_with_the_line_of_the_page(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        """\
        ```python
        print("one")
        ```
        <!-- output -->
        ```text
        two
        ```
        """,
    )
    with pytest.raises(AssertionError, match=r"page\.md:6: prints otherwise"):
        run_page(page)


def test_a_failing_block_is_reported_at_its_line_of_the_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, "# Title\n\n```python\nvalue = 1\nvalue / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_page(page)
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (str(page), 5)


def test_a_block_marked_no_run_is_compiled_only(tmp_path: Path) -> None:
    run_page(page_of(tmp_path, "<!-- no-run: needs a key -->\n```python\n1 / 0\n```\n"))
    with pytest.raises(SyntaxError):
        run_page(page_of(tmp_path, "<!-- no-run: needs a key -->\n```python\n1 /\n```\n"))
    with pytest.raises(AssertionError, match="needs a reason"):
        run_page(page_of(tmp_path, "<!-- no-run -->\n```python\n1 / 0\n```\n"))


def test_a_block_that_is_never_closed_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="never closed"):
        run_page(page_of(tmp_path, "```python\n1\n"))


# Written in pieces, so that this file does not match itself.
_REGISTRIES = ["pypi" + ".org", "python" + "hosted.org", "npm" + "js.org", "crates" + ".io"]
_OPTIONS = ["index" + "-url", "find" + "-links"]
_MACHINE = re.compile(
    "|".join(
        [
            *(re.escape(host) for host in _REGISTRIES),
            r"https?://\S+/simple\b",  # the address every Python package index ends with
            *(rf"(?<!emit-)\b(?:extra-)?{option}\b[ =]" for option in _OPTIONS),
            r"(?<![\w.}\]])/(?:tmp|work|root|home|Users)/\w",
        ]
    )
)


def committed_files() -> list[Path]:
    """What is tracked, or would be with the next `git add`."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_committed_file_names_a_package_registry_or_a_path_of_someones_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in committed_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if _MACHINE.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "see https://" + "pypi" + ".org/project/perdure",
        "https://registry.example.com/" + "simple",
        "--index" + "-url https://example.com",
        "sqlite:////" + "tmp/journal.db",
        "open('/" + "work/notes.txt')",
        "cd /" + "root/perdure",
    ],
)
def test_the_check_for_machines_sees(line: str) -> None:
    assert _MACHINE.search(line)


@pytest.mark.parametrize(
    "line",
    ["uv pip compile --no-emit-index-url", "{tmp_path}/work/x", "https://example.com/work/it"],
)
def test_the_check_for_machines_lets_pass(line: str) -> None:
    assert not _MACHINE.search(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page} links to {target}, which is not there"


def test_what_the_doctor_says_of_a_healthy_journal_is_what_the_guide_shows() -> None:
    page = (ROOT / "docs" / "guides" / "deploying.md").read_text()
    assert f"All {len(health.INVARIANTS)} invariants hold." in page


OF_BOUND_GRAPHS = {name for name in public(BoundGraph) if hasattr(Pregel, name)} | {"unbound"}
"""Its other methods are for perdure's own modules."""
INTERNAL = {"services"}
"""Properties of a client that say so themselves."""
ENTRIES = {
    **{f"perdure.{name}": getattr(perdure, name) for name in perdure.__all__},
    **{f"errors.{name}": kind for name, kind in vars(errors).items() if inspect.isclass(kind)},
    **{
        f"{kind.__name__}.{name}": inspect.getattr_static(kind, name)
        for kind in (Runtime, Client, BlockingRuntime, BlockingClient)
        for name in public(kind)
        if name not in INTERNAL
    },
    **{f"bound.{name}": inspect.getattr_static(BoundGraph, name) for name in OF_BOUND_GRAPHS},
    "BlockingClient.run": LoopThread.run,
}


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_public_name_has_a_docstring_and_is_in_the_reference(name: str) -> None:
    assert inspect.getdoc(ENTRIES[name])
    assert path_of(ENTRIES[name]) in described()


@pytest.mark.parametrize("name", sorted({*public(Runtime), *public(Client)}))
def test_every_parameter_of_a_method_is_in_its_docstring(name: str) -> None:
    method = inspect.getattr_static(Runtime, name)
    if inspect.isfunction(method):
        assert undescribed_parameters(method) == []


@pytest.mark.parametrize("kind", [Runtime, Client, Saver])
def test_every_option_of_a_class_is_in_its_docstring(kind: type) -> None:
    assert undescribed_parameters(kind) == []


def test_every_state_is_explained() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text()
    for state in State:
        assert f"| `{state}` |" in page


# The guarantees: every promise names tests that exist. The messages of troubleshooting are real.


def promises() -> dict[str, str]:
    """Each promise of the page on guarantees, with what the page says about it."""
    page = (ROOT / "docs" / "guarantees.md").read_text()
    said, _, _ = page.partition("\n## What cannot be promised")
    parts = [part.partition("\n") for part in re.split(r"^###? ", said, flags=re.MULTILINE)]
    return {title: rest for title, _, rest in parts if "**Holds when**" in rest}


def test_every_promise_has_a_condition_a_limit_and_tests_that_exist() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    assert len(promises()) == len(re.findall(r"^### ", page, re.MULTILINE)) > 50
    sources: dict[str, str] = {}
    for promise, said in promises().items():
        _, shown, tests = said.partition("- **Shown by** ")
        assert "- **Limit:** " in said, promise
        linked = re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)#(\w+)\)", tests)
        assert shown, promise
        assert linked, promise
        assert len(linked) == tests.count("]("), f"{promise}: a link that is not to a test"
        for name, file, anchor in linked:
            source = sources.setdefault(file, (ROOT / file).read_text())
            assert name == anchor, promise
            assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{file} {name}"


def test_the_messages_in_the_tables_of_troubleshooting_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
    files = (path.read_text() for path in (ROOT / "src" / "perdure").glob("**/*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(files))  # texts that go on in the next line
    cells = re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE)
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    messages = [text for text in quoted if " " in text and not text.startswith("perdure ")]
    assert len(messages) > 15
    parts = {part.strip() for one in messages for part in re.split(r"…|'\w+'|\w+:///\S+", one)}
    assert [part for part in parts if part not in code] == []
