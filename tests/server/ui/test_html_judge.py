"""The judge of pages finds what texts of others must not become."""

from __future__ import annotations

import html

import pytest

from tests.server.ui.html_judge import faults
from tests.support.xss import ATTRIBUTES, MARKUP, PAYLOADS

FIELD = '<input type="hidden" name="csrf" value="x">'
HARMLESS = {
    '<a href="https://x.example/" rel="noopener noreferrer">x</a>',
    '<a href="/ui?a=b">x</a>',
}


@pytest.mark.parametrize("payload", MARKUP)
def test_markup_that_a_page_does_not_escape_is_found(payload: str) -> None:
    assert faults(f"<p>{payload}</p>")


@pytest.mark.parametrize("payload", ATTRIBUTES)
def test_a_text_that_breaks_out_of_an_attribute_is_found(payload: str) -> None:
    texts = [
        f'<i title="{payload}">x</i>',
        f"<i title='{payload}'>x</i>",
        f"<i title={payload}>x</i>",
    ]
    assert any(faults(text) for text in texts)


def test_escaped_texts_and_own_addresses_are_no_fault() -> None:
    for payload in PAYLOADS:
        assert faults(f'<p title="{html.escape(payload)}">{html.escape(payload)}</p>') == []
    for text in HARMLESS:
        assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<form method='post'></form>", "form without csrf"),
        ("<script src='/ui/x.js'>1</script>", "script in the page"),
        ("<a href='https://x.example/'>x</a>", "address"),
        ("<a href='//x.example/'>x</a>", "address"),
        ("<a href='/\\x.example/'>x</a>", "address"),
        ("<a href='mailto:a@b.example'>x</a>", "address"),
        ("<div><b></div>", "</div> closes"),
        ("<div>", "not closed"),
    ],
)
def test_other_faults_are_found(text: str, said: str) -> None:
    assert said in "\n".join(faults(text))


def test_a_form_with_its_hidden_field_is_no_fault() -> None:
    assert faults(f'<form method="post" action="/ui/x">{FIELD}<button>Go</button></form>') == []
