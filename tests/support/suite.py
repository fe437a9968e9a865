"""Run the tests, then what failed once more, alone: `python -m tests.support.suite [options]`.

A test that fails beside others on a busy machine and passes alone is flaky. It does not fail the
suite, but its name is printed last, where it cannot be missed. A test that fails twice fails the
suite. More failures than `MOST` are not an accident, and are not repeated.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MOST = 10
"""Failures that are worth a second try."""


class Failures:
    """A pytest plugin that notes which tests failed, in whichever process they ran."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.root = Path()

    def pytest_configure(self, config: pytest.Config) -> None:
        self.root = config.rootpath  # where the names of tests begin

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names[report.nodeid] = None


def main(options: list[str]) -> int:
    failures = Failures()
    code = pytest.main(options, plugins=[failures])
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures.names) <= MOST:
        return int(code)
    print(f"\n{len(failures.names)} failed; each is run once more, alone.", flush=True)
    flaky: list[str] = []
    broken: list[str] = []
    for name in failures.names:
        (flaky if _passes_alone(name, failures.root) else broken).append(name)
    for name in broken:
        print(f"FAILED TWICE: {name}")
    for name in flaky:
        print(f"FLAKY, mend it: {name} failed beside the others and passed alone")
    return 1 if broken else 0


def _passes_alone(name: str, root: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", name]
    return subprocess.run(command, cwd=root, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
