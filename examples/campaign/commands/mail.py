"""Mail: receive it."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Annotated

import typer

from ..app import App
from . import commands


@commands.command()
def inbound(
    lmtp: Annotated[bool, typer.Option(help="Speak LMTP instead of SMTP.")] = False,
) -> None:
    """Receive replies, bounces and unsubscribes, until told to stop."""
    from ..inbound import Inbound, Listener

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("mail.log").setLevel(logging.WARNING)  # of aiosmtpd: each line of SMTP
    with App() as app:
        receiver = Inbound(app)
        listener = Listener(
            receiver, app.settings.inbound_host, app.settings.inbound_port, lmtp=lmtp
        )
        listener.start()
        print(f"Listening on {listener.hostname}:{listener.port}", flush=True)
        try:
            while True:
                receiver.sweep()
                if stop.wait(5):
                    break
        finally:
            listener.stop()
