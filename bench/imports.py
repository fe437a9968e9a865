"""Time of `import perdure` on top of Python's own start-up."""

import subprocess
import sys
from time import perf_counter

from bench.report import Bar, Section, Series, Table, millis
from bench.rounds import Bench, say
from bench.texts import TEXTS

_BARE = "pass"


def imports(bench: Bench) -> Section:
    lines = [_BARE, "import perdure", "import langgraph.graph"]
    lines = [line for line in lines if not any(word in line for word in bench.without)]
    found = Series()
    for n in range(bench.pick(7, 2)):
        for line in lines:
            found.add(line, _process(line))
            say(f"import {n + 1}  {line}")
    above = {line: found.median(line) - found.median(_BARE) for line in lines}
    rows = [[f"`{line}`", millis(above[line]), millis(found.median(line))] for line in lines]
    bar = Bar(
        "`import perdure` on top of Python's start-up", 0.2, above.get("import perdure"), unit="s"
    )
    return TEXTS["import"].section([Table(["", "added", "whole process"], rows)], [bar])


def _process(line: str) -> float:
    start = perf_counter()
    subprocess.run([sys.executable, "-c", line], check=True)
    return perf_counter() - start
