"""The pictures of the pages: each is in the docs, and the docs show no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.screenshots.pages import SHOTS

DOCS = Path(__file__).parents[1] / "docs"


def test_every_page_of_the_browser_is_in_the_gallery_in_light_and_dark() -> None:
    shown = {*re.findall(r"images/ui/([\w-]+)\.webp", (DOCS / "gallery.md").read_text())}
    taken = {f"{shot.name}-{look}" for shot in SHOTS for look in ("light", "dark")}
    taken |= {f"{s.name}-phone-{look}" for s in SHOTS if s.phone for look in ("light", "dark")}
    assert shown == taken
    assert {one.stem for one in (DOCS / "images" / "ui").iterdir()} == taken
