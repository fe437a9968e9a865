"""The application for the processes that drive it: `perdure worker examples.campaign.service:rt`,
or a web server for a cron, `uvicorn --factory examples.campaign.service:web`."""

from __future__ import annotations

import logging
from typing import Any

from .app import App
from .inbound import Inbound

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every look-up

app = App()
rt = app.runtime


def web() -> Any:
    """`/ok`, `/unsubscribe/{token}`, and `/cron/tick` once PERDURE_CRON_SECRET is set."""
    from .web import routes

    app.setup()
    served = rt.asgi(worker=False)
    served.routes.extend(routes(Inbound(app)))
    return served
