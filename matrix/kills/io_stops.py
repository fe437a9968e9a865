"""Stop a process at each of its I/O operations, and kill it at one of them. Linux only.

The process asks the kernel to stop it before every system call that writes, syncs, truncates,
locks, sends or receives, and to notify a supervisor (seccomp's user notification). The supervisor
lets the call go on, or kills the process with SIGKILL instead: then that call is never made. So it
works for C libraries too, SQLite and libpq, without a compiler and without a line in them.

    in the process:     stops = listen(["pwrite64"])      a file descriptor; hand it on
    in the supervisor:  supervise(stops, pid, decide)     `decide` says at which operation to kill
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

_X86 = {
    "write": 1,
    "pwrite64": 18,
    "sendto": 44,
    "recvfrom": 45,
    "fcntl": 72,
    "fsync": 74,
    "fdatasync": 75,
    "truncate": 76,
    "ftruncate": 77,
    "rename": 82,
    "unlink": 87,
    "unlinkat": 263,
    "renameat": 264,
    "fallocate": 285,
}
_ARM = {
    "fcntl": 25,
    "unlinkat": 35,
    "renameat": 38,
    "truncate": 45,
    "ftruncate": 46,
    "fallocate": 47,
    "write": 64,
    "pwrite64": 68,
    "fsync": 82,
    "fdatasync": 83,
    "sendto": 206,
    "recvfrom": 207,
}
_MACHINES = {"x86_64": (0xC000003E, 317, _X86), "aarch64": (0xC00000B7, 277, _ARM)}

_F_SETLK, _F_SETLKW = 6, 7
_NO_NEW_PRIVS, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 8
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
_RECEIVE, _SEND, _GO_ON = 0xC0502100, 0xC0182101, 1
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_REPLY = struct.Struct("=QqiI")


class Operation(NamedTuple):
    """A system call that a process is about to make."""

    call: str
    pid: int
    """Of the thread."""
    args: tuple[int, ...]

    @property
    def target(self) -> str:
        """The file, or `socket:[…]`, it is about; empty for a path."""
        if self.call in ("truncate", "rename", "renameat", "unlink", "unlinkat"):
            return ""
        try:
            return os.readlink(f"/proc/{self.pid}/fd/{self.args[0]}")
        except OSError:
            return ""


class Unsupported(RuntimeError):
    """This system cannot stop a process at its I/O operations."""


def is_supported() -> bool:
    """Whether this system can: Linux 5.5 or newer, on x86-64 or ARM64."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    libc, (_, number, _) = ctypes.CDLL(None, use_errno=True), _MACHINES[platform.machine()]
    sizes = ctypes.create_string_buffer(6)
    supported: int = libc.syscall(number, 3, 0, sizes)
    return supported == 0


def listen(calls: Iterable[str]) -> int:
    """Be stopped at these calls from now on, in this thread and in all it starts. Of `fcntl`, only
    at those that lock.

    Returns the file descriptor for `supervise`. Without a supervisor this process stands still at
    its next operation; without a listener the calls fail.
    """
    libc, (arch, number, numbers) = ctypes.CDLL(None, use_errno=True), _machine()
    program = _program(arch, [numbers[name] for name in calls if name in numbers], numbers["fcntl"])
    code = ctypes.create_string_buffer(program, len(program))
    length, address = len(program) // 8, ctypes.addressof(code)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", length, address), 16)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise Unsupported(f"prctl: {os.strerror(ctypes.get_errno())}")
    found: int = libc.syscall(number, _SET_MODE_FILTER, _NEW_LISTENER, header)
    if found < 0:
        raise Unsupported(f"seccomp: {os.strerror(ctypes.get_errno())}")
    return found


def _machine() -> tuple[int, int, dict[str, int]]:
    found = _MACHINES.get(platform.machine()) if sys.platform == "linux" else None
    if found is None:
        raise Unsupported("Processes can be stopped at their I/O on Linux on x86-64 and ARM64.")
    return found


def _program(arch: int, numbers: list[int], locks: int) -> bytes:
    """Notify of these calls, of `fcntl` only with the commands that lock; allow all others."""

    def one(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, k)

    plain = [number for number in numbers if number != locks]
    notify, allow = one(_RETURN, _NOTIFY), one(_RETURN, _ALLOW)
    parts = [one(_LOAD, 4), one(_EQUAL, arch, 1, 0), allow, one(_LOAD, 0)]
    for number in plain:
        parts += [one(_EQUAL, number, 0, 1), notify]
    if locks in numbers:
        parts += [one(_EQUAL, locks, 1, 0), allow, one(_LOAD, 24)]  # the low half of args[1]
        parts += [one(_EQUAL, _F_SETLK, 1, 0), one(_EQUAL, _F_SETLKW, 0, 1), notify]
    return b"".join([*parts, allow])


def supervise(
    stops: int, pid: int, decide: Callable[[Operation], bool], deadline: float
) -> Operation | None:
    """Let a process make its operations until `decide` is true of one: then kill it there.

    Returns that operation, or None if the process ended by itself; `pid` is not waited for. Raises
    TimeoutError when `deadline`, by `time.monotonic`, is over; the process is killed then.
    """
    names = {number: name for name, number in _machine()[2].items()}
    waiting = select.poll()
    waiting.register(stops, select.POLLIN)
    buffer = bytearray(_NOTIFICATION.size)
    while True:
        ready = waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"process {pid} did not end in time")
        if not ready[0][1] & select.POLLIN:
            return None
        buffer[:] = bytes(len(buffer))
        try:
            fcntl.ioctl(stops, _RECEIVE, buffer)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):  # the thread is gone meanwhile
                continue
            raise
        id, thread, _, number, _, _, *args = _NOTIFICATION.unpack(buffer)
        operation = Operation(names[number], thread, tuple(args))
        if decide(operation):
            os.kill(pid, signal.SIGKILL)
            return operation
        try:
            fcntl.ioctl(stops, _SEND, _REPLY.pack(id, 0, 0, _GO_ON))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
