"""`python -m upstream saver|bound`: run LangGraph's tests on its own savers and on perdure.

Fails when a test that passes with LangGraph's own savers fails with perdure and is not expected to,
or when one that is expected to fail passes. Writes its counts
into docs/reference/compatibility.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from upstream.differences import PAGE, Difference, load, replace_block

HOME = Path(__file__).parent.parent / ".upstream"
VENV = HOME / "venv"
NEEDS = ["pycryptodome", "pytest-mock", "redis", "syrupy"]
"""What LangGraph's tests import, besides what perdure's own tests do."""
WHAT = {"saver": "with perdure's saver", "bound": "through bound graphs"}
SELECTED = {"saver": [], "bound": ["-k", "not sqlite"]}
"""A bound graph is tried on one kind of saver: the variants of a test for SQLite are left out."""


@dataclass
class Result:
    """What came of one test."""

    outcome: str = "passed"
    used: set[str] = field(default_factory=set)
    error: str = ""


def prepare() -> Path:
    """LangGraph's tests and what they need. Gives the folder of the sdist."""
    release = f"langgraph=={version('langgraph')}"
    folder = HOME / release.replace("==", "-")
    if not folder.exists():
        HOME.mkdir(exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
        subprocess.run([*pip, "langgraph", "--dest", str(HOME), release], check=True)
        with tarfile.open(HOME / f"{folder.name}.tar.gz") as sdist:
            # Without its package: the installed one is what is tested.
            wanted = (f"{folder.name}/tests/", f"{folder.name}/pyproject.toml")
            inside = [one for one in sdist if one.name.startswith(wanted)]
            sdist.extractall(HOME, inside, filter="data")
    uv = [str(Path(sys.executable).with_name("uv"))]
    root = HOME.parent
    subprocess.run([*uv, "venv", "--quiet", "--allow-existing", str(VENV)], check=True)
    install = ["pip", "install", "--quiet", "--python", str(VENV)]
    install += ["-c", str(root / "constraints.txt"), "-e", f"{root}[all,dev]", *NEEDS]
    subprocess.run([*uv, *install], check=True)
    return folder


def run(folder: Path, how: str, select: list[str]) -> dict[str, Result]:
    """Every test of the selection by its id."""
    results = HOME / f"{how}.jsonl"
    results.unlink(missing_ok=True)
    env = {
        **os.environ,
        "UPSTREAM": how,
        "UPSTREAM_RESULTS": str(results),
        "PYTHONPATH": str(HOME.parent),
        "NO_DOCKER": "true",
        "LANGSMITH_TRACING": "false",
    }
    options = ["-q", "-p", "upstream.plugin", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    options += ["-o", "addopts=", "--tb=no", "--timeout=60", "-n", os.environ.get("JOBS", "auto")]
    command = [str(VENV / "bin" / "python"), "-m", "pytest", *options, *select, "tests"]
    with (HOME / f"{how}.log").open("w") as log:
        subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=log, check=False)
    if not results.exists():
        sys.exit(f"No test was run; {HOME.name}/{how}.log says why.")
    found: dict[str, Result] = {}
    for line in results.read_text().splitlines():
        report = json.loads(line)
        result = found.setdefault(report["id"].removeprefix("tests/"), Result())
        result.used |= set(report["used"])
        if report["outcome"] != "passed" and result.outcome != "failed":
            result.outcome, result.error = report["outcome"], report["error"] or ""
    return found


@dataclass
class Comparison:
    """What perdure does with the tests that use it and that pass without it."""

    part: str
    stock: dict[str, Result]
    ours: dict[str, Result]
    expected: list[Difference]

    def __post_init__(self) -> None:
        passes = {id for id, result in self.stock.items() if result.outcome == "passed"}
        self.tests = sorted(id for id in passes & self.ours.keys() if self._concerns(id))
        self.failed = [id for id in self.tests if self.ours[id].outcome != "passed"]
        why = {name: one for one in self.expected for name in one.of(self.part)}
        self.unexpected = [id for id in self.failed if function_of(id) not in why]
        failed = set(map(function_of, self.failed))
        ran = set(map(function_of, self.tests))
        self.unexpected_passes = sorted(
            name for name, one in why.items() if name in ran - failed and not one.sometimes
        )

    def _concerns(self, id: str) -> bool:
        return self.part in self.ours[id].used

    @property
    def summary(self) -> str:
        functions = set(map(function_of, self.tests))
        passed = functions - set(map(function_of, self.failed))
        return (
            f"LangGraph {version('langgraph')} {WHAT[self.part]}: of {len(functions)} tests "
            f"({len(self.tests)} with their parameters) that pass with LangGraph's own savers, "
            f"{len(passed)} pass ({len(self.tests) - len(self.failed)})"
        )


def function_of(id: str) -> str:
    """The test that an id is a variant of."""
    return re.sub(r"\[.*", "", id)


def main(part: str) -> int:
    folder = prepare()
    stock = run(folder, "stock", SELECTED[part])
    found = Comparison(part, stock, run(folder, part, SELECTED[part]), load())
    for id in found.unexpected:
        error = found.ours[id].error.partition("\n")[0]
        print(f"fails, and is not expected to: {id}\n    {error}")
    for name in found.unexpected_passes:
        print(f"passes, and is expected to fail: {name}")
    print(found.summary)
    if found.unexpected or found.unexpected_passes:
        return 1
    PAGE.write_text(replace_block(PAGE.read_text(), f"upstream {part}", f"{found.summary}."))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
