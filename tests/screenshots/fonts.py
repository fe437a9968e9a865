"""The fonts of the pictures: pages use the system's, and pictures must not depend on whose it is.

`make screenshots` installs them in .fonts/, from npm.
"""

from __future__ import annotations

from pathlib import Path

INSTALLED = Path(__file__).parents[2] / ".fonts" / "node_modules" / "@expo-google-fonts"
TEXT, CODE = "Inter", "JetBrains Mono"
FAMILIES = {
    **dict.fromkeys(("system-ui", "sans-serif"), TEXT),
    **dict.fromkeys(("ui-monospace", "monospace", "Menlo", "Consolas", "SF Mono"), CODE),
}
ALIAS = """  <match target="pattern"><test name="family"><string>{}</string></test>
    <edit name="family" mode="assign" binding="strong"><string>{}</string></edit></match>
"""


def configured(folder: Path) -> Path:
    """A configuration of fontconfig that knows these fonts, and those of the system."""
    if not INSTALLED.is_dir():
        raise SystemExit(f"{INSTALLED} is not there. Run `make screenshots`.")
    lines = "".join(ALIAS.format(name, family) for name, family in FAMILIES.items())
    file = folder / "fonts.conf"
    file.write_text(
        f"<fontconfig>\n  <dir>{INSTALLED}</dir>\n  <dir>/usr/share/fonts</dir>\n"
        f"  <cachedir>{folder}/fonts</cachedir>\n{lines}</fontconfig>\n"
    )
    return file
