"""What a command works on: a runtime by its place in the code, or a journal by its URL."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.box import Box
from perdure.clock import Clock, JournalClock
from perdure.codec import Codec
from perdure.errors import BadArgument
from perdure.journal import Journal, connect
from perdure.seal import Checksum

if TYPE_CHECKING:
    from perdure.runtime import Runtime


def load(place: str) -> Runtime:
    """The runtime that `module:name` names."""
    from perdure.runtime import Runtime

    module, _, name = place.partition(":")
    if not module or not name:
        raise BadArgument(f"{place!r} names no runtime: use module:name, such as agents:runtime.")
    if module.endswith(".py"):
        raise BadArgument(f"{place!r}: name the module without .py, as {module[:-3]}:{name}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise BadArgument(f"There is no module {module!r} in {Path.cwd()}.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadArgument(f"The module {module!r} has no {name!r}.")
        found = getattr(found, part)
    if not isinstance(found, Runtime):
        raise BadArgument(f"{place} is no perdure.Runtime but {found!r}.")
    return found


def check_there(url: str) -> str:
    """The URL of a journal that exists: looking at one must not make it."""
    url = url or os.environ.get("PERDURE_URL", "")
    path = url.removeprefix("sqlite:///").partition("?")[0]
    if url.startswith("sqlite:") and not Path(path).exists():
        raise BadArgument(f"There is no journal at {url}.")
    return url


@contextlib.contextmanager
def opened(place: str) -> Iterator[tuple[Journal, Box, Clock]]:
    """The journal at a URL, or that of a runtime, with its keys and types."""
    if ":" in place and "://" not in place:
        with load(place) as runtime:
            yield runtime.journal, runtime.saver.box, JournalClock(runtime.journal)
        return
    journal = connect(check_there(place))
    try:
        yield journal, Box(Codec(), Checksum()), JournalClock(journal)
    finally:
        journal.close()
