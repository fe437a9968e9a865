"""Pages that a program wrote, compared with the text in its source."""

import re


def says(page: str, template: str) -> bool:
    """Whether the page has the text, with anything in place of each `{figure}`."""
    parts = re.split(r"\{[^}]*\}", template.strip())
    return re.search("[^{}]+?".join(map(re.escape, parts)), page) is not None
