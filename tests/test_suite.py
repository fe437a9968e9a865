"""A failure on a busy machine is told apart from a broken test, and the lists of tests that run on
D1 name tests that there are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import suite
from tests.support.on_d1 import NOT_ON_D1, SAMPLE, named

TESTS = Path(__file__).parent
ONCE = """
from pathlib import Path

def test_fails_once():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""
TWICE = """
def test_fails_always():
    raise AssertionError("every time")
"""


def run(folder: Path, tests: str) -> tuple[int, str]:
    file = folder / "test_it.py"
    file.write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.suite", "-q", "-p", "no:cacheprovider", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # which takes seconds
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_test_that_fails_once_is_called_flaky_and_does_not_fail_the_suite(tmp_path: Path) -> None:
    code, printed = run(tmp_path, ONCE)
    assert code == 0
    assert printed.splitlines()[-1].startswith("FLAKY, mend it: ")
    assert "test_it.py::test_fails_once" in printed.splitlines()[-1]


@pytest.mark.slow
def test_a_test_that_fails_twice_fails_the_suite(tmp_path: Path) -> None:
    code, printed = run(tmp_path, ONCE + TWICE)
    assert code == 1
    assert "FAILED TWICE: " in printed
    assert "test_it.py::test_fails_always" in printed


@pytest.mark.slow
def test_many_failures_are_no_accident_and_are_not_repeated(tmp_path: Path) -> None:
    many = f"import pytest\n@pytest.mark.parametrize('n', range({suite.MOST + 1}))"
    code, printed = run(tmp_path, f"{many}\ndef test_fails(n):\n    raise AssertionError(n)\n")
    assert code == 1
    assert "run once more" not in printed


WHERE = """
import os, subprocess, sys
from pathlib import Path

def test_files(tmp_path):
    printed = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
    child = subprocess.run(printed, capture_output=True, text=True).stdout.strip()
    Path(__file__).with_name("found").write_text(f"{tmp_path}\\n{child}")
"""


@pytest.mark.slow
def test_temporary_files_are_in_memory_and_gone_afterwards(tmp_path: Path) -> None:
    if not suite._is_fit(suite.MEMORY):
        pytest.skip(f"{suite.MEMORY} is too small, or no program may run there")
    left = suite.MEMORY / f"{suite.FOLDER}0"  # by a suite that was killed: no process is 0
    left.mkdir(exist_ok=True)
    code, printed = run(tmp_path, WHERE)
    assert code == 0, printed
    own, childs = (tmp_path / "found").read_text().splitlines()
    assert childs.startswith(f"{suite.MEMORY}/{suite.FOLDER}")
    assert own.startswith(f"{childs}/")
    assert not Path(childs).exists()
    assert not left.exists()


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, suite.ENOUGH - 1])
def test_temporary_files_are_on_disk_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    found = os.statvfs(suite.MEMORY)
    blocks = free // found.f_frsize
    small = os.statvfs_result((*found[:4], blocks, *found[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    assert not suite._is_fit(suite.MEMORY)


@pytest.mark.parametrize("name", [*SAMPLE, *NOT_ON_D1])
def test_a_listed_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    text = (TESTS / file).read_text()
    assert not function or f"def {function}(" in text


def test_a_test_is_named_by_its_file_or_its_function() -> None:
    nodeid = "tests/journal/test_a.py::test_one[d1-x::y[0]]"
    assert named(nodeid, ["journal/test_a.py"]) == "journal/test_a.py"
    assert named(nodeid, ["journal/test_a.py::test_one"]) == "journal/test_a.py::test_one"
    assert named(nodeid, ["journal/test_a.py::test_two", "test_a.py"]) is None
