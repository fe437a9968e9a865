"""Whose code a file is: the agent's, a library's, or perdure's own."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Literal

import perdure

Owner = Literal["agent", "library", "import", "perdure", "effects", "driver"]

_HOME = str(Path(perdure.__file__).parent) + os.sep
_EFFECTS = os.path.join(_HOME, "effects", "")
_DRIVERS = tuple(os.path.join(_HOME, name, "") for name in ("engine", "testing"))
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_paths()[name]) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def owner(file: str, agent: str = "") -> Owner:
    """Whose code it is. `agent` is where the agent's own code is, if it is installed."""
    if file.startswith("<frozen importlib") or file.endswith(f"{os.sep}tempfile.py"):
        return "import"
    if file.startswith("<"):
        return "library"
    file = os.path.realpath(file)
    if file.startswith(_HOME):
        if file.startswith(_DRIVERS):
            return "driver"
        return "effects" if file.startswith(_EFFECTS) else "perdure"
    if agent and file.startswith(agent):
        return "agent"
    return "library" if file.startswith(_LIBRARIES) else "agent"
