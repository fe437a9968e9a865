"""Run the tests, then what failed once more, alone: `python -m tests.support.suite [options]`.

A test that fails beside others on a busy machine and passes alone is flaky. It does not fail the
suite, but its name is printed last, where it cannot be missed. A test that fails twice fails the
suite. More failures than `MOST` are not an accident, and are not repeated. The files that took the
longest are printed, too: `make test` has twenty minutes.

Temporary files are in memory where there is enough of it: on a disk, a seventh of the processors'
time went into making and deleting files. A test that is run by itself has them on the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

MOST = 10
"""Failures that are worth a second try."""
SLOWEST = 25
"""Files that are listed with their seconds."""
MEMORY = Path("/dev/shm")
ENOUGH = 8 << 30
"""Bytes that must be free."""
FREED = ("-o", "tmp_path_retention_policy=failed")
"""Options by which only the files of failed tests stay until the end."""
FOLDER = "perdure-suite-"


class Noted:
    """A pytest plugin that notes which tests failed, and how long each file took, in whichever
    process they ran."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.root = Path()

    def pytest_configure(self, config: pytest.Config) -> None:
        self.root = config.rootpath  # where the names of tests begin

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            self.names[report.nodeid] = None

    def print_slowest(self) -> None:
        whole = sum(self.seconds.values())
        if whole < 600:
            return
        print(f"\n{whole:,.0f} seconds of tests, most of them in:")
        slowest = sorted(self.seconds.items(), key=lambda one: -one[1])
        for name, seconds in slowest[:SLOWEST]:
            print(f"{seconds:7,.0f} {name}")


@contextlib.contextmanager
def files_in_memory() -> Iterator[bool]:
    """Inside, this process and those it starts have their temporary files in memory, if they may
    be there: it must be large enough, and programs must be able to run from it."""
    if not _is_fit(MEMORY):
        yield False
        return
    for left in MEMORY.glob(f"{FOLDER}*"):  # by a suite that was killed
        if not Path(f"/proc/{left.name.removeprefix(FOLDER)}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = MEMORY / f"{FOLDER}{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o1777)  # as /tmp: PostgreSQL runs as another user than root, and removes its own
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield True
    finally:
        tempfile.tempdir = None
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _is_fit(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
        memory = Path("/proc/meminfo").read_text()
    except OSError:
        return False
    [available] = [line.split()[1] for line in memory.splitlines() if "MemAvailable" in line]
    free = min(found.f_bavail * found.f_frsize, int(available) << 10)
    return free >= ENOUGH and not found.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK)


def main(options: list[str]) -> int:
    with files_in_memory() as are_there:
        return _run([*FREED, *options] if are_there else options)


def _run(options: list[str]) -> int:
    failures = Noted()
    code = pytest.main(options, plugins=[failures])
    failures.print_slowest()
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
