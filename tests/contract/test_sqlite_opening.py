"""A SQLite journal on a machine that is short of something opens later: that is no bad URL."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import perdure
from perdure.errors import BadURL, Unavailable
from tests.support.disk import Disk, SqliteOutOfReach


@pytest.fixture
def disk() -> Iterator[Disk]:
    try:
        disk = Disk.install()
    except SqliteOutOfReach as error:
        pytest.skip(str(error))
    yield disk
    disk.uninstall()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_disk_that_fails_at_any_write_of_the_first_opening_is_unavailable(
    disk: Disk, tmp_path: Path, number: int
) -> None:
    for last in itertools.chain((0, 1), (2**power for power in itertools.count(1))):
        url = f"sqlite:///{tmp_path}/{last}.db"
        left = iter(range(last))

        def fail(what: str, path: str, left: Iterator[int] = left) -> None:
            if what == "write" and next(left, None) is None:
                raise OSError(number, os.strerror(number))

        disk.before = fail
        with contextlib.suppress(Unavailable):
            perdure.connect(url, deadline=0.01).close()
            break
        disk.before = None
        perdure.connect(url).close()  # once the disk is well
    disk.before = None
    assert last > 8


def test_a_process_without_a_free_descriptor_gets_unavailable(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/dev/fd"))
    try:
        for free in range(5):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
            held = [os.open(os.devnull, os.O_RDONLY) for _ in _free(highest)][free:]
            try:
                with pytest.raises(Unavailable):
                    perdure.connect(url, deadline=0.01)
            finally:
                for one in held:
                    os.close(one)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    perdure.connect(url).close()


def _free(highest: int) -> list[int]:
    taken = {int(name) for name in os.listdir("/dev/fd")}
    return [number for number in range(highest + 1) if number not in taken]


def test_a_wal_of_another_user_is_a_bad_url_that_names_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = Path(sqlite_url.removeprefix("sqlite:///") + "-wal")
    wal.touch(0o400)
    access = os.access
    monkeypatch.setattr(  # root may write everything
        os, "access", lambda path, mode: str(path) != str(wal) and access(path, mode)
    )
    with pytest.raises(BadURL, match=r"-wal is not writable"):
        perdure.connect(sqlite_url)


def test_a_relative_path_leads_to_the_same_file_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with perdure.Client("sqlite:///journal.db") as client:
        run = client.blocking.start("g", {})
        monkeypatch.chdir(tmp_path / "elsewhere")
        with ThreadPoolExecutor(4) as threads:  # each may open a connection
            found = [*threads.map(client.blocking.get, [run.id] * 8)]
        assert {one.id for one in found} == {run.id}
        client.blocking.start("g", {})
    assert [*(tmp_path / "elsewhere").iterdir()] == []
