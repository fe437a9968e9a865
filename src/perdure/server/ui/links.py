"""The page of a signed link: one question, for one person, without sign-in.

Opening it decides nothing, because mail scanners open links, too; only its form does, once. It
shows only this question and links to no other page. A link that cannot be used says why; one with
a wrong signature reveals nothing about a question.

The link is in the query of the address, which our access log leaves out. As on all pages, the
browser sends it to no other site (`Referrer-Policy`) and caches no copy (`no-store`).
"""

from __future__ import annotations

from typing import NamedTuple

from fastapi import Response

from perdure.commands import question_links
from perdure.commands.answer_schema import as_json
from perdure.commands.question_links import LinkedQuestion
from perdure.errors import (
    AnswerRefused,
    BadAnswer,
    Error,
    InvalidLink,
    LinkExpired,
    LinkRefused,
    LinkSpent,
    NotFound,
)
from perdure.server.errors import status_of
from perdure.server.ui.page import PUBLIC, Ui, UiDep, ui_router
from perdure.server.ui.question_access import posted, run_of, said
from perdure.server.ui.questions import difference_part, needs_preview, preview, title_of
from perdure.types import Run
from perdure.views.answer_difference import edited_calls
from perdure.views.answer_form import AnswerForm, empty_form, filled_form
from perdure.views.question import End, QuestionEnd, question_end, question_of

router = ui_router()

REFUSED: tuple[tuple[type[Error], str, str], ...] = (
    (
        InvalidLink,
        "This link is not valid",
        "It may be incomplete: copy the whole link from the message.",
    ),
    (
        LinkExpired,
        "This link has expired",
        "Nothing was decided. Ask for a new link, or sign in and decide in the inbox.",
    ),
    (
        LinkSpent,
        "This link has been used",
        "The answer was withdrawn. Ask for a new link, or sign in and decide in the inbox.",
    ),
    (NotFound, "The question is gone", "Its run was deleted. There is nothing to decide."),
)
"""Reasons why a link cannot be used, each with a title and a text."""


class Seen(NamedTuple):
    """The question of a link, its run, and whether it is still to be decided."""

    linked: LinkedQuestion
    run: Run | None
    end: QuestionEnd

    @property
    def is_open(self) -> bool:
        return self.end.end is End.OPEN

    @property
    def is_mine(self) -> bool:
        """Whether the person of the link answered it."""
        answered = self.end.end is End.ANSWERED
        return answered and self.linked.wait.answered_by == self.linked.link.to


@router.api_route("/link", methods=["GET", "HEAD"], openapi_extra=PUBLIC)
async def show(ui: UiDep, t: str = "") -> Response:
    try:
        seen = await _look(ui, t)
    except (LinkRefused, NotFound) as error:
        return _refused(ui, error)
    if not seen.is_open:
        return _over(ui, seen)
    return _open(ui, seen, empty_form(question_of(seen.linked.wait), ui.zone))


@router.post("/link", openapi_extra=PUBLIC)
async def answer(ui: UiDep, t: str = "") -> Response:
    """Send an answer as the person of the link, or show what it changes first."""
    try:
        return await _answer(ui, await _look(ui, t), t)
    except (LinkRefused, NotFound) as error:
        return _refused(ui, error)


@router.post("/link/difference", openapi_extra=PUBLIC)
async def difference(ui: UiDep, t: str = "") -> Response:
    """What an edit would change, while it is typed."""
    form = _filled(ui, await _look(ui, t))
    return ui.html(difference_part(ui, form))


async def _look(ui: Ui, token: str) -> Seen:
    """The question of a link. Raises `LinkRefused`, or `NotFound` if it was deleted."""
    linked = await ui.runtime.journal.arun(question_links.look_at(ui.runtime.engine, token))
    if linked.is_spent:
        raise LinkSpent(linked.wait.id)
    run = await run_of(ui, linked.wait)
    # The link opens no other question of the run, so none is named.
    state = None if run is None else run.state
    end = question_end(linked.wait, state, ui.now, asks_again=False, viewer=linked.link.to)
    return Seen(linked, run, end)


def _filled(ui: Ui, seen: Seen) -> AnswerForm:
    wait = seen.linked.wait
    return filled_form(question_of(wait), wait.value, posted(ui.posted), ui.zone)


async def _answer(ui: Ui, seen: Seen, token: str) -> Response:
    form, step = _filled(ui, seen), ui.posted.get("step")
    if seen.is_open and (not form.is_good or step == "edit"):
        page = _open(ui, seen, form)
        page.status_code = 200 if form.is_good else 422
        return page
    if seen.is_open and step != "send" and needs_preview(form):
        return preview(ui, form, ui.url("/link", t=token))
    try:
        if seen.is_open:
            plan = question_links.answer_by_link(
                ui.runtime.engine, token, form.answer, ui.api.address
            )
            await ui.runtime.journal.arun(plan)
            ui.runtime.look_now()
            return ui.redirect("/link", t=token)
    except BadAnswer:
        raise
    except AnswerRefused:  # someone else answered first
        seen = await _look(ui, token)
    if seen.is_mine and _is_same(seen, form):  # a second click
        return ui.redirect("/link", t=token)
    page = _over(ui, seen, refused=True)
    page.status_code = 409
    return page


def _is_same(seen: Seen, form: AnswerForm) -> bool:
    return form.is_good and bool(as_json(seen.linked.wait.answer) == as_json(form.answer))


# -- pages


def _open(ui: Ui, seen: Seen, form: AnswerForm) -> Response:
    token = ui.request.query_params.get("t", "")
    return ui.page(
        "link.html",
        title=title_of(form.question),
        question=form.question,
        graph=seen.run.graph if seen.run else "",
        link=seen.linked.link,
        form=form,
        send_to=ui.url("/link", t=token),
        compare=ui.url("/link/difference", t=token),
    )


def _over(ui: Ui, seen: Seen, *, refused: bool = False) -> Response:
    wait, question = seen.linked.wait, question_of(seen.linked.wait)
    sent = seen.is_mine and not refused
    return ui.page(
        "link_over.html",
        title="Your answer was sent" if sent else seen.end.title,
        question=question,
        wait=wait,
        end=seen.end,
        said=said(question, wait.value, wait.answer) if sent else "",
        edited=edited_calls(question, wait.answer) if seen.end.end is End.ANSWERED else [],
        refused=refused,
    )


def _refused(ui: Ui, error: Error) -> Response:
    title, message = next((one, text) for kind, one, text in REFUSED if isinstance(error, kind))
    page = ui.page("link_refused.html", title=title, message=message)
    page.status_code = status_of(error)
    return page
