"""Checks that a path can hold a journal: it can be written, and its file system can share a WAL."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from perdure.errors import BadURL, Unavailable

# WAL needs memory shared by all users of the file, which these do not provide.
# fmt: off
NETWORK_FILE_SYSTEMS = frozenset((
    "nfs", "nfs4", "cifs", "smbfs", "smb3", "smb2", "9p", "afs", "afpfs", "webdav", "davfs",
    "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.davfs", "glusterfs", "lustre", "ceph",
    "fuse.ceph", "gpfs", "beegfs", "vboxsf", "prl_fs",
))
# fmt: on


# The system failed, and not the path: the same call may succeed later.
PASSING = {
    errno.EDQUOT,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
}


def prepare_file(path: str) -> None:
    """Create the file if it is not there. Raises `BadURL` for a path that cannot be a journal."""
    try:
        _check_writable(path)
        kind = file_system(str(Path(path).absolute().parent.resolve()), _mounts())
        if kind not in NETWORK_FILE_SYSTEMS:
            create_private(path)
    except OSError as error:
        if error.errno in PASSING:
            raise Unavailable(f"{path} cannot be opened now: {error}.") from error
        raise BadURL(f"{path} cannot be used: {error}.") from error
    if kind in NETWORK_FILE_SYSTEMS:
        raise BadURL(
            f"{path} is on a network file system ({kind}), where SQLite's WAL is not safe. "
            "Use a local disk, or PostgreSQL for many machines."
        )


def _check_writable(path: str) -> None:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise BadURL(f"The folder {folder} does not exist; create it, or name another file.")
    if Path(path).is_dir():
        raise BadURL(f"{path} is a folder; name a file in it.")
    for file in (path, f"{path}-wal", f"{path}-shm"):
        if Path(file).exists() and not os.access(file, os.W_OK):
            raise BadURL(f"{file} is not writable by this process.")
    if not os.access(folder, os.W_OK):
        raise BadURL(f"The folder {folder} is not writable; SQLite needs to create files beside.")


def create_private(path: str) -> None:
    """Create the file for its owner alone, if it is not there. SQLite gives its other files the
    same mode. The mode of a file that is there is left as it is."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def file_system(folder: str, mounts: Sequence[tuple[str, str]]) -> str | None:
    """The type of a folder's file system, given all (mount point, type)."""
    best = max(
        (m for m in mounts if folder == m[0] or folder.startswith(m[0].rstrip("/") + "/")),
        key=lambda mount: len(mount[0]),
        default=None,
    )
    return None if best is None else best[1]


def _mounts() -> list[tuple[str, str]]:
    if sys.platform == "darwin":
        import subprocess

        done = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False)
        lines = [line.partition(" on ")[2].rpartition(" (") for line in done.stdout.splitlines()]
        return [(point, rest.split(",")[0].rstrip(")")) for point, _, rest in lines]
    try:
        text = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        found.append((point, right.split()[0]))
    return found
