"""`make demo`: an agent whose worker is killed every second with SIGKILL, and that ends right.

An agent of five steps writes a newsletter: it sleeps for a while, asks a person, and goes on. All
the time its worker process is killed at a random moment of each second, and replaced at once. What
you see in the end is the history that the journal kept: each segment, who drove it, how it ended.

Exit code 0: the result is right, and no step that was on disk ran again. Everything is local:
SQLite in a temporary folder, no model is called.
"""

import asyncio
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

import perdure
from perdure.types import Event, Run

STEPS = ["research", "draft", "cool_down", "approve", "publish"]
SECONDS = 0.7  # what a step takes
DEADLINE = 55.0

# --- the agent ---------------------------------------------------------------------------------


def both(left: list[str], right: list[str]) -> list[str]:
    return left + right


class Newsletter(TypedDict):
    done: Annotated[list[str], both]


def work(step: str) -> None:
    """What a step does: it takes its time, and leaves a line where the demo can count it."""
    with Path(os.environ["DEMO_LEDGER"]).open("a") as ledger:
        ledger.write(f"{step} {time.time()}\n")
    time.sleep(SECONDS)


def research(state: Newsletter) -> dict[str, Any]:
    work("research")
    return {"done": ["research"]}


def draft(state: Newsletter) -> dict[str, Any]:
    work("draft")
    return {"done": ["draft"]}


def cool_down(state: Newsletter) -> dict[str, Any]:
    perdure.sleep(timedelta(seconds=3))  # could be a month: nothing is running meanwhile
    work("cool_down")
    return {"done": ["cool_down"]}


def approve(state: Newsletter) -> dict[str, Any]:
    decision = perdure.ask({"question": "Publish it?"})
    work("approve")
    return {"done": [f"approve: {decision}"]}


def publish(state: Newsletter) -> dict[str, Any]:
    work("publish")
    return {"done": ["publish"]}


def runtime(url: str) -> perdure.Runtime:
    builder = StateGraph(Newsletter)
    builder.add_sequence([research, draft, cool_down, approve, publish]).add_edge(START, "research")
    made = perdure.Runtime(url)
    # By default a run is held after five dead workers in a row without a step on disk between.
    made.register(builder, name="newsletter", deaths=100)
    return made


def worker(url: str) -> None:
    """A worker process. `perdure worker module:runtime` is the same for the command line."""
    with runtime(url) as mine:
        asyncio.run(mine.work())


# --- the killer --------------------------------------------------------------------------------


@dataclass
class Workers:
    """One worker process at a time. A fork server makes them, so that one starts in no time."""

    url: str
    killed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._make = multiprocessing.get_context("forkserver")
        self._make.set_forkserver_preload(["__main__", "perdure.runtime"])
        self.now = self._start()
        self._second = -1
        self._draw()

    def _start(self) -> ForkServerProcess:
        process = self._make.Process(target=worker, args=(self.url,))
        process.start()
        return process

    def _draw(self) -> None:
        """A random moment of the next second."""
        self._second += 1
        self._at = self._second + random.random()  # noqa: S311 (a demo, not a secret)

    def kill_at_random(self, elapsed: float) -> int | None:
        """Kill the worker if it is time. Gives whom."""
        if elapsed < self._at:
            return None
        victim = self.now
        victim.kill()
        victim.join()
        assert victim.pid is not None
        self.killed.append(victim.pid)
        self.now = self._start()
        self._draw()
        return victim.pid

    def drain(self) -> int | None:
        """Stop the last one as a deploy would: with SIGTERM."""
        self.now.terminate()
        self.now.join(15)
        return self.now.exitcode


# --- what is shown -----------------------------------------------------------------------------


@dataclass
class Screen:
    color: bool = field(default_factory=sys.stdout.isatty)
    begun: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def paint(self, text: str, code: int) -> str:
        return f"\033[{code}m{text}\033[0m" if self.color else text

    def line(self, text: str, code: int = 0) -> None:
        print(f"  {self.elapsed:5.1f} s  {self.paint(text, code) if code else text}", flush=True)


def told(event: Event) -> str | None:
    """An event of the run as one line of the live view."""
    data = event.data
    match event.kind:
        case "started":
            return "accepted: from here on the run is on disk"
        case "claimed" | "recovered":
            verb = "takes it" if event.kind == "claimed" else "takes over from the dead one"
            return f"  worker {pid(event)} {verb}"
        case "step" if nodes := set(data.get("nodes", ())) & set(STEPS):
            return f"  {', '.join(nodes)} is on disk"
        case "wait" if data["kind"] == "clock":
            return f"  asleep until {clock_time(data['wake_at'])}"
        case "wait":
            return "  waits for a person"
        case "woke":
            return "  awake again"
        case "answer":
            return f"  {data['by']} answered"
        case "done":
            return "done"
    return None


def pid(event: Event) -> int:
    return int(event.data["worker"].split(":")[1])


def clock_time(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"


@dataclass
class Segment:
    worker: int
    first: int
    last: int = 0
    steps: list[str] = field(default_factory=list)
    ended: str = "?"


def segments(events: list[Event]) -> Iterator[Segment]:
    """The stretches of a run: from a claim to what ended it."""
    current: Segment | None = None
    asked = ""
    for event in events:
        if event.kind in ("claimed", "recovered"):
            if current is not None:
                yield current
            current = Segment(pid(event), event.n, event.n, ended="killed")
            continue
        if current is None:
            continue
        current.last = event.n
        if event.kind == "step":
            current.steps += [node for node in event.data.get("nodes", ()) if node in STEPS]
        elif event.kind == "wait":
            asked = "sleeping" if event.data["kind"] == "clock" else "waiting for a person"
        elif event.kind in ("waiting", "done", "released", "failed", "held"):
            current.ended = asked if event.kind == "waiting" else event.kind
            yield current
            current = None
    if current is not None:
        yield current


def show_segments(screen: Screen, found: list[Segment]) -> None:
    print("  segment   worker    events   put on disk                 ended")
    colors = {"killed": 31, "done": 32}
    for number, one in enumerate(found, 1):
        span = f"{one.first}–{one.last}" if one.last > one.first else str(one.first)
        steps = ", ".join(one.steps) or "-"
        ended = screen.paint(one.ended, colors.get(one.ended, 33))
        print(f"  {number:7}  {one.worker:7}  {span:>8}   {steps:26}  {ended}")


def ran_again(events: list[Event], ledger: list[tuple[str, float]]) -> list[str]:
    """The steps that began although their result was on disk."""
    stored = {
        node: event.at.timestamp()
        for event in events
        if event.kind == "step"
        for node in event.data.get("nodes", ())
    }
    return [step for step, at in ledger if step in stored and at > stored[step]]


# --- all of it ---------------------------------------------------------------------------------


def play(rt: perdure.Runtime, workers: Workers, screen: Screen) -> Run:
    """Follow a run to its end, kill its workers, and answer what it asks."""
    calls = rt.blocking
    run = calls.start("newsletter", {"done": []}, thread_id="issue-1")
    seen, answer_at = 0, float("inf")
    while True:
        for event in calls.events(run.id, after=seen):
            seen = event.n
            if (text := told(event)) is not None:
                screen.line(text, {"answer": 36, "done": 32}.get(event.kind, 0))
            if event.kind == "wait" and event.data["kind"] == "human":
                answer_at = screen.elapsed + 2.5  # a person needs a moment
        if calls.get(run.id).ended:
            return calls.get(run.id)
        if screen.elapsed > answer_at:
            answer_at = float("inf")
            [wait] = calls.waits(kind="human", thread_id="issue-1")
            calls.answer(wait.id, "yes", by="ana@example.com")
        if (victim := workers.kill_at_random(screen.elapsed)) is not None:
            screen.line(f"✗ worker {victim} killed with SIGKILL", 31)
        if screen.elapsed > DEADLINE:
            raise SystemExit("The run did not come to its end in time.")
        time.sleep(0.02)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        os.environ["DEMO_LEDGER"] = f"{folder}/ledger"
        url = f"sqlite:///{folder}/agents.db"
        print(f"\nAn agent of five steps: {', '.join(STEPS)}.")
        print("Its worker is killed with SIGKILL at a random moment of every second.\n")
        with perdure.Runtime(url) as rt:
            rt.blocking.runs()  # opens the journal
            workers = Workers(url)
            screen = Screen()
            run = play(rt, workers, screen)
            code = workers.drain()
            events = rt.blocking.events(run.id)
        lines = Path(os.environ["DEMO_LEDGER"]).read_text().splitlines()
    ledger = [(step, float(at)) for step, at in map(str.split, lines)]

    print("\nWhat the journal tells, segment by segment:\n")
    show_segments(screen, list(segments(events)))

    expected = ["research", "draft", "cool_down", "approve: yes", "publish"]
    right = run.output == {"done": expected}
    again = ran_again(events, ledger)
    begun = Counter(step for step, _ in ledger)
    twice = ", ".join(f"{step} {n}×" for step, n in begun.items() if n > 1) or "none"
    print(f"\n  workers killed             {len(workers.killed)}")
    print(f"  result                     {'right' if right else f'WRONG: {run.output}'}")
    print(f"  ran again though on disk   {', '.join(again) or 'none'}")
    print(f"  cut off, so begun again    {twice}")
    print(f"  last worker, on SIGTERM    {'drained, exit code 0' if code == 0 else code}\n")
    return 0 if right and not again and code == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
