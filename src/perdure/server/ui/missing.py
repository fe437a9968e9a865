"""The last route under `/ui`: an HTML page for unknown addresses."""

from __future__ import annotations

from fastapi import Response

from perdure.server.errors import ApiError
from perdure.server.ui.page import UiDep, ui_router

last_router = ui_router()


@last_router.api_route("/{path:path}", methods=["GET", "POST"])
async def missing(ui: UiDep, path: str) -> Response:
    raise ApiError(404, f"There is no page at {ui.base}/{path}.")
