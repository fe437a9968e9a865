"""The files and commands of the guides work: every `perdure` command has its options, the files of
the deployment guide are read by what reads them, and the PostgreSQL roles are enough."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cronsim import CronSim

import perdure
from perdure.testing.postgres import Server
from tests.support.commands import every_command

yaml: Any = pytest.importorskip("yaml")  # mkdocs brings it
GUIDES = Path(__file__).parent.parent / "docs" / "guides"
DEPLOYING = (GUIDES / "deploying.md").read_text()
PAGES = sorted(GUIDES.glob("*.md"))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"(?ms)^ *```{language}\n(.*?)^ *```", text)


def commands(text: str) -> Iterator[list[str]]:
    """The `perdure` commands of a page, as words."""
    for block in blocks(text, "console"):
        for line in re.findall(r"(?m)^ *\$ (.*)$", block.replace("\\\n", " ")):
            if re.match(r"(\w+=\S* )*perdure ", line):
                words = shlex.split(line, comments=True)
                yield [word for word in words[words.index("perdure") :] if word != "&"]
    for block in blocks(text, "ini"):
        yield from (shlex.split(one) for one in re.findall(r"ExecStart=\S*/(perdure .*)", block))
    for block in blocks(text, "text"):
        yield from (shlex.split(one) for one in re.findall(r"(?m)&& \S*/(perdure .*)$", block))
    for language in ("dockerfile", "yaml"):
        for block in blocks(text, language):
            for found in re.findall(r'\["perdure", .*?\]', block):
                yield json.loads(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_guide_exists_with_its_options(page: Path) -> None:
    known = every_command()
    for words in commands(page.read_text()):
        name = next((n for n in (" ".join(words[1:3]), words[1]) if n in known), None)
        assert name is not None or words[1].startswith("-"), f"no command {words}"
        if name is not None:
            options = {o for p in known[name].params for o in [*p.opts, *p.secondary_opts]}
            used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert used <= options | {"--help"}, f"{words}: {used - options}"


def test_the_deployment_guide_has_a_command_for_each_way() -> None:
    assert sum(1 for _ in commands(DEPLOYING)) >= 8


def test_the_compose_file_waits_longer_than_the_grace_and_checks_the_health() -> None:
    services = yaml.safe_load(blocks(DEPLOYING, "yaml")[0])["services"]
    for name in ("worker", "server"):
        assert services[name]["stop_grace_period"] == "30s"
        probe = services[name]["healthcheck"]["test"]
        compile(probe[-1], "healthcheck", "exec")
    pod = yaml.safe_load(blocks(DEPLOYING, "yaml")[1])["spec"]
    assert pod["terminationGracePeriodSeconds"] == 30


def test_the_crontabs_are_read() -> None:
    lines = [line for block in blocks(DEPLOYING, "text") for line in block.splitlines()]
    jobs = [line for line in lines if line.startswith("* ")]
    assert len(jobs) == 2
    for job in jobs:
        when, _, what = job.partition("  ")
        CronSim(when, datetime(2027, 1, 1, tzinfo=UTC))
        assert "%" not in what  # which would end the command
        subprocess.run(["sh", "-n", "-c", what], check=True)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    [unit, *_] = blocks(DEPLOYING, "ini")
    file = tmp_path / "agents.service"
    here = unit.replace("/srv/agents/.venv/bin/perdure", "/bin/true").replace(
        "/srv/agents\n", "/\n"
    )
    file.write_text(here.replace("User=agents\n", ""))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True
    )
    told = verified.stdout + verified.stderr
    if "Failed to" in told and "service" not in told:
        pytest.skip(f"systemd-analyze cannot run here: {told.strip()}")
    assert (verified.returncode, told) == (0, "")


@pytest.mark.postgres
def test_the_roles_of_the_guide_can_migrate_and_work(postgres_server: Server) -> None:
    [roles, *_] = blocks((GUIDES / "postgresql.md").read_text(), "sql")
    url = postgres_server.database()
    name = url.rsplit("/", 1)[1]
    owner, worker = f"{name}_owner", f"{name}_agents"
    script = re.sub(r"\bagents\b", worker, roles.replace("DATABASE agents", f"DATABASE {name}"))
    script = script.replace("perdure_owner", owner)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())
    try:
        at = url.replace("postgres@", "{}@")
        with pytest.raises(perdure.errors.BadURL, match="permission denied for schema perdure"):
            perdure.connect(at.format(worker))
        perdure.connect(at.format(owner)).close()
        with perdure.Client(at.format(worker)) as client:
            run = client.blocking.start("letter", {}, thread_id="one")
            assert client.blocking.cancel(run.id).state == "cancelled"
            assert client.blocking.erase("one")["runs"] == 1
    finally:
        postgres_server.drop(url)
        with psycopg.connect(postgres_server.url, autocommit=True) as connection:
            connection.execute(f"DROP ROLE {worker}; DROP ROLE {owner}".encode())
