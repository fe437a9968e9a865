"""The fork server: `python -m perdure.testing.crashtest.fork_server <fd>`.

It imports the agent's module once, which takes seconds, and forks a child for each order. It ends
when the judge closes its side of the socket. Each child is a process group of its own, which the
judge kills in the end, with whatever the agent started.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import traceback
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from perdure import failpoints
from perdure.errors import BadArgument, Error
from perdure.testing.crashtest import drive
from perdure.testing.crashtest.observer import JudgeConnection, ProcessObserver
from perdure.testing.crashtest.processes import receive, send
from perdure.testing.crashtest.report import Point
from perdure.text import one_line


def main(control: socket.socket) -> None:
    setup = receive(control)
    sys.path[:] = setup["path"]
    try:
        found, package = _find(setup["place"])
        _warm_up(setup)
    except BaseException as error:
        trace = "".join(traceback.format_exception(error)).rstrip()
        send(control, {"wrong": str(error) if isinstance(error, Error) else trace})
        return
    gc.collect()
    gc.freeze()  # so that a child does not copy what it only looks at
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the judge learns of ends from its sockets
    send(control, {"ready": True})
    while files := socket.recv_fds(control, 1, 2)[1]:
        if os.fork() == 0:
            control.close()
            _child(Connection(files[0]), files[1], found, package)
        for file in files:
            os.close(file)


def _find(place: str) -> tuple[Any, str]:
    """What `module:name` names, and the folder or file of the agent's own code."""
    name, _, attribute = place.partition(":")
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise BadArgument(f"There is no module {name!r} in {Path.cwd()}.") from error
        raise BadArgument(f"{name} raised {one_line(error, str(Path.cwd()))}.") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadArgument(f"The module {name!r} has no {attribute!r}.")
        found = getattr(found, part)
    top = sys.modules[name.partition(".")[0]]
    if "." in name and getattr(top, "__path__", None):
        return found, os.path.realpath(next(iter(top.__path__))) + os.sep
    return found, os.path.realpath(getattr(module, "__file__", None) or name)


def _warm_up(setup: dict[str, Any]) -> None:
    """Import what every child needs, once."""
    import perdure.runtime  # noqa: F401

    if setup["url"].startswith("postgresql"):
        import psycopg  # noqa: F401
    if setup["stock"]:
        if setup["url"].startswith("sqlite"):
            import langgraph.checkpoint.sqlite.aio
        else:
            import langgraph.checkpoint.postgres.aio  # noqa: F401


def _child(connection: Connection, printed: int, found: Any, package: str) -> NoReturn:
    """A child: carry out its order, then exit."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        order = json.loads(connection.recv_bytes())
        threading.Thread(target=_end_with_judge, args=[connection.fileno()], daemon=True).start()
        judge = JudgeConnection(connection)
        judge.send("started", os.getpid())
        faulthandler.dump_traceback_later(order["deadline"], exit=True, file=2)
        sys.dont_write_bytecode = True
        random.seed()  # a fork has its parent's
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        asyncio.run(_act(order, judge, found, package))
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _end_with_judge(connection: int) -> None:
    """Kill this child, and what the agent started, if the judge dies."""
    hangup = select.poll()
    hangup.register(connection, 0)
    hangup.poll()
    os.killpg(0, signal.SIGKILL)


async def _act(order: dict[str, Any], judge: JudgeConnection, found: Any, package: str) -> None:
    try:
        if order["role"] == "prepare":
            await drive.prepare(order["url"], order["stock"])
            return
        kill = None if order["kill"] is None else Point(*order["kill"])
        observer = ProcessObserver(judge, kill, package)
        graph = await drive.graph_of(found)
        observer.install()
        failpoints.opening = partial(_refuse_other_journals, order["url"])
        driver = drive.by_langgraph if order["stock"] else drive.by_perdure
        await driver(graph, order, judge, observer)
    except Error as error:
        judge.send("wrong", str(error))


def _refuse_other_journals(own: str, url: str) -> None:
    if not url.startswith(own):
        parts = urlsplit(url)
        other = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"  # no secret
        raise BadArgument(
            f"This agent uses a runtime or client of {other} while it runs, to start a run or send "
            "a signal for example. A crash test would do that there again and again, so it is "
            "refused. Test the graph without that node, and the run that it starts on its own."
        )


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
