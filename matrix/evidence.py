"""docs/evidence.md: each program writes its own section."""

from __future__ import annotations

from pathlib import Path

from upstream.differences import replace_block

PAGE = Path(__file__).parent.parent / "docs" / "evidence.md"


def write_section(name: str, text: str) -> None:
    """Replace what is between the marks of a section."""
    PAGE.write_text(replace_block(PAGE.read_text(), name, text))
