"""A fact that fails shows which releases are installed, and which it was last verified with."""

from collections.abc import Generator
from importlib.metadata import version

import pytest

from perdure.langgraph_port import VERIFIED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        releases = [f"{name}: {version(name)}, verified with {VERIFIED[name]}" for name in VERIFIED]
        report.sections.append(("a fact of src/perdure/langgraph_port", "\n".join(releases)))
    return report
