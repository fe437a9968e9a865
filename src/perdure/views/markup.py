"""HTML and SVG made of elements; every text that is not already `Html` is escaped."""

from __future__ import annotations

from html import escape

VOID = frozenset(
    {"meta", "br", "col", "input", "line", "rect", "circle", "path", "polygon", "polyline"}
)
"""Elements without content."""


class Html(str):
    """Text that is HTML already. Only this module's functions make it of a user's text.

    Adding two of them gives a plain str, which would be escaped: use `join`.
    """

    __slots__ = ()

    def __html__(self) -> str:
        """Tells Jinja that it is HTML already."""
        return self


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. `class_` is `class`, `aria_label` is `aria-label`; None and False are omitted."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*parts: object) -> Html:
    """Several parts as one: Html as it is, anything else as escaped text, None as nothing."""
    return Html("".join(_html(part) for part in parts if part is not None))


def _html(part: object) -> str:
    if isinstance(part, Html):
        return part
    return escape(visible(str(part)), quote=False)


def _attribute(value: object) -> str:
    if value is True:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else visible(str(value))


def visible(text: str) -> str:
    """The text without the control characters that HTML and XML do not allow."""
    if text.isprintable():
        return text
    return "".join(
        one if one in "\t\n" or not _is_forbidden(ord(one)) else "\ufffd" for one in text
    )


def _is_forbidden(code: int) -> bool:
    return code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF)
