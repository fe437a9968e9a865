"""Forms as a browser sends them: what is in each field, and what a person changes."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.views.answer_form import AnswerForm
from perdure.views.schema_form import Field, Widget


def posted(form: Field, **changes: str | list[str]) -> dict[str, list[str]]:
    """What a browser sends of a form. `changes` are by the last part of a field's name, or by the
    whole name, dots as `__`."""
    sent = dict(_fields(form))
    for name, text in changes.items():
        whole = name.replace("__", ".")
        [match] = {
            one.name for one in form.every if one.name == whole or one.name.endswith(f".{whole}")
        }
        sent[match] = _sent([text] if isinstance(text, str) else text)
    return sent


def posted_edit(form: AnswerForm, n: int = 0, **changes: str | list[str]) -> dict[str, list[str]]:
    """What a browser sends when a person edits an action and decides no other."""
    edit = form.actions[n].edit
    assert edit is not None
    return {"how": ["decisions"], f"decision.{n}": ["edit"], **posted(edit, **changes)}


def _fields(field: Field) -> Iterator[tuple[str, list[str]]]:
    if field.widget is Widget.CHECKBOX:
        if field.text:
            yield field.name, ["on"]
    elif field.widget in (Widget.RADIO, Widget.CHECKBOXES):
        keys = {choice.key for choice in field.choices}
        if chosen := [text for text in field.texts if text in keys]:
            yield field.name, chosen
    elif field.widget not in (Widget.GROUP, Widget.FIXED) and (
        field.widget is not Widget.ONE_OF or field.text
    ):
        yield field.name, _sent(field.texts)
    for one in field.fields:
        yield from _fields(one)


def _sent(texts: list[str] | tuple[str, ...]) -> list[str]:
    return [text.replace("\r\n", "\n").replace("\n", "\r\n") for text in texts]
