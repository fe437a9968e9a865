"""The application for who drives it: `perdure worker examples.campaign.service:rt`, or a web server
for a cron, `uvicorn --factory examples.campaign.service:web`."""

from __future__ import annotations

import logging
from typing import Any

from .app import App

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every look-up

app = App()
rt = app.runtime


def web() -> Any:
    """`/ok`, and `/cron/tick` once PERDURE_CRON_SECRET is set."""
    app.setup()
    return rt.asgi()
