"""A hook of MkDocs: one line of a reference page names several entries of one module or class.

`::: perdure.errors: Error NotFound` stands for a directive of mkdocstrings for each name, one
heading below the section, with the options that all entries of that module share.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

SHARED = {
    "perdure.errors": "members: [], merge_init_into_class: false, inherited_members: false, "
    "docstring_section_style: list",
    "perdure.types": "merge_init_into_class: false",  # perdure makes these values
}
"""The options of the entries of a module."""
_GROUP = re.compile(r"^::: ([\w.]+): (.+)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Expand the groups of a page of the reference."""
    return expanded(markdown) if page.file.src_uri.startswith("reference/") else markdown


def expanded(markdown: str) -> str:
    """The text of a page with one directive for each entry."""

    def entries(group: re.Match[str]) -> str:
        options = ", ".join(filter(None, ["heading_level: 3", SHARED.get(group[1])]))
        directives = (
            f"::: {group[1]}.{name}\n    options: {{{options}}}\n" for name in group[2].split()
        )
        return "\n".join(directives).rstrip("\n")

    return _GROUP.sub(entries, markdown)
