"""Incoming mail: receive it, and decide about strays."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from ..app import App
from . import commands


@commands.command()
def inbound(
    lmtp: Annotated[bool, typer.Option(help="Speak LMTP instead of SMTP.")] = False,
    imap: Annotated[
        bool, typer.Option("--imap", help="Read your mailbox over IMAP instead of listening.")
    ] = False,
) -> None:
    """Receive replies, bounces and unsubscriptions until stopped."""
    from ..inbound import Inbound

    if lmtp and imap:
        raise ValueError("--lmtp and --imap exclude each other. Leave one out.")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("mail.log").setLevel(logging.WARNING)  # of aiosmtpd: each line of SMTP
    with App() as app, _reading(app, stop) if imap else _listening(app, lmtp) as look:
        receiver = Inbound(app)
        while True:
            receiver.sweep()
            look()
            if stop.wait(5):
                break


Look = Callable[[], None]


@contextlib.contextmanager
def _listening(app: App, lmtp: bool) -> Iterator[Look]:
    """Listen for mail that is handed over."""
    from ..inbound import Inbound, Listener

    listener = Listener(
        Inbound(app), app.settings.inbound_host, app.settings.inbound_port, lmtp=lmtp
    )
    listener.start()
    print(f"Listening on {listener.hostname}:{listener.port}", flush=True)
    try:
        yield lambda: None
    finally:
        listener.stop()


@contextlib.contextmanager
def _reading(app: App, stop: threading.Event) -> Iterator[Look]:
    """Poll a mailbox."""
    from ..imap import Account
    from ..mailbox import Mailbox

    account = Account.of(app.settings)
    with contextlib.closing(Mailbox(app, account)) as mailbox:
        print(f"Reading {account.name}", flush=True)
        yield lambda: mailbox.look(stop.is_set)


@commands.command("strays")
def list_strays(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number.")] = 100,
) -> None:
    """List mails that match no contact and no mail of ours, the newest first."""
    from ..strays import strays

    with App() as app:
        found = strays(app, limit)
    for one in found:
        if as_json:
            print(json.dumps(one))
            continue
        print(f"{one['id']}  {one['at']}  {one['from'] or 'unknown'}  {one['subject']!r}")
        print(f"          {one['read_as']}: {one['text'][:80] or 'no text'}")
    if not found and not as_json:
        print("No strays.")


@commands.command()
def assign(
    id: str,
    address: str,
    kind: Annotated[
        str,
        typer.Option("--as", help="reply, bounce or unsubscribe; by default its content decides."),
    ] = "",
) -> None:
    """Assign a stray to this contact, and end what it ends."""
    from ..strays import KINDS
    from ..strays import assign as take

    if kind and kind not in KINDS:
        raise ValueError(f"--as {kind!r} is not one of {', '.join(KINDS)}.")
    with App() as app:
        message = take(app, id, address, kind)
    print(f"{id} is the {message['kind']} of {address}")


@commands.command()
def dismiss(id: str) -> None:
    """Dismiss a stray, so that it is no longer listed."""
    from ..strays import dismiss as put_away

    with App() as app:
        put_away(app, id)
    print(f"{id} is dismissed")
