"""What measurements do to a saver besides using it: open it, wait for it, time its methods."""

import functools
from collections.abc import Callable
from threading import Lock
from time import perf_counter
from typing import Any

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


class Stopwatch:
    """Seconds spent inside a saver's methods, summed over threads: overlaps count twice."""

    METHODS = ("get_tuple", "put", "put_writes", "get_delta_channel_history")

    def __init__(self) -> None:
        self._lock = Lock()
        self._seconds = 0.0

    def watch(self, saver: Saver) -> None:
        """From now on every call of the saver is timed. By subclass, so that copies are, too."""
        kind = type(saver)
        timed = {name: self._timed(getattr(kind, name)) for name in self.METHODS}
        saver.__class__ = type(f"Timed{kind.__name__}", (kind,), timed)

    def read(self) -> float:
        """What was spent since the last read."""
        with self._lock:
            spent, self._seconds = self._seconds, 0.0
        return spent

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)  # LangGraph looks at the signature of put_writes
        def call(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                took = perf_counter() - start
                with self._lock:
                    self._seconds += took

        return call
