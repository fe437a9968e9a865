"""Values that a policy names, and arguments named like secrets, are never stored."""

from __future__ import annotations

import base64
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import SecretStr

import perdure
from perdure.types import Retry
from tests.support import secrets_child
from tests.support.agents import Log, chain, opened
from tests.support.effects import AT_ONCE, Boom, Cut, raw, settled, started
from tests.support.fork_server import Ended, ForkServer
from tests.support.raw import Database
from tests.support.secrets_child import GONE, by_key, by_pattern

SOURCE = Path(secrets_child.__file__).read_text()


PLANTED = [
    *(by_pattern(place) for place in re.findall(r"by_pattern\(['\"](\w+)", SOURCE)),
    *(by_key(place) for place in re.findall(r"by_key\(['\"](\w+)", SOURCE)),
]


def forms(secret: str) -> set[bytes]:
    """A secret as it may be written: also inside of base64, at any offset."""
    data = secret.encode()
    found = {data, json.dumps(secret)[1:-1].encode(), quote(secret).encode()}
    found |= {quote(secret, safe="").encode(), repr(data)[2:-1].encode(), data.hex().encode()}
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + data).rstrip(b"=")
        found.add(encoded[4 if shift else 0 : -2])
    return found


def contents(url: str, folder: Path) -> bytes:
    """Everything that the journal, and the log, has."""
    files = b"".join(one.read_bytes() for one in folder.iterdir() if one.is_file())
    if url.startswith("sqlite"):
        return files  # with its WAL
    names = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'perdure_%'"
    with closing(Database(url)) as database:
        rows = [database.execute(f"SELECT * FROM {name}") for (name,) in database.execute(names)]
    values = [value for table in rows for row in table for value in row]
    assert len(rows) > 10
    assert any(isinstance(value, bytes) for value in values)
    return files + b"\n".join(
        value if isinstance(value, bytes) else str(value).encode() for value in values
    )


def live(
    server: ForkServer,
    url: str,
    folder: Path,
    thread: str,
    kill: Any = None,
    *,
    again: bool = False,
) -> Ended:
    lines = str(folder / "log.txt")
    order: dict[str, Any] = {"url": url, "thread": thread, "kill": kill, "again": again}
    ended = server.run("secrets_child:live", lines=lines, **order)
    assert ended.status == (-9 if kill else 0)
    return ended


SEEN = [
    *(f"id {GONE}", GONE, f"I am {GONE}", f"I know {GONE}", f"{GONE} an", GONE, GONE, GONE),
    *([GONE, "pin"], "", GONE, GONE, GONE),
]
"""What the nodes of a run see."""


CALL = [by_pattern("argument"), by_key("argument"), by_key("nested"), [by_pattern("nested")]]
"""What an effect is called with, also when it is called again with the arguments on record."""


KILLS = [["effect mail.after", 1], ["insert_checkpoint.after", 4], ["insert_wait.before", 1]]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_planted_secrets_are_found_nowhere_and_a_crash_changes_nothing_that_nodes_see(
    fork_server: ForkServer, request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    url: str = request.getfixturevalue(f"{database}_url")
    assert len(PLANTED) > 40
    for number, kill in enumerate([None, *KILLS]):
        thread = f"t{number}"
        if kill is not None:
            live(fork_server, url, tmp_path, thread, kill)
        ended = live(fork_server, url, tmp_path, thread, again=kill is not None)
        assert ended.one("seen") == SEEN
        assert ended.one("metadata") == {"why": GONE, "about": GONE, "pin": GONE}
        _, settings = ended.one("bound")
        assert [one for one in settings if one != [GONE, GONE, GONE]] == []
        assert settings
        assert ended.one("findings") == []
        calls = ended.one("calls")
        assert [one for one in calls if one != CALL] == []
        assert len(calls) == 1 or number > 1
    everything = contents(url, tmp_path)
    assert GONE.encode() in everything
    found = {secret for secret in PLANTED if any(form in everything for form in forms(secret))}
    assert found == set()


SECRET = "hunter2-very-secret"


@pytest.mark.parametrize("sync", [True, False])
async def test_secrets_are_in_no_row_and_come_from_the_present_call(url: str, sync: bool) -> None:
    seen: list[tuple[str, str, str]] = []
    errors: list[BaseException] = [
        Boom(f"401 for {SECRET}", SECRET),
        perdure.NotDone(f"refused {SECRET}"),
        Cut(),
    ]

    def call(to: str, api_key: str, other: SecretStr) -> str:
        seen.append((to, api_key, other.get_secret_value()))
        if errors:
            raise errors.pop(0)
        return "sent"

    retry = Retry(attempts=9, first=AT_ONCE.first)
    if sync:
        send = perdure.effect(name="send", retry=retry)(call)

        def plain(state: Log) -> Log:
            return {"log": [send("ana", SECRET, SecretStr(SECRET))]}

        node: Any = plain
    else:

        @perdure.effect(name="send", retry=retry)
        async def asend(to: str, api_key: str, other: SecretStr) -> str:
            return call(to, api_key, other)

        async def coroutine(state: Log) -> Log:
            return {"log": [await asend("ana", SECRET, SecretStr(SECRET))]}

        node = coroutine
    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"] == ["sent"]
        assert seen == [("ana", SECRET, SECRET)] * 4
        [effect] = await rt.effects(run.id)
        assert effect.arguments == {"to": "ana"}
        assert len(await settled(rt, run)) == 3
        rt.saver.flush()
        stored = raw(url)
        assert b"ana" in stored
        assert SECRET.encode() not in stored
