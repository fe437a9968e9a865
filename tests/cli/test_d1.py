"""`perdure d1 init`: the folder for Cloudflare's wrangler."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from perdure.journal.d1_client import D1Client
from tests.support.commands import Command


def secret_in(text: str) -> str:
    [found] = re.findall(r"stored nowhere: (\S+)$", text, re.MULTILINE)
    return str(found)


def setting(folder: Path, key: str) -> Any:
    [found] = re.findall(rf'"{key}": ("[^"]*"|\[.*\])', (folder / "wrangler.jsonc").read_text())
    return json.loads(found)


def test_init_writes_the_worker_its_settings_and_the_commands(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "worker"
    told = command(
        *("d1", "init", str(folder), "--worker", "agents", "--database", "agents_db"),
        *("--tick-url", "https://agents.example.com/cron/tick"),
    ).done
    packaged = files("perdure") / "cloudflare"
    assert (folder / "worker.js").read_text() == (packaged / "worker.js").read_text()
    found = [setting(folder, key) for key in ("name", "database_name", "TICK_URL")]
    url = "https://agents.example.com/cron/tick"
    assert found == ["agents", "agents_db", url]
    for text in (told.out, (folder / "README.md").read_text()):
        steps = ["d1 create agents_db", "secret put PERDURE_SECRET", "secret put TICK_SECRET"]
        places = [text.index(f"npx wrangler {step}") for step in [*steps, "deploy"]]
        assert places == sorted(places)
        assert "d1://agents.YOUR-SUBDOMAIN.workers.dev/" in text
    assert "d1 create agents_db " in (folder / "wrangler.jsonc").read_text()


def test_the_secret_is_printed_and_is_in_no_file(command: Command, tmp_path: Path) -> None:
    secret = secret_in(command("d1", "init", str(tmp_path)).done.out)
    again = secret_in(command("d1", "init", str(tmp_path / "o")).done.out)
    assert len(secret) == len(again) == 43
    assert secret != again
    assert D1Client(f"d1://:{secret}@host.example/").place == "d1://host.example"
    for file in tmp_path.glob("*.*"):
        assert secret not in file.read_text()


def test_init_again_keeps_what_was_set_and_brings_the_worker_up_to_date(
    command: Command, tmp_path: Path
) -> None:
    command("d1", "init", str(tmp_path), "--worker", "agents").done  # noqa: B018
    config, worker = tmp_path / "wrangler.jsonc", tmp_path / "worker.js"
    config.write_text(config.read_text().replace('"main"', '"routes": [],\n  "main"'))
    kept = config.read_text()
    again = command("d1", "init", str(tmp_path)).done.out
    assert "npx wrangler deploy" in again
    assert "secret put" not in again  # the one that is in use stays
    assert "stored nowhere" not in again

    ours = worker.read_text()
    worker.write_text("// of an older perdure")
    told = command("d1", "init", str(tmp_path), "--database", "new")
    assert told.code == 2
    assert "worker.js" in told.err
    assert "--force" in told.err
    assert worker.read_text() == "// of an older perdure"
    command("d1", "init", str(tmp_path), "--database", "new", "--force").done  # noqa: B018
    assert worker.read_text() == ours
    assert config.read_text() == kept  # it is the user's


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--worker", "Not_A_Name", "is not a name"),
        ("--database", 'x", "y', "is not a name"),
        ("--tick-url", "http://agents.example.com/cron/tick", "https"),
        ("--tick-url", "https://:hush@agents.example.com/cron/tick", "without a user"),
    ],
)
def test_init_refuses_a_bad_option_and_writes_nothing(
    command: Command, tmp_path: Path, option: str, value: str, words: str
) -> None:
    refused = command("d1", "init", str(tmp_path / "w"), option, value).refused
    assert words in refused
    assert "hush" not in refused
    assert not (tmp_path / "w").exists()


def test_init_says_which_folder_cannot_be_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in command("d1", "init", str(tmp_path / "file")).refused
