"""Drive the agent in worker processes that are killed with SIGKILL, and count repeated calls.

The counters are outside the killed processes: the website counts requests, and the model's bill
counts calls, both by the key of the effect. After each kill the journal says which effects are
recorded; from then on their counts must not grow.
"""

import asyncio
import math
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import perdure
from examples.research.agent import build
from examples.research.site import Site
from perdure.execution.bound_graph import BoundGraph
from perdure.types import EffectRecord, Run

TAKEN = ("claimed", "recovered")
"""The events of a worker that takes a run."""
QUESTION = "What is known about the lighthouses of this coast?"


@dataclass(frozen=True)
class Setting:
    """What a process needs to know to work on the agent."""

    journal: str
    site: str
    bill: str
    seconds: float = 0.0
    """How long the model takes to answer."""

    def register(self, rt: perdure.Runtime) -> BoundGraph:
        # By default a run is held after five dead workers in a row with nothing recorded between.
        return rt.register(build(self.site, self.bill, self.seconds), name="research", deaths=1000)

    def calls(self) -> Counter[str]:
        """How often the model was called, by key."""
        bill = Path(self.bill)
        return Counter(bill.read_text().split()) if bill.exists() else Counter()


def work(setting: Setting) -> None:
    """A worker process."""
    with perdure.Runtime(setting.journal) as rt:
        setting.register(rt)
        asyncio.run(rt.work())


def processes() -> ForkServerContext:
    """Makes processes that have imported everything already, so that one starts in no time."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["__main__", "examples.research.chaos"])
    return made


class Workers:
    """One worker process at a time."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.killed: list[int] = []
        self.begin()

    def begin(self) -> None:
        self.now: ForkServerProcess = processes().Process(target=work, args=(self._setting,))
        self.now.start()

    @property
    def pid(self) -> int:
        return self.now.pid or 0

    def kill(self) -> None:
        self.now.kill()
        self.now.join()
        self.killed.append(self.pid)

    def end(self) -> None:
        """As a deploy would: with SIGTERM."""
        self.now.terminate()
        self.now.join(15)


@dataclass
class Story:
    """A run, as those outside of it saw it."""

    setting: Setting
    site: Site
    run: Run
    killed: list[int] = field(default_factory=list)
    recorded: dict[str, int] = field(default_factory=dict)
    """By key: how often an effect had been called when a kill found it recorded."""
    effects: list[EffectRecord] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)
    """By effect: the calls that would have been made again, had it started over after each kill."""

    @property
    def called(self) -> Counter[str]:
        return self.site.counted() + self.setting.calls()

    @property
    def repeated(self) -> list[str]:
        """The effects that were called though they were recorded."""
        called = self.called
        return [key for key, before in self.recorded.items() if called[key] > before]

    def note_recorded(self) -> None:
        called = self.called
        for effect in self.effects:
            if effect.state == "done" and called[effect.key]:
                self.recorded.setdefault(effect.key, called[effect.key])
                self.kept[effect.name] += 1


def play(
    setting: Setting,
    site: Site,
    folder: str,
    *,
    kills: int,
    between: tuple[float, float],
    seed: int = 0,
    deadline: float = 120.0,
    look: Callable[[Story, BoundGraph, Workers], None] = lambda *_: None,
) -> Story:
    """Follow a run to its end. Its worker is killed `kills` times, each so many seconds after it
    took the run, at random `between` two bounds."""
    chance = random.Random(seed)
    with perdure.Runtime(setting.journal) as rt:
        graph, calls = setting.register(rt), rt.blocking
        run = calls.start(
            "research",
            {"question": QUESTION, "folder": folder},
            thread_id="research-1",
            config={"max_concurrency": 4},
        )
        story, workers = Story(setting, site, run), Workers(setting)
        over, kill_at, seen = time.monotonic() + deadline, math.inf, 0
        try:
            while not story.run.ended and story.run.state != "held":
                if time.monotonic() > over:
                    raise TimeoutError(f"It is {story.run.state} after {deadline:g} s.")
                if workers.now.exitcode is not None:
                    raise RuntimeError(f"Worker {workers.pid} ended by itself; nobody killed it.")
                time.sleep(0.01)
                for event in calls.events(run.id, after=seen):
                    seen = event.n
                    if event.kind in TAKEN and len(workers.killed) < kills:
                        kill_at = time.monotonic() + chance.uniform(*between)
                is_time = time.monotonic() > kill_at
                if is_time:
                    workers.kill()
                    kill_at, story.killed = math.inf, workers.killed
                story.run, story.effects = calls.get(run.id), calls.effects(run.id, limit=1000)
                if is_time:
                    story.note_recorded()
                    workers.begin()
                look(story, graph, workers)
        finally:
            workers.end()
        return story


def report_of(story: Story) -> str:
    """The text that was published; there is one file."""
    path = Path(story.run.output["report"])
    assert [name for name in os.listdir(path.parent) if name.endswith(".md")] == [path.name]
    return path.read_text()
