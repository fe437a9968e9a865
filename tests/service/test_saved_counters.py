"""A run counts what it did not do again when it continued, also in an unchanged application."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.cli import main
from tests.support.unchanged_child import application


def drive(url: str, killed: Path) -> int:
    command = [sys.executable, "-m", "tests.support.unchanged_child", url, str(killed)]
    return subprocess.run(command, check=False, timeout=120).returncode


def test_steps_and_model_calls_of_an_unchanged_application_are_counted(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = tmp_path / "killed"
    with perdure.Runtime(url, durability="sync") as rt:
        rt.register(application(killed), name="letter")
        run = rt.blocking.start("letter", {"text": ""})

        def saved() -> dict[str, int]:
            return dict(rt.blocking.get(run.id).saved)

        assert drive(url, killed) == -signal.SIGKILL
        assert saved() == {"steps": 0, "effects": 0, "model_calls": 0}
        assert drive(url, killed) == -signal.SIGKILL
        assert saved() == {"steps": 1, "effects": 0, "model_calls": 1}, "plan did not run again"
        assert drive(url, killed) == 0
        assert saved() == {"steps": 4, "effects": 0, "model_calls": 4}, "plan, draft and check"
        [wait] = rt.blocking.waits()
        rt.blocking.answer(wait.id, "yes")
        rt.blocking.tick()
        done = rt.blocking.get(run.id)
        assert (done.state, done.output) == ("done", {"text": "yes"})
        assert saved() == {"steps": 9, "effects": 0, "model_calls": 8}, "all but approve"
    assert main(["show", run.id, "--at", url]) == 0
    assert "9 steps  8 model calls" in capsys.readouterr().out


def test_a_run_that_never_stopped_has_saved_nothing(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "killed").write_text("xx")
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(application(tmp_path / "killed"), name="letter")
        run = rt.blocking.start("letter", {"text": ""})
        rt.blocking.tick()
        assert rt.blocking.get(run.id).saved == {"steps": 0, "effects": 0, "model_calls": 0}
