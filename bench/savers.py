"""What measurements do to a saver besides using it: open it, wait for it, time its methods."""

import functools
from collections.abc import Callable
from threading import Lock
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import perdure
from bench.agents import Saver, on
from bench.contenders import Contender


def ready(saver: Saver | None) -> None:
    """Connections, tables and migrations are there afterwards, nothing of a real thread."""
    if saver is not None:
        saver.get_tuple(on("nobody"))


async def aready(saver: Saver | None) -> None:
    if saver is not None:
        await saver.aget_tuple(on("nobody"))


def settle(saver: Saver | None) -> None:
    """Wait until everything put so far is durable. The stock savers are at that point already."""
    if isinstance(saver, perdure.Saver):
        saver.flush()


async def asettle(saver: Saver | None) -> None:
    if isinstance(saver, perdure.Saver):
        await saver.aflush()


def stored_values(who: Contender, url: str, thread: str) -> dict[str, Any]:
    """What a fresh saver finds in the database: whoever lost something must not win."""
    with who.open(url) as saver:
        found = saver.get_tuple(on(thread)) if saver is not None else None
    assert found is not None, f"{who.name} does not find its thread {thread} again"
    return found.checkpoint["channel_values"]


class Spent(NamedTuple):
    wall: float = 0.0
    cpu: float = 0.0


class Stopwatch:
    """Seconds spent inside a saver's methods, summed over threads: overlaps count twice."""

    METHODS = ("get_tuple", "put", "put_writes", "get_delta_channel_history")

    def __init__(self) -> None:
        self._lock = Lock()
        self._spent = Spent()

    def watch(self, saver: Saver) -> None:
        """From now on every call of the saver is timed. By subclass, so that copies are, too."""
        kind = type(saver)
        timed = {name: self._timed(getattr(kind, name)) for name in self.METHODS}
        saver.__class__ = type(f"Timed{kind.__name__}", (kind,), timed)

    def read(self) -> Spent:
        """What was spent since the last read."""
        with self._lock:
            spent, self._spent = self._spent, Spent()
        return spent

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)  # LangGraph looks at the signature of put_writes
        def call(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = perf_counter(), thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                wall, cpu = perf_counter() - wall, thread_time() - cpu
                with self._lock:
                    self._spent = Spent(self._spent.wall + wall, self._spent.cpu + cpu)

        return call
