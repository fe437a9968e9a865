"""Processes with reflections behind them, LangMem's or ours, children of the fork server.

Such a process plays a story on the store at the URL, writes what it has to tell to a file, and ends
as any interpreter does at the end of its program.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import langmem
from langgraph.store.base import BaseStore

from perdure import Runtime
from perdure.langmem import ReflectionExecutor
from tests.support.agents import Gate
from tests.support.memory import manager, opened_store, remembered, talk, who
from tests.support.polling import until

HOUR = 3600
FACTS = [f"fact-{n}" for n in range(5)]
"""What the process that is killed has pending: the first is being worked on, the others not due."""


def made(
    whose: str, reflector: Any, store: BaseStore | None, journal: str | Runtime, **options: Any
) -> Any:
    """An executor: LangMem's, or ours."""
    if whose == "langmem":
        return langmem.ReflectionExecutor(reflector, store=store)
    return ReflectionExecutor(reflector, store=store, journal=journal, **options)


class Model:
    """What a manager's model is asked to remember, and where it stands still."""

    def __init__(self, **gates: Gate) -> None:
        self.asked: list[str] = []
        self._gates = gates

    def __call__(self, facts: list[str]) -> None:
        self.asked += facts
        for fact in facts:
            if (gate := self._gates.get(fact.removeprefix("fact-"))) is not None:
                gate.block()


def stop_while_busy(executor: Any, busy: Gate) -> tuple[threading.Thread, list[Any]]:
    """Shut down while one is worked on, one is superseded, and two are due. The thread that shuts
    down, and the futures of the three that should be done."""
    futures = [executor.submit(talk("fact-busy"), who("ana", "busy"))]
    until(lambda: busy.entered, "the first being worked on")
    executor.submit(talk("fact-old"), who("ana", "t"))
    futures.append(executor.submit(talk("fact-new"), who("ana", "t")))
    futures.append(executor.submit(talk("fact-last"), who("ana", "last")))
    stopping = threading.Thread(target=executor.shutdown, daemon=True)
    stopping.start()
    return stopping, futures


# -- the stories

Tell = Callable[[Any], None]


def pends(whose: str, url: str, tell: Tell) -> None:
    """Have five pending, and be killed."""
    never = Gate()
    with opened_store(url) as store:
        executor = made(whose, manager(before=Model(**{"0": never})), store, url)
        for n, fact in enumerate(FACTS):
            executor.submit(talk(fact), who("ana", str(n)), after_seconds=HOUR if n else 0)
        until(lambda: never.entered, "the first being worked on")
        tell("ready")
        while True:
            signal.pause()


def ends(whose: str, url: str, tell: Tell) -> None:
    """Come to the end of the program without `shutdown()`."""
    with opened_store(url) as store:
        executor = made(whose, manager(), store, url)
        executor.submit(talk("fact-done"), who("ana", "0")).result(30)
        executor.submit(talk("fact-later"), who("ana", "1"), after_seconds=HOUR)
    tell("over")


def stops(whose: str, url: str, tell: Tell) -> None:
    """`shutdown()` of LangMem's while it is busy."""
    busy = Gate()
    model = Model(busy=busy)
    with opened_store(url) as store:
        executor = made(whose, manager(before=model), store, url)
        stopping, futures = stop_while_busy(executor, busy)
        until(lambda: not executor._worker_running, "it being told to stop")
        busy.open()
        # Nobody but this thread comes to the rest: when it is over, what is not done never will be.
        executor._worker.join(30)
        done = [future.done() for future in futures]
        if all(done):
            stopping.join(30)
        told = {
            "asked": model.asked,
            "remembered": remembered(store, "ana"),
            "works": executor._worker.is_alive(),
            "hangs": stopping.is_alive(),
        }
    tell(told)


STORIES: dict[str, Callable[[str, str, Tell], None]] = {
    "pends": pends,
    "ends": ends,
    "stops": stops,
}


def play(order: dict[str, Any], tell: Any) -> None:
    warnings.simplefilter("ignore")
    told = order["told"]

    def write(fact: Any) -> None:  # for a test that goes on while this process does
        Path(f"{told}.new").write_text(json.dumps(fact))
        os.rename(f"{told}.new", told)

    STORIES[order["story"]](order["whose"], order["url"], write)
