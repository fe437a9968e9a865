"""A crash test that anyone can run on their own agent.

    report = perdure.testing.crashtest("agents:campaign", {"contact": 7})
    report.check()

Its processes are real and die by SIGKILL, before and after every statement of the journal and
around every effect; so do those that recover. The judge is another process: this one.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from perdure.errors import BadArgument
from perdure.testing.crashtest.engine import CrashTest
from perdure.testing.crashtest.report import Report, counts
from perdure.testing.crashtest.witness import outside
from perdure.testing.crashtest.words import Calls, Finding, Outcome, Point, Problem, Trial

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
    """Kill an agent everywhere, and report. `report.check()` fails a test with what was found.

    `graph` is a place, `module:name`, or a graph or function that stands at the top of a module.
    The options are those of `CrashTest`.
    """
    return CrashTest(place_of(graph), input, **options).run()


def place_of(graph: Any) -> str:
    """The `module:name` under which another process finds the same thing."""
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
        f"Other processes cannot find {graph!r}: it is no name of a module they could import. Put "
        'it, or a function that makes it, at the top of a module, and name it: "module:name".'
    )
