"""Every form of the pages needs the scope that is listed here."""

from __future__ import annotations

import perdure
from tests.support.agent_server import create_token
from tests.support.agents import opened
from tests.support.http import filled, form_token, pages_of, visiting

FORGED = "not sent by one of our pages"


def posts(rt: perdure.Runtime) -> list[str]:
    """Where forms are posted to, except where nobody is signed in."""
    public = ("/ui/sign-in", "/ui/sign-out")
    routes = [one for one in pages_of(rt) if "POST" in (one.methods or ())]
    found = [one.path for one in routes if one.path not in public and "{path:path}" not in one.path]
    return [one for one in found if one not in UNSIGNED]


UNSIGNED: tuple[str, ...] = ("/ui/link", "/ui/link/difference")
"""Forms that a signed link leads to, which need no account."""


NEEDED: dict[str, str] = {
    "/ui/effects/settle": "admin",
    "/ui/health/doctor": "admin",
    "/ui/outbox/redeliver": "admin",
    "/ui/reflections/cancel": "admin",
    "/ui/reflections/retry": "admin",
    "/ui/runs/bulk": "admin",
    "/ui/runs/bulk/do": "admin",
    "/ui/runs/{run_id}/signal": "admin",
    "/ui/runs/{run_id}/cancel": "admin",
    "/ui/runs/{run_id}/fork": "admin",
    "/ui/runs/{run_id}/pause": "admin",
    "/ui/runs/{run_id}/resume": "admin",
    "/ui/runs/{run_id}/retry": "admin",
    "/ui/runs/{run_id}/wake": "admin",
    "/ui/schedules/delete": "admin",
    "/ui/schedules/enable": "admin",
    "/ui/schedules/start": "admin",
    "/ui/workers/drain": "admin",
    "/ui/inbox/several": "answer",
    "/ui/inbox/several/send": "answer",
    "/ui/questions/{wait_id}/answer": "answer",
    "/ui/questions/{wait_id}/comment": "answer",
    "/ui/questions/{wait_id}/hand-over": "answer",
    "/ui/questions/{wait_id}/release": "answer",
    "/ui/questions/{wait_id}/take": "answer",
    "/ui/questions/{wait_id}/difference": "answer",
    "/ui/questions/{wait_id}/withdraw": "answer",
    "/ui/questions/{wait_id}/ask-again": "answer",
}
"""The scope that each form needs."""


async def test_every_form_needs_the_scope_that_is_listed_here(sqlite_url: str) -> None:
    """An approver cannot administer, and a token that starts runs cannot approve."""
    async with opened(sqlite_url) as rt:
        assert set(posts(rt)) == NEEDED.keys()
        app = rt.asgi(ui=True, worker=False)
        scopes = ("read", "start", "answer", "admin")
        tokens = {had: create_token(sqlite_url, had, had) for had in scopes}
        for had, token in tokens.items():
            async with visiting(rt, app) as visitor:
                await visitor.sign_in(token)
                fields = {"csrf": await form_token(rt, visitor, had)}
                for path, needed in NEEDED.items():
                    answer = await visitor.post(filled(path), fields)
                    is_refused = answer.status_code == 403
                    may = had in (needed, "admin")
                    assert is_refused is not may, (path, had, answer.status_code, answer.text)
                    assert answer.status_code < 500
                    assert FORGED not in answer.text
