"""What the campaign example ships beside its code is right: units, crontab, settings, pages.

Every command that its pages and the tutorial show is there with the options they use, and the
first ones of the README are really run. (The tutorial itself is run by test_docs.py.)
"""

import ast
import codeop
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from examples.campaign.__main__ import commands
from examples.campaign.postoffice import PostOffice
from examples.campaign.settings import Settings
from perdure.cli import app
from tests.support.commands import python_path
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
CAMPAIGN = ROOT / "examples" / "campaign"
DEPLOY = CAMPAIGN / "deploy"
README = CAMPAIGN / "README.md"
PAGES = sorted(CAMPAIGN.glob("*.md"))
TUTORIAL = sorted((ROOT / "docs" / "tutorials").glob("campaign*.md"))
UNITS = sorted(DEPLOY.glob("*.service"))
BIN = Path(sys.executable).parent
HOME = "/opt/campaign"

COMMANDS: dict[str, Any] = {
    "perdure": typer.main.get_command(app),
    "python -m examples.campaign": typer.main.get_command(commands),
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
    checked = {page.stem: sum(map(check, shown(page))) for page in [*PAGES, *TUTORIAL]}
    assert checked["README"] >= 10
    assert checked["OPERATING"] >= 10
    assert checked["campaign-application"] >= 10
    assert {page for page, number in checked.items() if not number} == {"SETTINGS"}


def test_the_check_of_commands_notices_a_missing_one() -> None:
    assert check(["perdure", "runs", "--state", "held"])
    assert not check(["make", "demo"])
    with pytest.raises(AssertionError, match="no command"):
        check(["perdure", "rans"])
    with pytest.raises(AssertionError, match="options"):
        check(["perdure", "runs", "--colour"])


def test_every_named_file_exists() -> None:
    pages = "".join(page.read_text() for page in [*PAGES, *TUTORIAL])
    named = set(re.findall(r"`([\w-]+\.(?:py|sql|service|crontab))`", pages))
    assert len(named) > 20
    of_the_reader = {"campaign.py"}
    assert {name for name in named if not any(CAMPAIGN.rglob(name))} == of_the_reader
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (CAMPAIGN / link).exists(), f"{page.name} links to {link}"


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


def test_a_block_that_a_console_rejects_is_noticed() -> None:
    assert is_read_by_a_console("for one in []:\n    print(one)\n\nprint(await two())\n")
    assert not is_read_by_a_console("for one in []:\n    print(one)\nprint(2)\n")
    assert not is_read_by_a_console("def one():\n    print(1)\n\n    print(2)\n")


# -- units


def unit(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, delimiters="=", comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_an_existing_program_with_existing_commands(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["WorkingDirectory"] == HOME
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).parent == Path(HOME, ".venv", "bin")
    assert (BIN / Path(program).name).exists()
    assert check([program, *words]) or Path(program).name == "uvicorn"


def test_what_the_units_load_can_be_imported() -> None:
    from examples.campaign import service

    assert callable(service.web)
    assert hasattr(service.rt, "work")
    loaded = {word for path in UNITS for word in unit(path)["Service"]["ExecStart"].split()}
    assert {word for word in loaded if ":" in word} == {
        "examples.campaign.service:rt",
        "examples.campaign.service:web",
    }


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_restarts_after_any_exit_and_has_time_to_drain(path: Path) -> None:
    parsed = unit(path)
    service = parsed["Service"]
    assert service["Restart"] == "always"
    assert parsed["Unit"]["StartLimitIntervalSec"] == "0"
    drain = re.search(r"--(?:grace|timeout-graceful-shutdown) (\d+)", service["ExecStart"])
    assert float(service["TimeoutStopSec"]) > (float(drain[1]) + 15 if drain else 10)


def test_units_share_where_they_write_and_how_they_are_confined() -> None:
    own = ("ExecStart", "TimeoutStopSec")
    first, *others = (
        {name: value for name, value in unit(path)["Service"].items() if name not in own}
        for path in UNITS
    )
    assert len(UNITS) == 3
    assert all(other == first for other in others)
    assert first["ProtectSystem"] == "strict"
    assert first["NoNewPrivileges"] == "yes"
    assert f"TMPDIR=/run/{first['RuntimeDirectory']}" in first["Environment"].split()
    assert f"/var/lib/{first['StateDirectory']}/" in (DEPLOY / "env.example").read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".venv").mkdir(parents=True)
    (home / ".venv" / "bin").symlink_to(BIN)
    copies = [tmp_path / path.name for path in UNITS]
    for path, copy in zip(UNITS, copies, strict=True):
        copy.write_text(path.read_text().replace(HOME, str(home)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies], capture_output=True, text=True
    )
    told = verified.stdout + verified.stderr
    if "Failed to" in told and "service" not in told:
        pytest.skip(f"systemd-analyze cannot run here: {told.strip()}")
    assert verified.returncode == 0, told
    assert told == ""


# -- crontab and environment


def jobs() -> list[tuple[str, str]]:
    """Of each line of the crontab, also of those that are commented out: when, and what."""
    text = (DEPLOY / "campaign.crontab").read_text()
    found = re.findall(r"(?m)^#?((?:[\d*/,-]+ ){4}[\d*/,-]+)  (.+)$", text)
    assert len(found) == 3
    return found


def test_the_crontab_runs_commands_that_exist() -> None:
    checked = 0
    for _, job in jobs():
        assert "%" not in job  # which would end the command
        subprocess.run(["sh", "-n", "-c", job], check=True)
        for part in re.split(r";|&&|\|", job):
            words = [word for word in shlex.split(part) if not word.startswith(">")]
            checked += bool(words) and check(words)
    assert checked == 2


def settings_of(text: str, tmp_path: Path) -> dict[str, str]:
    """What a shell makes of an environment file."""
    file = tmp_path / "env"
    file.write_text(text)
    told = subprocess.run(
        ["sh", "-c", f"set -a; . {shlex.quote(str(file))}; env"],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    pairs = (line.partition("=") for line in told.stdout.splitlines())
    names = ("CAMPAIGN_", "PERDURE_")
    return {name: value for name, _, value in pairs if name.startswith(names)}


def test_the_environment_file_names_every_setting_and_no_other(tmp_path: Path) -> None:
    text = (DEPLOY / "env.example").read_text()
    named = set(re.findall(r"(?m)^#?([A-Z_]+)=", text))
    settings = {f"CAMPAIGN_{one.name.upper()}" for one in fields(Settings)}
    assert named == settings - {"CAMPAIGN_URL"} | {"PERDURE_URL", "PERDURE_CRON_SECRET"}

    read = Settings.read(settings_of(text, tmp_path))
    assert (read.smtp_host, read.smtp_port, read.smtp_starttls) == ("smtp.example.com", 587, True)
    assert read.smtp_password == "secret"
    assert read.url == "sqlite:////var/lib/campaign/campaign.db"


def test_what_is_commented_out_in_the_environment_file_is_the_default(tmp_path: Path) -> None:
    text = (DEPLOY / "env.example").read_text()
    all_of_it = re.sub(r"(?m)^#(?=CAMPAIGN_)", "", text)
    read, default = Settings.read(settings_of(all_of_it, tmp_path)), Settings()
    for name in (
        "smtp_timeout",
        "lookup_after",
        "inbound_host",
        "inbound_port",
        "imap_port",
        "zone",
    ):
        assert getattr(read, name) == getattr(default, name)


def test_the_page_of_settings_has_each_with_its_default() -> None:
    rows = dict(re.findall(r"(?m)^\| .*?`(CAMPAIGN_\w+)` \| (.*?) \|", _text("SETTINGS.md")))
    for one in fields(Settings):
        told = rows.pop(f"CAMPAIGN_{one.name.upper()}")
        said = {"": "none", "False": "no", "True": "yes"}.get(str(one.default), f"`{one.default}`")
        assert told == said, one.name
    assert not rows


# -- the README, for real


@pytest.mark.slow
def test_the_commands_of_the_readme_send_the_first_mail(tmp_path: Path) -> None:
    """From nothing: create, import, launch, drive, approve, drive."""
    (tmp_path / "contacts.csv").write_text("email,name,company,zone\nbo@bo.example,Bo,Acme,UTC\n")
    steps = [words for words in shown(README) if words[:3] == ["python", "-m", "examples.campaign"]]
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
        assert "1 thread" in run(*launch)
        drive = ["perdure", "worker", "examples.campaign.service:rt", "--until-idle"]
        run(*drive)
        [draft] = run("perdure", "inbox", "--json").splitlines()
        assert office.log == []
        run("perdure", "answer", json.loads(draft)["id"], '{"action": "approve"}', "--by", "ana")
        run(*drive)
        assert [mail.recipient for mail in office.log] == ["bo@bo.example"]
        [status] = run("python", "-m", "examples.campaign", "status", "--json").splitlines()
        assert json.loads(status)["touches"] == {"sent": 1}


def test_every_module_is_on_the_map_and_in_the_tutorial() -> None:
    parts = {one.stem for one in CAMPAIGN.glob("*.py")} - {"__init__"}
    parts |= {one.parent.name for one in CAMPAIGN.glob("*/__init__.py")}
    map_words = set(re.findall(r"\w+", ast.get_docstring(ast.parse(_text("__init__.py"))) or ""))
    page = ROOT / "docs" / "tutorials" / "campaign-application.md"
    table = page.read_text().partition("| module |")[2]
    assert parts - map_words == set()
    assert parts - {name.partition(".")[0] for name in re.findall(r"`([\w.]+)/?`", table)} == set()


def _text(name: str) -> str:
    return (CAMPAIGN / name).read_text()
