"""`python -m examples.research`: the agent at work, killed again and again, on your screen.

Exit code 0: the report is there, and nothing that was recorded was asked for again.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from examples.research.chaos import Story, Workers
    from perdure.execution.bound_graph import BoundGraph

OPEN, ASKED, FETCHED, TICKED = ("·", "dim"), ("○", "yellow"), ("◐", "cyan"), ("●", "green")


class Screen:
    """What is seen of a run while it is under way."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, refresh_per_second=12)
        self.begun = time.monotonic()
        self.killed = 0

    def line(self, text: str) -> None:
        self.console.print(f"  [dim]{time.monotonic() - self.begun:5.1f} s[/]  {text}")

    def look(self, story: "Story", graph: "BoundGraph", workers: "Workers") -> None:
        from examples.research.agent import ticks

        snapshot = graph.get_state({"configurable": {"thread_id": story.run.thread_id}})
        ticked = ticks(snapshot)
        if len(story.killed) > self.killed:
            self.killed = len(story.killed)
            under_way = sum(effect.state == "open" for effect in story.effects)
            found = f"{len(story.recorded)} recorded and {under_way} under way"
            dead, heir = story.killed[-1], workers.pid
            self.line(f"[red]✗ worker {dead} killed[/] with {found}; worker {heir} takes over")
        self.live.update(self.picture(story, snapshot.values, ticked))

    def picture(self, story: "Story", values: Any, ticked: dict[str, bool]) -> Padding:
        fetches = {
            effect.arguments["url"]: FETCHED if effect.state == "done" else ASKED
            for effect in story.effects
            if effect.name == "fetch"
        }
        rows = Table.grid(padding=(0, 2))
        plan = f"{len(ticked)} steps, approved with hash {values['approved'][:8]}" if ticked else ""
        rows.add_row("plan", _tick(bool(ticked)), f"[dim]{plan}[/]")
        chapters: dict[str, Text] = {}
        for step in values.get("plan") or ():
            symbol = TICKED if ticked[step["id"]] else fetches.get(step["url"], OPEN)
            chapters.setdefault(step["chapter"], Text()).append(symbol[0] + " ", style=symbol[1])
        for title, cells in chapters.items():
            rows.add_row("read", f"[dim]{title}[/]", cells)
        rows.add_row("write", _tick("text" in values))
        rows.add_row("publish", _tick("report" in values))
        key = Text("  ").join(
            Text(f"{symbol} {meaning}", style=style)
            for (symbol, style), meaning in [
                (OPEN, "open"),
                (ASKED, "asked for"),
                (FETCHED, "page recorded"),
                (TICKED, "summary recorded: ticked off"),
            ]
        )
        return Padding(Group(rows, Text(), key), (1, 2))


def _tick(done: bool) -> Text:
    return Text("✓", "green") if done else Text("·", "dim")


def summary(story: "Story", seconds: float) -> Table:
    """The run in numbers, for a person."""
    keys, calls = story.site.keys, story.setting.calls()
    kept, saved, output = story.kept, story.run.saved, story.run.output
    asked = sum(map(len, keys.values()))
    times = ", ".join(
        f"{pages} {_times(n)}" for n, pages in sorted(Counter(map(len, keys.values())).items())
    )
    same = all(len(set(of_page)) == 1 for of_page in keys.values())
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")

    def row(title: str, number: int, more: str = "") -> None:
        table.add_row(title, f"{number:,}", more)

    row("Worker killed", len(story.killed), f"with SIGKILL, in {seconds:.0f} s")
    row("Pages fetched", len(keys), f"{len(output['findings'])} steps of the plan are ticked off")
    row("Requests the site saw", asked, f"pages asked for: {times}")
    with_key = "; same key each time" if same else ""
    row("  cut off by a kill", asked - len(keys), f"no answer on disk, so asked again{with_key}")
    row("Model calls made", calls.total(), f"for {len(calls)} answers")
    row("  cut off by a kill", calls.total() - len(calls), "no answer on disk, so made again")
    what = f"{kept['fetch']} requests and {kept['model']} model calls"
    row("Not made again", kept.total(), f"{what}, if each worker started over")
    row("  in steps on disk", saved["steps"], "steps that did not run again (run.saved)")
    row("  replayed to nodes", saved["effects"], "that ran again (run.saved)")
    again = len(story.repeated)
    table.add_row("Recorded, yet repeated", f"[{'red' if again else 'bold green'}]{again}[/]")
    return table


def _times(n: int) -> str:
    words = ("once", "twice", "three times", "four times", "five times")
    return words[n - 1] if n <= len(words) else f"{n} times"


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
        with screen.live:
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
    console.print(Padding(summary(story, seconds), (1 - console.is_terminal, 2, 1, 2)))
    report = story.run.output["report"]
    console.print(f"  [bold]Report[/] {report}", highlight=False, soft_wrap=True)
    console.print(f"  [dim]The same moments again: --seed {seed}[/]\n")
    return 1 if story.repeated else 0


if __name__ == "__main__":
    raise SystemExit(main())
