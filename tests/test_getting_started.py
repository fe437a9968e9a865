"""Getting started works as it is written: its commands, played in order, print what it shows.

Ids, times, durations and process numbers differ from one play to the next. Everything else is
compared line by line.
"""

import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import perdure
from tests.support.cli_process import CliProcess, cli_process
from tests.support.fork_server import ForkServer
from tests.support.pages import blocks
from tests.support.polling import until

PAGE = Path(__file__).parent.parent / "docs" / "getting-started.md"
SETUP = ("python3 ", "pip ", "mkdir ", "export ")

VARIES = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+|Z)", "TIME"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "RUN"),
    (r"\b[0-9a-f]{32}\b", "ID"),
    (r"\(\S+:\d+\)|with \S+:\d+,|^\w\S*:\d+(?=  alive)", "PROCESS"),
    (r"\w+day \d\d:\d\dZ \(in 3d 23h\)|\w+day \d\d:\d\dZ \(in 4d\)", "DAY"),
    (r"[+<]?\d+(\.\d+)?(ms|s|%)", "N"),
    (r"[█-▏]+", "BAR"),
    (r" +", " "),
]


def without_what_varies(text: str) -> list[str]:
    for pattern, instead in VARIES:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return sorted(line.strip() for line in text.splitlines() if line.strip())


def commands() -> Iterator[tuple[str, str]]:
    """Each command of the page, with what the page shows below it."""
    for block in blocks(PAGE):
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield command, output


class Reader:
    """A reader with two terminals. The first step takes a tenth of the time."""

    def __init__(self, folder: Path, server: ForkServer, processes: ExitStack) -> None:
        self.folder, self.server, self.processes = folder, server, processes
        self.url = f"sqlite:///{folder}/agents.db"
        module = next(one.text for one in blocks(PAGE) if one.language == "python")
        (folder / "agents.py").write_text(module.replace("sleep(5)", "sleep(0.5)", 1))
        self.client = processes.enter_context(perdure.Client(self.url))
        self.ids: dict[str, str] = {}
        self.worker = self.starts_a_worker()

    def starts_a_worker(self) -> CliProcess:
        worker = self._process("worker", "agents:rt")
        worker.says("working on letter")
        return worker

    def _process(self, *arguments: str) -> CliProcess:
        return self.processes.enter_context(
            cli_process(self.server, self.folder, *arguments, PERDURE_URL=self.url)
        )

    def types(self, command: str) -> str:
        """What the command prints, once what it shows is settled."""
        if command == "perdure workers":
            until(lambda: "research" in self.steps(), "research is done")
            workers = self.client.blocking.workers
            until(lambda: [one.graphs for one in workers()] == [("letter",)], "it is announced")
        if command.startswith("kill"):
            self.worker.stop(signal.SIGKILL)
            return ""
        if command.startswith("cat "):
            return (self.folder / command.removeprefix("cat ")).read_text()
        arguments = [self.ids.get(word, word) for word in shlex.split(command)[1:]]
        if arguments == ["worker", "agents:rt"]:
            return self.worker.text
        process = self._process(*arguments)
        assert process.ends() == 0, process.text
        return process.text

    def steps(self) -> list[str]:
        [run] = self.client.blocking.runs()
        events = self.client.blocking.events(run.id, kinds=["step"])
        return [node for event in events for node in event.data.get("nodes", [])]

    def waits_until(self, state: str, kind: str | None) -> None:
        def reached() -> bool:
            [run] = self.client.blocking.runs()
            waits = self.client.blocking.waits(run_id=run.id)
            return run.state == state and [str(wait.kind) for wait in waits] == [kind] * bool(kind)

        until(reached, f"{state} {kind}")


@pytest.mark.slow
def test_the_commands_of_getting_started_print_what_the_page_shows(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    after = {"wake": ("done", None), "answer": ("waiting", "clock")}
    with ExitStack() as processes:
        reader = Reader(tmp_path, fork_server, processes)
        is_killed = False
        for command, shown in commands():
            if command.startswith(SETUP):
                continue
            printed = reader.types(command)
            assert without_what_varies(printed) == without_what_varies(shown), f"$ {command}"
            shown_ids, real_ids = (
                re.findall(r"[0-9a-f]{8}[0-9a-f-]{24,}", x) for x in (shown, printed)
            )
            reader.ids |= dict(zip(shown_ids, real_ids, strict=True))
            reader.ids |= {shown[:4]: real for shown, real in reader.ids.items()}
            name = command.split()[1]
            if name in after:
                reader.waits_until(*after[name])
            if is_killed:  # the page says: start a worker again
                reader.worker = reader.starts_a_worker()
                reader.waits_until("waiting", "human")
            is_killed = command.startswith("kill")
        assert reader.steps().count("research") == 1
