"""Processes of the campaign's month, which are children of `tests.support.fork_server`.

`work` is a worker, `tick` a cron that drives 25 due threads, `tick 1` one that drives them one
after the other, `listen` takes mail in. What its order has as `environment` decides where their
traces go.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from examples.campaign.app import App
from examples.campaign.clock import SharedClock
from examples.campaign.inbound import Inbound, Listener
from examples.campaign.settings import Settings
from perdure.observe import LangSmith, from_env
from tests.support.fork_server import Tell

CONCURRENCY = 6
LIMIT = 25


def be(order: dict[str, Any], tell: Tell) -> None:
    """What a process does, until it is killed or has done it."""
    settings = Settings(**order["settings"])
    os.environ.update(order["environment"])
    name, _, option = order["what"].partition(" ")
    clock = SharedClock(Path(order["clock"]))
    observers = from_env()
    if "LANGSMITH_ENDPOINT" in order["environment"]:  # LangChain itself reports nothing
        observers.append(LangSmith())
    with App(settings, clock=clock, observe=observers) as app:
        if name == "work":
            asyncio.run(app.runtime.work(concurrency=CONCURRENCY))
        elif name == "tick":
            count = int(option or CONCURRENCY)
            asyncio.run(app.runtime.tick(LIMIT, concurrency=count))
        else:
            inbound = Inbound(app)
            Listener(inbound, settings.inbound_host, settings.inbound_port).start()
            while not threading.Event().wait(0.2):
                inbound.sweep()
