"""docs/evidence.md: each program writes its own figures between two marks of the page."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from importlib.metadata import version
from pathlib import Path

from upstream.differences import replace_block

PAGE = Path(__file__).parent.parent / "docs" / "evidence.md"


def write_section(name: str, text: str) -> None:
    """Replace what is between the marks of a section."""
    PAGE.write_text(replace_block(PAGE.read_text(), name, text))


def machine(seconds: float, *packages: str) -> str:
    """When, how long and with what: the last line of the figures."""
    found = [f"{name} {version(name)}" for name in packages]
    return (
        f"{time.strftime('%B %Y')}, {seconds / 60:.0f} minutes on {os.cpu_count()} cores with "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {', '.join(found)}"
    )
