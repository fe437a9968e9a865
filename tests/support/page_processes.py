"""The Python processes that a page of the docs starts with `subprocess.run`.

They are forked from one that has imported LangGraph already, which takes a new interpreter two
seconds. They run the script that the page wrote, and die as the page says.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.support.fork_server import ForkServer, Tell


def forking(server: ForkServer) -> Callable[..., subprocess.CompletedProcess[Any]]:
    """What a page gets as `subprocess.run`: other programs and other options run as ever."""
    plain = subprocess.run

    def run(command: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
        is_script = len(command) == 2 and command[0] == sys.executable
        if not is_script or not options.keys() <= {"env", "stderr"}:
            return plain(command, **options)
        ended = server.run(
            "page_processes:script",
            exits=True,
            path=command[1],
            directory=os.getcwd(),
            environment=dict(options.get("env") or os.environ),
            **({"log": os.devnull} if options.get("stderr") == subprocess.DEVNULL else {}),
        )
        return subprocess.CompletedProcess(command, ended.status)

    return run


def script(order: dict[str, Any], tell: Tell) -> None:
    """The child: the script, as `python script.py` runs it."""
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[0] = order["directory"]
    sys.argv = [order["path"]]
    runpy.run_path(order["path"], run_name="__main__")
