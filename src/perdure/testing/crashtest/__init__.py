"""A crash test for any agent.

    report = perdure.testing.crashtest("agents:campaign", {"contact": 7})
    report.check()

The agent runs in real processes that die by SIGKILL, before and after every statement of the
journal and around every effect; so do the processes that recover. This process is the judge.
"""

from __future__ import annotations

from typing import Any

from perdure.testing.crashtest.crash_test import CrashTest
from perdure.testing.crashtest.report import (
    Finding,
    Outcome,
    Point,
    Problem,
    Report,
    Trial,
    counts,
)

__all__ = [
    "CrashTest",
    "Finding",
    "Outcome",
    "Point",
    "Problem",
    "Report",
    "Trial",
    "counts",
    "crashtest",
]


def crashtest(graph: str, input: Any = None, **options: Any) -> Report:
    """Kill an agent at every point, let it recover, and report what was duplicated or lost.

    The agent runs in real processes that die by SIGKILL before and after every statement of the
    journal and around every effect; so do the processes that recover. Each trial has a fresh
    journal. The agent really acts, once per trial: point it at a sandbox.

        report = perdure.testing.crashtest("agents:campaign", {"contact": 7})
        report.check()

    Args:
        graph: The place of the graph, `module:name`: a `StateGraph`, a compiled graph, an
            `@entrypoint`, or a function without arguments that returns one.
        input: The input of the run, as JSON data.
        **options: The keyword arguments of `CrashTest`.

    Returns:
        The results. `report.check()` fails a test with the findings.

    Raises:
        BadArgument: Other processes cannot import the graph, or there is nothing to test.
    """
    return CrashTest(graph, input, **options).run()
