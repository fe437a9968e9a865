"""`make ui-clients`: a person uses Agent Inbox and agent-chat-ui against our server.

Both are applications of LangChain on GitHub; build and start them as their own README says, then
name their addresses. Our server runs on a temporary SQLite journal, and names both origins.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from perdure.testing.d1 import find_node
from tests.clients.js_clients import INSTALLED, PROGRAMS, agent_server

NONE = "-"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make ui-clients", description=__doc__)
    parser.add_argument("--agent-inbox", default=NONE, help="address of a running Agent Inbox")
    parser.add_argument("--agent-chat-ui", default=NONE, help="address of a running agent-chat-ui")
    parser.add_argument("--pictures", type=Path, default=Path(".js-clients/pictures"))
    args = parser.parse_args()
    addresses = [one.rstrip("/") or NONE for one in (args.agent_inbox, args.agent_chat_ui)]
    if addresses == [NONE, NONE]:
        parser.error(
            "neither application was named. Clone langchain-ai/agent-inbox and "
            "langchain-ai/agent-chat-ui from GitHub, start them as their README says, then: "
            "make ui-clients AGENT_INBOX=http://127.0.0.1:3000 AGENT_CHAT_UI=http://127.0.0.1:3001"
        )
    args.pictures.mkdir(parents=True, exist_ok=True)
    origins = [f"{u.scheme}://{u.netloc}" for u in map(urlsplit, addresses) if u.netloc]
    with (
        tempfile.TemporaryDirectory() as folder,
        agent_server(f"sqlite:///{folder}/journal.db", cors=origins) as address,
    ):
        done = subprocess.run(
            [
                *(find_node(), str(PROGRAMS / "ui_clients.mjs")),
                *(address, str(args.pictures), *addresses),
            ],
            env={**os.environ, "JS_CLIENTS": str(INSTALLED)},
            check=False,
        )
    print(f"Pictures are in {args.pictures}.")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
