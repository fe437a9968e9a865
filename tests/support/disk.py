"""A disk that can lose power, for SQLite, without a C compiler.

`Disk` puts a thin VFS (SQLite's "virtual file system": the functions through which it reaches the
operating system) in front of the default one, inside the very SQLite library that Python's
`sqlite3` module calls. Every write, truncate, sync and delete still happens; it is also counted
and, when asked for, logged. `surviving` then builds from such a log what a disk may hold when
power is lost at any event of it.

    disk = Disk.install()
    disk.record(True)
    …commit something…; disk.mark("a")          # "a" was acknowledged: it must survive from here on
    disk.record(False)
    marks = surviving(disk.log, cut=17, rng=random.Random(1), into=tmp_path / "after")

How it hooks in. SQLite calls a VFS through two C structs of function pointers: `sqlite3_vfs` opens
and deletes files, and the first word of every open file points to a `sqlite3_io_methods`. We
register a *copy* of the default `sqlite3_vfs` with our xOpen and xDelete, and point each opened
database, journal or WAL at a *copy* of its methods with our xWrite, xTruncate, xSync and xClose.
All else (locks, shared memory, reads) stays native. Uninstalling puts the native pointers back, so
no Python is reachable from SQLite afterwards, not even from connections that stay open.

What the disk promises. Of xDeviceCharacteristics we let through only "powersafe overwrite" (a write
leaves its neighbours alone), as SQLite assumes of any disk unless told `psow=0`; `surviving` keeps
that promise. Atomic writes, safe appends and ordered writes are never promised.

Limits: one process (what a child writes is not seen); temporary files are not logged; files changed
behind SQLite's back while recording are not noticed.
"""

from __future__ import annotations

import _sqlite3
import atexit
import ctypes
import errno
import os
import random
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

__all__ = ["VFS", "Disk", "Event", "SqliteOutOfReach", "surviving"]

VFS = "perdure-disk"

_OK, _IOERR, _FULL = 0, 10, 13
_POWERSAFE_OVERWRITE = 0x1000
_DATABASE_OR_JOURNAL = 0x100 | 0x800 | 0x4000 | 0x80000  # MAIN_DB, MAIN_JOURNAL, SUPER_JOURNAL, WAL


class SqliteOutOfReach(RuntimeError):
    """Python's sqlite3 module hides its SQLite, most likely because it is linked statically into
    Python. Use a Python whose `_sqlite3` is linked with a shared libsqlite3 (Debian's, Homebrew's,
    pyenv's with libsqlite3-dev)."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


class _Vfs(ctypes.Structure):
    """sqlite3_vfs, version 3. `rest` is xAccess to xNextSystemCall, which we never touch."""

    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),  # how many bytes SQLite reserves for an open file
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", c_void_p),
        ("xDelete", c_void_p),
        ("rest", c_void_p * 14),
    )


class _Methods(ctypes.Structure):
    """sqlite3_io_methods, version 3. `locks`: xLock to xSectorSize, `memory`: xShmMap to xFetch."""

    _fields_ = (
        ("iVersion", c_int),
        ("xClose", c_void_p),
        ("xRead", c_void_p),
        ("xWrite", c_void_p),
        ("xTruncate", c_void_p),
        ("xSync", c_void_p),
        ("xFileSize", c_void_p),
        ("locks", c_void_p * 5),
        ("xDeviceCharacteristics", c_void_p),
        ("memory", c_void_p * 5),
        ("xUnfetch", c_void_p),
    )


# Names travel as plain pointers: SQLite hides URI parameters behind the end of the string.
_SIGNATURES = {
    "xOpen": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p),
    "xDelete": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int),
    "xClose": ctypes.CFUNCTYPE(c_int, c_void_p),
    "xRead": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64),
    "xWrite": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64),
    "xTruncate": ctypes.CFUNCTYPE(c_int, c_void_p, c_int64),
    "xSync": ctypes.CFUNCTYPE(c_int, c_void_p, c_int),
    "xFileSize": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p),
    "xDeviceCharacteristics": ctypes.CFUNCTYPE(c_int, c_void_p),
    "xUnfetch": ctypes.CFUNCTYPE(c_int, c_void_p, c_int64, c_void_p),
}


def _function(table: ctypes.Structure, name: str) -> Callable[..., int]:
    function: Callable[..., int] = _SIGNATURES[name](getattr(table, name))
    return function


class Disk:
    """The recording VFS. There is one per process: get it with `Disk.install`."""

    _current: ClassVar[Disk | None] = None

    log: list[Event]
    """What happened while recording, in order."""
    writes: int = 0
    """How many writes reached the operating system, recording or not. See also `syncs`."""
    syncs: int = 0
    before: Callable[[str, str], None] | None = None
    """Called before a write or, by a checkpoint, between its two reads of how long the WAL is:
    with "write" or "unfetch", and the path of the file. If it raises OSError, the disk fails so."""

    @classmethod
    def install(cls, default: bool = True) -> Disk:
        """Register the VFS; a second call returns the same disk.

        With `default`, every later `sqlite3.connect` in this process goes through it; otherwise
        only those that ask with `file:…?vfs=perdure-disk`. Raises `SqliteOutOfReach`.
        """
        disk = cls._current or cls()
        disk._library.sqlite3_vfs_register(ctypes.byref(disk._vfs), int(default))
        try:  # Python must know the name now, or we spoke to another SQLite than Python's
            sqlite3.connect(f"file::memory:?vfs={VFS}", uri=True).close()
        except sqlite3.OperationalError:
            disk.uninstall()
            raise SqliteOutOfReach from None
        if cls._current is None:
            cls._current = disk
            atexit.register(disk.uninstall)
        return disk

    def __init__(self) -> None:
        self.log = []
        self._recording = False
        self._seen: set[str] = set()  # paths whose content before the log is in the log
        self._open: dict[int, tuple[str, int]] = {}  # file → its path, its native methods
        self._tables: dict[int, _Methods] = {}  # native methods → our copy
        self._callbacks: list[Any] = []
        # Reentrant: the collector may close a forgotten connection while we hold it.
        self._lock = threading.RLock()
        self._library = _library()
        self._native = _Vfs.from_address(self._library.sqlite3_vfs_find(None))
        self._vfs = _Vfs.from_buffer_copy(self._native)
        self._vfs.zName = VFS.encode()
        self._hook(self._vfs, "xOpen", self._x_open)
        self._hook(self._vfs, "xDelete", self._x_delete)
        # Connections may outlive every reference to us: the structs they point to must not move.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def uninstall(self) -> None:
        """Give SQLite back to its own VFS. Open connections go on, no longer seen. Call it while no
        other thread is using SQLite."""
        with self._lock:
            self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
            self._vfs.xOpen, self._vfs.xDelete = self._native.xOpen, self._native.xDelete
            for file, (_, native) in self._open.items():
                c_void_p.from_address(file).value = native
            self._open.clear()
            self._recording = False
            if Disk._current is self:
                Disk._current = None
            atexit.unregister(self.uninstall)

    def record(self, on: bool) -> None:
        """Begin a new log, or end it. What files hold when first seen counts as durable. While
        recording, threads take turns, so that the log is the true order."""
        with self._lock:
            if on:
                self.log.clear()
                self._seen.clear()
                for file, (path, native) in list(self._open.items()):
                    self._take_over(file, path, native)
            self._recording = on

    def mark(self, label: str) -> None:
        """Log an acknowledgement: what was promised with it must survive every cut from here on."""
        with self._lock:
            if self._recording:
                self.log.append(Event("mark", label))

    def reset(self) -> None:
        """Set the counters to zero and, if recording, begin a new log."""
        with self._lock:
            self.writes = self.syncs = 0
            self.record(self._recording)
            if not self._recording:
                self.log.clear()

    # What SQLite calls.

    def _x_open(self, _vfs: int, name: int, file: int, flags: int, out: int) -> int:
        native_vfs = ctypes.addressof(self._native)
        rc = _function(self._native, "xOpen")(native_vfs, name, file, flags, out)
        native = c_void_p.from_address(file).value
        if rc == _OK and name and native and flags & _DATABASE_OR_JOURNAL:
            path = os.fsdecode(ctypes.string_at(name))
            with self._lock:
                c_void_p.from_address(file).value = ctypes.addressof(self._table(native))
                self._open[file] = (path, native)
                if self._recording:
                    self._take_over(file, path, native)
        return rc

    def _x_delete(self, _vfs: int, name: int, sync_directory: int) -> int:
        native_vfs = ctypes.addressof(self._native)
        with self._turn():
            rc = _function(self._native, "xDelete")(native_vfs, name, sync_directory)
            if rc == _OK and self._recording:
                path = os.fsdecode(ctypes.string_at(name))
                self.log.append(Event("delete", path, durable=bool(sync_directory)))
        return rc

    def _table(self, native: int) -> _Methods:
        """Our copy of a native method table, made once for all files that share it."""
        if native in self._tables:
            return self._tables[native]
        methods = _Methods.from_address(native)
        table = self._tables[native] = _Methods.from_buffer_copy(methods)
        close, write = _function(methods, "xClose"), _function(methods, "xWrite")
        truncate, sync = _function(methods, "xTruncate"), _function(methods, "xSync")
        traits = _function(methods, "xDeviceCharacteristics")

        def x_close(file: int) -> int:
            with self._lock:
                self._open.pop(file, None)  # first: the address may be used again at once
            return close(file)

        def x_write(file: int, data: int, amount: int, offset: int) -> int:
            if self.before is not None:
                self.before("write", self._open[file][0])
            with self._turn():
                self.writes += 1
                rc = write(file, data, amount, offset)
                if rc == _OK and self._recording:
                    content = ctypes.string_at(data, amount)
                    self.log.append(Event("write", self._open[file][0], offset, content))
            return rc

        def x_truncate(file: int, size: int) -> int:
            with self._turn():
                rc = truncate(file, size)
                if rc == _OK and self._recording:
                    self.log.append(Event("truncate", self._open[file][0], size))
            return rc

        def x_sync(file: int, flags: int) -> int:
            with self._turn():
                self.syncs += 1
                rc = sync(file, flags)
                if rc == _OK and self._recording:
                    self.log.append(Event("sync", self._open[file][0]))
            return rc

        def x_unfetch(file: int, offset: int, memory: int | None) -> int:
            if self.before is not None and memory is None:
                self.before("unfetch", self._open[file][0])
            return unfetch(file, offset, memory)

        def x_device_characteristics(file: int) -> int:
            return traits(file) & _POWERSAFE_OVERWRITE

        self._hook(table, "xClose", x_close)
        self._hook(table, "xWrite", x_write)
        self._hook(table, "xTruncate", x_truncate)
        self._hook(table, "xSync", x_sync)
        self._hook(table, "xDeviceCharacteristics", x_device_characteristics)
        if methods.iVersion >= 3:
            unfetch = _function(methods, "xUnfetch")
            self._hook(table, "xUnfetch", x_unfetch)
        return table

    def _hook(self, table: ctypes.Structure, name: str, function: Callable[..., int]) -> None:
        def guarded(*args: int) -> int:
            try:
                return function(*args)
            except OSError as error:  # a disk that a test makes fail
                return _FULL if error.errno == errno.ENOSPC else _IOERR
            except BaseException:  # ctypes would print it and tell SQLite that all went well
                traceback.print_exc()
                return _IOERR

        callback = _SIGNATURES[name](guarded)
        self._callbacks.append(callback)
        setattr(table, name, ctypes.cast(callback, c_void_p))

    def _turn(self) -> AbstractContextManager[Any]:
        """While recording, act and log as one; else let threads sync in parallel."""
        return self._lock if self._recording else nullcontext()

    def _take_over(self, file: int, path: str, native: int) -> None:
        """Log what the file holds already, as durable. Read through SQLite's own handle: opening
        and closing the file a second time would drop this process's POSIX locks on it."""
        if path in self._seen:
            return
        self._seen.add(path)
        methods, size = _Methods.from_address(native), c_int64()
        _function(methods, "xFileSize")(file, ctypes.addressof(size))
        if size.value:
            buffer = ctypes.create_string_buffer(size.value)
            _function(methods, "xRead")(file, ctypes.addressof(buffer), size.value, 0)
            self.log += [Event("write", path, 0, buffer.raw), Event("sync", path)]


def _library() -> ctypes.CDLL:
    """The SQLite that `_sqlite3` calls: symbols are looked up in that extension and then in the
    libraries it is linked with, on Linux and macOS alike (in Python itself if it is built in)."""
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    try:
        library.sqlite3_vfs_find.restype = c_void_p
        library.sqlite3_vfs_find.argtypes = [c_char_p]
        library.sqlite3_vfs_register.argtypes = [c_void_p, c_int]
        library.sqlite3_vfs_unregister.argtypes = [c_void_p]
    except AttributeError:
        raise SqliteOutOfReach from None
    return library


# -- What a disk may hold after power was lost: pure functions over a log of file events.

SECTOR = 512  # the unit a disk writes as a whole

# How likely a write without a sync is (kept, lost, torn). Drawn per file, so that a cut may well
# keep all of the database and nothing of its WAL.
_MOODS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (8, 1, 1))


class Event(NamedTuple):
    """One thing that happened to a file, or a mark."""

    kind: Literal["write", "truncate", "sync", "delete", "mark"]
    path: str  # of a mark: its label
    offset: int = 0  # where a write begins; of a truncate: the new length
    data: bytes = b""
    durable: bool = False  # of a delete: SQLite had the directory synced as well


def surviving(log: Sequence[Event], cut: int, rng: random.Random, into: Path) -> list[str]:
    """Build in the directory `into` what a disk may hold when power is lost after `cut` events, and
    return the labels marked until then.

    - What a file was given before its last sync is there.
    - Each later write is kept, lost or torn at sectors, in any combination; each later truncate
      happened or not. A torn write may grow the file: what did not arrive reads as zeros.
    - A delete happened or not, unless the directory was synced with it. An undone delete brings the
      old file back; old and new content under one name never mix.
    - A new file's name is durable once the file was synced, and with it all deletes before it in
      that directory. (SQLite syncs the directory with a new journal or WAL; for a new database
      file we trust the file system to do so, as ext4, XFS, btrfs and APFS do.)
    - The `-shm` file is never there: it is memory.

    Files keep their places relative to their common directory. The same log, cut and `rng` state
    give the same files. Raises FileExistsError when `into` holds something already: an old WAL
    beside a new database would prove nothing.
    """
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise FileExistsError(f"{into} is not empty; give surviving() a fresh directory")
    files: dict[str, _File] = {}
    for event in log[:cut]:
        if event.kind != "mark":
            _happen(files, event)
    top = os.path.commonpath([os.path.dirname(e.path) for e in log if e.kind != "mark"] or ["/"])
    for path, file in files.items():
        if (content := file.after_power_loss(rng)) is not None:
            target = into / os.path.relpath(path, top)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return [event.path for event in log[:cut] if event.kind == "mark"]


class _File:
    """A name in a directory: what is durable under it, and what happened since. Each inner list of
    `lives` belongs to one file under that name: a delete begins the next."""

    def __init__(self) -> None:
        self.durable: bytearray | None = None
        self.lives: list[list[Event]] = [[]]

    def forget_deleted(self) -> None:
        if len(self.lives) > 1:
            self.durable, self.lives = None, self.lives[-1:]

    def after_power_loss(self, rng: random.Random) -> bytearray | None:
        life = rng.randrange(len(self.lives))
        content = self.durable if life == 0 else None
        if content is None and (not self.lives[life] or rng.random() < 0.5):
            return None  # deleted, or its creation never reached the disk
        content = bytearray(content or b"")
        mood = rng.choice(_MOODS)
        for event in self.lives[life]:
            fate = rng.choices(("kept", "lost", "torn"), mood)[0]
            if fate == "kept":
                _apply(content, event)
            elif fate == "torn" and event.kind == "write":
                _grow(content, event.offset + len(event.data))
                for part in _sectors(event):
                    if rng.random() < 0.5:
                        _apply(content, part)
        return content


def _happen(files: dict[str, _File], event: Event) -> None:
    file = files.setdefault(event.path, _File())
    if event.kind == "delete":
        file.lives.append([])
        if event.durable:
            file.forget_deleted()
    elif event.kind == "sync":
        file.forget_deleted()
        if file.durable is None:
            file.durable = bytearray()
            for path, other in files.items():
                if os.path.dirname(path) == os.path.dirname(event.path):
                    other.forget_deleted()
        for pending in file.lives[0]:
            _apply(file.durable, pending)
        file.lives = [[]]
    else:
        file.lives[-1].append(event)


def _apply(content: bytearray, event: Event) -> None:
    _grow(content, event.offset)
    if event.kind == "truncate":
        del content[event.offset :]
    else:
        content[event.offset : event.offset + len(event.data)] = event.data


def _grow(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))


def _sectors(event: Event) -> Iterator[Event]:
    at, end = event.offset, event.offset + len(event.data)
    while at < end:
        until = min(end, at - at % SECTOR + SECTOR)
        data = event.data[at - event.offset : until - event.offset]
        yield Event("write", event.path, at, data)
        at = until
