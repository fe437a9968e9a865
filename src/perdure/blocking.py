"""Coroutine methods for callers without an event loop, run on a loop in another thread.

One implementation, not a twin: `blocking_method(Client.get)` is `Client.get` on that loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast
from weakref import WeakSet

from perdure.errors import Closed
from perdure.recorded_calls import calling_from_node
from perdure.verbs import BlockingCaller

P = ParamSpec("P")
T = TypeVar("T")


def blocking_method(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[LoopThread, P], T]:
    """A coroutine method of the owner as a blocking method of its loop thread."""

    def call(self: LoopThread, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(method, *args, **kwargs)

    return functools.update_wrapper(call, method)


def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[LoopThread, P], Iterator[T]]:
    """An asynchronous generator of the owner as a generator that blocks."""

    def iterate(self: LoopThread, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        found = cast(AsyncGenerator[T], method(self._owner, *args, **kwargs))
        try:
            while True:
                try:
                    yield self.run(_awaited(anext(found)))
                except StopAsyncIteration:
                    return
        finally:
            self.run(_awaited(found.aclose()))

    return functools.update_wrapper(iterate, method)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


class _Call(Generic[T]):
    """A coroutine on a loop in another thread, and its outcome.

    The two threads share a queue made in C. A `concurrent.futures.Future` has a lock that a signal
    can leave taken, and the loop would hang at it.
    """

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._work, self._loop = work, loop
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self._outcome: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._is_cancelled:
            self._work.close()
            return
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._outcome.put)

    def wait(self) -> T:
        """Its result, or its exception."""
        task = self._outcome.get()
        if task.cancelled():
            raise CancelledError
        try:
            return task.result()
        finally:
            del task, self  # an exception refers to this frame

    def cancel(self) -> None:
        """Cancel it, if it is not over."""
        self._is_cancelled = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


class LoopThread(BlockingCaller):
    """A thread with an event loop that runs the coroutine methods of its owner."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self.pid = os.getpid()
        """A forked process has none of its parent's threads, so not this one."""
        self._calls: WeakSet[Coroutine[Any, Any, Any]] = WeakSet()
        self._is_ended = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="perdure-blocking", daemon=True
        )
        self._thread.start()

    def call(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        with calling_from_node():
            return self.run(method(self._owner, *args, **kwargs))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that uses this client, such as `evals.evaluate(…)`, and wait for it.

        Args:
            work: The coroutine.

        Returns:
            What the coroutine returned.

        Raises:
            Closed: The client was closed.
        """
        self._calls.add(work)
        if self._is_ended or self._loop.is_closed():
            work.close()
            raise Closed("This runtime is closed; make a new one, or keep it open for longer.")
        call = _Call(work, self._loop)
        try:
            return call.wait()
        except BaseException:
            call.cancel()
            raise

    def close(self) -> None:
        """Cancel the calls in progress, wait for their end, and stop the loop. A close that was
        interrupted is finished by the next."""
        if self._loop.is_closed():
            return
        here = self._thread is threading.current_thread()
        try:
            if not here and not self._is_ended:
                _Call(self._end(), self._loop).wait()
        finally:
            self._is_ended = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if not here:
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        found = [task for task in asyncio.all_tasks() if task.get_coro() in self._calls]
        for task in found:
            if not task.cancelling():  # a second time would disturb a drain
                task.cancel()
        await asyncio.gather(*found, return_exceptions=True)
