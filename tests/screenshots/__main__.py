"""Build the scene, serve it, and take the pictures.

python -m tests.screenshots [FOLDER] [--only NAME ...]

Each page is shown in light and dark. The pictures go to docs/images/ui, without loss. Times and ids
differ from one run to the next; the people, texts and states do not.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from playwright.async_api import BrowserContext

import perdure
from tests.browser.chromium import People, chromium_started
from tests.browser.ui_site import Site
from tests.screenshots import agents, campaign, fonts
from tests.screenshots.pages import SHOTS, Shot

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "ui"
LOOKS = {"light": False, "dark": True}
LARGEST = 100_000
ZONE = "Europe/Berlin"
WHO = "lea@example.com"


def small(picture: bytes) -> bytes:
    """The same picture in fewer bytes."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").save(out, "WEBP", lossless=True, quality=100, method=6)
    return out.getvalue()


async def picture(person: BrowserContext, address: str, shot: Shot) -> bytes:
    page = await person.new_page()
    await page.goto(address)
    await page.wait_for_load_state("load")
    await page.evaluate("document.fonts.ready")
    if shot.act is not None:
        await shot.act(page)
    await page.wait_for_timeout(300)  # a live part may come at once
    if shot.element:
        shown = page.locator(shot.element)
        found = await shown.screenshot(animations="disabled", caret="hide")
    else:
        found = await page.screenshot(full_page=shot.full, animations="disabled", caret="hide")
    await page.close()
    return found


async def take(site: Site, work: Path, folder: Path, shots: Sequence[Shot]) -> None:
    """Write the pictures of these pages into a folder."""
    async with chromium_started(FONTCONFIG_FILE=str(fonts.configured(work))) as browser:
        people = People(browser)
        total = 0
        for look, dark in LOOKS.items():
            person = await site.person(people, WHO, timezone_id=ZONE, dark=dark)
            await person.add_init_script(
                "window.Notification = class { static permission = 'default' }"
            )
            first = await person.new_page()
            await first.goto(f"{site.address}/inbox")  # the server learns the time zone
            await first.close()
            for shot in shots:
                address = await asyncio.to_thread(shot.address, site.runtime)
                found = small(await picture(person, f"{site.address}{address}", shot))
                (folder / f"{shot.name}-{look}.webp").write_bytes(found)
                total += len(found)
                note = "  LARGE" if len(found) > LARGEST else ""
                print(f"{len(found):9,} {shot.name}-{look}.webp{note}")
        print(f"{total:9,} bytes in all")
        await people.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--only", nargs="*", help="names of pages")
    asked = parser.parse_args()
    shots = [one for one in SHOTS if not asked.only or one.name in asked.only]
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, campaign.lived(Path(name)) as (app, clock):
        with perdure.Runtime(app.settings.url, clock=clock) as older:
            older.blocking.run(agents.before_the_deploy(older))
        agents.register(app.runtime)
        app.runtime.blocking.run(agents.live(app.runtime))
        with Site(app.runtime, {WHO: "admin"}, worker=False).serving() as site:
            asyncio.run(take(site, Path(name), asked.folder, shots))


if __name__ == "__main__":
    main()
