"""What perdure creates is for its user alone; what is there keeps the mode it was given."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.execution.lease import ProcessLock
from tests.support.commands import commands_at


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_the_mode_of_a_journal_that_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    perdure.connect(f"sqlite:///{path}").close()
    path.chmod(0o660)
    journal = perdure.connect(f"sqlite:///{path}")
    try:
        assert set(_modes(tmp_path).values()) == {0o660}
    finally:
        journal.close()


def test_an_export_is_for_its_owner_alone(
    tmp_path: Path, umask: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url, file = f"sqlite:///{tmp_path}/journal.db", tmp_path / "export.jsonl"
    perdure.connect(url).close()
    assert commands_at(capsys, url)("export", "-o", str(file)).code == 0
    assert _modes(tmp_path)["export.jsonl"] == 0o600


def test_a_folder_of_locks_that_others_can_write_to_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    ours, open_to_all, link = tmp_path / "ours", tmp_path / "open", tmp_path / "link"
    ours.mkdir(mode=0o700)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(ours)
    dead = "host:1:abcd"
    for folder in (ours, open_to_all):
        (folder / "host-1-abcd.lock").touch(mode=0o600)
    for folder, is_used in ((ours, True), (open_to_all, False), (link, False)):
        lock = ProcessLock(str(folder))
        lock.acquire()
        try:
            assert (lock._path(lock.id).exists()) is is_used
            assert lock.is_dead(dead) is is_used
        finally:
            lock.release()
    assert caplog.text.count("is not used, because others could write to it") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_locks_of_another_user_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    lock = ProcessLock(str(folder))
    lock.acquire()
    assert list(folder.iterdir()) == []


def test_the_name_of_a_worker_in_the_journal_leads_to_no_other_folder(tmp_path: Path) -> None:
    folder, other = tmp_path / "locks", tmp_path / "other.lock"
    folder.mkdir(mode=0o700)
    other.touch()
    lock = ProcessLock(str(folder))
    assert not lock.is_dead("../other")
    lock.remove("../other")
    assert other.exists()
