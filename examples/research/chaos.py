"""`python -m examples.research`: drive the agent in worker processes that are killed with SIGKILL.

The counters are outside the killed processes: the website counts requests, and the model's bill
counts calls, both by the key of the effect. After each kill the journal says which effects are
recorded; from then on their counts must not grow. Exit code 0: the report is there, and no count
grew.
"""

import argparse
import asyncio
import math
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from rich.console import Console

import perdure
from examples.research.agent import build
from examples.research.site import Site, serve
from perdure.execution.bound_graph import BoundGraph
from perdure.types import EffectRecord, Run

TAKEN = ("claimed", "recovered")
"""The events of a worker that takes a run."""
DEADLINE = 120.0
"""Seconds after which a run that does not end is given up."""
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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context


@dataclass
class Story:
    """A run, as those outside of it saw it."""

    setting: Setting
    site: Site
    run: Run
    kills: int = 0
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
    seed: int,
    say: Callable[[str], None],
) -> Story:
    """Follow a run to its end. Its worker is killed `kills` times, each so many seconds after it
    took the run, at random `between` two bounds."""
    chance = random.Random(seed)

    def begin() -> ForkServerProcess:
        process = processes().Process(target=work, args=(setting,))
        process.start()
        return process

    with perdure.Runtime(setting.journal) as rt:
        setting.register(rt)
        calls = rt.blocking
        run = calls.start(
            "research",
            {"question": QUESTION, "folder": folder},
            thread_id="research-1",
            config={"max_concurrency": 4},
        )
        story, worker = Story(setting, site, run), begin()
        over, kill_at, seen = time.monotonic() + DEADLINE, math.inf, 0
        try:
            while not story.run.ended and story.run.state != "held":
                if time.monotonic() > over:
                    raise TimeoutError(f"It is {story.run.state} after {DEADLINE:g} s.")
                if worker.exitcode is not None:
                    raise RuntimeError(f"Worker {worker.pid} ended by itself; nobody killed it.")
                time.sleep(0.01)
                for event in calls.events(run.id, after=seen):
                    seen = event.n
                    if event.kind in TAKEN and story.kills < kills:
                        kill_at = time.monotonic() + chance.uniform(*between)
                is_time = time.monotonic() > kill_at
                if is_time:
                    worker.kill()
                    worker.join()
                    story.kills, kill_at = story.kills + 1, math.inf
                story.run, story.effects = calls.get(run.id), calls.effects(run.id, limit=1000)
                if is_time:
                    story.note_recorded()
                    dead, worker = worker, begin()
                    recorded = f"{len(story.recorded)} pages and answers recorded"
                    say(f"[red]✗ worker {dead.pid} killed[/] with {recorded}")
        finally:
            worker.terminate()  # as a deploy would
            worker.join(15)
        return story


def summary(story: Story) -> list[str]:
    """The run in numbers, for a person."""
    keys, calls, kept = story.site.keys, story.setting.calls(), story.kept
    requests = sum(map(len, keys.values()))
    return [
        f"Worker killed {story.kills} times with SIGKILL",
        f"Pages fetched: {len(keys)}, with {requests} requests; the others were cut off by a kill",
        f"Model answers: {len(calls)}, with {calls.total()} calls; the others were cut off too",
        f"Not made again: {kept['fetch']} requests and {kept['model']} model calls",
        f"Recorded, yet repeated: {len(story.repeated)}",
        f"[bold]Report[/] {story.run.output['report']}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.research", description=__doc__)
    parser.add_argument("--kills", type=int, default=15, help="how often to kill its worker")
    parser.add_argument("--seed", type=int, help="for the same random moments again")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long an answer takes")
    parser.add_argument("--folder", type=Path, help="where journal and report go")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="perdure-research-"))
    folder.mkdir(parents=True, exist_ok=True)
    seed = time.time_ns() % 1000 if options.seed is None else options.seed
    console, began = Console(highlight=False), time.monotonic()

    def say(text: str) -> None:
        console.print(f"  [dim]{time.monotonic() - began:5.1f} s[/]  {text}", soft_wrap=True)

    console.print("\n[bold]A research agent[/] plans, reads forty pages, and writes a report.")
    console.print(f"Its worker is killed with SIGKILL up to {options.kills} times, at random.\n")
    with serve(options.seconds) as site:
        journal, bill = f"sqlite:///{folder}/agents.db", f"{folder}/bill"
        story = play(
            Setting(journal, site.url, bill, options.seconds),
            site,
            str(folder),
            kills=options.kills,
            between=(0.5 * options.seconds, 5.5 * options.seconds),
            seed=seed,
            say=say,
        )
    if story.run.state != "done":
        console.print(f"[red]The run is {story.run.state}[/]: {story.run.error}")
        return 1
    console.print(
        "",
        *summary(story),
        f"[dim]The same moments again: --seed {seed}[/]\n",
        sep="\n  ",
        soft_wrap=True,
    )
    return 1 if story.repeated else 0
