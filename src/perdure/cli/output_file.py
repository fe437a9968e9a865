"""The file that a command writes to."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from perdure.errors import BadArgument


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def output_file(option: str, path: str | None) -> Iterator[BinaryIO]:
    """The file that an option names, which only its owner can read; stdout without one."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with open(path, "wb", opener=_private) as file:
            yield file
    except OSError as error:
        raise BadArgument(f"{option} {path}: {error.strerror or error}.") from error
