"""`python -m examples.memory_chat`: a chat agent is killed, and remembers.

The same agent with LangMem's own executor runs next to it. Exit code 0: it remembers.
"""

import argparse
import tempfile
import time
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

MONDAY = ["Hi, my name is Ana!", "I am allergic to peanuts.", "And last week I moved to Lisbon."]
TUESDAY = "What do you know about me?"
WHO = ("LangMem's executor", "perdure's executor")


class Screen:
    """The output, with one column for each agent."""

    def __init__(self, console: Console) -> None:
        self.console, self._begun = console, time.monotonic()

    def line(self, *texts: str, at: str = "") -> None:
        """Print one text for both agents, or one for each."""
        at = at or f"[dim]{time.monotonic() - self._begun:5.1f} s[/]"
        if len(texts) == 1:
            self.console.print(f"  {at}  {texts[0]}")
            return
        row = Table.grid(padding=(0, 2, 0, 0))
        width = (min(self.console.width, 110) - 14) // 2
        for column in (7, width, width):
            row.add_column(width=column)
        row.add_row(at, *texts)
        self.console.print(Padding(row, (0, 0, 0, 2)))


def play(console: Console, folder: Path, model: str, rest: float) -> int:
    """Play the same conversation with both agents."""
    with console.status("LangMem is being imported …"):
        from examples.memory_chat.play import Process, Setting

        settings = [
            Setting(f"{folder}/langmem.db", rest, model, stock=True),
            Setting(f"{folder}/perdure.db", rest, model),
        ]
        agents = [Process(setting) for setting in settings]

    screen = Screen(console)
    screen.line(*(f"[bold]{who}[/]" for who in WHO), at=" ")
    screen.line(*(f"[dim]process {agent.pid}[/]" for agent in agents), at="[bold]Monday[/]")
    for text in MONDAY:
        screen.line(f"[cyan]Ana: {text}[/]")
        screen.line(*(agent.say("monday", text) for agent in agents), at=" ")
        time.sleep(0.4)
    due = time.monotonic() + rest
    before = [agent.count_pending() for agent in agents]
    screen.line(*(_reflections(count) for count in before))
    for agent in agents:
        agent.kill()
    screen.line(*("[red]✗ killed with SIGKILL[/]" for _ in agents))

    agents = [Process(setting) for setting in settings]
    console.print()
    screen.line(*(f"[dim]process {agent.pid}[/]" for agent in agents), at="[bold]Tuesday[/]")
    after = [agent.pending for agent in agents]
    screen.line(*(_reflections(count) for count in after))
    for agent in agents:
        agent.wait_until_rested(due + 0.5)
    memories = [agent.memories() for agent in agents]
    screen.line(*(_memories(len(found)) for found in memories))
    screen.line(f"[cyan]Ana: {TUESDAY}[/]")
    screen.line(*(agent.say("tuesday", TUESDAY) for agent in agents), at=" ")
    for agent in agents:
        agent.kill()

    table = Table.grid(padding=(0, 3))
    for style in ("bold", "", ""):
        table.add_column(style=style, justify="left" if style else "right")
    table.add_row("", *(f"[bold]{who}[/]" for who in WHO))
    table.add_row("Messages", *[str(len(MONDAY))] * 2)
    table.add_row("Reflections pending at the kill", *map(str, before))
    table.add_row("  found by the next process", *map(str, after))
    table.add_row("Memories made of them", *(str(len(found)) for found in memories))
    table.add_row("On Tuesday the agent", *map(_verdict, memories))
    console.print(Padding(table, (1, 2)))
    return 0 if memories[1] else 1


def _reflections(count: int) -> str:
    return f"{count} reflection{'s' * (count != 1)} pending"


def _memories(count: int) -> str:
    return f"{count} memor{'y' if count == 1 else 'ies'}"


def _verdict(memories: list[str]) -> str:
    return "[bold green]remembers[/]" if memories else "[red]has forgotten[/]"


def chat(console: Console, path: Path, model: str, rest: float, user: str) -> int:
    """Chat with the user of this terminal."""
    from examples.memory_chat.agent import open_chat, say
    from examples.memory_chat.model import model_named

    with open_chat(str(path), model_named(model), rest) as (agent, executor):
        console.print(f"You are {user}, in {path}. It reflects after {rest:g} s without a message.")
        for one in executor.pending():
            console.print(f"[dim]{one.state}: a reflection on {one.thread_id}[/]")
        for memory in executor.search(namespace=("memories", user), limit=50):
            console.print(f"[dim]remembered: {memory['value']['content']['content']}[/]")
        conversation = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}"
        try:
            while True:
                if text := console.input("[cyan]you[/]  ").strip():
                    console.print(f"[green]bot[/]  {say(agent, user, conversation, text)}")
        except (EOFError, KeyboardInterrupt):
            console.print("\n[dim]Bye. Pending reflections are in the file.[/]")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.memory_chat", description=__doc__)
    parser.add_argument(
        "--model", default="scripted", help="any model LangChain knows, as PROVIDER:ID"
    )
    parser.add_argument("--rest", type=float, default=2.0, help="seconds before it reflects")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the database files")
    parser.add_argument("--interactive", action="store_true", help="chat in this terminal")
    parser.add_argument("--user", default="you", help="with --interactive: whose memories")
    given = parser.parse_args()
    console = Console(highlight=False)
    folder = given.folder or Path("." if given.interactive else _temporary())
    folder.mkdir(parents=True, exist_ok=True)
    if given.interactive:
        return chat(console, folder / "memory_chat.db", given.model, given.rest, given.user)
    console.print("\n[bold]A chat agent[/] makes memories of its conversations, in the background,")
    console.print(f"when they have rested for {given.rest:g} s. It is killed before that.\n")
    return play(console, folder, given.model, given.rest)


def _temporary() -> str:
    return tempfile.mkdtemp(prefix="perdure-memory-")


if __name__ == "__main__":
    raise SystemExit(main())
