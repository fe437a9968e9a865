"""The pictures of the docs: each one is shown on a page, and works alone, in light and in dark."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from perdure.server.ui.assets import ICON
from perdure.types import State
from tests.screenshots.pages import SHOTS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DIAGRAMS = sorted((DOCS / "images" / "diagrams").glob("*.svg"))
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SVG = "{http://www.w3.org/2000/svg}"
IMAGES = re.compile(
    r"""!\[(?P<alt>[^\]]*)\]\((?P<src>[^)\s]+)[^)]*\)  # Markdown
    |<img\b(?P<attributes>[^>]*)>""",
    re.VERBOSE,
)

each_diagram = pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda path: path.stem)


def test_the_pictures_of_the_browser_are_those_that_pages_show_in_light_and_dark() -> None:
    taken = {f"{shot.name}-{look}.webp" for shot in SHOTS for look in ("light", "dark")}
    text = "".join(page.read_text() for page in PAGES)
    assert {*re.findall(r"images/ui/([\w-]+\.webp)", text)} == taken
    assert {one.name for one in (DOCS / "images" / "ui").iterdir()} == taken


@each_diagram
def test_a_diagram_has_words_for_screen_readers_and_a_size(diagram: Path) -> None:
    root = ElementTree.parse(diagram).getroot()
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    words = [one for one in root if one.tag in (f"{SVG}title", f"{SVG}desc")]
    assert len(words) == 2
    assert all(one.text and one.text.strip() for one in words)
    assert root.get("aria-labelledby", "").split() == [one.get("id") for one in words]
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"


@each_diagram
def test_a_diagram_has_the_style_that_all_share_with_colours_for_the_dark(diagram: Path) -> None:
    style = _style(diagram)
    assert "@media (prefers-color-scheme: dark)" in style
    assert style == _style(DIAGRAMS[0])
    sizes = [float(size) for size in re.findall(r"\b([\d.]+)px (?:system-ui|ui-mono)", style)]
    sizes += [float(size) for size in re.findall(r"font-size: ([\d.]+)px", style)]
    assert min(sizes) >= 14


@each_diagram
def test_a_diagram_refers_to_nothing_outside_itself(diagram: Path) -> None:
    root = ElementTree.parse(diagram).getroot()
    ids = {one.get("id") for one in root.iter() if one.get("id")}
    for element in root.iter():
        assert element.tag.removeprefix(SVG) not in ("script", "image", "foreignObject", "use", "a")
        for name, value in element.attrib.items():
            assert not name.endswith("href"), name
            assert not name.startswith("on"), name
            assert {*re.findall(r"url\(#?([^)]*)\)", value)} <= ids
    assert not re.search(r"@import|url\(|://", _style(diagram))


@each_diagram
def test_a_diagram_is_on_a_page_with_its_content_in_words(diagram: Path) -> None:
    alts = [alt for src, alt in _images() if src == diagram]
    assert alts, f"{diagram.name} is on no page"
    assert all(len(alt) > 20 for alt in alts), f"{diagram.name} has no alt text"


def test_every_image_of_a_page_is_there() -> None:
    missing = [str(src) for src, _ in _images() if not src.is_file()]
    assert not missing


def test_the_life_of_a_run_has_every_state() -> None:
    picture = ElementTree.parse(DOCS / "images" / "diagrams" / "run-life.svg")
    drawn = {text.text for text in picture.iter(f"{SVG}text")}
    assert drawn >= {str(state) for state in State}


def test_the_logo_is_the_icon_of_the_pages() -> None:
    logo = ElementTree.parse(DOCS / "images" / "logo.svg").getroot()
    icon = ElementTree.fromstring(ICON)
    shapes = [(one.tag, one.attrib) for one in logo if one.tag != f"{SVG}title"]
    assert shapes == [(one.tag, one.attrib) for one in icon]


def _style(diagram: Path) -> str:
    [style] = ElementTree.parse(diagram).getroot().iter(f"{SVG}style")
    return style.text or ""


def _images() -> list[tuple[Path, str]]:
    """Every local image of every page, and its alt text."""
    found = []
    for page in PAGES:
        for image in IMAGES.finditer(page.read_text()):
            src, alt = image["src"], image["alt"]
            if image["attributes"] is not None:
                given = dict(re.findall(r'(\w+)="([^"]*)"', image["attributes"]))
                src, alt = given.get("src", ""), given.get("alt", "")
            if "://" not in src:
                found.append(((page.parent / src).resolve(), alt))
    return found
