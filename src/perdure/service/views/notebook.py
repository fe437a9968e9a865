"""HTML for notebooks: self-contained, with a style of its own that touches nothing around it."""

from __future__ import annotations

from perdure.service.views.markup import Html, element
from perdure.service.views.page import DARK, LIGHT

CLASS = "perdure-notebook"
_STYLE = (
    f".{CLASS}{{{LIGHT}}}@media(prefers-color-scheme:dark){{.{CLASS}{{{DARK}}}}}"
    # The notebook's own theme wins over that of the system: JupyterLab, then VS Code.
    f"[data-jp-theme-light=true] .{CLASS},.vscode-light .{CLASS}{{{LIGHT}}}"
    f"[data-jp-theme-light=false] .{CLASS},.vscode-dark .{CLASS}{{{DARK}}}"
    f".{CLASS}{{background:var(--paper);color:var(--text);font:14px/1.5 system-ui,sans-serif;"
    "padding:10px 12px;border-radius:8px;overflow:hidden}"
)


def notebook_html(*body: object, style: str = "") -> str:
    """The output of a cell. `style` is a sheet whose rules all begin with a class of the body."""
    return element("div", element("style", Html(_STYLE + style)), *body, class_=CLASS)
