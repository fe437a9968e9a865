"""Threads for the plain (not async) nodes of agents, which LangGraph runs beside the event loop."""

from __future__ import annotations

import contextlib
from asyncio import AbstractEventLoop
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class NodeThreadPool(ThreadPoolExecutor):
    """As many threads as are needed at once, reused, and not joined at exit.

    The standard pool has a handful of threads, and a process does not exit before they end: one
    function that never returns would keep a drained worker alive. It is a ThreadPoolExecutor by
    name only, because an event loop accepts nothing else.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._idle: list[SimpleQueue[Job | None]] = []

    @classmethod
    def serve(cls, loop: AbstractEventLoop) -> None:
        """Make this the pool of a loop, unless the application gave it one."""
        pool = getattr(loop, "_default_executor", None)
        if pool is None or getattr(pool, "_thread_name_prefix", None) == "asyncio":
            loop.set_default_executor(cls())

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            Thread(target=self._work, args=(jobs,), name="perdure-node", daemon=True).start()
        jobs.put((future, fn, args, kwargs))
        return future

    def _work(self, jobs: SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            _run(*job)
            del job
            self._idle.append(jobs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().put(None)


def _run(
    future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        # In an event loop these would end the loop, and with it every other run of the worker.
        raised = RuntimeError(f"{type(error).__name__}({error}) in a plain function")
        raised.__cause__ = error
        future.set_exception(raised)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
