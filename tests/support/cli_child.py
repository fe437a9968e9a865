"""`perdure`, forked from a process that has imported what its commands import."""

from __future__ import annotations

import os
import sys
from typing import Any

import perdure.cli.dev_worker
import perdure.cli.graph_loading
import perdure.cli.serving
import perdure.server.app
import perdure.server.http_server
from perdure.cli import main
from tests.support.described_routes import describe_once
from tests.support.fork_server import Tell

describe_once()
perdure.Runtime("sqlite:///:memory:").asgi(ui=True)


def run(order: dict[str, Any], tell: Tell) -> int:
    """The child: in the folder, with the environment and the output that it is given."""
    os.setsid()
    _write_to(order["out"], 1)
    if order["err"] is None:
        os.dup2(1, 2)
    else:
        _write_to(order["err"], 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[0] = order["folder"]
    sys.argv = ["perdure", *order["arguments"]]
    sys.exit(main())


def _write_to(path: str, number: int) -> None:
    file = os.open(path, os.O_WRONLY)
    os.dup2(file, number)
    os.close(file)
