"""A crash test for any agent.

    report = perdure.testing.crashtest("agents:campaign", {"contact": 7})
    report.check()

The agent runs in real processes that die by SIGKILL, before and after every statement of the
journal and around every effect; so do the processes that recover. This process is the judge.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from perdure.errors import BadArgument
from perdure.testing.crashtest.crash_test import CrashTest
from perdure.testing.crashtest.model import Calls, Finding, Outcome, Point, Problem, Trial
from perdure.testing.crashtest.report import Report
from perdure.testing.crashtest.results import counts
from perdure.testing.crashtest.witness import outside

__all__ = [
    "Calls",
    "CrashTest",
    "Finding",
    "Outcome",
    "Point",
    "Problem",
    "Report",
    "Trial",
    "counts",
    "crashtest",
    "outside",
    "place_of",
]


def crashtest(graph: Any, input: Any = None, **options: Any) -> Report:
    """Kill an agent at every point, let it recover, and report what was duplicated or lost.

    The agent runs in real processes that die by SIGKILL before and after every statement of the
    journal and around every effect; so do the processes that recover. Each trial has a fresh
    journal. The agent really acts, once per trial: point it at a sandbox.

        report = perdure.testing.crashtest("agents:campaign", {"contact": 7})
        report.check()

    Args:
        graph: The place of the graph, `module:name`; or a graph or function at the top level of a
            module that other processes can import. It may be a `StateGraph`, a compiled graph, an
            `@entrypoint`, or a function without arguments that returns one.
        input: The input of the run, as JSON data.
        **options: The keyword arguments of `CrashTest`.

    Returns:
        The results. `report.check()` fails a test with the findings.

    Raises:
        BadArgument: Other processes cannot find the graph, or there is nothing to test.
    """
    return CrashTest(place_of(graph), input, **options).run()


def place_of(graph: Any) -> str:
    """Return the `module:name` under which another process finds the same object."""
    if isinstance(graph, str):
        return graph
    if inspect.isfunction(graph):
        module, name = graph.__module__, graph.__qualname__
        if getattr(sys.modules.get(module), name, None) is graph and module != "__main__":
            return f"{module}:{name}"
    for module, found in list(sys.modules.items()):
        if module == "__main__":
            continue
        for name, value in list(getattr(found, "__dict__", {}).items()):
            if value is graph:
                return f"{module}:{name}"
    raise BadArgument(
        f"Other processes cannot find {graph!r}: no module they can import has it. Put "
        'it, or a function that makes it, at the top of a module, and name it: "module:name".'
    )
