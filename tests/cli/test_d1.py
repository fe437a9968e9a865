"""`perdure d1 init`: the folder for Cloudflare's wrangler."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from perdure.journal.d1_client import D1Client
from tests.support.commands import Command


def secret_in(text: str) -> str:
    [found] = re.findall(r"stored nowhere: (\S+)$", text, re.MULTILINE)
    return str(found)


def test_init_writes_the_worker_its_settings_and_the_commands(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "worker"
    told = command("d1", "init", str(folder)).done
    packaged = files("perdure") / "cloudflare"
    for name in ("worker.js", "wrangler.jsonc"):
        assert (folder / name).read_text() == (packaged / name).read_text()
    for text in (told.out, (folder / "README.md").read_text()):
        steps = ["d1 create perdure", "secret put PERDURE_SECRET", "secret put TICK_SECRET"]
        places = [text.index(f"npx wrangler {step}") for step in [*steps, "deploy"]]
        assert places == sorted(places)
        assert "d1://perdure.YOUR-SUBDOMAIN.workers.dev/" in text


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
    command("d1", "init", str(tmp_path)).done  # noqa: B018
    config, worker = tmp_path / "wrangler.jsonc", tmp_path / "worker.js"
    config.write_text(config.read_text().replace('"main"', '"routes": [],\n  "main"'))
    kept = config.read_text()
    again = command("d1", "init", str(tmp_path)).done.out
    assert "npx wrangler deploy" in again
    assert "secret put" not in again  # the one that is in use stays
    assert "stored nowhere" not in again

    ours = worker.read_text()
    worker.write_text("// of an older perdure")
    told = command("d1", "init", str(tmp_path))
    assert told.code == 2
    assert "worker.js" in told.err
    assert "--force" in told.err
    assert worker.read_text() == "// of an older perdure"
    command("d1", "init", str(tmp_path), "--force").done  # noqa: B018
    assert worker.read_text() == ours
    assert config.read_text() == kept  # it is the user's


def test_init_says_which_folder_cannot_be_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in command("d1", "init", str(tmp_path / "file")).refused
