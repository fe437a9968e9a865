"""Every command that the campaign's README and tutorial show exists with its options, and the first
ones of the README are really run. (The tutorial itself is run by test_docs.py.)
"""

import ast
import codeop
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from examples.campaign.__main__ import commands
from examples.campaign.demo.postoffice import PostOffice
from perdure.cli import app
from tests.support.commands import python_path
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
CAMPAIGN = ROOT / "examples" / "campaign"
README = CAMPAIGN / "README.md"
TUTORIAL = sorted((ROOT / "docs" / "tutorials").glob("campaign*.md"))
BIN = Path(sys.executable).parent

COMMANDS: dict[str, Any] = {
    "perdure": app,
    "python -m examples.campaign": get_command(commands),
}


def check(words: list[str]) -> bool:
    """Whether a command is one of ours; if so, that it and its options exist."""
    words = [word.rpartition("/")[2] if n == 0 else word for n, word in enumerate(words)]
    for name, group in COMMANDS.items():
        start = name.split()
        if words[: len(start)] != start:
            continue
        rest = words[len(start) :]
        assert rest[0] in group.commands, f"there is no command {shlex.join(words)}"
        known = {option for one in group.commands[rest[0]].params for option in one.opts}
        known |= {option for one in group.commands[rest[0]].params for option in one.secondary_opts}
        given = {word.partition("=")[0] for word in rest[1:] if re.match("--?[a-z]", word)}
        assert given <= known, f"{shlex.join(words)} has options that are not there"
        return True
    return False


def shown(page: Path) -> Iterator[list[str]]:
    """The commands in the console blocks of a page, without comments and what is in the shell."""
    for block in re.findall(r"(?ms)^ *```console\n(.*?)^ *```", page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().startswith("$ "):
                words = shlex.split(line.strip()[2:], comments=True)
                yield [word for word in words if word != "&"]


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    checked = {page.stem: sum(map(check, shown(page))) for page in [README, *TUTORIAL]}
    assert checked["README"] >= 10


def test_every_named_file_exists() -> None:
    pages = "".join(page.read_text() for page in [README, *TUTORIAL])
    named = set(re.findall(r"`([\w-]+\.(?:py|sql|service|crontab))`", pages))
    assert len(named) >= 5
    of_the_reader = {"campaign.py"}
    assert {name for name in named if not any(CAMPAIGN.rglob(name))} == of_the_reader
    for link in re.findall(r"\]\(([^)#]+)", README.read_text()):
        assert (CAMPAIGN / link).exists(), f"the README links to {link}"


def is_read_by_a_console(text: str) -> bool:
    """Whether `python -m asyncio` understands a block that is pasted, line by line."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    pending: list[str] = []
    for line in [*text.splitlines(), ""]:
        pending.append(line)
        try:
            if compiler("\n".join(pending)) is not None:
                pending = []
        except SyntaxError:
            return False
    return not pending


def test_every_block_of_the_tutorial_can_be_pasted_into_a_console() -> None:
    pythons = [one for page in TUTORIAL for one in blocks(page) if one.language == "python"]
    assert len(pythons) > 15
    assert [one.place for one in pythons if not is_read_by_a_console(one.text)] == []


# -- the README, for real


@pytest.mark.slow
def test_the_commands_of_the_readme_send_the_first_mail(tmp_path: Path) -> None:
    """From nothing: create, import, launch, drive, approve, drive."""
    (tmp_path / "contacts.csv").write_text("email,name,company,zone\nbo@bo.example,Bo,Acme,UTC\n")
    lines = list(shown(README))
    steps = [words for words in lines if words[:3] == ["python", "-m", "examples.campaign"]]
    create, bring, launch = steps[:3]
    assert [step[3] for step in steps[:3]] == ["create", "import", "launch"]
    with PostOffice() as office:
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(str(ROOT)),
            "PERDURE_URL": f"sqlite:///{tmp_path}/campaign.db",
            "CAMPAIGN_SMTP_PORT": str(office.smtp_port),
            "CAMPAIGN_LOOKUP_URL": office.lookup_url,
        }

        def run(*words: str) -> str:
            program = [str(BIN / words[0]), *words[1:]]
            ended = subprocess.run(
                program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
            )
            assert ended.returncode == 0, ended.stderr
            return ended.stdout

        run(*create)
        assert "1 added" in run(*bring)
        assert "1 threads started" in run(*launch)
        drive = ["perdure", "worker", "examples.campaign.service:rt", "--until-idle"]
        run(*drive)
        [draft] = run("perdure", "inbox", "--json").splitlines()
        assert office.log == []
        wait = json.loads(draft)["id"]
        approve = next(words for words in lines if words[:2] == ["perdure", "answer"])
        run(*(wait if word == "WAIT" else word for word in approve))
        run(*drive)
        assert [mail.recipient for mail in office.log] == ["bo@bo.example"]
        assert "1 sent" in run("python", "-m", "examples.campaign", "status")


def test_every_module_is_on_the_map() -> None:
    parts = {one.stem for one in CAMPAIGN.glob("*.py")} - {"__init__"}
    parts |= {one.parent.name for one in CAMPAIGN.glob("*/__init__.py")}
    for package in ("__init__.py", "demo/__init__.py"):
        about = ast.get_docstring(ast.parse((CAMPAIGN / package).read_text())) or ""
        parts -= set(re.findall(r"\w+", about))
    assert parts == set()
