"""`python -m examples.research`: the agent at work, killed again and again, on your screen.

Exit code 0: the report is there, and nothing that was recorded was asked for again.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from examples.research.chaos import Story, Workers
    from perdure.execution.bound_graph import BoundGraph


class Screen:
    """What is seen of a run while it is under way."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begun = time.monotonic()
        self.killed = self.recorded = 0

    def line(self, text: str) -> None:
        self.console.print(f"  [dim]{time.monotonic() - self.begun:5.1f} s[/]  {text}")

    def look(self, story: "Story", graph: "BoundGraph", workers: "Workers") -> None:
        recorded = sum(effect.state == "done" for effect in story.effects)
        if recorded >= self.recorded + 10:
            self.recorded = recorded
            self.line(f"{recorded} pages and answers are recorded")
        if len(story.killed) > self.killed:
            self.killed = len(story.killed)
            under_way = sum(effect.state == "open" for effect in story.effects)
            found = f"{len(story.recorded)} recorded and {under_way} under way"
            dead, heir = story.killed[-1], workers.pid
            self.line(f"[red]✗ worker {dead} killed[/] with {found}; worker {heir} takes over")


def summary(story: "Story", seconds: float) -> list[str]:
    """The run in numbers, for a person."""
    keys, calls, kept = story.site.keys, story.setting.calls(), story.kept
    asked = sum(map(len, keys.values()))
    return [
        f"Worker killed {len(story.killed)} times with SIGKILL, in {seconds:.0f} s",
        f"Pages fetched: {len(keys)}, with {asked} requests; the others were cut off by a kill",
        f"Model answers: {len(calls)}, with {calls.total()} calls; the others were cut off too",
        f"Not made again: {kept['fetch']} requests and {kept['model']} model calls",
        f"Recorded, yet repeated: {len(story.repeated)}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.research", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=15, help="how often to kill its worker at most"
    )
    parser.add_argument("--seed", type=int, default=None, help="for the same random moments again")
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="how long a page or answer takes"
    )
    parser.add_argument("--folder", type=Path, default=None, help="where journal and report go")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="perdure-research-"))
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    console.print("\n[bold]A research agent[/] plans, reads forty pages, and writes a report.")
    console.print(f"Its worker is killed with SIGKILL up to {given.kills} times, at random.\n")
    with console.status("LangGraph is being imported …"):
        from examples.research.chaos import Setting, play
        from examples.research.site import serve

    seed = given.seed if given.seed is not None else time.time_ns() % 1000
    screen = Screen(console)
    with serve(given.seconds) as site:
        journal, bill = f"sqlite:///{folder}/agents.db", f"{folder}/bill"
        setting = Setting(journal, site.url, bill, given.seconds)
        story = play(
            setting,
            site,
            str(folder),
            kills=given.kills,
            between=(0.5 * given.seconds, 5.5 * given.seconds),
            seed=seed,
            look=screen.look,
        )
    if story.run.state != "done":
        console.print(f"[red]The run is {story.run.state}[/]: {story.run.error}")
        return 1
    seconds = time.monotonic() - screen.begun
    console.print()
    for line in summary(story, seconds):
        console.print(f"  {line}")
    report = story.run.output["report"]
    console.print(f"  [bold]Report[/] {report}", highlight=False, soft_wrap=True)
    console.print(f"  [dim]The same moments again: --seed {seed}[/]\n")
    return 1 if story.repeated else 0


if __name__ == "__main__":
    raise SystemExit(main())
