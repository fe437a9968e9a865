"""The fork server: `python -m perdure.testing.crashtest.fork_server <fd>`.

It imports the agent's module once, which takes seconds, and forks a slot for each of the judge's
threads. A slot forks a child for each order, waits for it and reports its status. All of them end
when the judge closes its side of their socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import importlib
import os
import random
import select
import signal
import socket
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from perdure.errors import BadArgument, Error
from perdure.journal import failpoints
from perdure.operations.error_text import one_line
from perdure.serde.redaction import hide_in_url
from perdure.testing.crashtest import drive
from perdure.testing.crashtest.messages import JsonLines, JudgeConnection, send
from perdure.testing.crashtest.model import Point
from perdure.testing.crashtest.observer import ProcessObserver


def main(control: socket.socket) -> None:
    lines = JsonLines(control)
    order = lines.next()
    sys.path[:] = order["path"]
    try:
        found, package = _find(order["place"])
        _warm_up(order)
    except BaseException as error:
        trace = "".join(traceback.format_exception(error)).rstrip()
        send(control, {"wrong": str(error) if isinstance(error, Error) else trace})
        return
    send(control, {"ready": True})
    gc.collect()
    gc.freeze()  # so that a child does not copy what it only looks at
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # slots are not waited for
    while lines.next() is not None:
        [file] = lines.files
        lines.files.clear()
        if os.fork() == 0:
            control.close()
            _serve(socket.socket(fileno=file), found, package)
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


def _warm_up(order: dict[str, Any]) -> None:
    """Import what every child needs, once."""
    import perdure.runtime
    import perdure.testing.clock

    if order["url"].startswith("postgresql"):
        import perdure.journal.postgres  # noqa: F401
    if order["stock"]:
        if order["url"].startswith("sqlite"):
            import langgraph.checkpoint.sqlite.aio
        else:
            import langgraph.checkpoint.postgres.aio  # noqa: F401


def _serve(control: socket.socket, found: Any, package: str) -> NoReturn:
    """A slot: one child at a time."""
    lines = JsonLines(control)
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ends)
    while (order := lines.next()) is not None:
        connection, printed = lines.files
        lines.files.clear()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for file in (control.detach(), ended, ends):
                os.close(file)
            _child(order, connection, printed, found, package)
        os.close(connection)
        os.close(printed)
        with contextlib.suppress(OSError):
            send(control, {"pid": pid})
            status = _await(pid, ended, control)
            send(control, {"status": status})
    os._exit(0)


def _await(pid: int, ended: int, control: socket.socket) -> int:
    """The exit status of a child, which is killed if the judge is gone."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        ready, _, _ = select.select([ended, control.fileno()], [], [])
        if ended in ready:
            os.read(ended, 1024)
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(OSError):  # processes that it started
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _child(
    order: dict[str, Any], socket_fd: int, printed: int, found: Any, package: str
) -> NoReturn:
    """A child: carry out its order, then exit."""
    code = 3
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        faulthandler.dump_traceback_later(order["deadline"], exit=True, file=2)
        sys.dont_write_bytecode = True
        random.seed()  # a fork has its parent's
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        asyncio.run(_act(order, JudgeConnection(socket_fd), found, package))
        code = 0
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


async def _act(
    order: dict[str, Any], connection: JudgeConnection, found: Any, package: str
) -> None:
    try:
        if order["role"] == "prepare":
            await drive.prepare(order["url"], order["stock"])
            return
        kill = None if order["kill"] is None else Point(*order["kill"])
        observer = ProcessObserver(connection, kill, package)
        graph = await drive.graph_of(found)
        observer.install()
        failpoints.opening = partial(_refuse_other_journals, order["url"])
        driver = drive.by_langgraph if order["stock"] else drive.by_perdure
        await driver(graph, order, connection, observer)
    except Error as error:
        connection.send("wrong", str(error))


def _refuse_other_journals(own: str, url: str) -> None:
    if not url.startswith(own):
        raise BadArgument(
            f"This agent uses a runtime or client of {hide_in_url(url)} while it runs, to start a "
            "run or send a signal for example. A crash test would do that there again and again, "
            "so it is refused. Test the graph without that node, and the run that it starts on "
            "its own."
        )


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
