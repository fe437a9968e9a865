"""The process that has imported the agent, and its children: one for each life of a trial.

`python -m perdure.testing.crashtest.zygote <fd>`. It imports the agent's module once, which takes
seconds, and forks a lane for each of the judge's threads. A lane forks a child for each order,
waits for its end, and says how it ended. All of them end when the judge's end of their socket does.
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
from pathlib import Path
from typing import Any, NoReturn

from perdure.errors import BadArgument, Error
from perdure.operations.error_text import one_line
from perdure.testing.crashtest import drive
from perdure.testing.crashtest.watch import Watch
from perdure.testing.crashtest.wire import Lines, Wire, send
from perdure.testing.crashtest.words import Point


def main(control: socket.socket) -> None:
    lines = Lines(control)
    order = lines.next()
    sys.path[:] = order["path"]
    try:
        found, package = _find(order["place"])
        _warm_up(order)
    except BaseException as error:
        send(control, {"wrong": _told(error)})
        return
    send(control, {"ready": True})
    gc.collect()
    gc.freeze()  # so that a child does not copy what it only looks at
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # lanes need no farewell
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
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise BadArgument(f"{name} raised {one_line(error, str(Path.cwd()))}.") from error
        raise BadArgument(f"There is no module {name!r} in {Path.cwd()}.") from error
    except (Exception, SystemExit) as error:
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
    """Import what every child needs, so that none has to."""
    import perdure.runtime
    import perdure.testing.clock

    if order["url"].startswith("postgresql"):
        import perdure.journal.postgres  # noqa: F401
    if order["stock"]:
        if order["url"].startswith("sqlite"):
            import langgraph.checkpoint.sqlite.aio
        else:
            import langgraph.checkpoint.postgres.aio  # noqa: F401


def _told(error: BaseException) -> str:
    if isinstance(error, Error):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def _serve(control: socket.socket, found: Any, package: str) -> NoReturn:
    """A lane: one child at a time."""
    lines = Lines(control)
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ends)
    while (order := lines.next()) is not None:
        wire, printed = lines.files
        lines.files.clear()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for file in (control.detach(), ended, ends):
                os.close(file)
            _live(order, wire, printed, found, package)
        os.close(wire)
        os.close(printed)
        with contextlib.suppress(OSError):
            send(control, {"pid": pid})
            status = _await(pid, ended, control)
            send(control, {"status": status})
    os._exit(0)


def _await(pid: int, ended: int, control: socket.socket) -> int:
    """How a child ends; if the judge is gone, that is now."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        ready, _, _ = select.select([ended, control.fileno()], [], [])
        if ended in ready:
            os.read(ended, 1024)
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(OSError):  # what it started and left behind
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _live(order: dict[str, Any], wire_fd: int, printed: int, found: Any, package: str) -> NoReturn:
    """A child: from its order to its end, or to its death."""
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
        _forget_seeds()
        wire = Wire(wire_fd)
        asyncio.run(_act(order, wire, found, package))
        code = 0
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _forget_seeds() -> None:
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


async def _act(order: dict[str, Any], wire: Wire, found: Any, package: str) -> None:
    try:
        if order["role"] == "prepare":
            await drive.prepare(order["url"], order["stock"])
            return
        kill = None if order["kill"] is None else Point(*order["kill"])
        watch = Watch(wire, kill, package)
        graph = await drive.graph_of(found)
        watch.install()
        driver = drive.by_langgraph if order["stock"] else drive.by_perdure
        await driver(graph, order, wire, watch)
    except Error as error:
        wire.tell("wrong", str(error))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
