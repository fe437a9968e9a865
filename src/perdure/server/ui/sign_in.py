"""Signing in with a token, or with the URL that a server on loopback prints; signing out; home.

The printed URL carries a key, which is exchanged for a session and removed from the address, so
that it is in no history and no screenshot. After signing in, the browser goes to the page that was
asked for, if it is one of ours.
"""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import unquote

from fastapi import Response
from starlette.responses import RedirectResponse

from perdure.server.ui.identity import SESSION_SECONDS, Session
from perdure.server.ui.page import PUBLIC, Ui, UiDep, ui_router
from perdure.server.ui.page_route import session_cookie

router = ui_router()

HOME = "/inbox"


@router.get("", openapi_extra=PUBLIC)
@router.get("/", openapi_extra=PUBLIC)
async def home(ui: UiDep, key: str = "", next: str = "") -> Response:
    """Redirect to the inbox; with the key of the printed URL, sign in first."""
    if not key:
        return ui.redirect(HOME)
    signer = await ui.site.signer()
    if not signer.is_sign_in_key(key) or not await ui.site.identities.is_local(ui.request):
        return await _form(ui, next, "This address is no longer valid. Sign in with a token.")
    return await _signed_in(ui, Session(None), next)


@router.get("/sign-in", openapi_extra=PUBLIC)
async def sign_in_page(ui: UiDep, next: str = "") -> Response:
    return await _form(ui, next)


@router.post("/sign-in", openapi_extra=PUBLIC)
async def sign_in(ui: UiDep) -> Response:
    form = await ui.form()
    there = form.get("next")
    session = await ui.site.identities.token_session(form.get("token"))
    if session is None:
        return await _form(
            ui, there, "This token is not valid. It may have expired or been revoked."
        )
    return await _signed_in(ui, session, there)


@router.post("/sign-out", openapi_extra=PUBLIC)
async def sign_out(ui: UiDep) -> Response:
    response = ui.redirect("/sign-in", notice="You are signed out.")
    signer = await ui.site.signer()
    response.delete_cookie(session_cookie(signer), path=ui.base)
    return response


async def _signed_in(ui: Ui, session: Session, next: str) -> Response:
    response = RedirectResponse(f"{ui.base}{own_path(next) or HOME}", 303)
    signer = await ui.site.signer()
    age = timedelta(seconds=SESSION_SECONDS)
    ui.set_cookie(response, session_cookie(signer), signer.session(session), age)
    return response


async def _form(ui: Ui, next: str, problem: str = "") -> Response:
    response = ui.page(
        "sign_in.html",
        title="Sign in",
        next=own_path(next),
        problem=problem,
        takes_tokens=ui.site.identities.takes_tokens,
        is_local=await ui.site.identities.is_local(ui.request),
    )
    response.status_code = 401 if problem else 200
    return response


def own_path(next: str) -> str:
    """A path of our own pages, or empty: never an address elsewhere."""
    is_own = next.startswith("/") and not next.startswith(("//", "/\\"))
    if not is_own or not next.isprintable() or "\\" in next:
        return ""
    # A browser removes these parts, written as %2e too, and what is before them.
    path = next.partition("#")[0].partition("?")[0]
    climbs = any(unquote(part) in (".", "..") for part in path.split("/"))
    return "" if climbs else next
